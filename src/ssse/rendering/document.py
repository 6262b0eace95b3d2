"""What a page is made of: figures, tables, and numbers as JSON holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = str | float | int | None


@dataclass(frozen=True)
class PageFigure:
    """A figure. `paper`: which of the paper's it stands beside ("Figure 2a"), or "" where it goes past the paper."""

    name: str  # of the file, without its ending
    title: str
    caption: str
    paper: str
    figure: Figure = field(repr=False, compare=False)


@dataclass(frozen=True)
class PageTable:
    """A table. Numbers are shown with four significant digits; words as they are."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    paper: str = ""
    note: str = ""


def as_plain(value: Any) -> Any:
    """NaN and infinities have no place in JSON; numpy's numbers become Python's."""
    if isinstance(value, dict):
        return {str(key): as_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return as_plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) < float("inf") else None
    return value
