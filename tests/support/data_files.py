"""One small data set in every format that `open_source` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save_file
from torch import Tensor

from ssse.intake.sources import Columns, Source, open_source
from ssse.problem.labels import label_values

X = np.random.default_rng(3).normal(size=(7, 3))
Y = np.array([0, 2, 1, 1, 0, 2, 2])
IDS = [f"s-{place}é" for place in range(7)]
NUMBERS = np.arange(7) * 11 + 5  # ids where a format holds no texts
FEATURES = ("f1", "f2", "f3")
FORMATS = ("npz", "safetensors", "npy", "csv", "parquet")


def write(folder: Path, form: str, **arrays: Any) -> str:
    """Arrays by key into `data.<form>`, or into a folder of npy files; returns its name."""
    name = "data" if form == "npy" else f"data.{form}"
    path = folder / name
    if form == "npz":
        np.savez(path, **arrays)
    elif form == "safetensors":
        save_file({key: np.array(value, order="C") for key, value in arrays.items()}, path)
    elif form == "npy":
        path.mkdir()
        for key, value in arrays.items():
            np.save(path / f"{key}.npy", value)
    elif form == "csv":
        columns = {key: [str(one) for one in np.asarray(value).tolist()] for key, value in arrays.items()}
        lines = [",".join(columns), *(",".join(cells) for cells in zip(*columns.values(), strict=True))]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        pq.write_table(pa.table({key: pa.array(value) for key, value in arrays.items()}), path)
    return name


def standard(folder: Path, form: str) -> str:
    """X, Y and ids in that format."""
    if form in ("csv", "parquet"):
        return write(folder, form, id=IDS, **dict(zip(FEATURES, X.T, strict=True)), y=Y)
    return write(folder, form, x=X, y=Y, ids=NUMBERS if form == "safetensors" else np.array(IDS))


def ids_in(form: str) -> list[str]:
    return NUMBERS.astype(str).tolist() if form == "safetensors" else IDS


def opened(
    folder: Path, name: str, dtype: torch.dtype | None = torch.float64, search: Path | None = None, **columns: Any
) -> Source:
    return open_source(name, Columns(**columns), folder=folder, dtype=dtype, search=search)


def read(source: Source, places: Sequence[int] | None = None, size: int = 1024) -> tuple[Any, Tensor]:
    """All batches as one."""
    parts = list(source.batches(None if places is None else np.array(places, dtype=np.int64), size))
    assert all(len(y) == size for _, y in parts[:-1])
    labels = torch.cat([label_values(y) for _, y in parts])
    if isinstance(parts[0][0], dict):
        return {key: torch.cat([x[key] for x, _ in parts]) for key in parts[0][0]}, labels  # type: ignore[index]
    return torch.cat([x for x, _ in parts]), labels  # type: ignore[arg-type]


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, proof: Path):
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.proof,))
