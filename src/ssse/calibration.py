"""Choosing ε, and λ beside it, by evidence: a retrained model, an attack, or the curvature along the step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from ssse.batches import read_batch, regroup
from ssse.curvature.artefact import Curvature
from ssse.curvature.matrix_free import MatrixFree
from ssse.erasure import erase, matching_problem
from ssse.errors import InvalidData, InvalidSetting, Undecided
from ssse.line import Line
from ssse.losses import LossLike
from ssse.outputs import Model
from ssse.problem import Problem
from ssse.retained import count_digests, drop_forgotten
from ssse.scanning import DEFAULT_SCALES, Scan, check_scales, scan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("retrained", "attack_parity", "line_search")
PLATEAU = 0.01  # γ or δ within this of the best is as good as the best
SAMPLE = 4096  # samples that the line search looks at


@dataclass(frozen=True)
class Calibration:
    """An ε (and λ), and what it was chosen from.

    Attributes:
        scale, damping: ε and λ. method: how they were chosen. reason: in words, with the numbers.
        scan: the curve that was decided from; of the line search, the curve with the chosen ε in it.
        dampings, grid: where λ was scanned too: its values, and γ or δ for each λ and ε, shape (λ, ε).
        curvature: the one given, with this λ and ε in it: `ssse.erase` uses them from now on.
    """

    scale: float
    damping: float
    method: str
    reason: str
    scan: Scan
    curvature: Curvature
    dampings: tuple[float, ...] = ()
    grid: np.ndarray | None = None

    def figure(self) -> Figure:
        """The curve as in the paper's Figures 2 and 3, the chosen ε marked; a heat map where λ was scanned too."""
        from ssse.figures import heat_map, scan_figure

        if self.grid is not None:
            return heat_map(self)
        return scan_figure(self.scan, chosen=self.scale)

    def to_json(self) -> str:
        found = {
            "scale": self.scale,
            "damping": self.damping,
            "method": self.method,
            "reason": self.reason,
            "curve": self.scan.to_dict(),
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
      held-out ones of the same kind any more (AUC at ½ or below). If whole_class, the smallest at which the forgotten
      samples are recognised as what they are at chance only (1 in c; 1 in 2 for an attribute that all of them have),
      for then nothing is left of the kind.
    - "line_search", without retraining: ε = (g_S·u) / ((n−k) uᵀ∇²L₋S u) for the step u, with the true Hessian along u
      on a sample of the data that stays: the minimum of the leave-k-out loss along the step, to second order.

    Args:
        model, curvature, loss_fn, forget, leave_out, residual: as in `ssse.erase`.
        method: "auto" takes the first of the three whose evidence is there.
        retrained: the model retrained without `forget`. held_out: a few samples of the same kind as `forget` that the
            model was not trained on. data: training data, or a part of it; the forgotten samples in it are left out.
        scales: the ε to look at. dampings: λ to look at beside them (with a retrained model), each at the cost of a
            factorisation.

    Raises:
        Undecided: no ε on the grid meets the condition, or the evidence has no signal; carries the curve.
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
    forget = list(forget)
    tries: list[tuple[Curvature, Tensor, Scan]] = []
    for damping in dampings if len(dampings) else (None,):
        each = curvature if damping is None else curvature.with_damping(damping)
        direction = _direction(model, each, loss_fn, forget, options)
        splits = {"forgotten": forget} | ({} if held_out is None else {"test": held_out})
        start = _origin(model, each, loss_fn)
        seen = scan(
            start,
            direction,
            loss_fn,
            splits,
            scales=grid,
            retrained=retrained if chosen == "retrained" else None,
            parameters=each.layout.names,
            progress=progress,
        )
        tries.append((each, direction, seen))
    if chosen == "retrained":
        each, _, seen = min(tries, key=lambda one: _rank(one[2]))
        scale, reason = by_ratio(seen)
    else:
        each, direction, seen = tries[0]
        if chosen == "attack_parity":
            scale, reason = by_chance(seen) if whole_class else by_parity(seen)
        else:
            scale, reason = by_line_search(
                _origin(model, each, loss_fn), each, loss_fn, forget, direction, data, residual
            )
    source = f"by {chosen.replace('_', ' ')} on {seen.counts['forgotten']} samples"
    ratios = [s.ratio for _, _, s in tries if s.ratio is not None]
    return Calibration(
        scale=scale,
        damping=each.damping,
        method=chosen,
        reason=reason,
        scan=seen,
        curvature=each.with_scale(scale, source),
        dampings=tuple(float(v) for v in dampings),
        grid=np.stack(ratios) if len(dampings) else None,
    )


def by_ratio(seen: Scan) -> tuple[float, str]:
    """argmax γ or argmin δ; the start of the plateau where the curve ends in one."""
    loss = _loss_of(seen)
    if not np.isfinite(loss).any():
        raise Undecided("The model's outputs are not finite at any ε on the grid; use smaller scales.", seen)
    best = float(np.nanmin(loss))
    assert seen.ratio is not None
    if np.nanmax(seen.ratio) == np.nanmin(seen.ratio):
        raise Undecided(
            f"{seen.ratio_name} is {seen.ratio[0]:.3g} at every ε: on these samples the retrained model behaves as the "
            "original one. Choose a set to forget that makes a difference.",
            seen,
        )
    good = loss <= best + PLATEAU
    at = int(np.nanargmin(loss))
    first = last = at
    while first > 0 and good[first - 1]:
        first -= 1
    while last + 1 < len(good) and good[last + 1]:
        last += 1
    name, value = seen.ratio_name, seen.ratio[at]
    if last == len(good) - 1 and first < last:
        scale = float(seen.scales[first])
        return scale, f"{name} = {seen.ratio[first]:.3f} where its plateau begins (best {value:.3f})"
    chosen = _best(seen)
    return float(seen.scales[chosen]), f"{name} = {value:.3f}, the best of {len(loss)} values of ε"


def by_parity(seen: Scan) -> tuple[float, str]:
    """The smallest ε at which the attack's AUC is at most ½."""
    assert seen.attack is not None
    assert seen.original_attack is not None
    if seen.original_attack <= 0.5:
        raise Undecided(
            f"Confidence does not tell the forgotten samples from the held-out ones even before erasing (AUC "
            f"{seen.original_attack:.3f}): there is no signal to choose ε by. Retrain once, or stay with ε = 1 and "
            "expected rows.",
            seen,
        )
    reached = np.flatnonzero(seen.attack <= 0.5)
    if not len(reached):
        raise Undecided(
            f"No ε up to {seen.scales[-1]:.3g} brings the attack to parity: its AUC is {seen.attack[-1]:.3f} there and "
            f"{seen.original_attack:.3f} before. If the whole kind is forgotten, pass whole_class=True.",
            seen,
        )
    at = int(reached[0])
    return float(seen.scales[at]), f"AUC {seen.original_attack:.3f} before, {seen.attack[at]:.3f} from here on"


def by_chance(seen: Scan) -> tuple[float, str]:
    """The smallest ε at which the forgotten samples are recognised no more often than by chance."""
    rate = seen.recognised
    if rate is None:
        raise Undecided("No attribute is common to all of the forgotten samples, so none can be gone as a whole.", seen)
    reached = np.flatnonzero(rate <= seen.chance)
    if not len(reached):
        raise Undecided(
            f"No ε up to {seen.scales[-1]:.3g} makes the forgotten samples unrecognised: {rate[-1]:.1%} of them still "
            f"are recognised there, chance is {seen.chance:.1%}.",
            seen,
        )
    at = int(reached[0])
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
    stays = drop_forgotten(data, count_digests(forget, problem.device), problem.device)
    theta, u, decay = line.theta.double(), line.direction.double(), curvature.weight_decay
    pull = sum(line.slope(batch) for batch in removed) + k * decay * float(theta @ u)
    if residual and curvature.gradient is not None:
        pull -= curvature.n * float(curvature.gradient.double() @ u)
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


def _rank(seen: Scan) -> tuple[float, float]:
    """Of the best ε of a λ: γ or δ, then the divergence. Nothing finite is worst."""
    if not np.isfinite(_loss_of(seen)).any() or seen.divergence is None:
        return np.inf, np.inf
    at = _best(seen)
    return float(_loss_of(seen)[at]), float(seen.divergence[at])


def _best(seen: Scan) -> int:
    """The place of the best ratio. δ counts samples, so it often ties: then the predictions themselves decide."""
    loss, far = _loss_of(seen), seen.divergence
    assert far is not None
    tied = np.flatnonzero(loss <= np.nanmin(loss) + 1e-12)
    return int(tied[np.argmin(far[tied])])


def _loss_of(seen: Scan) -> np.ndarray:
    """Small is good: δ, or 1 − γ."""
    assert seen.ratio is not None
    return seen.ratio if seen.ratio_name == "δ" else 1 - seen.ratio


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
