"""What a request to an eraser comes to: assessed by its sums before and after, or refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ssse.sklearn.measures import StepMeasures
from ssse.sklearn.outcome import TOO_FAR, Outcome, notes_on, reasons_for_caution
from ssse.sklearn.sums import TrainingSums
from ssse.verdict import Bound, too_many_at_once

SAME_AFTER_REFINING = (
    "k",
    "n",
    "erased",
    "step_norm",
    "relative_step",
    "due",
    "share",
    "swing",
    "strain",
    "stretch",
    "bend",
    "leverage_max",
    "loss_before",
    "correction",
)
SHORT_SWING = 2.0  # up to which a step is not too long, however short θ is
TOO_LONG = (
    "The step would be {:.3g} times as long as the coefficients, too far for one step. These samples were not in the "
    "training data in this form (other preprocessing, other labels?), or they are too many: erase fewer at a time."
)
TOO_FAR_AWAY = (
    "The estimator is not near the minimum of its objective on this data: the step there is {:.3g} times as long as "
    "its coefficients, and may go anywhere. Train it further, or bring it there with `refine` and its data. Or was it "
    "trained on other data, or with other weights?"
)


def assess_step(
    policy: str,
    old: TrainingSums,
    new: TrainingSums,
    moved: float | None,
    distance_bound: float,
    measures: StepMeasures,
    pipeline: bool,
    *,
    doubted: bool = False,
) -> Outcome:
    size = float(np.linalg.norm(old.parameters()))
    reasons = reasons_for_caution(
        measures, distance_bound, size=size, correction=new.correction, sums=new, doubted=doubted
    )
    return Outcome(
        notes=notes_on(policy, exact=new.exact, pipeline=pipeline),
        k=old.samples - new.samples,
        n=old.samples,
        erased=old.erased,
        policy=policy,
        exact=new.exact,
        distance_bound=distance_bound,
        gradient_bound=new.gradient,
        due=measures.due,
        share=measures.share,
        swing=measures.swing,
        strain=measures.strain,
        stretch=measures.stretch,
        bend=measures.bend,
        leverage_max=measures.leverage_max,
        step_norm=moved,
        relative_step=None if moved is None else moved / max(size, 1e-300),
        correction=new.correction,
        refit_cheaper=old.operations(old.samples - new.samples) > new.refit_operations(),
    ).judged(reasons)


def assess_refined(
    policy: str, last: Outcome | None, old: TrainingSums, new: TrainingSums, lost: float, pipeline: bool
) -> Outcome:
    """What was said of the last request, as it stands now."""
    moved = distance_between(old, new)
    if last is None:
        measures = StepMeasures(due=moved or 0.0)
    else:
        known = {name: getattr(last, name) for name in ("swing", "strain", "stretch", "bend", "leverage_max")}
        measures = StepMeasures(due=last.due or 0.0, **known)
    now = assess_step(policy, old, new, moved, new.distance + lost, measures, pipeline)
    now = replace(now, notes=(*now.notes, f"Refined with the {new.samples} samples that remain."))
    if last is None:
        return now
    same = {name: getattr(last, name) for name in SAME_AFTER_REFINING}
    return replace(now, **same)


def refuse_step(policy: str, sums: TrainingSums, k: int, why: str) -> Outcome:
    reason = f"Without these samples the step cannot be taken: {why}. "
    if sums.erased and policy == "rebase" and not sums.exact:
        reason += (
            "The model has moved since its curvature was taken, and its samples with it: fit the eraser again on "
            'what remains, refine, or use policy="joint". If it is not that, they '
        )
    else:
        reason += "They "
    reason += "were not in the training data in this form, are erased already, or the rest does not determine a model."
    return refuse_request(policy, sums, k, reason)


def refuse_request(policy: str, sums: TrainingSums, k: int, *reasons: str) -> Outcome:
    return Outcome(k=k, n=sums.samples, erased=sums.erased, policy=policy).refused(*reasons)


def broken_bounds(sums: TrainingSums, k: int) -> dict[Bound, str]:
    """Those that can be told before the step, with the reasons."""
    found: dict[Bound, str] = {
        "stationarity": TOO_FAR_AWAY.format(sums.correction) if sums.correction > TOO_FAR else "",
        "share": too_many_at_once(k, sums.samples),
    }
    return {bound: reason for bound, reason in found.items() if reason}


def distance_between(old: TrainingSums, new: TrainingSums) -> float | None:
    """Between their parameters; None where a class has gone, and parameters with it."""
    before, after = old.parameters(), new.parameters()
    return float(np.linalg.norm(after - before)) if before.shape == after.shape else None
