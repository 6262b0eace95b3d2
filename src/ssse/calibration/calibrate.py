"""Choosing ε, and λ beside it, by evidence: a retrained model, an attack, or the loss along the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from ssse.calibration.criteria import PLATEAU, Undecided, by_chance, by_divergence, by_parity, by_ratio, loss_of
from ssse.calibration.search import loss_along_step
from ssse.curvature.curvature import Curvature
from ssse.erasure.diagnostics import LARGE_RESIDUAL, Diagnostics
from ssse.erasure.erase import erase_from
from ssse.erasure.request import matching_view
from ssse.errors import InvalidData, InvalidSetting
from ssse.evaluation.outputs import Model
from ssse.evaluation.scan import DEFAULT_SCALES, Scan, as_numbers, check_scales, scan
from ssse.problem.batches import check_repeatable, count_samples
from ssse.problem.loaders import Data, as_batches
from ssse.problem.losses import LossLike
from ssse.system.group import current_group
from ssse.verdict import BOUNDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("retrained", "attack_parity", "loss_search", "line_search")
AUTOMATIC = ("attack_parity", "loss_search")  # what is tried after a retrained model
CRITERIA = {"ratio": by_ratio, "divergence": by_divergence}


@dataclass(frozen=True, repr=False)
class Calibration:
    """An ε (and λ), and what it was chosen from.

    Attributes:
        scale, damping: ε and λ. method: how they were chosen. reason: in words, with the numbers.
        scan: the curve that was decided from; of the searches, the curve with the chosen ε in it, and None where
            labels are neither classes nor attributes.
        dampings, grid: where λ was scanned too: its values, and what decided for each λ and ε, shape (λ, ε).
        grid_name: what the grid holds: "γ", "δ", or "KL" for criterion="divergence".
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
    grid_name: str | None = None

    def figure(self) -> Figure:
        """The curve as in the paper's Figures 2 and 3, the chosen ε marked; a heat map where several λ were scanned."""
        from ssse.calibration.figures import heat_map
        from ssse.evaluation.figures import scan_figure

        if self.scan is None:
            raise InvalidSetting("There is no curve: these labels are neither classes nor attributes.")
        if self.grid is not None and len(self.dampings) > 1:
            return heat_map(self)
        return scan_figure(self.scan, chosen=self.scale)

    def to_dict(self) -> dict[str, Any]:
        """All but the curvature, as JSON can hold it."""
        return {
            "scale": self.scale,
            "damping": self.damping,
            "method": self.method,
            "reason": self.reason,
            "curve": None if self.scan is None else self.scan.to_dict(),
            "dampings": list(self.dampings),
            "grid": None if self.grid is None else [[_number(v) for v in row] for row in self.grid],
            "grid_name": self.grid_name,
        }

    def __str__(self) -> str:
        return f"ε = {self.scale:.4g}, λ = {self.damping:.3g}, by {self.method}: {self.reason}"

    __repr__ = __str__


def calibrate(
    model: nn.Module,
    curvature: Curvature,
    loss_fn: LossLike,
    forget: Data,
    *,
    method: str = "auto",
    retrained: Model | None = None,
    held_out: Data | None = None,
    whole_class: bool = False,
    data: Data | None = None,
    scales: float | Iterable[float] = DEFAULT_SCALES,
    dampings: float | Iterable[float] = (),
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
      held-out ones of the same kind any more (AUC at ½ or below). Rough, and undecided unless the attack is strong
      before erasing (p ≤ 10⁻³). If whole_class, the smallest at which the forgotten samples are recognised as what
      they are at chance only (1 in c; 1 in 2 for an attribute that all of them have): then nothing is left.
    - "line_search", without retraining: ε = (g_S·u) / ((n−k) uᵀ∇²L₋S u) for the step u, with the true Hessian along u
      on a sample of the data that stays: the minimum of the leave-k-out loss along the step, to second order. For a
      whole class it falls short, with empirical rows several times: the loss is not quadratic that far.
    - "loss_search", without retraining: the minimum of that loss itself, not of its quadratic model; a dozen passes
      over the sample instead of one.

    With expected or margin rows of a model that is not linear in θ the two searches are undecided, and ε stays 1,
    unless the step at 1 does harm: raises the loss on what stays by more than a tenth of what it raises that on S.

    A whole class wants a larger ε than a part of one: calibrate on requests like those to come.

    Args:
        model, curvature, forget, leave_out, residual: as in `ssse.erase`. loss_fn: likewise, and always given.
        method: "auto" takes the first of "retrained", "attack_parity" and "loss_search" whose evidence is there and
            decides; `reason` names those that did not. For a model linear in θ with expected rows "loss_search" comes
            before "attack_parity". A method that you name is the only one tried.
        retrained: the model retrained without `forget`. held_out: a few samples of the same kind as `forget` that the
            model was not trained on. data: training data, or a part of it; the samples of `forget` in it are left out
            (those of earlier requests must not be in it), and up to 4,096 of the rest are looked at, evenly spread.
        scales: the ε to look at. dampings: λ, one or several, to look at beside them (with a retrained model), each
            at the cost of a factorisation.

    Raises:
        Undecided: no ε inside the grid meets the condition, or the evidence has no signal; carries the curve. Of the
            searches: the loss has no minimum along the step, or ε = 1 does no harm; no curve. Where several were
            tried, that of the first.
    """
    values = tuple(as_numbers(dampings, "dampings").tolist())
    methods = _methods(method, retrained, held_out, whole_class, data, _knows_its_loss(curvature))
    if criterion not in CRITERIA:
        raise InvalidSetting(f"criterion must be one of {', '.join(CRITERIA)}, not {criterion!r}.")
    if criterion != "ratio" and methods[0] != "retrained":
        raise InvalidSetting(f"criterion='{criterion}' compares with a retrained model; {methods[0]} has none.")
    grid = tuple(check_scales(scales)[1:].tolist())
    if values and methods[0] != "retrained":
        raise InvalidSetting(
            f"λ can be compared by γ, δ or the KL only, which need retrained=; {methods[0]} knows no better and worse."
        )
    forget = as_batches(forget, curvature.label_key)
    held_out = None if held_out is None else as_batches(held_out, curvature.label_key)
    data = None if data is None else as_batches(data, curvature.label_key)
    options: dict[str, Any] = {"leave_out": leave_out, "residual": residual}
    if curvature.structure.reads_data:
        options["data"] = data
    check_repeatable(forget)
    forget = list(forget)
    splits: dict[str, Iterable[Any]] = {"forgotten": forget}
    if held_out is not None:
        splits["test"] = list(held_out) if iter(held_out) is held_out else held_out  # each λ reads it
    evidence = _Evidence(model, loss_fn, splits, retrained, options, grid, progress)
    undecided: list[tuple[str, Undecided]] = []
    for chosen in methods:
        try:
            if chosen == "retrained":
                each = [curvature.with_damping(value) for value in values] or [curvature]
                calibration = _by_retrained([evidence.step(one) for one in each], criterion, values)
            else:
                step = evidence.step(curvature.with_damping(values[0]) if len(values) == 1 else curvature)
                if chosen == "attack_parity":
                    scale, reason = by_chance(step.scan) if whole_class else by_parity(step.scan)
                    calibration = Calibration(scale, step.curvature.damping, chosen, reason, step.scan, step.curvature)
                else:
                    assert data is not None
                    calibration = _by_search(chosen, evidence, step, data)
        except Undecided as error:
            undecided.append((chosen, error))
            continue
        # Equal but for rounding on processes that work together; now to the last bit.
        scale = current_group(curvature.device).from_first(lambda scale=calibration.scale: scale)
        calibration = replace(calibration, scale=scale)
        source = _source(chosen, whole_class, count_samples(forget) or 0)
        stored = calibration.curvature.with_scale(calibration.scale, source, leave_out=leave_out, residual=residual)
        skipped = "".join(f"; passed over {name}: {str(error).split(': ')[0].rstrip('.')}" for name, error in undecided)
        return replace(calibration, curvature=stored, reason=calibration.reason + skipped)
    raise undecided[0][1]


def _methods(
    method: str,
    retrained: Model | None,
    held_out: Data | None,
    whole_class: bool,
    data: Data | None,
    knows_its_loss: bool,
) -> list[str]:
    """Those to try, in order; one, where it was named."""
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
        order = ("retrained", *sorted(AUTOMATIC, reverse=knows_its_loss))
        possible = [name for name in order if evidence[name][0]]
        if not possible:
            needs = "; ".join(f"{name} needs {what}" for name, (_, what) in evidence.items())
            raise InvalidSetting(f"ε is chosen by evidence, and none was given: {needs}.")
        return possible
    if method not in METHODS:
        raise InvalidSetting(f"method must be 'auto' or one of {', '.join(METHODS)}, not {method!r}.")
    given, what = evidence[method]
    if not given:
        raise InvalidSetting(f"method='{method}' needs {what}.")
    return [method]


def _knows_its_loss(curvature: Curvature) -> bool:
    """Linear in θ with expected rows: the step is nearly Newton's, and the loss along it tells more than an attack."""
    return curvature.linear is not None and curvature.kind.name == "expected"


def _has_its_scale(curvature: Curvature) -> bool:
    """Not linear in θ, with rows whose own ε is 1: the loss along the step is poor evidence that another is better."""
    return curvature.linear is None and curvature.kind.natural(curvature.loss) and curvature.structure.complete


@dataclass
class _Step:
    """The step at one λ, solved once; the curve along it, measured once and only where it is asked for."""

    evidence: _Evidence
    curvature: Curvature
    direction: Tensor
    diagnostics: Diagnostics

    @cached_property
    def scan(self) -> Scan:
        return self.scan_at(self.evidence.grid)

    def scan_at(self, scales: Iterable[float]) -> Scan:
        given = self.evidence
        return scan(
            _origin(given.model, self.curvature),
            self.direction,
            given.loss_fn,
            given.splits,
            scales=scales,
            retrained=given.retrained,
            parameters=self.curvature.layout.names,
            progress=given.progress,
        )


@dataclass
class _Evidence:
    """What was given to calibrate by."""

    model: nn.Module
    loss_fn: LossLike
    splits: dict[str, Iterable[Any]]
    retrained: Model | None
    options: dict[str, Any]
    grid: tuple[float, ...]
    progress: bool
    steps: dict[float, _Step] = field(default_factory=dict)

    def step(self, curvature: Curvature) -> _Step:
        """The step at ε = 1, by a small step that cannot overflow; refusals of the solve itself are passed on.

        By force: how long it should be is what is looked for.
        """
        if curvature.damping not in self.steps:
            policy = "rebase" if curvature.joint is None else "joint"
            how = {"scale": 1e-6, "policy": policy, "override": BOUNDS, **self.options}
            view = matching_view(self.model, curvature).unrounded()  # half precision would lose a step so small
            erasure = erase_from(view, curvature, self.loss_fn, self.splits["forgotten"], **how)
            self.steps[curvature.damping] = _Step(self, curvature, erasure.direction, erasure.diagnostics)
        return self.steps[curvature.damping]


def _by_retrained(steps: list[_Step], criterion: str, dampings: tuple[float, ...]) -> Calibration:
    """Of the ε that each λ would choose, the best; with what decided as the grid."""
    best, curve, scale, reason = _best_damping([(step.curvature, step.scan) for step in steps], criterion)
    by_ratio = criterion == "ratio"
    rows = [step.scan.ratio if by_ratio else step.scan.divergence for step in steps]
    known = [row for row in rows if row is not None] if dampings else []
    return Calibration(
        scale=scale,
        damping=best.damping,
        method="retrained",
        reason=reason,
        scan=curve,
        curvature=best,
        dampings=dampings,
        grid=np.stack(known) if known else None,
        grid_name=(curve.ratio_name if by_ratio else "KL") if known else None,
    )


def _by_search(method: str, evidence: _Evidence, step: _Step, data: Iterable[Any]) -> Calibration:
    curvature, loss_fn, residual = step.curvature, evidence.loss_fn, evidence.options["residual"]
    origin, forget = _origin(evidence.model, curvature), list(evidence.splits["forgotten"])
    loss = loss_along_step(origin, curvature, loss_fn, forget, step.direction, data, residual)
    ruin = f"; {loss.check_harm(curvature.kind.name)}" if _has_its_scale(curvature) else ""
    scale, reason = loss.by_loss() if method == "loss_search" else loss.by_curvature()
    reason += ruin
    diagnostics = step.diagnostics
    if diagnostics.gradient_norm is not None and not residual:
        ratio = diagnostics.n * diagnostics.gradient_norm / max(diagnostics.forget_gradient_norm, 1e-300)
        if ratio > LARGE_RESIDUAL:  # then φ′(0) is not what S says
            reason += f"; θ* is not stationary: n‖∇L‖ is {ratio:.2g} times g_S"
    try:
        curve = step.scan_at(sorted({*evidence.grid, scale}))
    except InvalidData:
        if curvature.loss in ("cross_entropy", "binary_cross_entropy"):
            raise
        curve = None  # regression: nothing to draw, and ε did not need it
    return Calibration(scale, curvature.damping, method, reason, curve, curvature)


def _origin(model: nn.Module, curvature: Curvature) -> nn.Module:
    """The model that steps start from: in a joint stream that of its first request."""
    if curvature.joint is None:
        return model
    return matching_view(model, curvature).with_theta(curvature.joint.theta)


def _best_damping(tries: list[tuple[Curvature, Scan]], criterion: str) -> tuple[Curvature, Scan, float, str]:
    """Of the ε that each λ would choose, the least divergence among those with the best γ or δ, or among all."""
    decided: list[tuple[float, float, int, float, str]] = []
    undecided: list[Undecided] = []
    for i, (_, curve) in enumerate(tries):
        try:
            scale, reason = CRITERIA[criterion](curve)
        except Undecided as error:
            undecided.append(error)
            continue
        at = int(np.argmin(np.abs(curve.scales - scale)))
        assert curve.divergence is not None
        ratio = float(loss_of(curve)[at]) if criterion == "ratio" else 0.0
        decided.append((float(curve.divergence[at]), ratio, i, scale, reason))
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
