"""Parquet files, read as CSV files are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData, InvalidSetting
from ssse.intake.columns import Columns, choose_columns
from ssse.intake.csv import LINES_AT_A_TIME, Table, unique
from ssse.intake.messages import reading


def read_parquet(path: Path, columns: Columns, dtype: torch.dtype) -> Table:
    try:
        import pyarrow as pa  # not needed by anything else, and slow to import
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InvalidSetting(f"Reading '{path}' needs pyarrow: pip install 'ssse[tables]'.") from error
    held: list[Tensor] = []
    labels: list[np.ndarray] = []
    ids: list[np.ndarray] = []
    with reading(path, "a parquet file"), open(path, "rb") as handle:
        file = pq.ParquetFile(handle, page_checksum_verification=True)
        keys = choose_columns(columns, unique(file.schema_arrow.names, path), str(path))
        row = 0
        for batch in file.iter_batches(batch_size=LINES_AT_A_TIME, columns=list(keys.all)):
            held.append(
                torch.stack([_parquet_floats(pa, batch.column(k), k, path, row) for k in keys.inputs], 1).to(dtype)
            )
            labels.append(_parquet_plain(pa, batch.column(keys.labels), keys.labels, path, row))
            if keys.ids is not None:
                ids.append(_parquet_plain(pa, batch.column(keys.ids), keys.ids, path, row))
            row += len(batch)
    if not row:
        raise InvalidData(f"'{path}' is empty: it has columns but no rows.")
    return Table(
        keys,
        torch.cat(held),
        np.concatenate(labels),
        np.concatenate(ids) if ids else None,
        lambda sample: f"row {sample}",
    )


def _parquet_floats(pa: Any, column: Any, key: str, path: Path, first: int) -> Tensor:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InvalidData(
            f"'{path}', column {key!r}: inputs must be numbers, not {kind}. Convert it, or name the columns that are "
            "inputs in [data] inputs; arrays in cells need another format, such as npz."
        )
    _refuse_nulls(column, key, path, first)
    values = torch.from_numpy(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).copy())
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        raise InvalidData(
            f"'{path}', row {first + int(bad.nonzero()[0])}, column {key!r}: not a finite number. Repair it or leave "
            "the sample out."
        )
    return values


def _parquet_plain(pa: Any, column: Any, key: str, path: Path, first: int) -> np.ndarray:
    """Labels or ids: whole numbers, numbers or texts."""
    _refuse_nulls(column, key, path, first)
    if pa.types.is_dictionary(column.type):  # the categories of pandas
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return np.array(column.to_pylist(), dtype=str)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        return column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    raise InvalidData(f"'{path}', column {key!r}: labels and ids must be numbers or texts, not {kind}. Convert it.")


def _refuse_nulls(column: Any, key: str, path: Path, first: int) -> None:
    if column.null_count:
        row = first + int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        raise InvalidData(f"'{path}', row {row}, column {key!r}: the cell is empty. Fill it or leave the sample out.")
