"""CSV files: one line a sample, columns of numbers, a column of labels and, maybe, one of ids."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData
from ssse.intake.columns import Columns, Keys, Locate, choose_columns
from ssse.intake.messages import cause, listing
from ssse.intake.unfolding import text_array

LINES_AT_A_TIME = 4096
WHOLE = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class Table:
    """Inputs, shape (n, p); labels: whole numbers, numbers or texts; ids as stored; where a sample stands, in words."""

    keys: Keys
    inputs: Tensor
    labels: np.ndarray
    ids: np.ndarray | None
    locate: Locate


def read_csv(path: Path, columns: Columns, dtype: torch.dtype) -> Table:
    """Raises: InvalidData: names the line and the column."""
    with open(path, encoding="utf-8-sig", newline="") as handle:
        lines = _lines(csv.reader(handle, strict=True), path)
        _, header = next(lines, (0, []))
        header = [name.strip() for name in header]
        keys = _check_header(header, path, columns)
        places = [header.index(key) for key in keys.inputs]
        label, identity = header.index(keys.labels), None if keys.ids is None else header.index(keys.ids)
        held: list[Tensor] = []
        rows: list[list[float]] = []
        labels: list[str] = []
        ids: list[str] = []
        numbers = array("q")  # the line of every sample, for messages
        for number, cells in lines:
            if len(cells) != len(header):
                raise InvalidData(
                    f"'{path}', line {number}: {len(cells)} cells, but the header names {len(header)} columns. Quote "
                    "cells that hold a comma."
                )
            rows.append(_floats(cells, places, header, number, path))
            labels.append(cells[label].strip())
            if not labels[-1]:
                raise InvalidData(f"'{path}', line {number}, column {header[label]!r}: the label is missing.")
            if identity is not None:
                ids.append(cells[identity])
            numbers.append(number)
            if len(rows) == LINES_AT_A_TIME:
                held.append(_matrix(rows, dtype))
                rows = []
    if rows:
        held.append(_matrix(rows, dtype))
    if not held:
        raise InvalidData(f"'{path}' is empty: it has a header but no lines after it.")

    def locate(sample: int) -> str:
        return f"line {numbers[sample]}"

    known = text_array(labels, path) if columns.classes else _numbers(labels, keys.labels, path, locate)
    return Table(keys, torch.cat(held), known, text_array(ids, path) if identity is not None else None, locate)


def _lines(reader: Any, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Every line that is not blank, with its number."""
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except UnicodeDecodeError as error:
            raise InvalidData(
                f"'{path}', after line {reader.line_num}: not UTF-8 ({cause(error)}). Save the file as UTF-8."
            ) from error
        except csv.Error as error:
            raise InvalidData(
                f"'{path}', line {reader.line_num}: not CSV ({cause(error)}). Repair the line."
            ) from error
        if cells:
            yield reader.line_num, cells


def _check_header(header: list[str], path: Path, columns: Columns) -> Keys:
    if not header:
        raise InvalidData(f"'{path}' is empty; its first line should name the columns.")
    if len(header) == 1 and re.search(r"[;\t|]", header[0]):
        raise InvalidData(f"'{path}': the header is one cell, {header[0]!r}. Separate the columns by commas.")
    if "" in header:
        raise InvalidData(
            f"'{path}': column {header.index('') + 1} of the header has no name. If it is the index of pandas, write "
            "the table with index=False; name the column otherwise."
        )
    return choose_columns(columns, unique(header, path), str(path))


def unique(header: Sequence[str], path: Path) -> Sequence[str]:
    doubled = [name for name in dict.fromkeys(header) if header.count(name) > 1]
    if doubled:
        raise InvalidData(f"'{path}': more than one column is called {listing(doubled)}. Rename all but one.")
    return header


def _floats(cells: list[str], places: list[int], header: list[str], number: int, path: Path) -> list[float]:
    try:
        values = [float(cells[place]) for place in places]
        if all(map(math.isfinite, values)) and not any("_" in cells[place] for place in places):  # Python reads 1_000
            return values
    except ValueError:
        pass
    place = next(place for place in places if not _is_number(cells[place]))
    came = f"{cells[place]!r} is not a finite number" if cells[place].strip() else "the cell is empty"
    raise InvalidData(
        f"'{path}', line {number}, column {header[place]!r}: {came}. Repair it or leave the sample out; where the "
        "column is no input, name those that are in [data] inputs."
    )


def _matrix(rows: list[list[float]], dtype: torch.dtype) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).to(dtype)  # what overflows is found when the batch is read


def _is_number(cell: str) -> bool:
    try:
        return "_" not in cell and math.isfinite(float(cell))
    except ValueError:
        return False


def _numbers(labels: list[str], key: str, path: Path, locate: Locate) -> np.ndarray:
    """Whole numbers where all are written as such, else numbers."""
    if all(WHOLE.fullmatch(label) for label in labels):
        try:
            return np.array([int(label) for label in labels], dtype=np.int64)
        except (OverflowError, ValueError) as error:  # more digits than int() reads
            raise InvalidData(f"'{path}', column {key!r}: a label is too large a number for a class.") from error
    for sample, label in enumerate(labels):
        if not _is_number(label):
            raise InvalidData(
                f"'{path}', {locate(sample)}, column {key!r}: the label {label!r} is not a number. Where labels are "
                'words, name the classes in the model\'s order: [data] classes = ["…", "…"]. Several labels a sample '
                "need another format, such as npz."
            )
    return np.array([float(label) for label in labels])
