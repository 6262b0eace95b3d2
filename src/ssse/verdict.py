"""What an erasure says about itself, the same for torch modules and for scikit-learn estimators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, Self

Verdict = Literal["ok", "caution", "refused"]

# Up to these, one step of a linear model was near the retrained one wherever it was measured: benchmarks/verdicts.py
# chose them on some data sets and counts on others.
TRUSTED_SWING = 2.0
TRUSTED_STRAIN = 0.35
TRUSTED_STRETCH = 0.15
TRUSTED_BEND = 0.35
MOST = 0.95  # of the samples: the few whose scores move furthest say little about the others


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """Measured while erasing; each engine adds what it alone can measure.

    Attributes:
        verdict: "ok", "caution" or "refused". reasons: why it is not "ok". notes: what else one should know.
        k, n, erased: samples forgotten now, samples there were before, samples erased before.
        policy: of the stream of requests.
        step_norm, relative_step: ‖θ̂−θ‖, and over ‖θ‖.
        leverage_max: the largest leverage of the samples, below 1 for samples of the training data.
        loss_before, loss_after: mean data loss on them under the old and the new model.
        swing: by how much the scores of most of them (0.95) move at most: max − min over the classes of the change; of
            one score |Δz|, of several outputs the largest.
        strain: the root mean square change of the scores of the samples that stay, weighted by their curvature, summed
            over the requests since the curvature was taken.
        stretch: by how much of the step the length of θ may be off.
        bend: by how much of the step it is off, as the samples show it. One step is exact where curvature does not
            change; these four say by how much it does (`ssse.erasure.trust`); None where they are not known.
        probe_samples: samples that should keep working and were looked at, where some were given;
        probe_loss_before, probe_loss_after, probe_accuracy_before, probe_accuracy_after: on them.
        forced: the step would have been refused, and was taken because somebody said so.
    """

    verdict: Verdict = "ok"
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    k: int
    n: int
    erased: int
    policy: str
    step_norm: float | None = None
    relative_step: float | None = None
    leverage_max: float | None = None
    loss_before: float | None = None
    loss_after: float | None = None
    swing: float | None = None
    strain: float | None = None
    stretch: float | None = None
    bend: float | None = None
    probe_samples: int | None = None
    probe_loss_before: float | None = None
    probe_loss_after: float | None = None
    probe_accuracy_before: float | None = None
    probe_accuracy_after: float | None = None
    forced: bool = False
    seconds: float | None = None

    def judged(self, reasons: list[str]) -> Self:
        """With the verdict that reasons for caution, or their absence, mean."""
        return replace(self, verdict="caution" if reasons else "ok", reasons=tuple(reasons))

    def refused(self, *reasons: str) -> Self:
        return replace(self, verdict="refused", reasons=reasons)

    def taken_by_force(self, refusal: Sequence[str]) -> Self:
        """Of a step that is judged already, and would have been refused for these reasons: they come first."""
        first = tuple(f"Taken by force: {reason}" for reason in refusal)
        return replace(self, forced=True, verdict="caution", reasons=first + self.reasons)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: infinity and NaN as None, tuples as lists."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def shown(self) -> Mapping[str, str]:
        """The numbers to print, by their names."""
        moved = f"{number(self.swing)} on S, {number(self.strain)} on the others"
        probe = probe_in_words(self.to_dict())
        return {
            "forgotten": f"{self.k} of {self.n}",
            "step norm": number(self.step_norm),
            "relative to θ": number(self.relative_step),
            "largest leverage": number(self.leverage_max),
            "loss on S": f"{number(self.loss_before)} → {number(self.loss_after)}",
            **({} if self.swing is None else {"scores move by": moved}),
            **({"probe": probe} if probe else {}),
        }

    def __str__(self) -> str:
        lines = [f"verdict: {self.verdict}", *(f"  because {reason}" for reason in self.reasons)]
        lines += [f"{name}: {value}" for name, value in self.shown().items()]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


class Measures(Protocol):
    """What is known of a step before anything is retrained; as of `Assessment`."""

    @property
    def swing(self) -> float | None: ...
    @property
    def strain(self) -> float | None: ...
    @property
    def stretch(self) -> float | None: ...
    @property
    def bend(self) -> float | None: ...


def distrust(step: Measures) -> list[str]:
    """Why a step that changes the curvature so much is not vouched for, in one sentence; none if it is."""
    if step.swing is None or step.strain is None or step.stretch is None or step.bend is None:
        return ["How far the step moves scores is not known, so it is not vouched for. Fit the curvature again."]
    found = []
    if not step.swing <= TRUSTED_SWING:
        found.append(
            f"the scores of the forgotten samples move by up to {step.swing:.2g} (trusted: up to {TRUSTED_SWING:g})"
        )
    if not step.strain <= TRUSTED_STRAIN:
        found.append(f"those of the samples that stay by {step.strain:.2g} (up to {TRUSTED_STRAIN:g})")
    if not step.stretch <= TRUSTED_STRETCH:
        found.append(f"the length of θ may be off by {step.stretch:.0%} of the step (up to {TRUSTED_STRETCH:.0%})")
    if not step.bend <= TRUSTED_BEND:
        found.append(f"it is off by about {step.bend:.0%}, as the forgotten samples show it (up to {TRUSTED_BEND:.0%})")
    if not found:
        return []
    return [f"The step is long for one step: {'; '.join(found)}. Refine with the data that remains, if it is there."]


def probe_in_words(assessment: Mapping[str, Any]) -> str:
    """Of an assessment's `to_dict()`, which may be of a version that had no probe: then nothing."""
    samples = assessment.get("probe_samples")
    if samples is None:
        return ""
    loss, accuracy = (
        [assessment.get(f"probe_{name}_{moment}") for moment in ("before", "after")] for name in ("loss", "accuracy")
    )
    parts = [] if None in loss else [f"loss {number(loss[0])} → {number(loss[1])}"]
    parts += [] if None in accuracy else [f"{accuracy[0]:.1%} → {accuracy[1]:.1%} right"]
    return f"{', '.join(parts)} ({samples:,} samples)"


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
