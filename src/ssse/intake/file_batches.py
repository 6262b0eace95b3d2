"""Batches of a table that does not fit into memory: read from its files one after another, again for every pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData, InvalidSetting
from ssse.intake.messages import did_you_mean, reading, require_file
from ssse.system.extras import needed_for

BYTES = 2**26  # of a batch, where its size is not given
PARQUET = "a parquet file"
NPY = "an npy file"

Pair = tuple[Tensor, Tensor]
Read = Callable[[], "Pair | None"]


class FileBatches:
    """Pairs (x, y) of consecutive samples, for `ssse.Curvature.fit` and `Eraser.partial_fit`; memory for two batches.

        data = ssse.FileBatches("x.npy", "y.npy")              # arrays, mapped or not when they were written
        data = ssse.FileBatches("table.parquet", "label")      # a column of labels; all others are inputs
        curvature = ssse.Curvature.fit(model, "cross_entropy", data, weight_decay=1e-3)

    The next batch is read while the last one is computed with. Nothing of a file is ever unpickled.

    Args:
        inputs: an npy file with a line a sample, or a parquet file (its row groups must fit into memory one by one).
        labels: the npy file of the labels, or the name of their column.
        size: samples of a batch; some 64 MiB of them, if not given.
        dtype: of the inputs, as the model takes them; as stored, if not given (of parquet float32).

    Attributes:
        sampler: the places of the samples, in the order in which they come.
    """

    def __init__(
        self,
        inputs: str | os.PathLike[str],
        labels: str | os.PathLike[str],
        *,
        size: int | None = None,
        dtype: torch.dtype | None = None,
    ):
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise InvalidSetting(f"size must be a number of samples, 1 or more, not {size!r}.")
        self._inputs, self._labels, self._dtype = Path(inputs), labels, dtype
        require_file(self._inputs)
        kinds = {".npy": self._open_npy, ".parquet": self._open_parquet}
        if self._inputs.suffix not in kinds:
            raise InvalidSetting(f"'{inputs}' must be an .npy or a .parquet file, to be read in parts.")
        rows, width = kinds[self._inputs.suffix]()
        self.size: int = size or max(1, BYTES // max(1, width))
        self.sampler: range = range(rows)

    def __len__(self) -> int:
        """Batches."""
        return -(-len(self.sampler) // self.size)

    def __iter__(self) -> Iterator[Pair]:
        if self._inputs.suffix == ".npy":
            with open(self._inputs, "rb", buffering=0) as x, open(self._labels, "rb", buffering=0) as y:
                yield from _ahead(self._npy_steps(x, y))
        else:
            with open(self._inputs, "rb") as handle:
                yield from _ahead(self._parquet_steps(handle))

    def _open_npy(self) -> tuple[int, int]:
        self._x, self._y = _Lines.of(self._inputs), _Lines.of(Path(self._labels))
        if self._x.shape[0] != self._y.shape[0]:
            raise InvalidData(
                f"'{self._inputs}' has {self._x.shape[0]:,} lines and '{self._labels}' {self._y.shape[0]:,}; a line of "
                "each is a sample."
            )
        return self._x.shape[0], self._x.width

    def _open_parquet(self) -> tuple[int, int]:
        pq = _pyarrow(self._inputs)
        with reading(self._inputs, PARQUET):
            file = pq.ParquetFile(self._inputs)
            names, rows = list(file.schema_arrow.names), file.metadata.num_rows
        if str(self._labels) not in names:
            raise InvalidSetting(
                f"'{self._inputs}' has no column {str(self._labels)!r}.{did_you_mean(str(self._labels), names)}"
            )
        self._columns = [name for name in names if name != str(self._labels)]
        if not rows or not self._columns:
            raise InvalidData(f"'{self._inputs}' is empty: it needs rows, and columns beside the labels.")
        return rows, 8 * len(self._columns)

    def _npy_steps(self, x: Any, y: Any) -> Iterator[Read]:
        for start in range(0, len(self.sampler), self.size):
            count = min(self.size, len(self.sampler) - start)
            yield lambda start=start, count=count: (
                self._as_inputs(self._x.read(x, start, count)),
                torch.from_numpy(self._y.read(y, start, count)),
            )

    def _parquet_steps(self, handle: Any) -> Iterator[Read]:
        with reading(self._inputs, PARQUET):
            file = _pyarrow(self._inputs).ParquetFile(handle, page_checksum_verification=True)
            columns = [*self._columns, str(self._labels)]
            batches = file.iter_batches(batch_size=self.size, columns=columns, use_threads=False)
        while True:
            yield lambda: self._next_of(batches)

    def _next_of(self, batches: Iterator[Any]) -> Pair | None:
        with reading(self._inputs, PARQUET):
            batch = next(batches, None)
            if batch is None:
                return None
            x = np.empty((len(batch), len(self._columns)), dtype=np.float32)
            for place, name in enumerate(self._columns):
                x[:, place] = _numbers(batch.column(name), name, self._inputs)
            y = _numbers(batch.column(str(self._labels)), str(self._labels), self._inputs)
        return self._as_inputs(x), torch.from_numpy(np.array(y))

    def _as_inputs(self, x: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(x)
        return tensor if self._dtype is None else tensor.to(self._dtype)


class _Lines:
    """An npy file, of which some lines at a time are read: a mapping would count as this process's own memory."""

    def __init__(self, path: Path, array: np.memmap[Any, Any]):
        self.path, self.shape, self.dtype, self.offset = path, array.shape, array.dtype, array.offset
        self.width: int = array[:1].nbytes

    @classmethod
    def of(cls, path: Path) -> _Lines:
        require_file(path)
        with reading(path, NPY):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not array.ndim or not len(array):
            raise InvalidData(f"'{path}' must hold a line for each sample, and has the shape {array.shape}.")
        if array.ndim > 1 and not array.flags.c_contiguous:
            raise InvalidData(
                f"'{path}' is stored column by column (Fortran order), so that a sample lies all over it. Write it "
                "with np.save(path, np.ascontiguousarray(array))."
            )
        if array.dtype.kind not in "biuf" or not array.dtype.isnative:
            raise InvalidData(f"'{path}' must hold numbers of this machine's byte order, not {array.dtype}.")
        return cls(path, array)

    def read(self, opened: Any, start: int, count: int) -> np.ndarray:
        lines = np.empty((count, *self.shape[1:]), dtype=self.dtype)
        opened.seek(self.offset + start * self.width)
        place = lines.reshape(-1).view(np.uint8).data
        while place:
            got = opened.readinto(place)
            if not got:
                raise InvalidData(f"'{self.path}' has become shorter since it was opened.")
            place = place[got:]
        return lines


def _ahead(steps: Iterable[Read]) -> Iterator[Pair]:
    """One step ahead of who uses them, in a thread: reading gives the interpreter free."""
    with ThreadPoolExecutor(1) as pool:
        pending = None
        for step in steps:
            coming = pool.submit(step)
            if pending is not None:
                if (pair := pending.result()) is None:
                    return
                yield pair
            pending = coming
        if pending is not None and (pair := pending.result()) is not None:
            yield pair


def _numbers(column: Any, name: str, path: Path) -> np.ndarray:
    values = column.to_numpy(zero_copy_only=False)
    if column.null_count or values.dtype.kind not in "biuf":
        raise InvalidData(f"'{path}', column {name!r}: every cell must be a number. Encode texts, fill or drop gaps.")
    return values


def _pyarrow(path: Path) -> Any:
    with needed_for(f"Reading '{path}'"):
        import pyarrow.parquet as pq  # not needed by anything else, and slow to import
    return pq
