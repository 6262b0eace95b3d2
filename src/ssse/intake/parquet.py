"""Parquet files, read as CSV files are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData
from ssse.intake.columns import Columns, choose_columns
from ssse.intake.csv import LINES_AT_A_TIME, Table, unique
from ssse.intake.messages import reading, unreadable
from ssse.intake.unfolding import refuse_long_texts, refuse_unfolding
from ssse.system.extras import needed_for

PARQUET = "a parquet file"
UNPACKED = "Write it unpacked: pyarrow.parquet.write_table(table, path, compression='none', use_dictionary=False)."
WIDTH = 8  # bytes of a cell, while it is read


def read_parquet(path: Path, columns: Columns, dtype: torch.dtype) -> Table:
    with needed_for(f"Reading '{path}'"):
        import pyarrow as pa  # not needed by anything else, and slow to import
        import pyarrow.parquet as pq
    held: list[Tensor] = []
    labels: list[np.ndarray] = []
    ids: list[np.ndarray] = []
    with reading(path, PARQUET), open(path, "rb") as handle:
        file = pq.ParquetFile(handle, page_checksum_verification=True)
        keys = choose_columns(columns, unique(file.schema_arrow.names, path), str(path))
        rows = file.metadata.num_rows
        refuse_unfolding(path, max(rows * len(keys.all) * WIDTH, _unpacked(file.metadata, keys.all)), UNPACKED)
        kinds = {key: file.schema_arrow.field(key).type for key in (keys.labels, keys.ids) if key is not None}
        texts = [key for key, kind in kinds.items() if _is_text(pa, kind)]  # kept as places in a list of them
        file = pq.ParquetFile(handle, page_checksum_verification=True, read_dictionary=texts)
        row = 0
        for batch in file.iter_batches(batch_size=LINES_AT_A_TIME, columns=list(keys.all)):
            held.append(
                torch.stack([_parquet_floats(pa, batch.column(k), k, path, row) for k in keys.inputs], 1).to(dtype)
            )
            labels.append(_parquet_plain(pa, batch.column(keys.labels), keys.labels, path, row, rows))
            if keys.ids is not None:
                ids.append(_parquet_plain(pa, batch.column(keys.ids), keys.ids, path, row, rows))
            row += len(batch)
            if row > rows:
                raise unreadable(path, PARQUET, f"it says that it has {rows:,} rows, and has more")
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


def _parquet_plain(pa: Any, column: Any, key: str, path: Path, first: int, rows: int) -> np.ndarray:
    """Labels or ids: whole numbers, numbers or texts."""
    _refuse_nulls(column, key, path, first)
    if pa.types.is_dictionary(column.type):  # texts as we ask for them, and the categories of pandas
        if _is_text(pa, column.type.value_type):
            refuse_long_texts(max(map(len, column.dictionary.to_pylist()), default=0), rows, path)
        column = column.dictionary_decode()
    kind = column.type
    if _is_text(pa, kind):
        return np.array(column.to_pylist(), dtype=str)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        return column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    raise InvalidData(f"'{path}', column {key!r}: labels and ids must be numbers or texts, not {kind}. Convert it.")


def _is_text(pa: Any, kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _unpacked(metadata: Any, keys: Sequence[str]) -> int:
    """Of the columns that are read, by what the file says."""
    groups = (metadata.row_group(place) for place in range(metadata.num_row_groups))
    chunks = (group.column(place) for group in groups for place in range(group.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in keys)


def _refuse_nulls(column: Any, key: str, path: Path, first: int) -> None:
    if column.null_count:
        row = first + int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        raise InvalidData(f"'{path}', row {row}, column {key!r}: the cell is empty. Fill it or leave the sample out.")
