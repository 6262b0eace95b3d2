"""Digests, all of them: of bytes, files, folders, JSON, tensors and samples. Importing this imports neither torch nor
numpy; the values are stored and compared with those of old files, so none may change."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


BLAKE3 = "blake3"
LONG = 2**13  # bytes, from which on BLAKE3 is faster than BLAKE2b, whatever the length; at 2¹⁴ four times


def digest_bytes(content: bytes | str) -> str:
    """SHA-256 in hex; of a text, of its UTF-8."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def digest_parts(parts: Iterable[bytes | str | memoryview]) -> str:
    """As of all parts joined, of which only one is held at a time."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part.encode() if isinstance(part, str) else part)
    return hasher.hexdigest()


def digest_json(value: Any) -> str:
    """The same for the same content, in whatever order its keys came."""
    return digest_bytes(json.dumps(value, sort_keys=True, ensure_ascii=False))


def digest_named(digests: Mapping[str, str]) -> str:
    """One digest of several things that have a name and a digest each."""
    return digest_parts(f"{name}={digests[name]};" for name in sorted(digests))


def md5(content: bytes) -> str:
    """As others publish it beside their files; it guards against accidents only."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def digest_file(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        error.filename = error.filename or str(path)  # a failing disk does not say where
        raise


def digest_folder(folder: Path) -> dict[str, str]:
    """Of every file below a folder, by its path in it; hashing releases the interpreter, so in threads."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = list(pool.map(digest_file, paths))
    return {path.relative_to(folder).as_posix(): digest for path, digest in zip(paths, digests, strict=True)}


def digest_tensor(tensor: Tensor) -> str:
    """Of dtype, shape and values; independent of how and where the tensor is stored."""
    form = f"{tensor.dtype}{tuple(tensor.shape)}"
    return digest_parts([form, bytes_of(tensor.reshape(1, -1)).data] if tensor.numel() else [form])


def digest_stored(tensor: Tensor) -> str:
    """As `digest_tensor` by BLAKE3, some four times as fast: of what is stored and read again.

    The word before the colon says so. Where there is none, it is SHA-256: before there was another. On one thread: the
    pool of several that BLAKE3 brings would hang in a process that was forked off.
    """
    from blake3 import blake3

    hasher = blake3(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.numel():
        hasher.update(bytes_of(tensor.reshape(1, -1)).data)
    return f"{BLAKE3}:{hasher.hexdigest()}"


def digest_by_rule_of(stored: str, tensor: Tensor) -> str:
    """Its digest by the function that another one was made by.

    Raises:
        ValueError: there is no such function.
    """
    rule, colon, _ = stored.rpartition(":")
    if colon and rule != BLAKE3:
        raise ValueError(f"'{rule}'")
    return digest_stored(tensor) if colon else digest_tensor(tensor)


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    return digest_named({name: digest_tensor(tensor) for name, tensor in tensors.items()})


def bytes_of(tensor: Tensor) -> np.ndarray:
    """The raw values, one line of bytes per entry of the first dimension; without a copy where possible."""
    import torch

    lines = tensor.detach().cpu().reshape(len(tensor), -1)
    if lines.stride() != (lines.shape[1], 1):  # a dimension of size one may have any stride
        lines = torch.empty(lines.shape, dtype=lines.dtype).copy_(lines)
    return lines.view(torch.uint8).numpy()


def digest_lines(columns: Sequence[np.ndarray], key: bytes, form: bytes = b"", stored: bool = True) -> np.ndarray:
    """64 bits of a keyed hash of each line, one line of bytes being the lines of all columns at that place.

    By BLAKE2b, as it has been `stored`; what is only counted, and forgotten, by BLAKE3 where lines are long: the
    longest columns first, since it is fast where a long piece begins at a whole kibibyte of what is hashed.
    """
    import numpy as np

    digests = np.empty(len(columns[0]), dtype=np.uint64)
    if stored or sum(column.shape[1] for column in columns) < LONG:
        begun: Any = hashlib.blake2b(form, digest_size=8, key=key)
    else:
        columns, begun = sorted(columns, key=lambda column: -column.shape[1]), _blake3(key, form)
    for i in range(len(digests)):
        hasher = begun.copy()
        for column in columns:
            hasher.update(column[i])
        digests[i] = int.from_bytes(hasher.digest()[:8], "little")
    return digests


def _blake3(key: bytes, form: bytes) -> Any:
    from blake3 import blake3

    return blake3(key=blake3(form, key=key.ljust(blake3.key_size, b"\0")).digest())
