"""A whole class vanishes
======================

A whole class of digits vanishes: what scikit-learn's refit does, what erase does, and how far apart they are.

A refit without the threes knows nine classes. So does the erased model. Ridge is a quadratic, so that nothing but
rounding is between the two. Softmax is not, and a tenth of all samples is much: erase comes near, no distance is
proved, and `refine` with the rest of the data comes as near as one likes, and proves it.

python examples/whole_class.py
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from ssse.sklearn import Eraser

GONE = 3
Model = LogisticRegression | RidgeClassifier


def exact_softmax() -> LogisticRegression:
    return LogisticRegression(solver="newton-cholesky", tol=1e-9)


def rows(model: Model) -> np.ndarray:
    """Coefficients and intercept of each class."""
    return np.column_stack([model.coef_, model.intercept_])


def says(model: Model, x: np.ndarray) -> np.ndarray:
    return np.asarray(model.predict(x))


def shown(distance_bound: float | None) -> str:
    if distance_bound is None:
        return "–"
    return f"{distance_bound:.0e}" if np.isfinite(distance_bound) else "nothing"


def main() -> None:
    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, digits, test_size=0.4, random_state=0, stratify=digits)
    x, test_x, y, test_y = map(np.asarray, parts)
    threes, test_threes = y == GONE, test_y == GONE
    print(f"{len(y)} digits to train on, {threes.sum()} of them threes, all of which go; {len(test_y)} to test on")

    far: dict[str, float] = {}
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    ax = figure.add_subplot()
    for untrained in (RidgeClassifier, exact_softmax):
        trained, refit = untrained().fit(x, y), untrained().fit(x[~threes], y[~threes])
        eraser = Eraser(trained).fit(x, y)
        models, proved = {"trained": trained}, {}

        models["erased"], proved["erased"] = eraser.erase(x[threes], y[threes]), eraser.distance_bound_
        if isinstance(trained, LogisticRegression):
            for name, steps in (("refined, 1 step", 1), ("refined, 5 more", 5)):
                models[name], proved[name] = eraser.refine(x[~threes], y[~threes], steps=steps), eraser.distance_bound_
        models["refit"] = refit

        kind = type(trained).__name__
        print(f"\n{kind:<20}classes  threes right  others right  as the refit  distance from it   proved")
        for name, model in models.items():
            right, same = says(model, test_x) == test_y, says(model, test_x) == says(refit, test_x)
            shares = [f"{100 * part.mean():.1f} %" for part in (right[test_threes], right[~test_threes], same)]
            far[name] = float(np.linalg.norm(rows(model)[model.classes_ != GONE] - rows(refit)))
            print(
                f"  {name:<18}{len(model.classes_):>7}{shares[0]:>14}{shares[1]:>14}{shares[2]:>14}{far[name]:>18.1e}"
                f"{shown(proved.get(name)):>9}"
            )
        steps = [name for name in models if name != "refit"]
        ax.semilogy(steps, [far[name] for name in steps], "o-", label=kind)

    ax.set(ylabel="distance from the refit", title="All threes go")
    ax.legend(frameon=False)
    figure.savefig("whole_class.svg")
    print(
        "\nShown: erase reads the threes only, and the class is gone as in a refit. Ridge is at the refit, to rounding."
        f"\nSoftmax is {far['erased']:.1f} from it, where the other nine rows were {far['trained']:.1f} from it before;"
        f" when the rest is read, {far['refined, 5 more']:.0e}."
    )


if __name__ == "__main__":
    with threadpool_limits(1):  # matrices this small gain nothing from threads
        main()
