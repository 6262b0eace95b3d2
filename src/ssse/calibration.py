"""Choosing ε, and λ beside it, by evidence: a retrained model, an attack, or the loss along the step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from ssse.batches import check_repeatable, count_samples
from ssse.choosing import PLATEAU, by_chance, by_divergence, by_parity, by_ratio, loss_of
from ssse.curvature.artefact import Curvature
from ssse.curvature.matrix_free import MatrixFree
from ssse.erasure import erase, matching_problem
from ssse.errors import InvalidData, InvalidSetting, Undecided
from ssse.line_search import descent
from ssse.losses import LossLike
from ssse.outputs import Model
from ssse.scanning import DEFAULT_SCALES, Scan, check_scales, scan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("retrained", "attack_parity", "loss_search", "line_search")
SEARCHES = ("loss_search", "line_search")
CRITERIA = {"ratio": by_ratio, "divergence": by_divergence}


@dataclass(frozen=True)
class Calibration:
    """An ε (and λ), and what it was chosen from.

    Attributes:
        scale, damping: ε and λ. method: how they were chosen. reason: in words, with the numbers.
        scan: the curve that was decided from; of the line search, the curve with the chosen ε in it, and None where
            labels are neither classes nor attributes.
        dampings, grid: where λ was scanned too: its values, and γ or δ, if defined, for each λ and ε, shape (λ, ε).
        curvature: the one given, with this λ and ε in it: `ssse.erase` uses them from now on.
    """

    scale: float
    damping: float
    method: str
    reason: str
    scan: Scan | None
    curvature: Curvature
    dampings: tuple[float, ...] = ()
    grid: np.ndarray | None = None

    def figure(self) -> Figure:
        """The curve as in the paper's Figures 2 and 3, the chosen ε marked; a heat map where λ was scanned too."""
        from ssse.figures import heat_map, scan_figure

        if self.scan is None:
            raise InvalidSetting("There is no curve: these labels are neither classes nor attributes.")
        if self.grid is not None:
            return heat_map(self)
        return scan_figure(self.scan, chosen=self.scale)

    def to_json(self) -> str:
        found = {
            "scale": self.scale,
            "damping": self.damping,
            "method": self.method,
            "reason": self.reason,
            "curve": None if self.scan is None else self.scan.to_dict(),
            "dampings": list(self.dampings),
            "grid": None if self.grid is None else [[_number(v) for v in row] for row in self.grid],
        }
        return json.dumps(found, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        return f"ε = {self.scale:.4g}, λ = {self.damping:.3g}, by {self.method}: {self.reason}"


def calibrate(
    model: nn.Module,
    curvature: Curvature,
    loss_fn: LossLike,
    forget: Iterable[Any],
    *,
    method: str = "auto",
    retrained: Model | None = None,
    held_out: Iterable[Any] | None = None,
    whole_class: bool = False,
    data: Iterable[Any] | None = None,
    scales: Iterable[float] = DEFAULT_SCALES,
    dampings: Sequence[float] = (),
    criterion: str = "ratio",
    leave_out: bool = True,
    residual: bool = False,
    progress: bool = True,
) -> Calibration:
    """Choose the scale ε of the update on a set of samples, and store it with the curvature.

    The step is linear in ε: the curvature is solved once, and the scan costs forward passes alone.

    - "retrained", the paper's way: retrain once without a set of your choice, take the ε at which the update on that
      set comes nearest: the largest γ (attributes), the smallest δ (classes). Where δ ends in a plateau, as when a
      whole class goes, its start: more does not forget more, it only moves the model further away. Where values tie,
      or with criterion="divergence" always, the ε at which the predictions on the set diverge least.
    - "attack_parity", without retraining: the smallest ε at which confidence does not tell the forgotten samples from
      held-out ones of the same kind any more (AUC at ½ or below). Rough: good to a factor of two, if the attack is
      strong. If whole_class, the smallest at which the forgotten samples are recognised as what they are at chance
      only (1 in c; 1 in 2 for an attribute that all of them have), for then nothing is left of the kind.
    - "line_search", without retraining: ε = (g_S·u) / ((n−k) uᵀ∇²L₋S u) for the step u, with the true Hessian along u
      on a sample of the data that stays: the minimum of the leave-k-out loss along the step, to second order. For a
      whole class it falls short, with empirical rows several times: the loss is not quadratic that far.
    - "loss_search", without retraining: the minimum of that loss itself, not of its quadratic model; a dozen passes
      over the sample instead of one.

    A whole class wants a larger ε than a part of one: calibrate on requests like those to come.

    Args:
        model, curvature, loss_fn, forget, leave_out, residual: as in `ssse.erase`.
        method: "auto" takes the first of "retrained", "attack_parity" and "loss_search" whose evidence is there.
        retrained: the model retrained without `forget`. held_out: a few samples of the same kind as `forget` that the
            model was not trained on. data: training data, or a part of it; the samples of `forget` in it are left out
            (those of earlier requests must not be in it), and up to 4,096 of the rest are looked at, evenly spread.
        scales: the ε to look at. dampings: λ to look at beside them (with a retrained model), each at the cost of a
            factorisation.

    Raises:
        Undecided: no ε inside the grid meets the condition, or the evidence has no signal; carries the curve.
        InvalidData: of the searches, the loss does not bend upwards along the step.
    """
    chosen = _method(method, retrained, held_out, whole_class, data)
    if criterion not in CRITERIA:
        raise InvalidSetting(f"criterion must be one of {', '.join(CRITERIA)}, not {criterion!r}.")
    if criterion != "ratio" and chosen != "retrained":
        raise InvalidSetting(f"criterion='{criterion}' compares with a retrained model; {chosen} has none.")
    grid = tuple(check_scales(scales)[1:].tolist())
    if len(dampings) and chosen != "retrained":
        raise InvalidSetting(
            f"λ can be compared by γ or δ only, which need retrained=; {chosen} knows no better and worse."
        )
    options: dict[str, Any] = {"leave_out": leave_out, "residual": residual}
    if isinstance(curvature.structure, MatrixFree):
        options["data"] = data
    check_repeatable(forget)
    forget = list(forget)
    splits: dict[str, Iterable[Any]] = {"forgotten": forget}
    if held_out is not None:
        splits["test"] = list(held_out) if iter(held_out) is held_out else held_out  # each λ reads it
    tries: list[tuple[Curvature, Scan]] = []

    def look(each: Curvature, direction: Tensor, scales: Iterable[float]) -> Scan:
        return scan(
            _origin(model, each, loss_fn),
            direction,
            loss_fn,
            splits,
            scales=scales,
            retrained=retrained,
            parameters=each.layout.names,
            progress=progress,
        )

    if chosen in SEARCHES:
        assert data is not None
        each, direction = curvature, _direction(model, curvature, loss_fn, forget, options)
        origin = _origin(model, curvature, loss_fn)
        along = descent(origin, curvature, loss_fn, forget, direction, data, residual)
        scale, reason = along.by_loss() if chosen == "loss_search" else along.by_curvature()
        try:
            seen = look(each, direction, sorted({*grid, scale}))
        except InvalidData:
            if curvature.loss in ("cross_entropy", "binary_cross_entropy"):
                raise
            seen = None  # regression: nothing to draw, and ε did not need it
    else:
        for damping in dampings if len(dampings) else (None,):
            each = curvature if damping is None else curvature.with_damping(damping)
            direction = _direction(model, each, loss_fn, forget, options)
            tries.append((each, look(each, direction, grid)))
        if chosen == "retrained":
            each, seen, scale, reason = _best_damping(tries, criterion)
        else:
            each, seen = tries[0]
            scale, reason = by_chance(seen) if whole_class else by_parity(seen)
    ratios = [s.ratio for _, s in tries if s.ratio is not None]
    return Calibration(
        scale=scale,
        damping=each.damping,
        method=chosen,
        reason=reason,
        scan=seen,
        curvature=each.with_scale(
            scale, _source(chosen, whole_class, count_samples(forget) or 0), leave_out=leave_out, residual=residual
        ),
        dampings=tuple(float(v) for v in dampings),
        grid=np.stack(ratios) if len(dampings) and ratios else None,
    )


def _method(
    method: str,
    retrained: Model | None,
    held_out: Iterable[Any] | None,
    whole_class: bool,
    data: Iterable[Any] | None,
) -> str:
    evidence = {
        "retrained": (retrained is not None, "retrained=, a model retrained without these samples"),
        "attack_parity": (
            held_out is not None or whole_class,
            "held_out=, samples of the same kind, or whole_class=True",
        ),
        "loss_search": (data is not None, "data=, training data"),
        "line_search": (data is not None, "data=, training data"),
    }
    if method == "auto":
        found = [name for name, (there, _) in evidence.items() if there]
        if not found:
            needs = "; ".join(f"{name} needs {what}" for name, (_, what) in evidence.items())
            raise InvalidSetting(f"ε is chosen by evidence, and none was given: {needs}.")
        return found[0]
    if method not in METHODS:
        raise InvalidSetting(f"method must be 'auto' or one of {', '.join(METHODS)}, not {method!r}.")
    there, what = evidence[method]
    if not there:
        raise InvalidSetting(f"method='{method}' needs {what}.")
    return method


def _direction(
    model: nn.Module, curvature: Curvature, loss_fn: LossLike, forget: list[Any], options: dict[str, Any]
) -> Tensor:
    """The step at ε = 1, by a small step that cannot overflow; refusals of the solve itself are passed on."""
    policy = "rebase" if curvature.joint is None else "joint"
    return erase(model, curvature, loss_fn, forget, scale=1e-6, policy=policy, **options).direction


def _origin(model: nn.Module, curvature: Curvature, loss_fn: LossLike) -> nn.Module:
    """The model that steps start from: in a joint stream that of its first request."""
    if curvature.joint is None:
        return model
    return matching_problem(model, curvature, loss_fn).with_theta(curvature.joint.theta)


def _best_damping(tries: list[tuple[Curvature, Scan]], criterion: str) -> tuple[Curvature, Scan, float, str]:
    """Of the ε that each λ would choose, the least divergence among those with the best γ or δ, or among all."""
    decided: list[tuple[float, float, int, float, str]] = []
    undecided: list[Undecided] = []
    for i, (_, seen) in enumerate(tries):
        try:
            scale, reason = CRITERIA[criterion](seen)
        except Undecided as error:
            undecided.append(error)
            continue
        at = int(np.argmin(np.abs(seen.scales - scale)))
        assert seen.divergence is not None
        ratio = float(loss_of(seen)[at]) if criterion == "ratio" else 0.0
        decided.append((float(seen.divergence[at]), ratio, i, scale, reason))
    if not decided:
        raise undecided[0]
    least = min(ratio for _, ratio, *_ in decided)
    _, _, i, scale, reason = min(one for one in decided if one[1] <= least + PLATEAU)
    all_dampings = [curvature.damping for curvature, _ in tries]
    if len(tries) > 1 and all_dampings[i] in (min(all_dampings), max(all_dampings)):
        reason += "; λ is at the edge of those given"
    return *tries[i], scale, reason


def _source(method: str, whole_class: bool, k: int) -> str:
    """The evidence in words."""
    return {
        "retrained": f"by a model retrained without {k} samples",
        "attack_parity": f"by recognition at chance on {k} samples"
        if whole_class
        else f"by attack parity on {k} samples",
        "loss_search": f"by the leave-k-out loss along the step for {k} samples",
        "line_search": f"by a line search for {k} samples",
    }[method]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
