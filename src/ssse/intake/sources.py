"""The user's data → samples in batches: files of arrays, tables, or an object of the user's own code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData
from ssse.intake.arrays import Wanted, read_npy_folder, read_npz, read_safetensors
from ssse.intake.columns import PLACE, Columns, Locate, choose_arrays, ids_of, labels_of, places_as_ids, tensor_of
from ssse.intake.csv import read_csv
from ssse.intake.datasets import DatasetSource, arrays_in, import_data
from ssse.intake.importing import import_object, is_spec
from ssse.intake.messages import require_file
from ssse.intake.parquet import read_parquet
from ssse.intake.samples import ArraySource, Batches, Source

__all__ = ["Batches", "Columns", "Source", "import_object", "open_source"]

ARRAYS: dict[str, Callable[[Path, Wanted], Mapping[str, np.ndarray | Tensor]]] = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
}
TABLES = {".csv": read_csv, ".parquet": read_parquet}

USUAL = Columns()


def open_source(
    where: str,
    columns: Columns = USUAL,
    *,
    folder: Path,
    dtype: torch.dtype | None = None,
    in_tables: torch.dtype = torch.float32,
    search: Path | None = None,
    files_alone: bool = False,
) -> Source:
    """Open data, check its parts against each other, and read no more of it than that needs.

    Floating inputs and labels are cast to `dtype` batch by batch; whole numbers and bytes stay, but
    for tables, whose inputs are always floats (of `in_tables` if no dtype is given).

    Args:
        where: a path, relative to `folder`, or pkg.module:name, looked for among the installed modules and in `search`.
        files_alone: it is a path, whatever it looks like, and nothing is imported.
    Raises:
        InvalidData: missing, damaged, or of parts that do not belong together. InvalidSetting: it cannot be imported,
        or pyarrow is missing. Nothing in a file is ever unpickled.
    """
    if is_spec(where) and not (folder / where).exists():
        if files_alone:
            raise InvalidData(
                f"'{where}' is not a file; the samples of a command are read from files, never from code."
            )
        data = import_data(where, search)
        arrays = arrays_in(data, where)
        if arrays is None:
            return DatasetSource(where, data, columns, dtype)
        return _from_arrays(arrays, columns, where, dtype)
    path = folder / os.path.expanduser(where)
    if not path.is_dir():
        require_file(path)
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in ARRAYS:
        read = read_npy_folder if path.is_dir() else ARRAYS[suffix]
        return _from_arrays(read(path, lambda held: choose_arrays(columns, held, where).all), columns, where, dtype)
    if suffix not in TABLES:
        raise InvalidData(
            f"'{where}': data must be one of {', '.join([*ARRAYS, *TABLES])}, a folder of .npy files or "
            f"pkg.module:dataset, not {suffix or 'a file without an extension'}."
        )
    table = TABLES[suffix](path, columns, dtype or in_tables)
    labels = labels_of(table.labels, table.keys.labels, columns.classes, where, table.locate)
    ids = None if table.ids is None or table.keys.ids is None else ids_of(table.ids, table.keys.ids, where)
    inputs = {"inputs": table.inputs}
    made = ArraySource(where, inputs, (table.keys.labels, labels), _or_places(ids, columns, labels), dtype)
    made.columns = table.keys.inputs
    return made


def _from_arrays(
    arrays: Mapping[str, np.ndarray | Tensor], columns: Columns, where: str, dtype: torch.dtype | None
) -> Source:
    keys = choose_arrays(columns, list(arrays), where)

    def tensor(key: str) -> Tensor:
        stored = arrays[key]
        return stored if isinstance(stored, Tensor) else tensor_of(stored, key, where)

    inputs = {key: tensor(key) for key in keys.inputs}
    labels = labels_of(arrays[keys.labels], keys.labels, columns.classes, where, _sample)
    ids = None if keys.ids is None else ids_of(arrays[keys.ids], keys.ids, where)
    return ArraySource(where, inputs, (keys.labels, labels), _or_places(ids, columns, labels), dtype)


def _or_places(ids: np.ndarray | None, columns: Columns, labels: Tensor) -> np.ndarray | None:
    return places_as_ids(len(labels)) if columns.ids == PLACE and labels.dim() else ids


_sample: Locate = "sample {}".format
