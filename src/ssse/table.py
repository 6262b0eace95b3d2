"""One table of everything that was measured: models across, measures down, the noise floor beside them."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from ssse.errors import InvalidSetting

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

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


@dataclass(frozen=True)
class Evaluation:
    """Named models, measured.

    `evaluation["erased", "mean_gap"]` is a number; `print(evaluation)`, `to_frame()`, `to_json()` and `figure()` show
    all of them.

    Attributes:
        models: in the order given. counts: samples of each split. measures: the rows. cells: by measure, then model.
        floors: what the same measures are between retrained models of different seeds; empty if there is one only. Each
            of R is held against the average of the R − 1 others; every other model against all such averages in turn,
            so that a model like the retrained ones is at the floor, not below it.
        flags: what somebody who reads these numbers must know.
    """

    models: tuple[str, ...]
    seeds: dict[str, int]
    counts: dict[str, int]
    measures: tuple[Measure, ...]
    cells: dict[str, dict[str, Cell]]
    floors: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def __getitem__(self, place: tuple[str, str]) -> float | None:
        """The value of (model, measure); None where it has no meaning."""
        model, key = place if isinstance(place, tuple) and len(place) == 2 else (place, None)
        if key not in self.cells or model not in self.models:
            known = ", ".join(self.cells)
            raise KeyError(f"No measure '{key}' of model '{model}'; models: {self.models}; measures: {known}.")
        cell = self.cells[key].get(model)
        return None if cell is None else cell.value

    def to_dict(self) -> dict[str, Any]:
        return {
            "models": list(self.models),
            "seeds": self.seeds,
            "counts": self.counts,
            "measures": [asdict(measure) for measure in self.measures],
            "values": {key: {name: asdict(cell) for name, cell in row.items()} for key, row in self.cells.items()},
            "noise_floor": self.floors,
            "flags": list(self.flags),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=1, allow_nan=False)

    def to_frame(self) -> DataFrame:
        """A row a model, a column a measure; the noise floor is the last row, where there is one."""
        try:
            import pandas
        except ImportError as error:
            raise InvalidSetting("to_frame() needs pandas: pip install pandas, or use to_dict().") from error
        columns = {m.key: [self[name, m.key] for name in self.models] for m in self.measures}
        frame = pandas.DataFrame(columns, index=pandas.Index(self.models, name="model"), dtype="float64")
        if self.floors:
            frame.loc[FLOOR] = [self.floors.get(m.key, math.nan) for m in self.measures]
        return frame

    def figure(self) -> Figure:
        """Accuracy per split and the gaps to the retrained models, with the noise floor."""
        from ssse.figures import evaluation_figure

        return evaluation_figure(self)

    def __rich__(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        table.add_column("", overflow="fold")
        for name in self.models:
            many = self.seeds[name]
            table.add_column(escape(f"{name} (×{many})" if many > 1 else f"{name}"), justify="right", overflow="fold")
        if self.floors:
            table.add_column(FLOOR, justify="right", style="dim")
        group = None
        for measure in self.measures:
            if measure.group != group:
                group = measure.group
                table.add_row(f"[bold]{escape(group)}[/]")
            row = [self._text(measure, self.cells[measure.key].get(name)) for name in self.models]
            if self.floors:
                floor = self.floors.get(measure.key)
                row.append("" if floor is None else _number(floor, measure.digits))
            table.add_row(f"  {escape(measure.title)}", *map(escape, row))
        return table

    def _text(self, measure: Measure, cell: Cell | None) -> str:
        if cell is None or cell.value is None:
            return f"– {cell.note}" if cell is not None and cell.note else "–"
        text = _number(cell.value, measure.digits)
        if cell.spread is not None:
            text += f" ± {_number(cell.spread, measure.digits)}"
        return f"{text} {cell.note}" if cell.note else text

    def __str__(self) -> str:
        # A table cut off at the right would hide models, so the text is as wide as it needs to be. It is plain text
        # also where a terminal or a notebook is looking, for it may be on its way to a file.
        text = io.StringIO()
        console = Console(file=text, width=10_000, color_system=None, force_terminal=False, force_jupyter=False)
        console.width = max(100, Measurement.get(console, console.options, self.__rich__()).maximum)
        console.print(self, highlight=False)
        for flag in self.flags:
            console.print(f"  note: {flag}", markup=False, highlight=False)
        return text.getvalue()


def _number(value: float, digits: int) -> str:
    small = value != 0 and abs(value) < 0.5 * 10**-digits
    return f"{value:.1e}" if small else f"{value:.{digits}f}"
