"""scikit-learn's linear models, each as heads: its objective, its labels, and the way back into a fitted estimator."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.svm import LinearSVC
from sklearn.utils.class_weight import compute_class_weight

from ssse.errors import InvalidData, InvalidModel
from ssse.sklearn.frame import Frame
from ssse.sklearn.head import Head, Labels
from ssse.sklearn.losses import Logistic, Loss, Softmax, Squared, SquaredHinge

# From some version on, "balanced" weighs classes by the weights of their samples instead of their number.
WEIGHTED_COUNTS = "sample_weight" in inspect.signature(compute_class_weight).parameters


@dataclass(frozen=True)
class Tally:
    """Samples of each class and the sum of their weights; of a regression, of all samples."""

    counts: np.ndarray
    mass: np.ndarray

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.counts + other.counts, self.mass + other.mass)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.counts - other.counts, np.maximum(self.mass - other.mass, 0.0))

    def __getitem__(self, classes: np.ndarray) -> Tally:
        return Tally(self.counts[classes], self.mass[classes])

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @property
    def present(self) -> np.ndarray:
        return np.flatnonzero(self.counts > 0)


class Leaf(ABC):
    """One fitted estimator with one set of labels.

    Attributes:
        movable: a shift of the features can be made good by the intercept, since that has no penalty.
    """

    supports: type
    movable = True
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

    def refusal(self) -> str | None:
        """Why this estimator, as it is set, has no erasing step; None if it has."""
        return None

    @abstractmethod
    def codes(self, y: Any) -> np.ndarray:
        """Labels as this estimator counts them: places of classes, or targets of shape (n, targets)."""

    @abstractmethod
    def tally(self, codes: np.ndarray, weights: np.ndarray) -> Tally: ...

    @abstractmethod
    def heads(self, frame: Frame) -> list[Head]:
        """Without any samples yet."""

    @abstractmethod
    def sizes(self, width: int) -> list[tuple[int, int]]:
        """Of each head: its parameters in one column, and its groups."""

    @abstractmethod
    def labels(self, codes: np.ndarray, weights: np.ndarray) -> list[Labels]:
        """For each head."""

    @abstractmethod
    def weights(self, tally: Tally) -> list[tuple[float, ...]]:
        """Of each head's groups."""

    def erase(
        self,
        heads: Sequence[Head],
        design: np.ndarray,
        codes: np.ndarray,
        weights: np.ndarray,
        before: Tally,
        after: Tally,
        frame: Frame,
        joint: bool,
    ) -> list[tuple[Head, float]]:
        """Each head at its new minimum, and the largest leverage; where classes vanish, the heads that are left."""
        found = []
        for head, labels, group_weights in zip(
            heads, self.labels(codes, weights), self.weights(after), strict=True
        ):  # fmt: skip
            taken = head.measure(design, labels, few=head.is_few(len(design)))
            found.append(head.without(taken, frame, group_weights, after.samples, joint=joint))
        return found

    def write(self, heads: Sequence[Head], frame: Frame, tally: Tally) -> tuple[Any, float]:
        """A new estimator with the heads' parameters; and the distance that its dtype costs."""
        new = copy.deepcopy(self.estimator)
        parts = [frame.outside(head.loss.wide(head.theta, frame.width)) for head in heads]
        coef = np.vstack([part[0] for part in parts])
        intercept = np.concatenate([part[1] for part in parts])
        stored = self.estimator.coef_
        new.coef_ = (coef[0] if stored.ndim == 1 else coef).astype(stored.dtype)
        lost = coef - new.coef_
        missed = np.zeros(1)
        if self.intercept:
            was = np.asarray(self.estimator.intercept_)
            kept = intercept.astype(was.dtype)
            new.intercept_ = kept if was.ndim else kept[0]
            missed = intercept - kept
        elif np.ndim(self.estimator.intercept_):
            new.intercept_ = np.zeros(len(coef), dtype=stored.dtype)
        self.tidy(new, heads, frame, tally)
        return new, float(np.sqrt((lost**2).sum() + (missed**2).sum()))

    def tidy(self, new: Any, heads: Sequence[Head], frame: Frame, tally: Tally) -> None:  # noqa: B027  # may be nothing
        """What else of the fitted estimator depends on the samples."""


class Regression(Leaf):
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

    def tally(self, codes: np.ndarray, weights: np.ndarray) -> Tally:
        return Tally(np.array([len(codes)]), np.array([weights.sum()]))

    def sizes(self, width: int) -> list[tuple[int, int]]:
        return [(width, 1)] * len(self.weights(Tally(np.zeros(1), np.zeros(1))))

    def heads(self, frame: Frame) -> list[Head]:
        coef = np.atleast_2d(self.estimator.coef_)
        intercept = np.broadcast_to(np.asarray(self.estimator.intercept_, dtype=np.float64), len(coef))
        alpha = np.broadcast_to(np.asarray(getattr(self.estimator, "alpha", 0.0), dtype=np.float64), len(coef))
        theta = frame.inside(coef, intercept)
        if len(np.unique(alpha)) == 1:  # all targets share one curvature
            return [Head.empty(Squared(), theta, frame.penalty(alpha[0]))]
        return [Head.empty(Squared(), theta[:, [i]], frame.penalty(one)) for i, one in enumerate(alpha)]

    def labels(self, codes: np.ndarray, weights: np.ndarray) -> list[Labels]:
        alpha = np.atleast_1d(getattr(self.estimator, "alpha", 0.0))
        if len(np.unique(alpha)) == 1:
            return [Labels(codes, weights)]
        return [Labels(codes[:, [i]], weights) for i in range(codes.shape[1])]

    def weights(self, tally: Tally) -> list[tuple[float, ...]]:
        alpha = np.atleast_1d(getattr(self.estimator, "alpha", 0.0))
        return [(1.0,)] * (1 if len(np.unique(alpha)) == 1 else len(alpha))

    def tidy(self, new: Any, heads: Sequence[Head], frame: Frame, tally: Tally) -> None:
        if not hasattr(new, "singular_"):
            return
        gram, d = heads[0].sums.grams[0], len(frame.scale)
        inner = gram[:d, :d]
        if frame.intercept:
            inner = inner - np.outer(gram[:d, d], gram[d, :d]) / gram[d, d]
        squares = np.linalg.eigvalsh(inner * np.outer(frame.scale, frame.scale))[::-1]
        new.singular_ = np.sqrt(np.maximum(squares, 0.0))[: min(tally.samples, d)].astype(new.singular_.dtype)
        new.rank_ = int(min(tally.samples, d))  # what does not determine every coefficient was refused


class Classifier(Leaf):
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
        return places_of(labels, self.classes)

    def tally(self, codes: np.ndarray, weights: np.ndarray) -> Tally:
        size = len(self.classes)
        return Tally(np.bincount(codes, minlength=size), np.bincount(codes, weights, minlength=size))

    def class_weights(self, tally: Tally) -> np.ndarray:
        """As scikit-learn computes them for what there is; of a class without samples, 0."""
        if self.estimator.class_weight is None:
            return np.ones(len(self.classes))
        if not self.balanced:
            there = set(self.classes.tolist())  # weights of classes that vanished are none of scikit-learn's business
            given = {key: value for key, value in self.estimator.class_weight.items() if key in there}
            return np.asarray(compute_class_weight(given, classes=self.classes, y=self.classes))
        mass = tally.mass if self.counts_weights else tally.counts.astype(np.float64)
        there = tally.counts > 0
        out = np.zeros(len(mass))
        out[there] = mass[there].sum() / (there.sum() * mass[there])
        return out

    def erase(
        self,
        heads: Sequence[Head],
        design: np.ndarray,
        codes: np.ndarray,
        weights: np.ndarray,
        before: Tally,
        after: Tally,
        frame: Frame,
        joint: bool,
    ) -> list[tuple[Head, float]]:
        stays = after.present
        if len(stays) < 2:
            (left,) = self.classes[stays].tolist()
            raise InvalidData(
                f"Only the class {left!r} would be left, and scikit-learn fits no {self.name} to one class."
            )
        if len(stays) == len(self.classes):
            return super().erase(heads, design, codes, weights, before, after, frame, joint)
        return self.erase_classes(heads, design, codes, weights, after, stays, frame, joint)

    @abstractmethod
    def erase_classes(
        self,
        heads: Sequence[Head],
        design: np.ndarray,
        codes: np.ndarray,
        weights: np.ndarray,
        after: Tally,
        stays: np.ndarray,
        frame: Frame,
        joint: bool,
    ) -> list[tuple[Head, float]]: ...

    def tidy(self, new: Any, heads: Sequence[Head], frame: Frame, tally: Tally) -> None:
        new.classes_ = self.classes[tally.present]


class LogisticLeaf(Classifier):
    """Σ sᵢℓᵢ + ½‖w‖²/C; the intercept without penalty but by liblinear, which treats it as a feature."""

    def refusal(self) -> str | None:
        penalty, ratio = self.estimator.penalty, getattr(self.estimator, "l1_ratio", 0)
        old = penalty not in ("deprecated", None)
        if (penalty if old else None) in ("l1", "elasticnet") or (not old and penalty is not None and ratio):
            return "an L1 penalty has no curvature at zero, so one step is not the refit. Use the L2 penalty."
        if len(self.classes) > 2 and (self._liblinear or getattr(self.estimator, "multi_class", "auto") == "ovr"):
            return "its classes were fitted one against the rest; say so with OneVsRestClassifier."
        return None

    @property
    def _liblinear(self) -> bool:
        return self.estimator.solver == "liblinear"

    @property
    def movable(self) -> bool:  # type: ignore[override]
        return not self._liblinear

    @property
    def ridge(self) -> float:
        unpenalised = self.estimator.penalty is None or np.isinf(self.estimator.C)
        return 0.0 if unpenalised else 1 / float(self.estimator.C)

    @property
    def loss(self) -> Loss:
        return Logistic() if len(self.classes) == 2 else Softmax(len(self.classes))

    def sizes(self, width: int) -> list[tuple[int, int]]:
        return [(self.loss.size(width), len(self.classes) if self.balanced else 1)]

    def heads(self, frame: Frame) -> list[Head]:
        theta = frame.inside(self.estimator.coef_, self.estimator.intercept_)
        of_intercept = self.ridge / float(self.estimator.intercept_scaling) ** 2 if self._liblinear else 0.0
        groups = len(self.classes) if self.balanced else 1
        return [Head.empty(self.loss, theta, frame.penalty(self.ridge, of_intercept), groups)]

    def labels(self, codes: np.ndarray, weights: np.ndarray) -> list[Labels]:
        if self.balanced:
            return [Labels(codes, weights, codes)]
        if self.estimator.class_weight is None:
            return [Labels(codes, weights)]
        return [Labels(codes, weights * self.class_weights(self.tally(codes, weights))[codes])]

    def weights(self, tally: Tally) -> list[tuple[float, ...]]:
        return [tuple(self.class_weights(tally).tolist()) if self.balanced else (1.0,)]

    def erase_classes(self, heads, design, codes, weights, after, stays, frame, joint) -> list[tuple[Head, float]]:
        (head,), (labels,), (wanted,) = heads, self.labels(codes, weights), self.weights(after)
        taken = head.measure(design, labels, few=head.is_few(len(design)))
        kept = [wanted[i] for i in stays] if self.balanced else wanted
        return [head.without_classes(taken, stays, frame, kept, after.samples, joint=joint)]


class RidgeClassifierLeaf(Classifier):
    """Least squares on −1 and 1, a column for each class."""

    counts_weights = False

    def refusal(self) -> str | None:
        if self.estimator.positive:
            return "with positive=True its coefficients lie at a border, where one step is not the refit."
        if np.ndim(self.estimator.alpha):
            return "an alpha of its own for each class is not supported."
        if self.estimator._label_binarizer.y_type_.startswith("multilabel"):
            return "it was fitted to several labels at once. Use MultiOutputClassifier(RidgeClassifier())."
        return None

    def sizes(self, width: int) -> list[tuple[int, int]]:
        return [(width, len(self.classes) if self.balanced else 1)]

    def heads(self, frame: Frame) -> list[Head]:
        coef = np.atleast_2d(self.estimator.coef_)
        intercept = np.broadcast_to(np.asarray(self.estimator.intercept_, dtype=np.float64), len(coef))
        groups = len(self.classes) if self.balanced else 1
        return [
            Head.empty(Squared(), frame.inside(coef, intercept), frame.penalty(float(self.estimator.alpha)), groups)
        ]

    def labels(self, codes: np.ndarray, weights: np.ndarray) -> list[Labels]:
        targets = np.where(codes[:, None] == self._columns(np.arange(len(self.classes))), 1.0, -1.0)
        if self.balanced:
            return [Labels(targets, weights, codes)]
        fixed = self.class_weights(self.tally(codes, weights))
        return [Labels(targets, weights * fixed[codes])]

    def weights(self, tally: Tally) -> list[tuple[float, ...]]:
        return [tuple(self.class_weights(tally).tolist()) if self.balanced else (1.0,)]

    @staticmethod
    def _columns(classes: np.ndarray) -> np.ndarray:
        """The classes that have a column; of two, the second alone."""
        return classes[1:] if len(classes) == 2 else classes

    def erase_classes(self, heads, design, codes, weights, after, stays, frame, joint) -> list[tuple[Head, float]]:
        (head,), (labels,), (wanted,) = heads, self.labels(codes, weights), self.weights(after)
        columns = self._columns(stays)
        head = head.only_columns(columns)
        labels = Labels(labels.values[:, columns], labels.weights, labels.groups)
        taken = head.measure(design, labels, few=head.is_few(len(design)))
        found, leverage = head.without(taken, frame, wanted, after.samples, joint=joint)
        return [(found.only_groups(stays) if self.balanced else found, leverage)]

    def tidy(self, new: Any, heads: Sequence[Head], frame: Frame, tally: Tally) -> None:
        new._label_binarizer.fit(self.classes[tally.present])
        set_classes(new, new._label_binarizer.classes_)
        if new.coef_.ndim == 2 and len(new.coef_) == 1 and _row_of_two_classes() == 1:
            new.coef_ = new.coef_[0]


class OneVersusAll(Classifier):
    """One binary model for each class, of two classes one alone; only a class's own weight counts against the rest."""

    loss: Loss
    positive, negative = 1, 0

    @abstractmethod
    def ridges(self) -> tuple[float, float]:
        """Of the coefficients and of the intercept."""

    def sizes(self, width: int) -> list[tuple[int, int]]:
        return [(width, 1 if self.estimator.class_weight is None else 2)] * len(self.estimator.coef_)

    def heads(self, frame: Frame) -> list[Head]:
        intercept = np.broadcast_to(np.asarray(self.estimator.intercept_, dtype=np.float64), len(self.estimator.coef_))
        theta = frame.inside(self.estimator.coef_, intercept)
        groups = 1 if self.estimator.class_weight is None else 2
        ridge = frame.penalty(*self.ridges())
        return [Head.empty(self.loss, theta[:, [i]], ridge, groups, self.per_sample) for i in range(theta.shape[1])]

    def labels(self, codes: np.ndarray, weights: np.ndarray) -> list[Labels]:
        found = []
        for own in self._own(np.arange(len(self.classes))):
            mine = (codes == own).astype(np.int64)
            values = np.where(mine, self.positive, self.negative)
            found.append(Labels(values, weights, None if self.estimator.class_weight is None else mine))
        return found

    def weights(self, tally: Tally) -> list[tuple[float, ...]]:
        return self._weights(tally, np.arange(len(self.classes)))

    def _weights(self, tally: Tally, classes: np.ndarray) -> list[tuple[float, ...]]:
        if self.estimator.class_weight is None:
            return [(1.0,)] * len(self._own(classes))
        found = self.class_weights(tally)
        if len(classes) == 2:
            return [(float(found[classes[0]]), float(found[classes[1]]))]
        return [(1.0, float(found[own])) for own in classes]

    @staticmethod
    def _own(classes: np.ndarray) -> np.ndarray:
        return classes[1:] if len(classes) == 2 else classes

    def erase_classes(self, heads, design, codes, weights, after, stays, frame, joint) -> list[tuple[Head, float]]:
        labels, found = self.labels(codes, weights), []
        for own, wanted in zip(self._own(stays), self._weights(after, stays), strict=True):
            taken = heads[own].measure(design, labels[own], few=heads[own].is_few(len(design)))
            found.append(heads[own].without(taken, frame, wanted, after.samples, joint=joint))
        return found


class StochasticLeaf(OneVersusAll):
    """Σ sᵢℓᵢ + n·½α‖w‖²: the mean loss is penalised, so the penalty of the sum grows with the samples."""

    loss = Logistic()
    counts_weights = False
    per_sample = True

    def refusal(self) -> str | None:
        if self.estimator.loss != "log_loss":
            return f'its loss is "{self.estimator.loss}"; only "log_loss" is smooth and supported.'
        if self.estimator.penalty not in ("l2", None):
            return "an L1 penalty has no curvature at zero, so one step is not the refit. Use the L2 penalty."
        if self.estimator.early_stopping:
            return "with early_stopping=True it was trained on a share of the data that nobody knows any more."
        return None

    def ridges(self) -> tuple[float, float]:
        return (0.0 if self.estimator.penalty is None else float(self.estimator.alpha)), 0.0

    def tidy(self, new: Any, heads: Sequence[Head], frame: Frame, tally: Tally) -> None:
        super().tidy(new, heads, frame, tally)
        new._expanded_class_weight = self.class_weights(tally)[tally.present]
        for name, value in (("coef", new.coef_), ("intercept", new.intercept_)):
            for kind in ("_standard_", "_average_"):  # what partial_fit would go on from still is the old model
                if getattr(new, kind + name, None) is not None:
                    setattr(new, kind + name, value.copy())


class LinearSVCLeaf(OneVersusAll):
    """Σ sᵢ max(0, 1 − yz)² + ½‖w‖²/C, the intercept a feature of its own."""

    loss = SquaredHinge()
    positive, negative = 1, -1
    movable = False

    def refusal(self) -> str | None:
        if self.estimator.loss != "squared_hinge":
            return 'its loss is "hinge", which has no curvature. Use the default, "squared_hinge".'
        if self.estimator.penalty != "l2":
            return "an L1 penalty has no curvature at zero, so one step is not the refit. Use the L2 penalty."
        if self.estimator.multi_class != "ovr":
            return "crammer_singer ties the classes together. Use the default, one against the rest."
        return None

    def ridges(self) -> tuple[float, float]:
        ridge = 1 / float(self.estimator.C)
        return ridge, ridge / float(self.estimator.intercept_scaling) ** 2


@lru_cache
def _row_of_two_classes() -> int:
    """How many dimensions a RidgeClassifier's coefficients have for two classes, which versions do not agree on."""
    return RidgeClassifier().fit(np.array([[0.0], [1.0]]), [0, 1]).coef_.ndim


def set_classes(estimator: Any, classes: np.ndarray) -> None:
    """Older versions of scikit-learn look some of them up in the binarizer, and let nobody set them."""
    if "classes_" in vars(estimator):
        estimator.classes_ = classes


def places_of(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
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
        stranger = labels.tolist()[int(np.flatnonzero(~np.asarray(known))[0])]
        some = ", ".join(repr(one) for one in classes[:5].tolist()) + (" …" if len(classes) > 5 else "")
        raise InvalidData(f"y holds {stranger!r}, which is none of the estimator's classes: {some}.")
    return places


LEAVES: dict[type, type[Leaf]] = {
    LogisticRegression: LogisticLeaf,
    Ridge: Regression,
    LinearRegression: Regression,
    RidgeClassifier: RidgeClassifierLeaf,
    SGDClassifier: StochasticLeaf,
    LinearSVC: LinearSVCLeaf,
}
