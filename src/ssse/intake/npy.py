"""The start of npy and zip files, looked at before numpy reads them: what needs unpickling is refused by its dtype."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import IO, Any

import numpy as np

from ssse.errors import InvalidData

NPY = b"\x93NUMPY"
ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # the second: without any member
LONGEST = 10_000  # bytes of a header; numpy itself reads no longer one
LENGTHS = {1: 2, 2: 4, 3: 4}  # bytes of the header's length, by the major version of the format


def starts_with(opened: IO[bytes], *signs: bytes) -> bool:
    """Whether the file begins with one of these; it is read from its start afterwards."""
    start = opened.read(max(map(len, signs)))
    opened.seek(0)
    return start.startswith(signs)


def refuse_objects(opened: IO[bytes], path: Path, kind: str) -> None:
    """Raises: InvalidData: by its header this npy file holds Python objects. What is damaged is for numpy to find."""
    try:
        dtype = _dtype(opened)
    except Exception:  # a damaged header makes zipfile, struct, ast and numpy raise nearly anything
        return
    if dtype is not None and dtype.hasobject:
        raise InvalidData(
            f"'{path}' cannot be read as {kind}: it holds Python objects. They are never unpickled; save arrays of "
            "numbers, and of texts with dtype=str."
        )


def _dtype(opened: IO[bytes]) -> np.dtype[Any] | None:
    if opened.read(len(NPY)) != NPY:
        return None
    major = opened.read(2)[0]
    length = min(int.from_bytes(opened.read(LENGTHS[major]), "little"), LONGEST)
    header = ast.literal_eval(opened.read(length).decode("utf-8" if major == 3 else "latin-1"))
    return np.lib.format.descr_to_dtype(header["descr"])
