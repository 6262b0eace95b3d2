"""What scikit-learn's linear models are to an eraser: objective, labels, and the way back into a fitted estimator."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.class_weight import compute_class_weight

from ssse.errors import InvalidData, InvalidModel
from ssse.sklearn.coordinates import Coordinates
from ssse.sklearn.loss_sums import Labels, LossSums
from ssse.sklearn.losses import Squared
from ssse.sklearn.quadratic import Erased, Quadratic

# From some version on, "balanced" weighs classes by the weights of their samples instead of their number.
WEIGHTED_COUNTS = "sample_weight" in inspect.signature(compute_class_weight).parameters


@dataclass(frozen=True)
class ClassCounts:
    """Samples of each class and the sum of their weights; of a regression, of all samples."""

    counts: np.ndarray
    weight_sums: np.ndarray

    def __add__(self, other: ClassCounts) -> ClassCounts:
        return ClassCounts(self.counts + other.counts, self.weight_sums + other.weight_sums)

    def __sub__(self, other: ClassCounts) -> ClassCounts:
        return ClassCounts(self.counts - other.counts, np.maximum(self.weight_sums - other.weight_sums, 0.0))

    def __getitem__(self, classes: np.ndarray) -> ClassCounts:
        return ClassCounts(self.counts[classes], self.weight_sums[classes])

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @property
    def present(self) -> np.ndarray:
        return np.flatnonzero(self.counts > 0)


@dataclass(frozen=True)
class ErasureRequest:
    """One request, as one linear model sees it. `after`: what is left of each class."""

    design: np.ndarray
    codes: np.ndarray
    weights: np.ndarray
    after: ClassCounts
    coordinates: Coordinates
    joint: bool

    def taken_from(self, quadratic: Quadratic, labels: Labels) -> LossSums:
        return quadratic.measure(self.design, labels, few=quadratic.is_few(len(self.design)))


class Adapter(ABC):
    """One fitted linear model of scikit-learn with one set of labels, as one or more quadratics.

    Attributes:
        per_sample: the penalty is of the mean loss, so that of the sum grows with the samples.
    """

    per_sample = False

    def __init__(self, estimator: Any):
        self.estimator = estimator
        if (reason := self.refusal()) is not None:
            raise InvalidModel(f"{type(estimator).__name__} cannot be erased from: {reason}")

    @property
    def name(self) -> str:
        return type(self.estimator).__name__

    @property
    def intercept(self) -> bool:
        return bool(self.estimator.fit_intercept)

    @property
    def shiftable(self) -> bool:
        """A shift of the features can be made good by the intercept, since that has no penalty."""
        return True

    def refusal(self) -> str | None:
        """Why this estimator, as it is set, has no erasing step; None if it has."""
        return None

    @abstractmethod
    def codes(self, y: Any) -> np.ndarray:
        """Labels as this estimator counts them: places of classes, or targets of shape (n, targets)."""

    @abstractmethod
    def count_classes(self, codes: np.ndarray, weights: np.ndarray) -> ClassCounts: ...

    @abstractmethod
    def quadratics(self, coordinates: Coordinates) -> list[Quadratic]:
        """Without any samples yet."""

    @abstractmethod
    def sizes(self, width: int) -> list[tuple[int, int]]:
        """Of each quadratic: its parameters in one column, and its groups."""

    @abstractmethod
    def labels(self, codes: np.ndarray, weights: np.ndarray) -> list[Labels]:
        """For each quadratic."""

    @abstractmethod
    def weights(self, class_counts: ClassCounts) -> list[tuple[float, ...]]:
        """Of each quadratic's groups."""

    def erase(self, quadratics: Sequence[Quadratic], request: ErasureRequest) -> list[Erased]:
        """Each quadratic at its new minimum; where classes vanish, those of the classes that stay."""
        erased = []
        wanted, after = self.labels(request.codes, request.weights), request.after
        for quadratic, labels, weights in zip(quadratics, wanted, self.weights(after), strict=True):
            taken = request.taken_from(quadratic, labels)
            one = quadratic.without(taken, request.coordinates, weights, after.samples, joint=request.joint)
            erased.append(quadratic.compared(one, taken, request.design, labels))
        return erased

    def write(
        self, quadratics: Sequence[Quadratic], coordinates: Coordinates, class_counts: ClassCounts
    ) -> tuple[Any, float]:
        """A new estimator with the quadratics' parameters; and the distance that its dtype costs."""
        new = copy.deepcopy(self.estimator)
        parts = [
            coordinates.to_sklearn(quadratic.loss.wide(quadratic.theta, coordinates.width)) for quadratic in quadratics
        ]
        coef = np.vstack([part[0] for part in parts])
        intercept = np.concatenate([part[1] for part in parts])
        stored = self.estimator.coef_
        new.coef_ = (coef[0] if stored.ndim == 1 else coef).astype(stored.dtype)
        rounded = coef - new.coef_
        rounded_intercept = np.zeros(1)
        if self.intercept:
            was = np.asarray(self.estimator.intercept_)
            kept = intercept.astype(was.dtype)
            new.intercept_ = kept if was.ndim else kept[0]
            rounded_intercept = intercept - kept
        elif np.ndim(self.estimator.intercept_):
            new.intercept_ = np.zeros(len(coef), dtype=stored.dtype)
        self.update_attributes(new, quadratics, coordinates, class_counts)
        return new, float(np.sqrt((rounded**2).sum() + (rounded_intercept**2).sum()))

    def update_attributes(  # noqa: B027  # may be nothing
        self, new: Any, quadratics: Sequence[Quadratic], coordinates: Coordinates, class_counts: ClassCounts
    ) -> None:
        """What else of the fitted estimator depends on the samples."""


class RegressionAdapter(Adapter):
    """Ridge and LinearRegression: ½‖y − z‖² + ½α‖w‖²."""

    def refusal(self) -> str | None:
        if getattr(self.estimator, "positive", False):
            return "with positive=True its coefficients lie at a border, where one step is not the refit."
        return None

    def codes(self, y: Any) -> np.ndarray:
        try:
            targets = np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidData("y must hold numbers, for a regression.") from None
        shape = np.shape(self.estimator.coef_)
        wanted = 1 if len(shape) == 1 else shape[0]
        if targets.ndim == 1:
            targets = targets[:, None]
        if targets.ndim != 2:
            raise InvalidData(f"y has the shape {targets.shape}; {self.name} takes a row of targets for each sample.")
        if targets.shape[1] != wanted:
            raise InvalidData(f"y has {targets.shape[1]} targets, the estimator {wanted}.")
        if not np.isfinite(targets).all():
            raise InvalidData("y holds NaN or infinity.")
        return targets

    def count_classes(self, codes: np.ndarray, weights: np.ndarray) -> ClassCounts:
        return ClassCounts(np.array([len(codes)]), np.array([weights.sum()]))

    def sizes(self, width: int) -> list[tuple[int, int]]:
        return [(width, 1)] * len(self.weights(ClassCounts(np.zeros(1), np.zeros(1))))

    def quadratics(self, coordinates: Coordinates) -> list[Quadratic]:
        coef = np.atleast_2d(self.estimator.coef_)
        intercept = np.broadcast_to(np.asarray(self.estimator.intercept_, dtype=np.float64), len(coef))
        alpha = np.broadcast_to(np.asarray(getattr(self.estimator, "alpha", 0.0), dtype=np.float64), len(coef))
        theta = coordinates.from_sklearn(coef, intercept)
        if len(np.unique(alpha)) == 1:  # all targets share one curvature
            return [Quadratic.empty(Squared(), theta, coordinates.penalty(alpha[0]))]
        return [Quadratic.empty(Squared(), theta[:, [i]], coordinates.penalty(one)) for i, one in enumerate(alpha)]

    def labels(self, codes: np.ndarray, weights: np.ndarray) -> list[Labels]:
        alpha = np.atleast_1d(getattr(self.estimator, "alpha", 0.0))
        if len(np.unique(alpha)) == 1:
            return [Labels(codes, weights)]
        return [Labels(codes[:, [i]], weights) for i in range(codes.shape[1])]

    def weights(self, class_counts: ClassCounts) -> list[tuple[float, ...]]:
        alpha = np.atleast_1d(getattr(self.estimator, "alpha", 0.0))
        return [(1.0,)] * (1 if len(np.unique(alpha)) == 1 else len(alpha))

    def update_attributes(
        self, new: Any, quadratics: Sequence[Quadratic], coordinates: Coordinates, class_counts: ClassCounts
    ) -> None:
        if not hasattr(new, "singular_"):
            return
        gram, d = quadratics[0].loss_sums.grams[0], len(coordinates.scale)
        inner = gram[:d, :d]
        if coordinates.intercept:
            inner = inner - np.outer(gram[:d, d], gram[d, :d]) / gram[d, d]
        squares = np.linalg.eigvalsh(inner * np.outer(coordinates.scale, coordinates.scale))[::-1]
        new.singular_ = np.sqrt(np.maximum(squares, 0.0))[: min(class_counts.samples, d)].astype(new.singular_.dtype)
        new.rank_ = int(min(class_counts.samples, d))  # what does not determine every coefficient was refused


class ClassifierAdapter(Adapter):
    """What classifiers have in common: classes, and their weights."""

    counts_weights = WEIGHTED_COUNTS  # whether "balanced" looks at the weights of samples

    @property
    def classes(self) -> np.ndarray:
        return self.estimator.classes_

    @property
    def balanced(self) -> bool:
        return isinstance(self.estimator.class_weight, str)

    def codes(self, y: Any) -> np.ndarray:
        try:
            labels = np.asarray(y)
        except ValueError as error:
            raise InvalidData(f"y: {error}") from error
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels.ravel()
        if labels.ndim != 1:
            raise InvalidData(f"y has the shape {labels.shape}; {self.name} takes one label for each sample.")
        return class_indices(labels, self.classes)

    def count_classes(self, codes: np.ndarray, weights: np.ndarray) -> ClassCounts:
        size = len(self.classes)
        return ClassCounts(np.bincount(codes, minlength=size), np.bincount(codes, weights, minlength=size))

    def class_weights(self, class_counts: ClassCounts) -> np.ndarray:
        """As scikit-learn computes them for what there is; of a class without samples, 0."""
        if self.estimator.class_weight is None:
            return np.ones(len(self.classes))
        if not self.balanced:
            there = set(self.classes.tolist())  # weights of classes that vanished are none of scikit-learn's business
            given = {key: value for key, value in self.estimator.class_weight.items() if key in there}
            return np.asarray(compute_class_weight(given, classes=self.classes, y=self.classes))
        sizes = class_counts.weight_sums if self.counts_weights else class_counts.counts.astype(np.float64)
        there = class_counts.counts > 0
        out = np.zeros(len(sizes))
        out[there] = sizes[there].sum() / (there.sum() * sizes[there])
        return out

    def erase(self, quadratics: Sequence[Quadratic], request: ErasureRequest) -> list[Erased]:
        stays = request.after.present
        if len(stays) < 2:
            (last,) = self.classes[stays].tolist()
            raise InvalidData(
                f"Only the class {last!r} would be left, and scikit-learn fits no {self.name} to one class."
            )
        if len(stays) == len(self.classes):
            return super().erase(quadratics, request)
        return self.erase_classes(quadratics, request, stays)

    @abstractmethod
    def erase_classes(
        self, quadratics: Sequence[Quadratic], request: ErasureRequest, stays: np.ndarray
    ) -> list[Erased]:
        """Where only these classes have samples left."""

    def update_attributes(
        self, new: Any, quadratics: Sequence[Quadratic], coordinates: Coordinates, class_counts: ClassCounts
    ) -> None:
        new.classes_ = self.classes[class_counts.present]


def set_classes(estimator: Any, classes: np.ndarray) -> None:
    """Older versions of scikit-learn look some of them up in the binarizer, and let nobody set them."""
    if "classes_" in vars(estimator):
        estimator.classes_ = classes


def class_indices(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Of each label among the classes.

    Raises:
        InvalidData: a label is none of them.
    """
    try:
        places = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
        known = classes[places] == labels
    except TypeError:
        index = {one: i for i, one in enumerate(classes.tolist())}
        places = np.array([index.get(one, -1) for one in labels.tolist()])
        known = places >= 0
    if not np.all(known):
        unknown = labels.tolist()[int(np.flatnonzero(~np.asarray(known))[0])]
        some = ", ".join(repr(one) for one in classes[:5].tolist()) + (" …" if len(classes) > 5 else "")
        raise InvalidData(f"y holds {unknown!r}, which is none of the estimator's classes: {some}.")
    return places
