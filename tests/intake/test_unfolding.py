"""Files that would unfold to far more than their size, or claim more than they hold: refused before room is made."""

from __future__ import annotations

import io
import json
import re
import resource
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skops.io
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge

from ssse.errors import InvalidData
from ssse.intake import unfolding
from ssse.intake.skops import read_skops
from ssse.intake.weights import read_weights
from tests.support.data_files import opened

ROOM = 1 << 29  # bytes more than now
HUGE = (10**12,)


@contextmanager
def little_memory() -> Iterator[None]:
    """What makes more room than that fails, with another error than the one that is expected."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def refused(path: Path, words: str, read: Callable[[Path], object] | None = None) -> str:
    with little_memory(), pytest.raises(InvalidData, match=words) as caught:
        read(path) if read else opened(path.parent, path.name)
    assert str(path) in str(caught.value)
    assert "MemoryError" not in str(caught.value)
    return str(caught.value)


def header(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": dtype, "fortran_order": False, "shape": shape})
    return made.getvalue()


def deflated_zeros(start: bytes, size: int) -> bytes:
    """A stream that unfolds to so many zeros after the start, made of one piece again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = 1 << 24
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    zeros = packer.compress(bytes(piece)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + zeros * -(-size // piece) + packer.flush()


def zipped(path: Path, parts: dict[str, tuple[int, bytes, int]]) -> None:
    """A zip file of parts as (method, packed bytes, size that is declared), true or not."""
    body, directory = b"", b""
    for name, (method, packed, size) in parts.items():
        checksum = 0 if method else zlib.crc32(packed)
        about = struct.pack("<5H3I2H", 20, 0, method, 0, 33, checksum, len(packed), size, len(name), 0)
        place = len(body)
        body += b"PK\x03\x04" + about + name.encode() + packed
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + about + struct.pack("<3H2I", 0, 0, 0, 0, place)
        directory += name.encode()
    end = struct.pack("<4H2IH", 0, 0, len(parts), len(parts), len(directory), len(body), 0)
    path.write_bytes(body + directory + b"PK\x05\x06" + end)


def plain(array: np.ndarray) -> tuple[int, bytes, int]:
    made = io.BytesIO()
    np.save(made, array)
    return zipfile.ZIP_STORED, made.getvalue(), len(made.getvalue())


LABELS = plain(np.arange(4))


def test_the_forged_files_are_zip_files(tmp_path):
    zipped(tmp_path / "good.npz", {"x.npy": plain(np.ones((4, 2))), "y.npy": LABELS})
    stored = zipfile.ZipFile(tmp_path / "good.npz")
    assert [part.file_size for part in stored.infolist()] == [plain(np.ones((4, 2)))[2], LABELS[2]]
    size = 1 << 25
    assert zlib.decompress(deflated_zeros(b"start", size), -15) == b"start" + bytes(size)


def test_an_npz_of_3_mb_that_unfolds_to_4_gb(tmp_path):
    rows = 61_000_000
    start = header((rows, 8))
    packed = deflated_zeros(start, rows * 64)
    zipped(tmp_path / "bomb.npz", {"x.npy": (8, packed, len(start) + rows * 64), "y.npy": LABELS})
    assert 3e6 < (tmp_path / "bomb.npz").stat().st_size < 4.5e6
    said = refused(tmp_path / "bomb.npz", r"would unfold from .* MiB to 3\.6 GiB")
    assert "Save it uncompressed, with numpy.savez." in said


def test_parts_that_nobody_reads_may_be_anything(tmp_path):
    zipped(
        tmp_path / "data.npz",
        {"x.npy": plain(np.ones((4, 2))), "y.npy": LABELS, "z.npy": (8, deflated_zeros(b"", 1 << 28), 1 << 28)},
    )
    with little_memory():
        assert len(opened(tmp_path, "data.npz")) == 4


@pytest.mark.parametrize("dtype", ["<f8", "<U9", "<U0", "|V0"])
def test_an_npz_whose_header_claims_more_than_its_part_holds(dtype, tmp_path):
    start = header(HUGE, dtype) + bytes(800)
    zipped(tmp_path / "claims.npz", {"x.npy": (0, start, len(start)), "y.npy": LABELS})
    refused(tmp_path / "claims.npz", r"'x\.npy' says that it has .*, and it has 928 B")


def test_a_part_that_unfolds_to_more_than_it_declares(tmp_path):
    """Readers take what was declared, and no more."""
    start = header((1000, 1))
    packed = deflated_zeros(start, 1 << 30)
    zipped(tmp_path / "more.npz", {"x.npy": (8, packed, len(start) + 8000), "y.npy": plain(np.arange(1000))})
    refused(tmp_path / "more.npz", "cannot be read as an npz file")  # its checksum is another


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing_are_none_of_numpys(method, tmp_path):
    with zipfile.ZipFile(tmp_path / "other.npz", "w", method) as packed:
        packed.writestr("x.npy", plain(np.ones((4, 2)))[1])
        packed.writestr("y.npy", LABELS[1])
    refused(tmp_path / "other.npz", "packed as numpy never does")


def test_an_npy_whose_header_claims_more_than_it_holds(tmp_path):
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "y.npy", np.arange(4))
    (tmp_path / "data" / "x.npy").write_bytes(header(HUGE) + bytes(800))
    with little_memory(), pytest.raises(InvalidData, match=r"'x\.npy' says that it has 7\.3 TiB"):
        opened(tmp_path, "data")


def test_a_safetensors_whose_header_claims_more_than_it_holds(tmp_path):
    for number, end in enumerate((8 * HUGE[0], 800)):
        text = json.dumps({"x": {"dtype": "F64", "shape": HUGE, "data_offsets": [0, end]}}).encode()
        for name in (f"data{number}.safetensors", f"w{number}.safetensors"):
            (tmp_path / name).write_bytes(len(text).to_bytes(8, "little") + text + bytes(800))
        refused(tmp_path / f"data{number}.safetensors", "cannot be read as a safetensors file")
        refused(tmp_path / f"w{number}.safetensors", "cannot be read as a safetensors file", read_weights)
    (tmp_path / "long.safetensors").write_bytes((10**12).to_bytes(8, "little") + b"{}")
    refused(tmp_path / "long.safetensors", "cannot be read as a safetensors file", read_weights)


def test_weights_that_are_packed(tmp_path):
    torch.save({"w": torch.zeros(1000)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as packed:
        parts = {part.filename: (0, packed.read(part), part.file_size) for part in packed.infolist()}
    storage = next(name for name in parts if name.endswith("/data/0"))
    parts[storage] = (8, deflated_zeros(b"", 1 << 30), 1 << 30)
    zipped(tmp_path / "bomb.pt", parts)
    said = refused(tmp_path / "bomb.pt", r"would unfold from .* to 1\.0 GiB", read_weights)
    assert "Save the weights alone" in said


def test_weights_that_are_views_without_end(tmp_path):
    torch.save({"w": torch.zeros(1).expand(10**12)}, tmp_path / "w.pt")
    refused(tmp_path / "w.pt", r"would unfold from .* to 3\.6 TiB", read_weights)


def test_a_parquet_of_a_few_values_a_million_times(tmp_path):
    column = np.zeros(4_000_000)
    table = {f"f{place}": column for place in range(3)} | {"y": column.astype(np.int8)}
    pq.write_table(pa.table(table), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 1e6
    assert "use_dictionary=False" in refused(tmp_path / "bomb.parquet", "would unfold from .* to 122 MiB")


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_one_text_that_is_too_long_for_a_table_of_many(form, tmp_path):
    rows, path = 3000, tmp_path / f"data.{form}"
    ids = ["x" * 100_000, *map(str, range(rows - 1))]
    if form == "parquet":
        pq.write_table(pa.table({"f": np.zeros(rows), "y": np.zeros(rows, dtype=int), "id": ids}), path)
    else:
        path.write_text("f,y,id\n" + "".join(f"0,0,{name}\n" for name in ids))
    refused(path, r"would unfold from .* to 1\.1 GiB.*100,000 characters")


def test_a_skops_file_whose_array_claims_more_than_it_holds(tmp_path):
    skops.io.dump(Ridge().fit(np.eye(4), np.arange(4.0)), tmp_path / "good.skops")
    with zipfile.ZipFile(tmp_path / "good.skops") as packed:
        parts = {part.filename: (0, packed.read(part), part.file_size) for part in packed.infolist()}
    array = next(name for name in parts if name.endswith(".npy"))
    parts[array] = (0, header(HUGE), len(header(HUGE)))
    zipped(tmp_path / "claims.skops", parts)
    refused(tmp_path / "claims.skops", re.escape(f"{array!r} says that it has 7.3 TiB"), read_skops)


def one_hot(classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[np.random.default_rng(0).integers(0, classes, 2**18 // classes)]


def mostly_black() -> np.ndarray:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (300, 784)) * (generator.random((300, 784)) < 0.2)


@pytest.mark.parametrize(
    "make", [lambda: load_digits(return_X_y=True)[0], mostly_black, lambda: one_hot(2), lambda: one_hot(10)]
)
def test_honest_data_may_be_compressed(make, tmp_path, monkeypatch):
    """The ratio alone is asked here, as of data that is larger."""
    monkeypatch.setattr(unfolding, "LEAST", 0)
    x = make()
    np.savez_compressed(tmp_path / "data.npz", x=x, y=np.zeros(len(x), dtype=np.int64))
    assert len(opened(tmp_path, "data.npz")) == len(x)


def test_one_hot_inputs_of_many_classes_are_to_be_saved_uncompressed(tmp_path, monkeypatch):
    """A thousand zeros a number, as no rule by size could tell from a bomb."""
    monkeypatch.setattr(unfolding, "LEAST", 0)
    x, y = one_hot(1000), np.zeros(262, dtype=np.int64)
    np.savez_compressed(tmp_path / "packed.npz", x=x, y=y)
    refused(tmp_path / "packed.npz", r"Save it uncompressed, with numpy\.savez")
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    assert len(opened(tmp_path, "plain.npz")) == 262
