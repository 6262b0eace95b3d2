"""What one erasure from a scikit-learn model has to say about itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ssse.sklearn.measures import StepMeasures
from ssse.sklearn.sums import TrainingSums
from ssse.verdict import Assessment, distrust

LARGE_CORRECTION = 0.05  # of ‖θ‖, from which on the estimator was not at the minimum
TOO_FAR = 1.0  # of ‖θ‖, from which on one step may go anywhere
NEGLIGIBLE = 1e-9  # of ‖θ‖: a distance that nobody asks about
LARGE_BOUND = 0.5  # of what is due: up to there half of what had to change is proved to have changed


@dataclass(frozen=True, kw_only=True)
class Outcome(Assessment):
    """Measured while erasing.

    Attributes:
        distance_bound: ‖θ̂ − θ₋S‖, the distance of coefficients and intercepts from those of a refit to its minimum, is
            not above it; infinite where nothing is proved. gradient_bound: ‖∇L₋S(θ̂)‖ is not above it.
        exact: least squares, where nothing but rounding is left.
        due: by how much the samples had to move the model: the length of the request's own step, from where the
            quadratic model had its minimum with them, which a solver may not have reached.
        share: of the step that was taken; below 1 where all of it would have reached too far.
        refit_cheaper: whether a refit of all that stays takes fewer operations, by count, than this request took; it
            needs the samples that stay, and this does not.
        correction: how far, by one Newton step, the estimator was from the minimum when it was fitted, over ‖θ‖.

    The others are as of `ssse.verdict.Assessment`.
    """

    exact: bool = False
    distance_bound: float = math.inf
    gradient_bound: float = math.inf
    due: float | None = None
    share: float = 1.0
    correction: float | None = None
    refit_cheaper: bool = False

    def shown(self) -> Mapping[str, str]:
        bounded = math.isfinite(self.distance_bound)
        return {
            **super().shown(),
            "distance from a refit": "rounding" if self.exact else _at_most(self.distance_bound),
            "gradient left": _at_most(self.gradient_bound if bounded else math.inf),
            **({"cost": "above that of a refit"} if self.refit_cheaper else {}),
        }


def reasons_for_caution(
    measures: StepMeasures, unproved: float, *, size: float, correction: float, sums: TrainingSums, doubted: bool
) -> list[str]:
    """`unproved`: the distance from the refit is not proved to be below it; `size`: ‖θ‖; `doubted`: where it began."""
    reasons = []
    if not unproved <= max(LARGE_BOUND * measures.due, NEGLIGIBLE * size):
        reasons = _unproved(measures, unproved, sums)
        if doubted and not sums.exact:
            reasons.append(
                "An earlier request was not vouched for, or the model was refined and its curvature not taken anew: "
                "this step starts from there. Refine with the curvature, or fit the eraser again."
            )
    if correction > LARGE_CORRECTION:
        reasons.append(
            f"The estimator was not at the minimum of its objective on this data ({correction:.2g} of ‖θ‖ away): the "
            "step corrects for that too. Was it trained on exactly this data, with these weights?"
        )
    return reasons


def _unproved(measures: StepMeasures, unproved: float, sums: TrainingSums) -> list[str]:
    """What the measures of the step say instead."""
    if sums.exact:
        return [
            f"These samples moved the model by {measures.due:.2g}, and rounding leaves it no nearer to the refit than "
            f"{unproved:.2g} for certain: they outweighed the others."
        ]
    if not sums.bounded:
        return ["The curvature of the squared hinge jumps at the margin, so that no distance can be proved."]
    if sums.dropped:
        return ["A class has no samples left and was dropped: no distance from a refit without it is proved."]
    reasons = distrust(measures)
    if measures.share < 1:
        reasons.append(
            f"Only {measures.share:.2g} of the step was taken: all of it would reach so far that it may well end above "
            "where it began. Refine with what remains."
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
