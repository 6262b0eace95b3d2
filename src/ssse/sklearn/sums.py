"""What an eraser keeps: sums over the samples of every linear model in the estimator, and no sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssse.errors import DoesNotFit, InvalidData, NotPositiveDefinite, PrecisionLost
from ssse.sklearn.adapters import ClassCounts, ClassifierAdapter
from ssse.sklearn.composition import Composition
from ssse.sklearn.coordinates import Coordinates
from ssse.sklearn.quadratic import Quadratic
from ssse.system.memory import human_bytes, memory_budget, spare_memory

CHUNK = 1 << 22  # numbers of X̃ that are made dense at a time

PASSES_OF_A_REFIT = 20  # until scikit-learn's default tolerance is met: benchmarks/sklearn_floor.py

Advance = Callable[[int], None]


@dataclass(frozen=True)
class TrainingSums:
    """Of each linear model in the estimator: how many samples of each class, and its quadratics.

    Attributes:
        shift: how far, by one Newton step, the estimator was from the minimum when the curvature was taken.
        strained: the strain (see `measures.StepMeasures`) of all requests since then together, at most; None where it
            is not known.
        doubted: whether a request since then was not vouched for, or the model was refined under this curvature.
        weighted: whether samples came with weights. dropped: whether a class of a softmax model has vanished.
    """

    coordinates: Coordinates
    class_counts: tuple[ClassCounts, ...]
    quadratics: tuple[tuple[Quadratic, ...], ...]
    erased: int = 0
    shift: float = 0.0
    strained: float | None = 0.0
    doubted: bool = False
    weighted: bool = False
    dropped: bool = False

    @classmethod
    def empty(cls, composition: Composition, coordinates: Coordinates, weighted: bool) -> TrainingSums:
        nobody = np.zeros(0, dtype=np.int64)
        return cls(
            coordinates,
            tuple(adapter.count_classes(nobody, np.zeros(0)) for adapter in composition.adapters),
            tuple(tuple(adapter.quadratics(coordinates)) for adapter in composition.adapters),
            weighted=weighted,
        )

    @property
    def all_quadratics(self) -> list[Quadratic]:
        return [quadratic for quadratics in self.quadratics for quadratic in quadratics]

    @property
    def finished(self) -> bool:
        return all(quadratic.inverse is not None for quadratic in self.all_quadratics)

    @property
    def samples(self) -> int:
        return self.class_counts[0].samples

    def operations(self, samples: int) -> float:
        """Of a request, about: its samples subtracted, or a new factor, and some passes over what is held."""
        return float(sum(quadratic.operations(samples) for quadratic in self.all_quadratics))

    def refit_operations(self) -> float:
        """Of a refit over all samples, about, by first derivatives alone: two products with X in each pass."""
        scores = sum(
            quadratic.loss.wide(quadratic.theta, self.coordinates.width).shape[1] for quadratic in self.all_quadratics
        )
        return 4.0 * PASSES_OF_A_REFIT * self.samples * self.coordinates.width * scores

    @property
    def distance(self) -> float:
        """From the minimum over the samples that are left, at most."""
        return (
            math.hypot(*(quadratic.bound.distance for quadratic in self.all_quadratics)) if self.finished else math.inf
        )

    @property
    def gradient(self) -> float:
        return math.hypot(*(quadratic.bound.gradient for quadratic in self.all_quadratics))

    @property
    def correction(self) -> float:
        """That shift, over the length of the parameters."""
        size = float(np.linalg.norm(self.parameters()))
        return self.shift / size if size else (math.inf if self.shift else 0.0)

    @property
    def exact(self) -> bool:
        return all(quadratic.loss.exact for quadratic in self.all_quadratics)

    @property
    def bounded(self) -> bool:
        return all(quadratic.loss.bounded for quadratic in self.all_quadratics)

    def parameters(self, anchor: bool = False) -> np.ndarray:
        """All coefficients and intercepts, as scikit-learn counts them; or those that the sums are of."""
        parts = []
        for quadratic in self.all_quadratics:
            at = quadratic.anchor if anchor else quadratic.theta
            coef, intercept = self.coordinates.to_sklearn(quadratic.loss.wide(at, self.coordinates.width))
            parts += [coef.ravel(), intercept]
        return np.concatenate(parts)

    def with_quadratics(self, quadratics: Sequence[Sequence[Quadratic]]) -> TrainingSums:
        return replace(self, quadratics=tuple(tuple(group) for group in quadratics))


def check_memory(sizes: Sequence[tuple[int, int]], asked: float | str | None) -> None:
    """Before the data is read. `sizes`: of each quadratic, its parameters in one column, and its groups."""
    needed = sum(8 * size**2 * (groups + 3) for size, groups in sizes)  # sums, inverse, what a request makes of both
    free = spare_memory(None) if asked is None else memory_budget(None, asked)
    if needed > free:
        raise DoesNotFit(
            f"The curvature of this model needs {human_bytes(needed)}, of {human_bytes(free)} that are free: it grows "
            "with the square of features times classes. Reduce the features (PCA, SelectKBest), take one model for "
            "each class (OneVsRestClassifier), raise memory_budget, or refit from where it stands (warm_start=True, "
            'solver="newton-cg"), which is the same step from the data itself.'
        )


def take_in(
    sums: TrainingSums,
    composition: Composition,
    x: Any,
    columns: list[np.ndarray],
    weights: np.ndarray,
    advance: Advance,
    *,
    in_place: bool,
) -> TrainingSums:
    """The sums of these samples beside those there are; X is read once, for all quadratics."""
    totals = [[quadratic.loss_sums for quadratic in quadratics] for quadratics in sums.quadratics]
    for part, design in designs(sums, x):
        for i, adapter in enumerate(composition.adapters):
            for j, labels in enumerate(adapter.labels(columns[i][part], weights[part])):
                more = sums.quadratics[i][j].measure(design, labels)
                totals[i][j] = totals[i][j].take_in(more) if in_place else totals[i][j] + more
        advance(len(design))
    quadratics = [
        [replace(quadratic, loss_sums=total, inverse=None) for quadratic, total in zip(group, ours, strict=True)]
        for group, ours in zip(sums.quadratics, totals, strict=True)
    ]
    class_counts = tuple(
        before + adapter.count_classes(codes, weights)
        for before, adapter, codes in zip(sums.class_counts, composition.adapters, columns, strict=True)
    )
    return replace(sums.with_quadratics(quadratics), class_counts=class_counts)


def finish(sums: TrainingSums, composition: Composition) -> TrainingSums:
    """With every curvature factorised."""
    quadratics = []
    for adapter, group, class_counts in zip(composition.adapters, sums.quadratics, sums.class_counts, strict=True):
        lacking = np.flatnonzero(class_counts.counts == 0)
        if len(lacking) and isinstance(adapter, ClassifierAdapter):
            lacked = adapter.classes.tolist()[lacking[0]]
            raise InvalidData(
                f"There is no sample of class {lacked!r}, so this is not the data that {adapter.name} was fitted to."
            )
        try:
            quadratics.append(
                [
                    quadratic.finished(sums.coordinates, weights, class_counts.samples)
                    for quadratic, weights in zip(group, adapter.weights(class_counts), strict=True)
                ]
            )
        except (NotPositiveDefinite, PrecisionLost) as error:
            raise type(error)(
                f"{adapter.name}: {error}. scikit-learn then takes one of many solutions, which is not supported: drop "
                "features that follow from others (OneHotEncoder(drop='first')), or use a penalty."
            ) from error
    new = sums.with_quadratics(quadratics)
    return replace(new, shift=shift_of(new))


def shift_of(sums: TrainingSums) -> float:
    """How long the step to the minimum is, by the gradient where the model is."""
    total = 0.0
    for quadratic in sums.all_quadratics:
        step = quadratic.loss.wide(quadratic.solve(quadratic.gradient()), sums.coordinates.width)
        total = math.hypot(total, *(float(np.linalg.norm(part)) for part in sums.coordinates.to_sklearn(step)))
    return total


def measure_reach(sums: TrainingSums, x: Any, advance: Advance) -> TrainingSums:
    """A second pass, for the constants of the bound."""
    reach = {
        (i, j): 0.0
        for i, quadratics in enumerate(sums.quadratics)
        for j, quadratic in enumerate(quadratics)
        if quadratic.loss.bounded and not quadratic.loss.exact
    }
    for _, design in designs(sums, x) if reach else ():
        for i, j in reach:
            quadratic = sums.quadratics[i][j]
            assert quadratic.inverse is not None
            reach[i, j] = max(reach[i, j], quadratic.loss.reach(design, quadratic.inverse))
        advance(len(design))
    return sums.with_quadratics(
        [
            [
                quadratic.reaching(reach[i, j]) if (i, j) in reach else quadratic
                for j, quadratic in enumerate(quadratics)
            ]
            for i, quadratics in enumerate(sums.quadratics)
        ]
    )


def sums_anew(
    sums: TrainingSums,
    composition: Composition,
    x: Any,
    columns: list[np.ndarray],
    weights: np.ndarray,
    advance: Advance,
) -> TrainingSums:
    """All sums and constants over these samples, where the model is."""
    empty = sums.with_quadratics([[quadratic.emptied() for quadratic in quadratics] for quadratics in sums.quadratics])
    empty = replace(empty, class_counts=tuple(counts - counts for counts in sums.class_counts))
    empty = replace(empty, strained=0.0, doubted=False, dropped=False)
    new = finish(take_in(empty, composition, x, columns, weights, advance, in_place=True), composition)
    return measure_reach(new, x, advance)


def mean_losses(
    old: TrainingSums,
    new: TrainingSums,
    composition: Composition,
    design: np.ndarray,
    columns: list[np.ndarray],
    weights: np.ndarray,
) -> tuple[float, float]:
    """On these samples under the two models, summed over outputs."""
    totals = [0.0, 0.0]
    for adapter, codes, before, after in zip(
        composition.adapters, columns, old.quadratics, new.quadratics, strict=True
    ):
        for labels, one, other in zip(adapter.labels(codes, weights), before, after, strict=True):
            totals[0] += one.mean_loss(design, labels, one.theta)
            totals[1] += one.mean_loss(design, labels, other.theta)
    return totals[0], totals[1]


def designs(sums: TrainingSums, x: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """X̃ in parts, long enough that a product of one outweighs adding its result up."""
    step = max(CHUNK // sums.coordinates.width, 2 * sums.coordinates.width, 1)
    for first in range(0, x.shape[0], step):
        part = slice(first, min(first + step, x.shape[0]))
        yield part, sums.coordinates.design(x[part])
