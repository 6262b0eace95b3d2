"""The erasure as a function of its scale ε: θ(ε) = θ* + ε·u. One solve gives u; the rest is measuring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidSetting
from ssse.evaluation.measure import MeasuredSplit, measure_split
from ssse.evaluation.outputs import Model, check_model, logits_of
from ssse.evaluation.splits import HELD_OUT, SPLITS, SplitData, Splits, batches_of_splits
from ssse.evaluation.step_path import StepPath, check_direction
from ssse.metrics.attacks import rank_auc, threshold_attack
from ssse.metrics.confusion import confusion_ratio, confusions
from ssse.metrics.distance import same_parameters
from ssse.metrics.scores import as_logits, check_alike
from ssse.metrics.similarity import attribute_auc, share, similarity_of
from ssse.problem.batches import Batch, check_repeatable, peek, without_weights
from ssse.problem.losses import Loss, LossLike, as_loss
from ssse.problem.problem import Problem
from ssse.problem.training_mode import refuse_training_mode
from ssse.problem.view import ModelView, ParameterChoice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_SCALES = tuple(float(v) for v in np.geomspace(1e-2, 1e2, 49))  # 1 is in the middle
HUGE = 1e300  # logits beyond count as overflow: their differences would
ATTACKED = ("forgotten", *HELD_OUT)  # whose confidences are needed
RETRAINED = "retrained"


@dataclass(frozen=True, repr=False)
class Scan:
    """What was measured along a step, each array with one entry an ε.

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
        from ssse.evaluation.figures import scan_figure

        return scan_figure(self)

    def __repr__(self) -> str:
        """The curve in a line; its numbers are in the attributes, and in `to_dict()`."""
        counts = ", ".join(f"{SPLITS[split]} ({count})" for split, count in self.counts.items())
        parts = [f"{len(self.scales)} ε from {self.scales[0]:.3g} to {self.scales[-1]:.3g}", f"samples of {counts}"]
        if self.ratio is not None and np.isfinite(self.ratio).any():
            at = int(np.nanargmin(self.ratio) if self.ratio_name == "δ" else np.nanargmax(self.ratio))
            parts.append(f"best {self.ratio_name} {self.ratio[at]:.3f} at ε = {self.scales[at]:.3g}")
        return f"Scan({'; '.join(parts)})"


def scan(
    model: nn.Module,
    direction: Tensor | np.ndarray | Sequence[float],
    loss_fn: LossLike | Loss,
    splits: SplitData,
    *,
    scales: float | Iterable[float] = DEFAULT_SCALES,
    retrained: Model | None = None,
    parameters: ParameterChoice = "all",
    label_key: str | None = None,
    progress: bool = True,
) -> Scan:
    """Measure the model at every scale of a step, without solving again.

    Args:
        model: at ε = 0. direction: the step at ε = 1, flat: `erasure.direction`, or that of a baseline; of an erasure
            `erasure.scan(splits)` does the same.
        splits: as in `ssse.evaluate`. scales: the values of ε, positive, rising; or one.
        retrained: to compare with: gives γ or δ, the parameter distance and the accuracy gaps.
        parameters: those that the direction is of: `curvature.layout.names`. label_key: as in `ssse.Curvature.fit`.
    """
    splits = batches_of_splits(splits, label_key)
    grid = check_scales(scales)
    if retrained is not None:
        check_model(retrained, RETRAINED)
    check_direction(ModelView(model, parameters), direction)
    problem, splits = _problem(model, as_loss(loss_fn), parameters, splits)
    path = StepPath(problem, direction)
    measured = {split: _measure(path, split, data, grid, retrained, progress) for split, data in splits.items()}
    forgotten = measured.get("forgotten")
    held_out = next((measured[split] for split in HELD_OUT if split in measured), None)
    first = next(iter(measured.values()))
    steps = range(1, len(grid))
    attack = start = divergences = ratio = apart = None
    if forgotten is not None and held_out is not None:
        on_forgotten, on_held_out = _confidences(forgotten, grid), _confidences(held_out, grid)
        start = threshold_attack(on_forgotten[0], on_held_out[0])
        attack = np.array([_auc(on_forgotten[step], on_held_out[step]) for step in steps])
    if forgotten is not None and retrained is not None:
        divergences = _divergences(forgotten, grid)
        ratio, apart = _ratios(forgotten, steps)
    return Scan(
        scales=grid[1:],
        accuracy={split: _accuracies(one, steps) for split, one in measured.items()},
        counts={split: len(one.labels) for split, one in measured.items()},
        chance=1 / first.outputs if first.task == "classes" else 0.5,
        ratio_name="δ" if first.task == "classes" else "γ",
        recognised=None if forgotten is None else _recognised(forgotten, steps),
        ratio=ratio,
        apart=apart,
        divergence=None if divergences is None else divergences[1:],
        distance=_distances(model, path, grid[1:], retrained),
        attack=attack,
        original_attack=None if start is None else start.auc,
        original_p=None if start is None else start.p_value,
        original_divergence=None if divergences is None else float(divergences[0]),
        retrained=None if retrained is None else {s: one.records[RETRAINED].accuracy for s, one in measured.items()},
        passes=path.passes,
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


def _problem(
    model: nn.Module, loss_fn: LossLike | Loss, parameters: ParameterChoice, splits: Splits
) -> tuple[Problem, Splits]:
    """The problem, looked at on the first samples of the first split; and the splits, those samples still in them."""
    view = ModelView(model, parameters)
    refuse_training_mode(view.model)
    split, data = next(iter(splits.items()))
    check_repeatable(data)
    first, data = peek(data, view.device)
    if first is None:
        raise InvalidData(f"The split '{split}' is empty; leave it out, or pass its samples.")
    return Problem(view.working, loss_fn, parameters, without_weights(first)), {**splits, split: data}


def _measure(
    path: StepPath, split: str, data: Iterable[Any], grid: np.ndarray, retrained: Model | None, progress: bool
) -> MeasuredSplit[int | str]:
    """The model at every ε, by its place in the grid, and the retrained one. What overflows becomes NaN as a whole."""

    def outputs(batch: Batch) -> dict[int | str, np.ndarray]:
        path.problem.check_labels(batch[1])
        along = path.logits(batch[0], grid.tolist())
        as_logits(along[0], "model")
        logits: dict[int | str, np.ndarray] = {
            step: z if _finite(z) else np.full_like(z, np.nan) for step, z in enumerate(along)
        }
        if retrained is not None:
            logits[RETRAINED] = logits_of(retrained, batch[0], RETRAINED)
            check_alike({"model": along[0], RETRAINED: logits[RETRAINED]})
        return logits

    return measure_split(
        split,
        data,
        outputs,
        retrained=[RETRAINED] if retrained is not None and split == "forgotten" else [],
        with_confidences=split in ATTACKED,
        device=path.problem.device,
        progress="scanning" if progress else None,
    )


def _accuracies(measured: MeasuredSplit[int | str], steps: range) -> np.ndarray:
    return np.array([measured.records[step].right.mean() for step in steps])


def _confidences(measured: MeasuredSplit[int | str], grid: np.ndarray) -> list[np.ndarray]:
    return [measured.records[step].phi for step in range(len(grid))]


def _divergences(forgotten: MeasuredSplit[int | str], grid: np.ndarray) -> np.ndarray:
    each = [forgotten.records[step].divergence for step in range(len(grid))]
    return np.array([values.mean() for values in each if values is not None])


def _logits(forgotten: MeasuredSplit[int | str], key: int | str) -> np.ndarray:
    logits = forgotten.records[key].logits
    assert logits is not None  # they are kept of S
    return logits


def _recognised(forgotten: MeasuredSplit[int | str], steps: range) -> np.ndarray | None:
    if forgotten.task == "classes":
        return _accuracies(forgotten, steps)
    each = [_logits(forgotten, step) for step in steps]
    if forgotten.outputs == 1 and forgotten.labels.max() == 0:  # a single logit: 0 is a class of its own
        return np.array([(z <= 0).mean() if _finite(z) else np.nan for z in each])
    common = forgotten.labels.min(0) == 1
    if not common.any():
        return None
    return np.array([(z[:, common] > 0).mean() if _finite(z) else np.nan for z in each])


def _ratios(forgotten: MeasuredSplit[int | str], steps: range) -> tuple[np.ndarray | None, int | None]:
    """γ or δ at every ε but 0, the original's and the retrained model's part computed once; and `Scan.apart`."""
    labels, ratios = forgotten.labels, np.full(len(steps), np.nan)
    if forgotten.task == "classes":
        start = confusions(_logits(forgotten, 0), labels, "model")
        goal = confusions(_logits(forgotten, RETRAINED), labels, RETRAINED)
        for i, step in enumerate(steps):
            if _finite(z := _logits(forgotten, step)):
                ratios[i] = confusion_ratio(confusions(z, labels, "model"), start, goal)
        return ratios, round(np.abs(start - goal).sum() / 2)
    varied = labels.min(0) != labels.max(0)  # attributes that have an AUC on S
    if not varied.any():
        return None, None
    before = attribute_auc(_logits(forgotten, 0), labels, "model")
    wanted = attribute_auc(_logits(forgotten, RETRAINED), labels, RETRAINED)
    for i, step in enumerate(steps):
        if _finite(z := _logits(forgotten, step)) and np.ptp(z[:, varied], axis=0).any():
            ratios[i] = similarity_of(attribute_auc(z, labels, "model"), before, wanted)
    return ratios, None


def _distances(model: nn.Module, path: StepPath, grid: np.ndarray, retrained: Model | None) -> np.ndarray | None:
    """‖θ(ε) − θ₋S‖ / (‖θ(ε) − θ*‖ + ‖θ(ε) − θ₋S‖) over all parameters, by three inner products."""
    if not isinstance(retrained, nn.Module) or not same_parameters(model, retrained):
        return None
    named = path.problem.working.inner.named_parameters()
    pairs = list(zip(named, retrained.parameters(), strict=True))  # by place: names may differ
    squared = sum(
        float((p.detach().double().cpu() - goal.detach().double().cpu()).square().sum()) for (_, p), goal in pairs
    )
    chosen = set(path.problem.layout.names)
    part = {name: goal.detach().to(path.theta.device).double() for (name, _), goal in pairs if name in chosen}
    apart = path.theta.double() - path.problem.layout.flatten(part)
    step = path.direction.double()
    cross, length = float(apart @ step), float(step @ step)
    with np.errstate(over="ignore", invalid="ignore"):
        remaining = np.sqrt(np.maximum(squared + 2 * grid * cross + grid**2 * length, 0.0))
        away = grid * length**0.5
    return np.array([float(share(a, b)) for a, b in zip(remaining.tolist(), away.tolist(), strict=True)])


def _auc(forgotten: np.ndarray, held_out: np.ndarray) -> float:
    return rank_auc(forgotten, held_out) if _finite(forgotten) and _finite(held_out) else np.nan


def _finite(array: np.ndarray) -> bool:
    return bool((np.abs(array) < HUGE).all())
