"""`ErasableLogisticRegression`: scikit-learn's, with its curvature from `fit` on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ssse.sklearn.bases import LogisticRegression
from ssse.sklearn.eraser import Eraser
from ssse.sklearn.outcome import Outcome
from ssse.sklearn.sums import check_memory


class ErasableLogisticRegression(LogisticRegression):
    """A LogisticRegression from which samples can be erased at any time after `fit`.

        model = ErasableLogisticRegression(C=0.1).fit(X, y)
        model.erase(X_forget, y_forget)

    All parameters are LogisticRegression's. `fit` reads the data twice more, and keeps sums of the size of the squared
    number of coefficients; they are pickled with the model. Every request starts from the last one's model (policy
    "rebase").

    Attributes:
        n_erased_, distance_bound_, leverage_, outcome_: as of `Eraser`.
    """

    _erasable = True  # its objective is LogisticRegression's own

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ErasableLogisticRegression:
        for name in ("_eraser", "n_erased_", "distance_bound_", "leverage_", "outcome_"):
            self.__dict__.pop(name, None)
        self._check_memory(X, y)
        super().fit(X, y, sample_weight)
        self._take_over(Eraser(self).fit(X, y, sample_weight))
        return self

    def erase(
        self, X: Any, y: Any, sample_weight: Any = None, *, override: Collection[str] = ()
    ) -> ErasableLogisticRegression:
        """Take these samples out of the model, in place; they must be given exactly as they were fitted.

        Args:
            override: as of `Eraser.erase`.

        Raises:
            Refused: they cannot have been in the training data. The model is then as it was.
        """
        return self._change(lambda eraser: eraser.erase(X, y, sample_weight, override=override))

    def refine(
        self, X: Any, y: Any, sample_weight: Any = None, *, steps: int = 5, curvature: bool = True
    ) -> ErasableLogisticRegression:
        """Nearer to the refit, in place, with the samples that remain; see `Eraser.refine`."""
        return self._change(lambda eraser: eraser.refine(X, y, sample_weight, steps=steps, curvature=curvature))

    def _change(self, how: Callable[[Eraser], Any]) -> ErasableLogisticRegression:
        check_is_fitted(self, "_eraser")
        eraser: Eraser = self.__dict__.pop("_eraser")  # the step copies the model, and must not copy the sums along
        eraser.estimator_ = self
        try:
            new = how(eraser)
            self.coef_: Any = new.coef_
            self.intercept_: Any = new.intercept_
            self.classes_: Any = new.classes_
        finally:
            self._take_over(eraser)
        return self

    def _check_memory(self, X: Any, y: Any) -> None:
        """Before the training, which may be long. What cannot be looked at yet is for LogisticRegression to refuse."""
        try:
            features, classes = np.shape(X)[1], len(np.unique(np.asarray(y)))
        except (TypeError, ValueError, IndexError):
            return
        groups = classes if isinstance(self.class_weight, str) else 1
        check_memory([((features + bool(self.fit_intercept)) * max(classes - 1, 1), groups)], None)

    def _take_over(self, eraser: Eraser) -> None:
        """The eraser's account, without the eraser's own copy of the model."""
        self.n_erased_: int = eraser.n_erased_
        self.distance_bound_: float = eraser.distance_bound_
        self.leverage_: float | None = eraser.leverage_
        if hasattr(eraser, "outcome_"):
            self.outcome_: Outcome = eraser.outcome_
        eraser.estimator = eraser.estimator_ = None  # the model itself
        self._eraser = eraser
