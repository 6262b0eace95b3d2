"""Erasing from scikit-learn's linear models as if it were part of scikit-learn."""

from ssse.system.extras import needed_for

with needed_for("ssse.sklearn"):
    from ssse.sklearn.erasable import ErasableLogisticRegression
    from ssse.sklearn.eraser import Eraser
    from ssse.sklearn.outcome import Outcome

__all__ = ["ErasableLogisticRegression", "Eraser", "Outcome"]
