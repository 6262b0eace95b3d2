"""What an erasure says about itself, the same for torch modules and for scikit-learn estimators."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, Self

Verdict = Literal["ok", "caution", "refused"]
Bound = Literal["stationarity", "share", "step", "leverage", "probe"]

# What a step must keep to, or it is refused: a model at the minimum of the objective that was declared; how much of the
# data goes at once; its length; what stays, holding it; samples that should keep working. Who overrides one names it.
# Where there is no step to take (NaN, samples that were never there, a leverage of 1 or more) nothing is overridden.
BOUNDS: tuple[Bound, ...] = ("stationarity", "share", "step", "leverage", "probe")  # causes first

# Of the samples that the curvature stands for, the most that one request may take. Half of the classes of balanced data
# is half of the samples, give or take what classes differ by in size, and so is one class of two; one class of three is
# not. Past it the model is one of another problem, and training anew costs at most 60 % of what it did. A limit of
# prudence, not one that was measured.
MOST_AT_ONCE = 0.4

# One step of a linear model is trusted where the root of the sum of squares of its measures, each over its limit here,
# is at most 1, and the samples hold no more than so much of the curvature of any direction. Chosen on some data sets
# and counted on others: benchmarks/verdicts.py.
TRUSTED_SWING = 5.0
TRUSTED_STRAIN = 0.25
TRUSTED_STRETCH = 0.20
TRUSTED_BEND = 0.40
TRUSTED_LEVERAGE = 0.88
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
        probe_worse: whether they do worse after the step than before, by more than chance.
        broken: the bounds (`BOUNDS`) that the step does not keep to.
        overridden: the same, of a step that was taken because somebody named them.
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
    probe_worse: bool | None = None
    broken: tuple[Bound, ...] = ()
    overridden: tuple[Bound, ...] = ()
    seconds: float | None = None

    def judged(self, reasons: list[str]) -> Self:
        """With the verdict that reasons for caution, or their absence, mean."""
        return replace(self, verdict="caution" if reasons else "ok", reasons=tuple(reasons))

    def refused(self, *reasons: str) -> Self:
        return replace(self, verdict="refused", reasons=reasons)

    def breaking(self, found: Mapping[Bound, str]) -> Self:
        """With the bounds that it does not keep to, in their own order."""
        return replace(self, broken=tuple(bound for bound in BOUNDS if bound in found))

    def overriding(self, found: Mapping[Bound, str]) -> Self:
        """Of a step that is judged already, and would have been refused for these reasons: they come first."""
        known = self.breaking(found)
        first = tuple(f"Overridden ({bound}): {found[bound]}" for bound in known.broken)
        return replace(known, overridden=known.broken, verdict="caution", reasons=first + self.reasons)

    @property
    def sound(self) -> bool:
        """Whether this is reason enough to let the model from before go: vouched for, or seen to keep working."""
        return not self.overridden and (self.verdict == "ok" or self.sound_by_probe)

    @property
    def sound_by_probe(self) -> bool:
        """As far as samples that should keep working tell, which look at the model as a whole."""
        return self.probe_worse is False and not self.overridden and self.verdict != "refused"

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
    @property
    def leverage_max(self) -> float | None: ...


def distrust(step: Measures) -> list[str]:
    """Why a step that changes the curvature so much is not vouched for, in words and numbers; none if it is."""
    if step.swing is None or step.strain is None or step.stretch is None or step.bend is None:
        return ["How far the step moves scores is not known, so it is not vouched for. Fit the curvature again."]
    reasons = []
    far = math.hypot(
        step.swing / TRUSTED_SWING,
        step.strain / TRUSTED_STRAIN,
        step.stretch / TRUSTED_STRETCH,
        step.bend / TRUSTED_BEND,
    )
    if not far <= 1:
        reasons.append(
            f"The step goes {far:.2g} times as far as one step is trusted to: scores move by up to {step.swing:.2g} on "
            f"the forgotten samples and by {step.strain:.2g} on those that stay, the length of θ may be off by "
            f"{step.stretch:.0%} of the step, and the forgotten samples show it off by {step.bend:.0%}. Refine with "
            "the data that remains, if it is there."
        )
    if step.leverage_max is not None and not step.leverage_max <= TRUSTED_LEVERAGE:
        reasons.append(
            f"The samples alone determine {step.leverage_max:.1%} of a direction of θ (largest leverage): there one "
            "step goes by what hardly anything holds."
        )
    return reasons


def way_around(broken: Collection[Bound]) -> str:
    """What takes exactly this step; the command line has an option for it."""
    names = "".join(f'"{bound}", ' for bound in broken)
    return f"To take the step all the same: override=({names.rstrip() if len(broken) == 1 else names[:-2]})."


def too_many_at_once(k: int, n: int) -> str:
    """Why so many samples are not erased by one step; nothing where they may be."""
    if k <= MOST_AT_ONCE * n:
        return ""
    return (
        f"The request takes {k / n:.1%} of the {n:,} samples that the curvature stands for, more than the "
        f"{MOST_AT_ONCE:.0%} that one step is for. Train anew on what stays, which costs little more than half."
    )


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
