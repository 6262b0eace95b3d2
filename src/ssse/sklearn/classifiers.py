"""The linear classifiers of scikit-learn: objective, class weights, and what becomes of labels whose class vanishes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.svm import LinearSVC

from ssse.sklearn.adapters import (
    Adapter,
    ClassCounts,
    ClassifierAdapter,
    ErasureRequest,
    RegressionAdapter,
    set_classes,
)
from ssse.sklearn.coordinates import Coordinates
from ssse.sklearn.loss_sums import Labels
from ssse.sklearn.losses import Logistic, Loss, Softmax, Squared, SquaredHinge
from ssse.sklearn.quadratic import Erased, Quadratic


class LogisticRegressionAdapter(ClassifierAdapter):
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
    def shiftable(self) -> bool:
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

    def quadratics(self, coordinates: Coordinates) -> list[Quadratic]:
        theta = coordinates.from_sklearn(self.estimator.coef_, self.estimator.intercept_)
        of_intercept = self.ridge / float(self.estimator.intercept_scaling) ** 2 if self._liblinear else 0.0
        groups = len(self.classes) if self.balanced else 1
        return [Quadratic.empty(self.loss, theta, coordinates.penalty(self.ridge, of_intercept), groups)]

    def labels(self, codes: np.ndarray, weights: np.ndarray) -> list[Labels]:
        if self.balanced:
            return [Labels(codes, weights, codes)]
        if self.estimator.class_weight is None:
            return [Labels(codes, weights)]
        return [Labels(codes, weights * self.class_weights(self.count_classes(codes, weights))[codes])]

    def weights(self, class_counts: ClassCounts) -> list[tuple[float, ...]]:
        return [tuple(self.class_weights(class_counts).tolist()) if self.balanced else (1.0,)]

    def erase_classes(
        self, quadratics: Sequence[Quadratic], request: ErasureRequest, stays: np.ndarray
    ) -> list[Erased]:
        (quadratic,), after = quadratics, request.after
        (labels,), (wanted,) = self.labels(request.codes, request.weights), self.weights(after)
        taken = request.taken_from(quadratic, labels)
        kept = [wanted[i] for i in stays] if self.balanced else wanted
        return [quadratic.without_classes(taken, stays, request.coordinates, kept, after.samples, joint=request.joint)]


class RidgeClassifierAdapter(ClassifierAdapter):
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

    def quadratics(self, coordinates: Coordinates) -> list[Quadratic]:
        coef = np.atleast_2d(self.estimator.coef_)
        intercept = np.broadcast_to(np.asarray(self.estimator.intercept_, dtype=np.float64), len(coef))
        groups = len(self.classes) if self.balanced else 1
        return [
            Quadratic.empty(
                Squared(),
                coordinates.from_sklearn(coef, intercept),
                coordinates.penalty(float(self.estimator.alpha)),
                groups,
            )
        ]

    def labels(self, codes: np.ndarray, weights: np.ndarray) -> list[Labels]:
        targets = np.where(codes[:, None] == self._columns(np.arange(len(self.classes))), 1.0, -1.0)
        if self.balanced:
            return [Labels(targets, weights, codes)]
        fixed = self.class_weights(self.count_classes(codes, weights))
        return [Labels(targets, weights * fixed[codes])]

    def weights(self, class_counts: ClassCounts) -> list[tuple[float, ...]]:
        return [tuple(self.class_weights(class_counts).tolist()) if self.balanced else (1.0,)]

    @staticmethod
    def _columns(classes: np.ndarray) -> np.ndarray:
        """The classes that have a column; of two, the second alone."""
        return classes[1:] if len(classes) == 2 else classes

    def erase_classes(
        self, quadratics: Sequence[Quadratic], request: ErasureRequest, stays: np.ndarray
    ) -> list[Erased]:
        (quadratic,), after = quadratics, request.after
        (labels,), (wanted,) = self.labels(request.codes, request.weights), self.weights(after)
        columns = self._columns(stays)
        quadratic = quadratic.only_columns(columns)
        labels = Labels(labels.values[:, columns], labels.weights, labels.groups)
        taken = request.taken_from(quadratic, labels)
        erased = quadratic.without(taken, request.coordinates, wanted, after.samples, joint=request.joint)
        return [replace(erased, quadratic=erased.quadratic.only_groups(stays)) if self.balanced else erased]

    def update_attributes(
        self, new: Any, quadratics: Sequence[Quadratic], coordinates: Coordinates, class_counts: ClassCounts
    ) -> None:
        new._label_binarizer.fit(self.classes[class_counts.present])
        set_classes(new, new._label_binarizer.classes_)
        if new.coef_.ndim == 2 and len(new.coef_) == 1 and _row_of_two_classes() == 1:
            new.coef_ = new.coef_[0]


class OneVersusRestAdapter(ClassifierAdapter):
    """One binary model for each class, of two classes one alone; only a class's own weight counts against the rest."""

    loss: Loss
    positive: int = 1
    negative: int = 0

    @abstractmethod
    def ridges(self) -> tuple[float, float]:
        """Of the coefficients and of the intercept."""

    def sizes(self, width: int) -> list[tuple[int, int]]:
        return [(width, 1 if self.estimator.class_weight is None else 2)] * len(self.estimator.coef_)

    def quadratics(self, coordinates: Coordinates) -> list[Quadratic]:
        intercept = np.broadcast_to(np.asarray(self.estimator.intercept_, dtype=np.float64), len(self.estimator.coef_))
        theta = coordinates.from_sklearn(self.estimator.coef_, intercept)
        groups = 1 if self.estimator.class_weight is None else 2
        ridge = coordinates.penalty(*self.ridges())
        return [
            Quadratic.empty(self.loss, theta[:, [i]], ridge, groups, self.per_sample) for i in range(theta.shape[1])
        ]

    def labels(self, codes: np.ndarray, weights: np.ndarray) -> list[Labels]:
        labels = []
        for own in self._own(np.arange(len(self.classes))):
            mine = (codes == own).astype(np.int64)
            values = np.where(mine, self.positive, self.negative)
            labels.append(Labels(values, weights, None if self.estimator.class_weight is None else mine))
        return labels

    def weights(self, class_counts: ClassCounts) -> list[tuple[float, ...]]:
        return self._weights(class_counts, np.arange(len(self.classes)))

    def _weights(self, class_counts: ClassCounts, classes: np.ndarray) -> list[tuple[float, ...]]:
        if self.estimator.class_weight is None:
            return [(1.0,)] * len(self._own(classes))
        weights = self.class_weights(class_counts)
        if len(classes) == 2:
            return [(float(weights[classes[0]]), float(weights[classes[1]]))]
        return [(1.0, float(weights[own])) for own in classes]

    @staticmethod
    def _own(classes: np.ndarray) -> np.ndarray:
        return classes[1:] if len(classes) == 2 else classes

    def erase_classes(
        self, quadratics: Sequence[Quadratic], request: ErasureRequest, stays: np.ndarray
    ) -> list[Erased]:
        labels, after, erased = self.labels(request.codes, request.weights), request.after, []
        for own, wanted in zip(self._own(stays), self._weights(after, stays), strict=True):
            taken = request.taken_from(quadratics[own], labels[own])
            erased.append(
                quadratics[own].without(taken, request.coordinates, wanted, after.samples, joint=request.joint)
            )
        return erased


class SGDClassifierAdapter(OneVersusRestAdapter):
    """Σ sᵢℓᵢ + n·½α‖w‖²: the mean loss is penalised, so the penalty of the sum grows with the samples."""

    loss: Loss = Logistic()
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

    def update_attributes(
        self, new: Any, quadratics: Sequence[Quadratic], coordinates: Coordinates, class_counts: ClassCounts
    ) -> None:
        super().update_attributes(new, quadratics, coordinates, class_counts)
        new._expanded_class_weight = self.class_weights(class_counts)[class_counts.present]
        for name, value in (("coef", new.coef_), ("intercept", new.intercept_)):
            for kind in ("_standard_", "_average_"):  # what partial_fit would go on from still is the old model
                if getattr(new, kind + name, None) is not None:
                    setattr(new, kind + name, value.copy())


class LinearSVCAdapter(OneVersusRestAdapter):
    """Σ sᵢ max(0, 1 − yz)² + ½‖w‖²/C, the intercept a feature of its own."""

    loss: Loss = SquaredHinge()
    positive: int = 1
    negative: int = -1

    @property
    def shiftable(self) -> bool:
        return False

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


ADAPTERS: dict[type, type[Adapter]] = {
    LogisticRegression: LogisticRegressionAdapter,
    Ridge: RegressionAdapter,
    LinearRegression: RegressionAdapter,
    RidgeClassifier: RidgeClassifierAdapter,
    SGDClassifier: SGDClassifierAdapter,
    LinearSVC: LinearSVCAdapter,
}
