"""Choosing ε, and λ beside it, by evidence: a retrained model, an attack, or the curvature along the step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ssse.batches import Batch, check_repeatable, count_samples, read_batch, regroup
from ssse.curvature.artefact import Curvature
from ssse.curvature.matrix_free import MatrixFree
from ssse.erasure import erase, matching_problem
from ssse.errors import InvalidData, InvalidSetting, Undecided
from ssse.line import Line
from ssse.losses import LossLike
from ssse.outputs import Model
from ssse.problem import Problem
from ssse.retained import count_digests, drop_forgotten, take_samples
from ssse.scanning import DEFAULT_SCALES, Scan, check_scales, scan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("retrained", "attack_parity", "line_search")
PLATEAU = 0.01  # γ or δ within this of the best is as good as the best
SIGNAL = 1e-3  # the attack's p-value before erasing, above which its way down to ½ is mostly noise
SAMPLE = 4096  # samples that the line search looks at


@dataclass(frozen=True)
class Calibration:
    """An ε (and λ), and what it was chosen from.

    Attributes:
        scale, damping: ε and λ. method: how they were chosen. reason: in words, with the numbers.
        scan: the curve that was decided from; of the line search, the curve with the chosen ε in it, and None where
            labels are neither classes nor attributes.
        dampings, grid: where λ was scanned too: its values, and γ or δ for each λ and ε, shape (λ, ε).
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
    leave_out: bool = True,
    residual: bool = False,
    progress: bool = True,
) -> Calibration:
    """Choose the scale ε of the update on a set of samples, and store it with the curvature.

    The step is linear in ε: the curvature is solved once, and the scan costs forward passes alone.

    - "retrained", the paper's way: retrain once without a set of your choice, take the ε at which the update on that
      set comes nearest: the largest γ (attributes), the smallest δ (classes). Where δ ends in a plateau, as when a
      whole class goes, its start: more does not forget more, it only moves the model further away.
    - "attack_parity", without retraining: the smallest ε at which confidence does not tell the forgotten samples from
      held-out ones of the same kind any more (AUC at ½ or below). Rough: good to a factor of two, if the attack is
      strong. If whole_class, the smallest at which the forgotten samples are recognised as what they are at chance
      only (1 in c; 1 in 2 for an attribute that all of them have), for then nothing is left of the kind.
    - "line_search", without retraining: ε = (g_S·u) / ((n−k) uᵀ∇²L₋S u) for the step u, with the true Hessian along u
      on a sample of the data that stays: the minimum of the leave-k-out loss along the step, to second order. For a
      whole class it falls short, with empirical rows several times: the loss is not quadratic that far.

    A whole class wants a larger ε than a part of one: calibrate on requests like those to come.

    Args:
        model, curvature, loss_fn, forget, leave_out, residual: as in `ssse.erase`.
        method: "auto" takes the first of the three whose evidence is there.
        retrained: the model retrained without `forget`. held_out: a few samples of the same kind as `forget` that the
            model was not trained on. data: training data, or a part of it; the samples of `forget` in it are left out
            (those of earlier requests must not be in it), and up to 4,096 of the rest are looked at, evenly spread.
        scales: the ε to look at. dampings: λ to look at beside them (with a retrained model), each at the cost of a
            factorisation.

    Raises:
        Undecided: no ε inside the grid meets the condition, or the evidence has no signal; carries the curve.
        InvalidData: of the line search, the loss does not bend upwards along the step.
    """
    chosen = _method(method, retrained, held_out, whole_class, data)
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

    if chosen == "line_search":
        each, direction = curvature, _direction(model, curvature, loss_fn, forget, options)
        origin = _origin(model, curvature, loss_fn)
        scale, reason = by_line_search(origin, curvature, loss_fn, forget, direction, data, residual)
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
            each, seen, scale, reason = _best_damping(tries)
        else:
            each, seen = tries[0]
            scale, reason = by_chance(seen) if whole_class else by_parity(seen)
    return Calibration(
        scale=scale,
        damping=each.damping,
        method=chosen,
        reason=reason,
        scan=seen,
        curvature=each.with_scale(scale, _source(chosen, whole_class, count_samples(forget) or 0, leave_out, residual)),
        dampings=tuple(float(v) for v in dampings),
        grid=np.stack([s.ratio for _, s in tries if s.ratio is not None]) if len(dampings) else None,
    )


def by_ratio(seen: Scan) -> tuple[float, str]:
    """argmax γ or argmin δ; the start of the plateau where the curve ends in one."""
    name = seen.ratio_name
    if seen.ratio is None:
        raise Undecided(f"{name} is not defined: each attribute is the same for all of the forgotten samples.", seen)
    loss = _loss_of(seen)
    finite = np.flatnonzero(np.isfinite(loss))
    if not len(finite):
        raise Undecided(f"{name} is not finite at any ε on the grid: the outputs overflow. Use smaller scales.", seen)
    at, end = _best(seen), int(finite[-1])
    if loss[at] >= 0.5:
        where = "at every ε" if np.ptp(loss[finite]) == 0 else f"at best, at ε = {seen.scales[at]:.3g}"
        why = "no ε on the grid brings the model nearer to the retrained one than to the original. Use larger scales"
        if loss[finite].max() == 0.5:
            why = (
                "on these samples the retrained model behaves as the original one. Choose others that make a difference"
            )
        raise Undecided(f"{name} is {seen.ratio[at]:.3g} {where}: {why}.", seen)
    good = loss <= loss[at] + PLATEAU
    start, (first, last) = _run(good, end)[0], _run(good, at)
    if good[end] and end - start >= max(1, last - first):  # elsewhere a single good ε may be luck
        chosen, why = start, f"where its plateau begins (best {seen.ratio[at]:.3f})"
    else:
        chosen, why = at, f"the best of {len(finite)} values of ε"
        _refuse_edge(seen, chosen, end, f"{name} is best")
    _refuse_edge(seen, chosen, len(loss), f"{name} is best")
    far, before = seen.divergence, seen.original_divergence
    if far is not None and before is not None and far[chosen] > before:
        raise Undecided(
            f"{name} is best at ε = {seen.scales[chosen]:.3g}, but there the predictions on the forgotten samples are "
            f"further from the retrained model's than before erasing (KL {far[chosen]:.3g}, before {before:.3g}): too "
            "few of them tell the models apart. Choose a larger set to forget.",
            seen,
        )
    return float(seen.scales[chosen]), f"{name} = {seen.ratio[chosen]:.3f}, {why}"


def by_parity(seen: Scan) -> tuple[float, str]:
    """The smallest ε at which the attack's AUC is at most ½, if it was clearly above before."""
    assert seen.attack is not None
    assert seen.original_attack is not None
    assert seen.original_p is not None
    before = f"AUC {seen.original_attack:.3f}, p = {seen.original_p:.2g}"
    if seen.original_attack <= 0.5 or seen.original_p > SIGNAL:
        raise Undecided(
            f"Confidence does not clearly tell the forgotten samples from the held-out ones even before erasing "
            f"({before}): there is no signal to choose ε by. Retrain once, or stay with ε = 1 and expected rows.",
            seen,
        )
    reached = np.flatnonzero(seen.attack <= 0.5)
    if not len(reached):
        raise Undecided(
            f"No ε up to {seen.scales[-1]:.3g} brings the attack to parity: its AUC is {_lowest(seen.attack)} at best "
            f"and {seen.original_attack:.3f} before. If the whole kind is forgotten, pass whole_class=True.",
            seen,
        )
    at = int(reached[0])
    _refuse_edge(seen, at, len(seen.scales), "Parity is reached")
    return float(seen.scales[at]), f"AUC {seen.attack[at]:.3f}; before erasing {before}"


def by_chance(seen: Scan) -> tuple[float, str]:
    """The smallest ε at which the forgotten samples are recognised no more often than by chance."""
    rate = seen.recognised
    if rate is None:
        raise Undecided("No attribute is common to all of the forgotten samples, so none can be gone as a whole.", seen)
    reached = np.flatnonzero(rate <= seen.chance)
    if not len(reached):
        raise Undecided(
            f"No ε up to {seen.scales[-1]:.3g} makes the forgotten samples unrecognised: the smallest share that still "
            f"is recognised is {_lowest(rate)}, chance is {seen.chance:.3f}.",
            seen,
        )
    at = int(reached[0])
    _refuse_edge(seen, at, len(rate), "Chance is reached")
    return float(seen.scales[at]), f"{rate[at]:.1%} of S recognised, chance is {seen.chance:.1%}"


def by_line_search(
    model: nn.Module,
    curvature: Curvature,
    loss_fn: LossLike,
    forget: list[Any],
    direction: Tensor,
    data: Iterable[Any] | None,
    residual: bool,
) -> tuple[float, str]:
    """ε = (g_S·u) / ((n−k) uᵀ∇²L₋S u), by one second derivative along u on a sample of the data."""
    assert data is not None
    problem = Problem(model, loss_fn, curvature.layout.names)
    line = Line(problem, direction)
    removed = list(regroup((read_batch(batch, problem.device) for batch in forget), curvature.group))
    problem.probe(removed[0])
    k = sum(len(y) for _, y in removed)
    check_repeatable(data)
    every = max(1, -(-(count_samples(data) or 1) // SAMPLE))
    thinned = _thin((read_batch(batch, problem.device) for batch in data), every)
    stays = drop_forgotten(thinned, count_digests(forget, problem.device), problem.device)
    theta, u, decay = line.theta.double(), line.direction.double(), curvature.weight_decay
    pull = sum(line.slope(batch) for batch in removed) + k * decay * float(theta @ u)
    joint, n = curvature.joint, curvature.n
    if joint is not None:  # the step is away from all that the stream has forgotten so far
        pull, n = pull + float(joint.removed_gradient.double() @ u), joint.n
    if residual and curvature.gradient is not None:
        pull -= n * float(curvature.gradient.double() @ u)
    bend = count = 0.0
    for batch in regroup(stays, min(SAMPLE, curvature.group)):
        bend += line.bend(batch)
        count += len(batch[1])
        if count >= SAMPLE:
            break
    if not count:
        raise InvalidData("The data for the line search is empty, or holds the forgotten samples only.")
    along = bend / count + decay * float(u @ u)
    if not along > 0 or not pull > 0:
        raise InvalidData(
            f"Along this step the loss on the data that stays has curvature {along:.3g} and the forgotten samples pull "
            f"with {pull:.3g}; both must be positive for a line search. The model is not near a minimum there."
        )
    scale = pull / ((curvature.n - k) * along)
    return scale, f"curvature {along:.3g} along the step, measured on {count:.0f} samples that stay"


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


def _best_damping(tries: list[tuple[Curvature, Scan]]) -> tuple[Curvature, Scan, float, str]:
    """Of the ε that each λ would choose, the one with the best γ or δ, then with the least divergence."""
    decided: list[tuple[float, float, int, float, str]] = []
    undecided: list[Undecided] = []
    for i, (_, seen) in enumerate(tries):
        try:
            scale, reason = by_ratio(seen)
        except Undecided as error:
            undecided.append(error)
            continue
        at, far = int(np.argmin(np.abs(seen.scales - scale))), seen.divergence
        decided.append((float(_loss_of(seen)[at]), 0.0 if far is None else float(far[at]), i, scale, reason))
    if not decided:
        raise undecided[0]
    _, _, i, scale, reason = min(decided)
    all_dampings = [curvature.damping for curvature, _ in tries]
    if len(tries) > 1 and all_dampings[i] in (min(all_dampings), max(all_dampings)):
        reason += "; λ is at the edge of those given"
    return *tries[i], scale, reason


def _best(seen: Scan) -> int:
    """The place of the best ratio. δ counts samples, so it often ties: then the predictions themselves decide."""
    loss, far = _loss_of(seen), seen.divergence
    tied = np.flatnonzero(loss <= np.nanmin(loss) + 1e-12)
    return int(tied[0] if far is None else tied[np.argmin(far[tied])])


def _run(good: np.ndarray, at: int) -> tuple[int, int]:
    """First and last of the consecutive good entries around `at`."""
    bad = np.flatnonzero(~good)
    before, after = bad[bad < at], bad[bad > at]
    return (int(before[-1]) + 1 if len(before) else 0), (int(after[0]) - 1 if len(after) else len(good) - 1)


def _refuse_edge(seen: Scan, at: int, end: int, what: str) -> None:
    """At the edge of the grid the condition may be met better, or already, beyond it."""
    if at not in (0, end):
        return
    repair = "smaller ones, down to where nothing changes yet" if at == 0 else "larger ones"
    raise Undecided(f"{what} at ε = {seen.scales[at]:.3g}, at the edge of the scales: pass {repair} as well.", seen)


def _lowest(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    return f"{finite.min():.3f}" if len(finite) else "not finite"


def _thin(batches: Iterable[Batch], every: int) -> Iterator[Batch]:
    """Every so manieth sample, for data is often sorted."""
    seen = 0
    for batch in batches:
        places = torch.arange(-seen % every, len(batch[1]), every, device=batch[1].device)
        seen += len(batch[1])
        if len(places):
            yield batch if every == 1 else take_samples(batch, places)


def _source(method: str, whole_class: bool, k: int, leave_out: bool, residual: bool) -> str:
    """The evidence in words, and where the update differed from the default: ε is of that update alone."""
    how = {
        "retrained": f"by a model retrained without {k} samples",
        "attack_parity": f"by recognition at chance on {k} samples"
        if whole_class
        else f"by attack parity on {k} samples",
        "line_search": f"by a line search on {k} samples",
    }[method]
    return how + ", with leave_out=False" * (not leave_out) + ", with residual=True" * residual


def _loss_of(seen: Scan) -> np.ndarray:
    """Small is good: δ, or 1 − γ."""
    assert seen.ratio is not None
    return seen.ratio if seen.ratio_name == "δ" else 1 - seen.ratio


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
