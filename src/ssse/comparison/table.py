"""What came out of a comparison: one table, one figure, everything in JSON."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from ssse.evaluation.splits import SPLITS
from ssse.evaluation.table import Evaluation, Measure
from ssse.system.plain_table import plain_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSTS = "cost"
SECONDS = Measure("seconds", "seconds of the request", COSTS, 3)
ONCE = Measure("seconds_once", "seconds once, after training", COSTS, 3)
READS = Measure("reads_data", "the request reads D∖S (1 = yes)", COSTS, 0)

# The columns of the table: those of these measures that there are.
COLUMNS = {
    **{f"accuracy_{name}": f"{sign}, %" for name, sign in SPLITS.items()},
    "mean_gap": "mean gap",
    "kl_forgotten": "KL on S",
    "attack": "attack AUC",
    "seconds_once": "s once",
    "seconds": "s a request",
}


@dataclass(frozen=True)
class MethodComparison:
    """Methods beside each other, on one model and one request.

    `comparison["SSSE", "mean_gap"]` is a number; `print(comparison)` and `figure()` show what matters most, and
    `comparison.evaluation` is the whole table of `ssse.evaluate`, with the costs.

    Attributes:
        evaluation: of all models, measures down. models: of each method that gave one.
        failed: methods that gave no model, and why. notes: what each has to say about itself, by its name.
        missing: what this comparison cannot show, for want of a retrained model or of test data.
    """

    evaluation: Evaluation
    models: dict[str, nn.Module] = field(repr=False)
    failed: dict[str, str]
    notes: dict[str, tuple[str, ...]]
    missing: tuple[str, ...] = ()

    def __getitem__(self, place: tuple[str, str]) -> float | None:
        return self.evaluation[place]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "table": self.evaluation.to_dict(),
            "failed": self.failed,
            "notes": {name: list(notes) for name, notes in self.notes.items()},
            "missing": list(self.missing),
        }

    def figure(self) -> Figure:
        """A row a method: accuracies, how far it is from retraining, and what it costs."""
        from ssse.comparison.figures import comparison_figure

        return comparison_figure(self.evaluation)

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Titles and rows of the table that `print` shows: a method a row, the noise floor last."""
        by_key = {measure.key: place for place, measure in enumerate(self.evaluation.measures)}
        keys = [key for key in COLUMNS if key in by_key]
        titles = ["", *(COLUMNS[key] for key in keys), "reads D∖S"]
        rows = []
        for name, texts in self.evaluation.columns(self.evaluation.models):
            reads = texts[by_key["reads_data"]]
            rows.append([name, *(texts[by_key[key]] for key in keys), {"1": "yes", "0": "no"}.get(reads, reads)])
        return titles, rows

    def __str__(self) -> str:
        lines = [plain_table(*self.rows(), labels=True), ""]
        told = [f"{name}: {note}" for name, notes in self.notes.items() for note in notes]
        told += [f"{name} gave no model: {why}" for name, why in self.failed.items()]
        told += [*self.missing, *self.evaluation.flags]
        lines += [textwrap.fill(one, 110, initial_indent="  ", subsequent_indent="    ") for one in told]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
