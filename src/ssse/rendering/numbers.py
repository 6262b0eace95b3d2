"""How numbers are written, the same on every page."""

from __future__ import annotations

import math

from ssse.rendering.document import Cell, PageTable

NOTHING = "–"


def shown(cell: Cell, digits: int = 4) -> str:
    """Numbers with four significant digits, whole numbers and words as they are, a dash for what is not there."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return NOTHING
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}" if abs(cell) >= 10_000 else str(cell)
    if isinstance(cell, str):
        return cell
    if math.isinf(cell):
        return "∞" if cell > 0 else "−∞"
    if cell == 0:
        return "0"
    if 10**digits <= abs(cell) < 1e9:
        return _minus(f"{cell:,.0f}")
    return _minus(f"{cell:#.{digits}g}".rstrip("."))


def _minus(text: str) -> str:
    return "−" + text[1:] if text.startswith("-") else text


def is_number(cell: Cell) -> bool:
    return cell is None or isinstance(cell, int | float)


def numeric_columns(table: PageTable) -> list[bool]:
    """Which columns hold nothing but numbers, and are set to the right."""
    return [bool(table.rows) and all(is_number(row[j]) for row in table.rows) for j in range(len(table.columns))]


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{shown(float(seconds), 3)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
