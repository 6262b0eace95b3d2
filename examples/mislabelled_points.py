"""Wrong labels go
===============

8 % of the labels were wrong, somebody found out which: erase those points, and the test accuracy comes back.

Without them the model becomes surer of everything, so this is a hard case: erasing reads only them and goes most of
the way to the refit; `refine` reads what remains too, and goes the rest. Draws mislabelled_points.svg.

python examples/mislabelled_points.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from ssse.sklearn import Eraser

BATCH = 8  # wrong points between two refits


def untrained() -> LogisticRegression:
    return LogisticRegression(tol=1e-6, max_iter=5000)


def coefficients(model: LogisticRegression) -> np.ndarray:
    return np.append(model.coef_.ravel(), model.intercept_)


def main(picture: Path) -> None:
    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, digits, test_size=0.5, random_state=0, stratify=digits)
    x, test_x, y, test_y = map(np.asarray, parts)
    rng = np.random.default_rng(0)
    wrong = rng.choice(len(y), round(0.08 * len(y)), replace=False)
    labels = y.copy()
    labels[wrong] = (y[wrong] + rng.integers(1, 10, len(wrong))) % 10

    def accuracy(model: LogisticRegression) -> float:
        return 100 * float(model.score(test_x, test_y))

    trained, clean = untrained().fit(x, labels), untrained().fit(x, y)
    alone, followed = Eraser(trained).fit(x, labels), Eraser(trained).fit(x, labels)
    print(f"{len(y)} digits, {len(wrong)} with a wrong label; accuracy on {len(test_y)} others in %\n")
    print(f"{'erased':>8}{'erase alone':>14}{'then refine':>14}{'refit':>9}")
    print(f"{0:>8}" + f"{accuracy(trained):>14.1f}" * 2 + f"{accuracy(trained):>9.1f}")

    stays = np.ones(len(y), dtype=bool)
    one_by_one, refined, refits = ([accuracy(trained)] for _ in range(3))
    erased = nearer = refit = trained
    for batch in np.split(wrong, range(BATCH, len(wrong), BATCH)):
        stays[batch] = False
        for point in batch:
            erased = alone.erase(x[[point]], labels[[point]])
            one_by_one.append(accuracy(erased))
        followed.erase(x[batch], labels[batch])
        nearer = followed.refine(x[stays], labels[stays])
        refit = untrained().fit(x[stays], labels[stays])
        refined.append(accuracy(nearer))
        refits.append(accuracy(refit))
        print(f"{(~stays).sum():>8}{one_by_one[-1]:>14.1f}{refined[-1]:>14.1f}{refits[-1]:>9.1f}")

    draw(one_by_one, refined, refits, accuracy(clean)).savefig(picture)
    whole_way = np.linalg.norm(coefficients(trained) - coefficients(refit))
    ways = [1 - np.linalg.norm(coefficients(each) - coefficients(refit)) / whole_way for each in (erased, nearer)]
    print(f"\nwith the right labels from the start: {accuracy(clean):.1f}\n")
    print(f"{'':<14}of the way to the refit   proved about the distance from it")
    for name, way, eraser in zip(("erase alone", "then refine"), ways, (alone, followed), strict=True):
        proved = f"at most {eraser.distance_bound_:.1e}" if np.isfinite(eraser.distance_bound_) else "nothing"
        print(f"{name:<14}{100 * way:>21.0f} %   {proved}")
    gains = [after - accuracy(trained) for after in (one_by_one[-1], refined[-1], refits[-1])]
    print(
        f"\nShown: erasing {len(wrong)} wrong labels wins {gains[0]:.1f} points of accuracy, reading nothing but them,"
        f"\nand {gains[1]:.1f} when what remains is read too; a refit wins {gains[2]:.1f}. The figure: {picture}"
    )


def draw(one_by_one: list[float], refined: list[float], refits: list[float], clean: float) -> Figure:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    ax = figure.add_subplot()
    wrong = len(one_by_one) - 1
    counts = [*range(0, wrong, BATCH), wrong]
    ax.axhline(clean, color="#666666", linestyle="--", linewidth=1)
    ax.annotate("all labels right from the start", (0, clean), (0, 4), textcoords="offset points", color="#666666")
    ax.plot(range(wrong + 1), one_by_one, color="#0072B2", linewidth=1.8, label="erase, one point after another")
    ax.plot(
        counts, refined, color="#D55E00", linestyle=":", linewidth=1.2, marker="s", markersize=10, fillstyle="none",
        label=f"erase {BATCH}, then refine with the rest",
    )  # fmt: skip
    ax.plot(counts, refits, "o", color="black", markersize=5, label="refit from the start")
    ax.set(xlabel="mislabelled points erased", ylabel="test accuracy in %", xlim=(-1, wrong + 1))
    ax.set_ylim(top=clean + 0.5)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.legend(frameon=False, loc="lower right")
    ax.set_title("8 % of the labels were wrong: taking those points out again", loc="left", fontsize=11)
    return figure


if __name__ == "__main__":
    with threadpool_limits(1):  # matrices this small gain nothing from threads
        main(Path("mislabelled_points.svg"))
