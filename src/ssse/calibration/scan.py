"""The erasure as a function of its scale ε: θ(ε) = θ* + ε·u. One solve gives u; the rest is looking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata
from torch import Tensor, nn

from ssse.calibration.step_path import Line
from ssse.errors import InvalidData, InvalidSetting, SSSEError
from ssse.evaluation.outputs import Model, check_model, logits_of
from ssse.evaluation.splits import (
    HELD_OUT,
    SPLITS,
    Splits,
    check_splits,
)
from ssse.metrics.attacks import threshold_attack
from ssse.metrics.confusion import confusions
from ssse.metrics.distance import same_parameters
from ssse.metrics.gaps import divergence
from ssse.metrics.scores import (
    Task,
    as_labels,
    as_logits,
    check_alike,
    confidences,
    hits,
    log_probabilities,
)
from ssse.metrics.similarity import attribute_auc, share
from ssse.problem.batches import check_repeatable, count_samples, read_batch
from ssse.problem.losses import LossLike
from ssse.problem.problem import ParameterChoice, Problem
from ssse.system.progress import track

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_SCALES = tuple(float(v) for v in np.geomspace(1e-2, 1e2, 49))  # 1 is in the middle
HUGE = 1e300  # logits beyond count as overflow: their differences would
ATTACKED = ("forgotten", *HELD_OUT)


@dataclass(frozen=True, repr=False)
class Scan:
    """What was seen along the line, each array with one entry an ε.

    NaN stands where the model's outputs overflowed, and for γ also where they are the same for every sample.

    Attributes:
        scales: ε. accuracy: 0 … 1, by split. counts: samples of each split.
        recognised: the share of S that is taken for what it is: its class, or the attributes that all of S have; of
            a single attribute also that none of S has it.
        ratio: γ or δ on S, as `ratio_name` says; None without a retrained model, or where no attribute varies over S.
        apart: of classes, on how many samples of S the original's and the retrained model's confusions differ.
        divergence: mean KL of the predictions on S from the retrained model's; None without one.
        distance: normalised parameter distance; None without a retrained module of the same parameters.
        attack: AUC of telling S from held-out samples by confidence; None without those.
        retrained: the retrained model's accuracy, by split. chance: 1/c, or ½ for attributes.
        original_attack, original_p, original_divergence: at ε = 0, that AUC, the p-value of its being ½, and the KL.
        passes: samples that went forward through the model in all.
    """

    scales: np.ndarray
    accuracy: dict[str, np.ndarray]
    counts: dict[str, int]
    chance: float
    ratio_name: str
    recognised: np.ndarray | None = None
    ratio: np.ndarray | None = None
    apart: int | None = None
    divergence: np.ndarray | None = None
    distance: np.ndarray | None = None
    attack: np.ndarray | None = None
    original_attack: float | None = None
    original_p: float | None = None
    original_divergence: float | None = None
    retrained: dict[str, float] | None = None
    passes: int = 0

    @property
    def mean_gap(self) -> np.ndarray | None:
        """Mean over the splits of |accuracy − that of the retrained model|, in points."""
        if self.retrained is None:
            return None
        goal = self.retrained
        return 100 * np.mean([np.abs(values - goal[split]) for split, values in self.accuracy.items()], axis=0)

    def to_dict(self) -> dict[str, Any]:
        def numbers(values: np.ndarray | None) -> list[float | None] | None:
            return None if values is None else [float(v) if np.isfinite(v) else None for v in values]

        return {
            "scales": numbers(self.scales),
            "accuracy": {split: numbers(values) for split, values in self.accuracy.items()},
            "retrained": self.retrained,
            "counts": self.counts,
            "chance": self.chance,
            "recognised": numbers(self.recognised),
            "ratio_name": self.ratio_name,
            "ratio": numbers(self.ratio),
            "apart": self.apart,
            "divergence": numbers(self.divergence),
            "original_divergence": self.original_divergence,
            "distance": numbers(self.distance),
            "attack": numbers(self.attack),
            "original_attack": self.original_attack,
            "original_p": self.original_p,
            "mean_gap": numbers(self.mean_gap),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Scan:
        """The curve that `to_dict`, or JSON made of it, was written from; how many passes it took is not kept."""

        def array(values: Sequence[float | None]) -> np.ndarray:
            return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

        def known(name: str) -> np.ndarray | None:
            return None if stored[name] is None else array(stored[name])

        return cls(
            scales=array(stored["scales"]),
            accuracy={split: array(values) for split, values in stored["accuracy"].items()},
            counts=dict(stored["counts"]),
            chance=stored["chance"],
            ratio_name=stored["ratio_name"],
            recognised=known("recognised"),
            ratio=known("ratio"),
            apart=stored["apart"],
            divergence=known("divergence"),
            distance=known("distance"),
            attack=known("attack"),
            original_attack=stored["original_attack"],
            original_p=stored["original_p"],
            original_divergence=stored["original_divergence"],
            retrained=None if stored["retrained"] is None else dict(stored["retrained"]),
        )

    def figure(self) -> Figure:
        """γ or δ, the KL, the parameter distance, and the accuracies against ε, as the paper's Figures 2 to 4."""
        from ssse.calibration.figures import scan_figure

        return scan_figure(self)

    def __repr__(self) -> str:
        """The curve in a line; its numbers are in the attributes, and in `to_dict()`."""
        seen = ", ".join(f"{SPLITS[split]} ({count})" for split, count in self.counts.items())
        parts = [f"{len(self.scales)} ε from {self.scales[0]:.3g} to {self.scales[-1]:.3g}", f"samples of {seen}"]
        if self.ratio is not None and np.isfinite(self.ratio).any():
            at = int(np.nanargmin(self.ratio) if self.ratio_name == "δ" else np.nanargmax(self.ratio))
            parts.append(f"best {self.ratio_name} {self.ratio[at]:.3f} at ε = {self.scales[at]:.3g}")
        return f"Scan({'; '.join(parts)})"


class Undecided(SSSEError, ValueError):
    """The evidence does not decide on a scale ε. Nothing was chosen.

    Attributes:
        scan: the curve that was looked at; None for the searches along the step, which look at none.
    """

    def __init__(self, message: str, scan: Scan | None):
        self.scan = scan
        super().__init__(message)


def scan(
    model: nn.Module,
    direction: Tensor | np.ndarray | Sequence[float],
    loss_fn: LossLike,
    splits: Splits,
    *,
    scales: float | Iterable[float] = DEFAULT_SCALES,
    retrained: Model | None = None,
    parameters: ParameterChoice = "all",
    progress: bool = True,
) -> Scan:
    """Look at the model at every scale of a step, without solving again.

    Args:
        model: at ε = 0. direction: the step at ε = 1, flat: `erasure.direction`, or that of a baseline.
        splits: as in `ssse.evaluate`. scales: the values of ε, positive, rising; or one.
        retrained: to compare with: gives γ or δ, the parameter distance and the accuracy gaps.
        parameters: those that the direction is of: `curvature.layout.names`.
    """
    check_splits(splits)
    grid = check_scales(scales)
    if retrained is not None:
        check_model(retrained, "retrained")
    problem = Problem(model, loss_fn, parameters)
    line = Line(problem, direction)
    seen = {split: _look(line, data, split, grid, retrained, progress) for split, data in splits.items()}
    forgotten, held = seen.get("forgotten"), next((seen[s] for s in HELD_OUT if s in seen), None)
    first = next(iter(seen.values()))
    compared = forgotten if retrained is not None else None
    attack = start = far = ratio = apart = None
    if forgotten is not None and held is not None:
        assert forgotten.phi is not None
        assert held.phi is not None
        start = threshold_attack(forgotten.phi[0], held.phi[0])
        attack = np.array([_auc(s, h) for s, h in zip(forgotten.phi[1:], held.phi[1:], strict=True)])
    if compared is not None:
        far = compared.divergences()
        ratio, apart = compared.ratios()
    return Scan(
        scales=grid[1:],
        accuracy={split: found.accuracy[1:] for split, found in seen.items()},
        counts={split: found.count for split, found in seen.items()},
        chance=1 / first.outputs if first.task == "classes" else 0.5,
        ratio_name="δ" if first.task == "classes" else "γ",
        recognised=None if forgotten is None else forgotten.recognised(),
        ratio=ratio,
        apart=apart,
        divergence=None if far is None else far[1:],
        distance=_distances(model, line, grid[1:], retrained),
        attack=attack,
        original_attack=None if start is None else start.auc,
        original_p=None if start is None else start.p_value,
        original_divergence=None if far is None else float(far[0]),
        retrained=None if retrained is None else {split: found.goal_accuracy for split, found in seen.items()},
        passes=line.passes,
    )


def as_numbers(values: float | Iterable[float], name: str) -> np.ndarray:
    """Several numbers, or one."""
    try:
        if values is None:
            raise TypeError("None would be read as NaN")
        listed = list(values) if isinstance(values, Iterator) else values
        return np.atleast_1d(np.asarray(listed, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InvalidSetting(f"{name} must be a number or several, for instance [0.1, 1.0]; got {values!r}.") from error


def check_scales(scales: float | Iterable[float]) -> np.ndarray:
    """0, the original model, and then the user's values."""
    grid = as_numbers(scales, "scales")
    if grid.ndim != 1 or not len(grid) or not np.isfinite(grid).all() or grid.min() <= 0 or (np.diff(grid) <= 0).any():
        raise InvalidSetting("scales must be positive, finite and rising, for instance numpy.geomspace(0.1, 10, 50).")
    return np.concatenate([[0.0], grid])


@dataclass
class _Look:
    """One split at every ε, ε = 0 first."""

    task: Task
    outputs: int
    accuracy: np.ndarray  # (E,)
    count: int
    phi: np.ndarray | None  # (E, n), where an attack needs it
    goal_accuracy: float
    logits: np.ndarray | None = None  # (E, n, c), of S alone
    goal: np.ndarray | None = None
    labels: np.ndarray | None = None

    def recognised(self) -> np.ndarray | None:
        if self.task == "classes":
            return self.accuracy[1:]
        assert self.logits is not None
        assert self.labels is not None
        common = self.labels.min(0) == 1
        if self.outputs == 1 and self.labels.max() == 0:  # a single logit: 0 is a class of its own
            return np.array([(z <= 0).mean() if _finite(z) else np.nan for z in self.logits[1:]])
        if not common.any():
            return None
        return np.array([(z[:, common] > 0).mean() if _finite(z) else np.nan for z in self.logits[1:]])

    def divergences(self) -> np.ndarray:
        assert self.logits is not None
        assert self.goal is not None
        goal = log_probabilities(self.goal, self.task)
        each = [divergence(log_probabilities(z, self.task), goal).mean() if _finite(z) else np.nan for z in self.logits]
        return np.array(each)

    def ratios(self) -> tuple[np.ndarray | None, int | None]:
        """γ or δ at every ε but 0, the original's and the retrained model's part computed once; and `Scan.apart`."""
        assert self.logits is not None
        assert self.goal is not None
        assert self.labels is not None
        varied = self.labels.min(0) != self.labels.max(0)  # attributes that have an AUC on S
        if self.task == "attributes" and not varied.any():
            return None, None
        of = confusions if self.task == "classes" else lambda z, y, name: attribute_auc(z, y, name).values
        start, goal = of(self.logits[0], self.labels, "model"), of(self.goal, self.labels, "retrained")
        found = np.full(len(self.logits) - 1, np.nan)
        for i, z in enumerate(self.logits[1:]):
            if _finite(z) and (self.task == "classes" or np.ptp(z[:, varied], axis=0).any()):
                value = of(z, self.labels, "model")
                away, left = float(np.abs(value - start).sum()), float(np.abs(value - goal).sum())
                found[i] = share(left, away) if self.task == "classes" else share(away, left)
        return found, round(np.abs(start - goal).sum() / 2) if self.task == "classes" else None


def _look(
    line: Line, data: Iterable[Any], split: str, grid: np.ndarray, retrained: Model | None, progress: bool
) -> _Look:
    check_repeatable(data)
    right: list[np.ndarray] = []
    phi: list[np.ndarray] = []
    kept: list[tuple[np.ndarray, np.ndarray | None, np.ndarray]] = []
    goal_right: list[np.ndarray] = []
    task: Task = "classes"
    outputs = 0
    batches = (read_batch(batch, line.problem.device) for batch in data)  # as they come: these fit the memory
    for batch in track(batches, count_samples(data), f"scanning {SPLITS[split]}", progress):
        if not len(batch[1]):
            continue
        if not line.problem.outputs:
            line.problem.probe(batch)
        x, y = batch
        line.problem.check_labels(y)
        z = line.logits(x, grid.tolist())
        labels, task = as_labels(y, as_logits(z[0], "model"))
        outputs = z.shape[2]
        with np.errstate(invalid="ignore", over="ignore"):
            right.append(np.stack([hits(one, labels, task) if _finite(one) else np.full(len(y), np.nan) for one in z]))
            if split in ATTACKED:
                phi.append(np.stack([confidences(one, labels, task) for one in z]))
        goal = None if retrained is None else logits_of(retrained, x, "retrained")
        if goal is not None:
            check_alike({"model": z[0], "retrained": goal})
            goal_right.append(hits(goal, labels, task))
        if split == "forgotten":
            kept.append((z, goal, labels))
    if not right:
        raise InvalidData(f"The split '{split}' is empty; leave it out, or pass its samples.")
    found = _Look(
        task,
        outputs,
        np.concatenate(right, axis=1).mean(1),
        sum(part.shape[1] for part in right),
        np.concatenate(phi, axis=1) if phi else None,
        float(np.concatenate(goal_right).mean()) if goal_right else np.nan,
    )
    if kept:
        found.logits = np.concatenate([z for z, _, _ in kept], axis=1)
        found.goal = np.concatenate([goal for _, goal, _ in kept if goal is not None]) if goal_right else None
        found.labels = np.concatenate([labels for _, _, labels in kept])
    return found


def _distances(model: nn.Module, line: Line, grid: np.ndarray, retrained: Model | None) -> np.ndarray | None:
    """‖θ(ε) − θ₋S‖ / (‖θ(ε) − θ*‖ + ‖θ(ε) − θ₋S‖) over all parameters, by three inner products."""
    if not isinstance(retrained, nn.Module) or not same_parameters(model, retrained):
        return None
    pairs = list(zip(model.named_parameters(), retrained.parameters(), strict=True))  # by place: names may differ
    squared = sum(
        float((p.detach().double().cpu() - goal.detach().double().cpu()).square().sum()) for (_, p), goal in pairs
    )
    chosen = set(line.problem.layout.names)
    part = {name: goal.detach().to(line.theta.device).double() for (name, _), goal in pairs if name in chosen}
    apart = line.theta.double() - line.problem.layout.flatten(part)
    step = line.direction.double()
    cross, length = float(apart @ step), float(step @ step)
    with np.errstate(over="ignore", invalid="ignore"):
        left = np.sqrt(np.maximum(squared + 2 * grid * cross + grid**2 * length, 0.0))
        away = grid * length**0.5
    return np.array([float(share(a, b)) for a, b in zip(left.tolist(), away.tolist(), strict=True)])


def _auc(forgotten: np.ndarray, held_out: np.ndarray) -> float:
    """P(forgotten > held-out) + ½ P(equal), by ranks: the attack's AUC without its test and its interval."""
    if not (_finite(forgotten) and _finite(held_out)):
        return np.nan
    k, h = len(forgotten), len(held_out)
    return float(rankdata(np.concatenate([forgotten, held_out]))[:k].sum() - k * (k + 1) / 2) / (k * h)


def _finite(array: np.ndarray) -> bool:
    return bool((np.abs(array) < HUGE).all())
