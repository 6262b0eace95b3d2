"""What one erasure from a scikit-learn model has to say about itself."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

LARGE_CORRECTION = 0.05  # of ‖θ‖, from which on the estimator was not at the minimum
TOO_FAR = 1.0  # of ‖θ‖, from which on one step may go anywhere
NEGLIGIBLE = 1e-9  # of ‖θ‖: a distance that nobody asks about
LARGE_BOUND = 0.5  # of what is due: up to there half of what had to change is proved to have changed


@dataclass(frozen=True)
class Outcome:
    """Measured while erasing.

    Attributes:
        verdict: "ok", "caution", or "refused". reasons: why it is not "ok". notes: what else one should know.
        k, n, erased: samples forgotten now, that stay, and forgotten so far.
        epsilon: ‖θ̂ − θ₋S‖, the distance of coefficients and intercepts from those of a refit to its minimum, is not
            above it; infinite where nothing is proved. gradient: ‖∇L₋S(θ̂)‖ is not above it.
        exact: least squares, where nothing but rounding is left.
        due: by how much the samples had to move the model, at least; the step less the correction.
        leverage_max: of the samples, below 1. step_norm, relative_step: ‖θ̂ − θ‖, and over ‖θ‖.
        correction: how far, by one Newton step, the estimator was from the minimum when it was fitted, over ‖θ‖.
        loss_before, loss_after: mean loss on the samples.
    """

    verdict: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    k: int
    n: int
    erased: int
    policy: str
    exact: bool = False
    epsilon: float = math.inf
    gradient: float = math.inf
    due: float | None = None
    leverage_max: float | None = None
    step_norm: float | None = None
    relative_step: float | None = None
    correction: float | None = None
    loss_before: float | None = None
    loss_after: float | None = None
    seconds: float | None = None

    def to_json(self) -> str:
        """Infinity, which JSON does not know, as null."""
        plain = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in asdict(self).items()}
        return json.dumps(plain, ensure_ascii=False)

    def __str__(self) -> str:
        lines = [f"verdict: {self.verdict}", *(f"  because {reason}" for reason in self.reasons)]
        known = {
            "forgotten": f"{self.k} now, {self.erased} in all; {self.n} stay",
            "step": f"{_number(self.step_norm)} ({_number(self.relative_step)} of ‖θ‖)",
            "distance from a refit": "rounding" if self.exact else _at_most(self.epsilon),
            "gradient left": _at_most(self.gradient if math.isfinite(self.epsilon) else math.inf),
            "largest leverage": f"{_number(self.leverage_max)} (below 1)",
            "mean loss on them": f"{_number(self.loss_before)} → {_number(self.loss_after)}",
        }
        lines += [f"{name + ':':<23}{value}" for name, value in known.items()]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


def reasons_for_caution(
    *, bounded: bool, unproved: float, due: float, size: float, correction: float, dropped: bool
) -> list[str]:
    """`due`: by how much the samples had to move the model; `unproved`: how much of that is not proved."""
    reasons = []
    if not bounded:
        reasons.append("The curvature of the squared hinge jumps at the margin, so that no distance can be proved.")
    elif dropped:
        reasons.append("A class has no samples left and was dropped: no distance from a refit without it is proved.")
    elif math.isinf(unproved):
        reasons.append("From the sums alone no distance from a refit can be proved; it may be small all the same.")
    elif not unproved <= max(LARGE_BOUND * due, NEGLIGIBLE * size):
        reasons.append(
            f"These samples moved the model by {due:.2g}, and it is proved no nearer to the refit than {unproved:.2g}; "
            "it may be far nearer."
        )
    if correction > LARGE_CORRECTION:
        reasons.append(
            f"The estimator was not at the minimum of its objective on this data ({correction:.2g} of ‖θ‖ away): the "
            "step corrects for that too. Was it trained on exactly this data, with these weights?"
        )
    return reasons


def notes_on(policy: str, *, exact: bool, pipeline: bool) -> tuple[str, ...]:
    """What still encodes the forgotten samples, among others."""
    notes = []
    if pipeline:
        notes.append(
            "The pipeline's transformers stay as they are: what they learned (means, vocabularies, directions) still "
            "comes from the forgotten samples too."
        )
    if policy == "joint" and not exact:
        notes.append("The first model and the sums at it are kept (joint): who has the eraser has that model.")
    elif not exact:
        notes.append(
            "The eraser's curvature is still that of the model at its fit, less these samples; refine, or fit again."
        )
    return tuple(notes)


def _at_most(bound: float) -> str:
    return f"at most {bound:.3g}" if math.isfinite(bound) else "not proved"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
