"""From any estimator to the linear models in it: pipelines, one-versus-rest, several outputs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.model_selection._search import BaseSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted, validate_data

from ssse.errors import InvalidData, InvalidModel
from ssse.sklearn.adapters import Adapter, ClassCounts, ClassifierAdapter, class_indices, set_classes
from ssse.sklearn.classifiers import ADAPTERS

SUPPORTED = (
    "LogisticRegression, RidgeClassifier, Ridge, LinearRegression, SGDClassifier with log loss, LinearSVC with squared "
    "hinge; OneVsRestClassifier, MultiOutputClassifier and MultiOutputRegressor over them; a Pipeline that ends in one"
)


class Composition:
    """One estimator and the adapters of the linear models in it. This one: a linear model by itself."""

    def __init__(self, estimator: Any):
        self.estimator = estimator
        self.adapters: list[Adapter] = self._adapters()

    def _adapters(self) -> list[Adapter]:
        return [adapter_for(self.estimator)]

    @property
    def intercept(self) -> bool:
        return self.adapters[0].intercept

    @property
    def shiftable(self) -> bool:
        return self.adapters[0].shiftable

    @property
    def classifies(self) -> bool:
        return isinstance(self.adapters[0], ClassifierAdapter)

    def inputs(self, x: Any) -> Any:
        """X as the estimator takes it: dense, or sparse by rows."""
        try:
            return validate_data(
                self.estimator, x, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32], order=None
            )
        except (ValueError, TypeError) as error:
            raise InvalidData(f"X: {error}") from error

    def columns(self, y: Any) -> list[np.ndarray]:
        """The labels of each linear model."""
        return [self.adapters[0].codes(y)]

    def staying(self, after: Sequence[ClassCounts]) -> list[bool]:
        """Which linear models stay."""
        return [True]

    def write(self, estimators: Sequence[Any], after: Sequence[ClassCounts]) -> Any:
        """The whole again, of new linear models; None where one does not stay."""
        return estimators[0]


class MultiOutput(Composition):
    """MultiOutputClassifier, MultiOutputRegressor: one estimator for each column of y."""

    def _adapters(self) -> list[Adapter]:
        return [adapter_for(part) for part in self.estimator.estimators_]

    def columns(self, y: Any) -> list[np.ndarray]:
        table = y.toarray() if sparse.issparse(y) else y
        try:
            shape = np.shape(table)
        except ValueError as error:
            raise InvalidData(f"y: {error}") from error
        if len(shape) != 2 or shape[1] != len(self.adapters):
            raise InvalidData(f"y has the shape {shape}; it needs a column for each of {len(self.adapters)} outputs.")
        if hasattr(table, "iloc"):  # a DataFrame, whose columns may be of different kinds
            columns = [table.iloc[:, i].to_numpy() for i in range(shape[1])]
        else:
            columns = list(np.asarray(table).T)
        return [_codes(f"Output {i}", adapter, columns[i]) for i, adapter in enumerate(self.adapters)]

    def staying(self, after: Sequence[ClassCounts]) -> list[bool]:
        return [True] * len(after)

    def write(self, estimators: Sequence[Any], after: Sequence[ClassCounts]) -> Any:
        new = _shallow(self.estimator)
        new.estimators_ = list(estimators)
        if self.classifies:
            new.classes_ = [part.classes_ for part in estimators]
        return new


class OneVersusRest(Composition):
    """OneVsRestClassifier: one estimator for each class, or for each column of an indicator matrix."""

    def _adapters(self) -> list[Adapter]:
        parts = self.estimator.estimators_
        for part in parts:
            if type(part).__name__ == "_ConstantPredictor":
                raise InvalidModel("OneVsRestClassifier holds a class that all samples or none had: there is no model.")
        return [adapter_for(part) for part in parts]

    @property
    def _indicators(self) -> bool:
        return self.estimator.label_binarizer_.y_type_.startswith("multilabel")

    def columns(self, y: Any) -> list[np.ndarray]:
        try:
            indicators = self.estimator.label_binarizer_.transform(y)
        except ValueError as error:
            raise InvalidData(f"y: {error}") from error
        table = np.asarray(indicators.toarray() if sparse.issparse(indicators) else indicators)
        if not self._indicators:
            class_indices(
                np.asarray(y).ravel(), self.estimator.classes_
            )  # the binarizer takes unknown labels for "none"
        elif table.shape[1] != len(self.adapters):
            raise InvalidData(f"y has {table.shape[1]} columns, the estimator {len(self.adapters)} labels.")
        return [adapter.codes(column) for adapter, column in zip(self.adapters, table.T, strict=True)]

    def staying(self, after: Sequence[ClassCounts]) -> list[bool]:
        if self._indicators:
            return [True] * len(after)
        stays = [bool(count) for count in after[0].counts] if len(after) == 1 else [bool(t.counts[1]) for t in after]
        if sum(stays) == 1:
            last = self.estimator.classes_.tolist()[stays.index(True)]
            raise InvalidData(f"Only the class {last!r} would be left, and scikit-learn fits no model to one class.")
        if len(after) == 1:
            return [True]
        if sum(stays) == 2:  # of two, the second alone
            stays[stays.index(True)] = False
        return stays

    def write(self, estimators: Sequence[Any], after: Sequence[ClassCounts]) -> Any:
        new = _shallow(self.estimator)
        new.estimators_ = [part for part in estimators if part is not None]
        if None in estimators:
            present = np.array([class_counts.counts[1] > 0 for class_counts in after])
            new.label_binarizer_ = copy.deepcopy(self.estimator.label_binarizer_).fit(self.estimator.classes_[present])
            set_classes(new, new.label_binarizer_.classes_)
        return new


def decompose(estimator: Any) -> tuple[Pipeline | None, Composition]:
    """The transformers before it, and the linear models in the estimator itself.

    Raises:
        InvalidModel: it is not fitted, or not supported, by name and with the reason.
    """
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        raise InvalidModel(f"An estimator of scikit-learn is needed, not {estimator!r}.")
    try:
        check_is_fitted(estimator)
    except NotFittedError as error:
        raise InvalidModel(f"{type(estimator).__name__} is not fitted: fit it on the training data first.") from error
    if isinstance(estimator, Pipeline):
        if not hasattr(estimator.steps[-1][1], "fit") or estimator.steps[-1][1] == "passthrough":
            raise InvalidModel("The pipeline does not end in an estimator.")
        _, composition = decompose(estimator.steps[-1][1])
        if isinstance(estimator.steps[-1][1], Pipeline):
            raise InvalidModel("A pipeline that ends in a pipeline is not supported: make it one.")
        return (estimator[:-1] if len(estimator.steps) > 1 else None), composition
    if type(estimator) is OneVsRestClassifier:
        return None, OneVersusRest(estimator)
    if type(estimator) in (MultiOutputClassifier, MultiOutputRegressor):
        return None, MultiOutput(estimator)
    return None, Composition(estimator)


def adapter_for(estimator: Any) -> Adapter:
    kind = type(estimator)
    for known, adapter in ADAPTERS.items():
        if kind is known or (isinstance(estimator, known) and hasattr(estimator, "_erasable")):
            return adapter(estimator)
    raise InvalidModel(f"{kind.__name__} is not supported: {_reason(estimator)}")


def _reason(estimator: Any) -> str:
    name = type(estimator).__name__
    if isinstance(estimator, BaseSearchCV):
        return "its choice of settings looked at all samples. Pass its best_estimator_."
    if name.endswith("CV") and (hasattr(estimator, "C_") or hasattr(estimator, "alpha_")):
        return "its choice of the penalty looked at all samples. Fit the model without CV with the penalty it chose."
    if isinstance(estimator, Pipeline):
        return "a pipeline must be outermost, its last step holding the several outputs."
    if any(isinstance(estimator, known) for known in ADAPTERS):
        return "it is a subclass, whose objective may be another."
    if hasattr(estimator, "coef_"):
        return f"its objective has no second derivative that is known here. Supported: {SUPPORTED}."
    return f"it is none of the linear models that are. Supported: {SUPPORTED}."


def _codes(what: str, adapter: Adapter, column: Any) -> np.ndarray:
    try:
        return adapter.codes(column)
    except InvalidData as error:
        raise InvalidData(f"{what}: {error}") from error


def _shallow(estimator: Any) -> Any:
    """A copy whose fitted parts are about to be replaced; the rest of it is not shared either."""
    new = copy.copy(estimator)
    for name, value in vars(estimator).items():
        setattr(new, name, [] if name == "estimators_" else copy.deepcopy(value))
    return new
