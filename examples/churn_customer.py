"""One customer leaves
===================

One customer of a churn model asks to be deleted: text and numbers, a pipeline, and what a refit would have said.

She is the only customer who pays by cheque, so that forgetting her can be seen: the model's opinion of cheques goes to
zero. What the encoder and the scaler learned from her stays, and the outcome says so.

python examples/churn_customer.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.compose import make_column_transformer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ssse.sklearn import Eraser

try:
    import pandas as pd
except ImportError:
    sys.exit("This example makes a table with pandas: pip install pandas")

TEXTS, NUMBERS = ["contract", "internet", "payment"], ["tenure", "monthly_charges", "support_calls"]
CUSTOMERS, SHE = 5000, 1234
COLOURS = "#666666", "#0072B2", "#D55E00"


def customers(seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """A made table: who has a short contract, pays much and calls often leaves."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "contract": rng.choice(["monthly", "one year", "two years"], CUSTOMERS, p=[0.55, 0.25, 0.2]),
            "internet": rng.choice(["fibre", "DSL", "none"], CUSTOMERS, p=[0.45, 0.35, 0.2]),
            "payment": rng.choice(["card", "transfer", "direct debit"], CUSTOMERS),
            "tenure": rng.integers(0, 73, CUSTOMERS),
            "monthly_charges": rng.normal(65, 25, CUSTOMERS).clip(18, 120).round(2),
            "support_calls": rng.poisson(1.5, CUSTOMERS),
        }
    )
    table.loc[SHE, "payment"] = "cheque"
    score = 1.5 * (table["contract"] == "monthly") + 0.8 * (table["internet"] == "fibre") - 0.05 * table["tenure"]
    score += 0.02 * (table["monthly_charges"] - 65) + 0.5 * table["support_calls"] - 1.5
    left = pd.Series(rng.random(CUSTOMERS) < 1 / (1 + np.exp(-score)), name="left")
    left[SHE] = True
    return table, left


def untrained(columns: Any) -> Any:
    return Pipeline([("columns", columns), ("churn", LogisticRegression(solver="newton-cholesky", tol=1e-10))])


def new_columns() -> Any:
    return make_column_transformer((OneHotEncoder(), TEXTS), (StandardScaler(), NUMBERS))


def coefficients(model: Any) -> np.ndarray:
    return np.append(model["churn"].coef_.ravel(), model["churn"].intercept_)


def draw(models: dict[str, Any]) -> Figure:
    """What each model thinks of the ways to pay."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    ax = figure.add_subplot()
    columns = list(models["trained"]["columns"].get_feature_names_out())
    ways = [column for column in columns if "payment" in column]
    for place, (name, model) in enumerate(models.items()):
        heights = [coefficients(model)[columns.index(way)] for way in ways]
        ax.bar(np.arange(len(ways)) + 0.27 * (place - 1), heights, 0.25, label=name, color=COLOURS[place])
    ax.set_xticks(range(len(ways)), [way.rpartition("_")[2] for way in ways])
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set(ylabel="coefficient", title="She alone pays by cheque")
    ax.legend(frameon=False)
    return figure


def main() -> None:
    table, left = customers()
    model = untrained(new_columns()).fit(table, left)
    eraser = Eraser(model).fit(table, left)  # once, when the model is trained

    she = table.index == SHE
    erased = eraser.erase(table[she], left[she])  # the request: her row and her label, nothing else

    rest, of_rest = table[~she], left[~she]
    refit = untrained(FrozenEstimator(model["columns"])).fit(rest, of_rest)
    with_new_columns = untrained(new_columns()).fit(rest, of_rest)

    cheque = list(model["columns"].get_feature_names_out()).index("onehotencoder__payment_cheque")
    opinions = [coefficients(each)[cheque] for each in (model, erased, refit)]
    chances = [each.predict_proba(table[she])[0, 1] for each in (model, erased, refit)]
    print(f"{CUSTOMERS} customers, {100 * left.mean():.0f} % left; number {SHE} is the only one who pays by cheque\n")
    print(f"{'':<31}{'trained':>10}{'erased':>10}{'refit':>10}")
    print(f"{'coefficient of payment = cheque':<31}" + "".join(f"{value:>10.4f}" for value in opinions))
    print(f"{'chance that she leaves':<31}" + "".join(f"{value:>10.4f}" for value in chances))

    step = np.linalg.norm(coefficients(model) - coefficients(erased))
    distance = np.linalg.norm(coefficients(erased) - coefficients(refit))
    print(f"\nthe coefficients moved by     {step:.1e}")
    bound = eraser.distance_bound_
    print(f"and are from the refit's now  {distance:.1e}   (proved without a refit: at most {bound:.1e})\n")
    print(eraser.outcome_)

    encoder, scaler = erased["columns"].named_transformers_.values()
    new_scaler = with_new_columns["columns"].named_transformers_["standardscaler"]
    print("\nwhat stays of her in the transformers:")
    print(f"  the encoder's ways to pay  {', '.join(encoder.categories_[2])}")
    print(f"  the scaler's mean charge   {scaler.mean_[1]:.4f}; without her {new_scaler.mean_[1]:.4f}")

    same = 100 * (erased.predict(rest) == with_new_columns.predict(rest)).mean()
    draw({"trained": model, "erased": erased, "refit without her": refit}).savefig("churn_customer.svg")
    print(
        f"\nShown: her row alone brings the classifier to where a refit is, but for {distance / step:.0e} of the step."
        f"\nA refit with new transformers says the same of {same:.2f} % of the rest; only that forgets her there too."
    )


if __name__ == "__main__":
    main()
