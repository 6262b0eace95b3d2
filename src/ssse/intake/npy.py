"""The start of npy and zip files, looked at before numpy reads them: what needs unpickling is refused by its dtype.

And how much room an array would take is known before anybody makes it.
"""

from __future__ import annotations

import ast
import math
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


def claimed_bytes(opened: IO[bytes], path: Path, kind: str) -> int:
    """How large the array is that the header of an npy file describes; 0 where it is none.

    Raises:
        InvalidData: it holds Python objects. What is damaged is for numpy to find.
    """
    try:
        found = _header(opened)
    except Exception:  # a damaged header makes zipfile, struct, ast and numpy raise nearly anything
        return 0
    if found is None:
        return 0
    dtype, shape = found
    if dtype.hasobject:
        raise InvalidData(
            f"'{path}' cannot be read as {kind}: it holds Python objects. They are never unpickled; save arrays of "
            "numbers, and of texts with dtype=str."
        )
    return math.prod(shape) * max(1, dtype.itemsize)


def _header(opened: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    if opened.read(len(NPY)) != NPY:
        return None
    major = opened.read(2)[0]
    length = min(int.from_bytes(opened.read(LENGTHS[major]), "little"), LONGEST)
    header = ast.literal_eval(opened.read(length).decode("utf-8" if major == 3 else "latin-1"))
    return np.lib.format.descr_to_dtype(header["descr"]), tuple(map(int, header["shape"]))
