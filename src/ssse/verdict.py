"""What an erasure says about itself, the same for torch modules and for scikit-learn estimators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

Verdict = Literal["ok", "caution", "refused"]

# Up to these, one step is vouched for where nothing is proved.
TRUSTED_STRAIN = 0.35
TRUSTED_SWING = 0.75


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
        swing: the mean over them of max − min over the classes of the change of their scores; of one score, of |Δz|;
            of several outputs, of the largest among them.
        strain: the root mean square change of the scores of the samples that stay, weighted by their curvature:
            √(uᵀG₋u / Σ tr hᵢ), u the request's own step, or all of it where that is longer (a solver had left
            something to do). Of requests in a row, the sum since the curvature was taken.
            One step is exact where curvature does not change; these say by how much the scores, that it depends on, do.
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
    seconds: float | None = None

    def judged(self, reasons: list[str]) -> Self:
        """With the verdict that reasons for caution, or their absence, mean."""
        return replace(self, verdict="caution" if reasons else "ok", reasons=tuple(reasons))

    def refused(self, reason: str) -> Self:
        return replace(self, verdict="refused", reasons=(reason,))

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: infinity and NaN as None, tuples as lists."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def shown(self) -> Mapping[str, str]:
        """The numbers to print, by their names."""
        return {
            "forgotten": f"{self.k} of {self.n}",
            "step norm": number(self.step_norm),
            "relative to θ": number(self.relative_step),
            "largest leverage": number(self.leverage_max),
            "loss on S": f"{number(self.loss_before)} → {number(self.loss_after)}",
        }

    def __str__(self) -> str:
        lines = [f"verdict: {self.verdict}", *(f"  because {reason}" for reason in self.reasons)]
        lines += [f"{name}: {value}" for name, value in self.shown().items()]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


def distrust(swing: float | None, strain: float | None) -> list[str]:
    """Why one step whose result nothing proves is not vouched for either, by what it does to scores."""
    if swing is None or strain is None:
        return ["No distance from a refit is proved, and how far the step reaches (swing, strain) is not known here."]
    reasons = []
    if not strain < TRUSTED_STRAIN:
        reasons.append(
            f"The scores of the samples that stay change by {strain:.2g} (strain), more than the {TRUSTED_STRAIN:g} up "
            "to which one step is vouched for: refine with what remains, or retrain."
        )
    if not swing < TRUSTED_SWING:
        reasons.append(
            f"The scores of the forgotten samples change by {swing:.2g} (swing), more than the {TRUSTED_SWING:g} up to "
            "which one step is vouched for: refine with what remains, or retrain."
        )
    return reasons


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
