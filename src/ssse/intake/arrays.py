"""Named arrays: npz and safetensors files, folders of npy. Nothing in them is ever unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open
from torch import Tensor

from ssse.errors import InvalidData
from ssse.intake.messages import listing, reading, unreadable
from ssse.intake.npy import NPY, ZIP, claimed_bytes, starts_with
from ssse.intake.unfolding import check_claim, check_parts

NPZ = "an npz file"
UNPACKED = "Save it uncompressed, with numpy.savez."
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
Wanted = Callable[[Sequence[str]], Sequence[str]]  # the keys of a file → those to read; the others may be anything


def read_npz(path: Path, wanted: Wanted) -> dict[str, np.ndarray]:
    """Read into memory, as a zip file cannot be mapped.

    Raises:
        InvalidData: damaged, not an npz file, one of Python objects, or one that unfolds to far more than its size.
    """
    with reading(path, NPZ), open(path, "rb") as handle:  # opened here: numpy leaves a damaged one open
        if starts_with(handle, NPY):
            raise InvalidData(
                f"'{path}' is a single array, not an npz file. Write it with numpy.savez(path, x=…, y=…)."
            )
        if not starts_with(handle, *ZIP):  # numpy would take it for a pickle
            raise unreadable(path, NPZ, "it does not begin as one")
        with np.load(handle, allow_pickle=False) as stored:
            doubled = [key for key in set(stored.files) if stored.files.count(key) > 1]
            if doubled:
                raise InvalidData(f"'{path}' holds {listing(sorted(doubled))} more than once. Write it again.")
            keys = wanted(stored.files)
            members = set(stored.zip.namelist())
            parts = [stored.zip.getinfo(key if key in members else f"{key}.npy") for key in keys]
            if any(part.compress_type not in PACKED for part in parts):
                raise unreadable(path, NPZ, "it is packed as numpy never does")
            check_parts(path, stored.zip, parts, NPZ, UNPACKED)
            arrays = {key: stored[key] for key in keys}
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise InvalidData(f"'{path}': {key!r} is not an array. Write the file again with numpy.savez.")
    return arrays


def read_npy_folder(folder: Path, wanted: Wanted) -> dict[str, np.ndarray]:
    """x.npy, y.npy, …, mapped; copy-on-write, so that nothing can reach the files."""
    files = {path.stem: path for path in sorted(folder.glob("*.npy")) if path.is_file()}
    if not files:
        raise InvalidData(f"'{folder}' is a folder without npy files; it should hold x.npy, y.npy and, maybe, ids.npy.")
    arrays = {}
    for key in wanted(list(files)):
        with open(files[key], "rb") as opened:  # who may not read it is told so, not that the file is damaged
            claimed = claimed_bytes(opened, files[key], "an npy file")
        check_claim(files[key], files[key].name, claimed, files[key].stat().st_size, "an npy file")
        with reading(files[key], "an npy file"):
            arrays[key] = np.lib.format.open_memmap(files[key], mode="c")  # refuses everything that needs pickle
    return arrays


def read_safetensors(path: Path, wanted: Wanted) -> dict[str, Tensor]:
    """Mapped; tensors hold no texts, so ids must be whole numbers."""
    with open(path, "rb"):
        pass
    with reading(path, "a safetensors file"), safe_open(path, framework="pt") as opened:
        return {key: opened.get_tensor(key) for key in wanted(list(opened.keys()))}
