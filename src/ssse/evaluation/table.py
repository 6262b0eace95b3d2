"""One table of everything that was measured: models across, measures down, the noise floor beside them."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ssse.system.extras import needed_for
from ssse.system.plain_table import plain_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

FLOOR = "noise floor"


@dataclass(frozen=True)
class Measure:
    """What a row of the table says.

    Attributes:
        key: its name in code. title: on paper. group: the part of the table. digits: after the point.
        gap: a difference to the retrained models, which is only read against the noise floor.
    """

    key: str
    title: str
    group: str
    digits: int = 2
    gap: bool = False


@dataclass(frozen=True)
class Cell:
    """One measure of one model: the mean over its seeds, their standard deviation, and what to know about it."""

    value: float | None
    spread: float | None = None
    note: str = ""
    detail: dict[str, float] = field(default_factory=dict)  # of an audit: p-value, interval, how many passed


@dataclass(frozen=True)
class Evaluation:
    """Named models, measured.

    `evaluation["erased", "mean_gap"]` is a number; `print(evaluation)`, `to_frame()`, `to_dict()` and `figure()` show
    all of them.

    Attributes:
        models: in the order given. counts: samples of each split. measures: the rows. cells: by measure, then model.
        floors: what the same measures are between retrained models of different seeds; empty if there is one only. Each
            of R is held against the average of the R − 1 others; every other model against all such averages in turn,
            so that a model like the retrained ones is at the floor, not below it. floor_spreads: their standard
            deviation over which one of the retrained models it is.
        flags: what somebody who reads these numbers must know.
    """

    models: tuple[str, ...]
    seeds: dict[str, int]
    counts: dict[str, int]
    measures: tuple[Measure, ...]
    cells: dict[str, dict[str, Cell]]
    floors: dict[str, float] = field(default_factory=dict)
    floor_spreads: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def __getitem__(self, place: tuple[str, str]) -> float | None:
        """The value of (model, measure); None where it has no meaning."""
        if not (isinstance(place, tuple) and len(place) == 2):
            raise KeyError(
                f"Ask for evaluation[model, measure], for instance evaluation['{self.models[0]}', 'mean_gap']."
            )
        model, key = place
        if key not in self.cells or model not in self.models:
            known = ", ".join(self.cells)
            raise KeyError(f"No measure '{key}' of model '{model}'; models: {self.models}; measures: {known}.")
        cell = self.cells[key].get(model)
        return None if cell is None else cell.value

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, and `from_dict` reads it."""
        return {
            "models": list(self.models),
            "seeds": self.seeds,
            "counts": self.counts,
            "measures": [asdict(measure) for measure in self.measures],
            "values": {key: {name: asdict(cell) for name, cell in row.items()} for key, row in self.cells.items()},
            "noise_floor": self.floors,
            "noise_floor_spread": self.floor_spreads,
            "flags": list(self.flags),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Evaluation:
        """The table that `to_dict`, or JSON made of it, was written from."""
        values = stored["values"].items()
        return cls(
            models=tuple(stored["models"]),
            seeds=dict(stored["seeds"]),
            counts=dict(stored["counts"]),
            measures=tuple(Measure(**measure) for measure in stored["measures"]),
            cells={key: {name: Cell(**cell) for name, cell in row.items()} for key, row in values},
            floors=dict(stored["noise_floor"]),
            floor_spreads=dict(stored["noise_floor_spread"]),
            flags=tuple(stored["flags"]),
        )

    def to_frame(self) -> DataFrame:
        """A row a model, a column a measure; the noise floor is the last row, where there is one."""
        with needed_for("to_frame()", otherwise="use to_dict()"):
            import pandas
        columns = {m.key: [self[name, m.key] for name in self.models] for m in self.measures}
        frame = pandas.DataFrame(columns, index=pandas.Index(self.models, name="model"), dtype="float64")
        if self.floors:
            frame.loc[FLOOR] = [self.floors.get(m.key, math.nan) for m in self.measures]
        return frame

    def figure(self) -> Figure:
        """Accuracy per split and the gaps to the retrained models, with the noise floor."""
        from ssse.evaluation.figures import evaluation_figure

        return evaluation_figure(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many models beside each other as the terminal has room for, then the others below; then the notes."""
        rest = list(self.models)
        while rest:
            count = len(rest)
            while count > 1 and self._least_width(rest[:count]) > options.max_width:
                count -= 1
            yield self._table(rest[:count])
            rest = rest[count:]
        if self.flags:
            from rich.markup import escape
            from rich.table import Table

            notes = Table.grid(padding=(0, 1))
            for flag in self.flags:
                notes.add_row("  note:", escape(flag))
            yield notes

    def _table(self, models: Sequence[str]) -> Table:
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        table.add_column("", no_wrap=True)
        columns = self.columns(models)
        for title, texts in columns:
            style = "dim" if title == FLOOR else None
            table.add_column(escape(title), justify="right", style=style, min_width=_least(title, texts))
        group = None
        for i, measure in enumerate(self.measures):
            if measure.group != group:
                group = measure.group
                table.add_row(f"[bold]{escape(group)}[/]")
            table.add_row(f"  {escape(measure.title)}", *(escape(texts[i]) for _, texts in columns))
        return table

    def columns(self, models: Sequence[str]) -> list[tuple[str, list[str]]]:
        """Title and cells of each as they are shown, a cell a measure; the noise floor last."""
        columns = []
        for name in models:
            title = f"{name} (×{self.seeds[name]})" if self.seeds[name] > 1 else f"{name}"
            columns.append((title, [self._text(m, self.cells[m.key].get(name)) for m in self.measures]))
        if self.floors:
            columns.append((FLOOR, [self._floor_text(measure) for measure in self.measures]))
        return columns

    def _least_width(self, models: Sequence[str]) -> int:
        """Labels, columns with two spaces before each, and the edges of the box."""
        labels = [2 + len(m.title) for m in self.measures] + [len(m.group) for m in self.measures]
        return 2 + max(labels) + sum(2 + _least(title, texts) for title, texts in self.columns(models))

    def _floor_text(self, measure: Measure) -> str:
        floor = self.floors.get(measure.key)
        return "" if floor is None else self._text(measure, Cell(floor, self.floor_spreads.get(measure.key)))

    def _text(self, measure: Measure, cell: Cell | None) -> str:
        if cell is None or cell.value is None:
            return f"– {cell.note}" if cell is not None and cell.note else "–"
        text = _number(cell.value, measure.digits)
        if cell.spread is not None:
            text += f" ± {cell.spread:.1e}" if "e" in text else f" ± {cell.spread:.{measure.digits}f}"
        return f"{text} {cell.note}" if cell.note else text

    def __str__(self) -> str:
        # A table cut off at the right would hide models, so the text is as wide as it needs to be. It is plain text
        # also where a terminal or a notebook is looking: it may be on its way to a file.
        columns = self.columns(self.models)
        rows: list[list[str]] = []
        for i, measure in enumerate(self.measures):
            if i == 0 or measure.group != self.measures[i - 1].group:
                rows.append([measure.group])
            rows.append([f"  {measure.title}", *(texts[i] for _, texts in columns)])
        shown = plain_table(["", *(title for title, _ in columns)], rows, labels=True)
        notes = [textwrap.fill(flag, 100, initial_indent="  note: ", subsequent_indent=" " * 8) for flag in self.flags]
        return "\n".join(["", shown, *([""] if notes else []), *notes, ""])

    def __repr__(self) -> str:
        return f"Evaluation({len(self.models)} models × {len(self.measures)} measures; print it)"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _least(title: str, texts: Sequence[str]) -> int:
    """Titles break at spaces, numbers not at all."""
    return max(len(part) for part in (*title.split(), *texts))


def _number(value: float, digits: int) -> str:
    small = value != 0 and abs(value) < 0.5 * 10**-digits
    return f"{value:.1e}" if small else f"{value:.{digits}f}"
