"""The npz file that features come in: what it may hold, read and checked. docs/data.md describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData, MissingData
from ssse.intake.arrays import read_npz
from ssse.system.digests import digest_tensors

Arrays = Mapping[str, np.ndarray]

KEYS = ("features", "features_u8", "scale", "labels", "attributes", "split", "names", "class_names", "attribute_names")
ROWS_AT_A_TIME = 4096  # so that looking for NaN does not need a second array of the features' size
SPLITS = 3  # train, validation, test


@dataclass(frozen=True)
class Features:
    """Samples as rows of features, with what is known of each.

    Attributes:
        x: shape (n, p); float32, or float64 where the file holds that.
        y: classes, shape (n,), int64; or attributes, shape (n, a), float32 of 0 and 1.
        split: shape (n,), int64: 0 train, 1 validation, 2 test, as the data set's authors say; None if they do not.
        names: of the classes or attributes.
        source: in one line, which files and what they hold.
        digest: SHA-256 of x, y and split.
    """

    x: Tensor
    y: Tensor
    split: Tensor | None
    names: tuple[str, ...]
    source: str
    digest: str


def read_features(path: str | Path) -> Features:
    """Read one npz file; nothing in it is ever unpickled.

    Raises:
        MissingData: there is no such file. InvalidData: says what in the file is wrong, and the repair.
    """
    path = Path(path)
    return features_of(read_arrays(path, KEYS), str(path), path.name)


def read_arrays(path: Path, keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Those of the keys that the file holds; others are not even looked at."""
    if not path.is_file():
        raise MissingData(f"'{path}' is not a file; give the path of an npz file of features.")
    try:
        return read_npz(path, lambda held: [key for key in keys if key in held])
    except InvalidData as error:
        raise InvalidData(
            f"{error} Such files of features are written by ssse.paper.data.extract.save_features; if it came from "
            "elsewhere, download it again."
        ) from error


def features_of(arrays: Arrays, where: str, files: str) -> Features:
    """Check the arrays of the format against each other.

    Args:
        where: the file, for errors. files: the file names without folders, for `source`.
    """
    x = matrix_of(arrays, where)
    n = len(x)
    kind = _one_of(arrays, ("labels", "attributes"), where)
    y, names = _classes(arrays, n, where) if kind == "labels" else _attributes(arrays, n, where)
    split = _split(arrays, n, where)
    words = f"{files}: {n:,} samples × {x.shape[1]:,} features, {len(names)} "
    words += "classes" if kind == "labels" else "attributes"
    content = {"x": x, "y": y}
    if split is not None:
        counts = torch.bincount(split, minlength=SPLITS).tolist()
        words += f", split {' / '.join(f'{count:,}' for count in counts)} (train / validation / test)"
        content["split"] = split
    return Features(x, y, split, names, words, digest_tensors(content))


def matrix_of(arrays: Arrays, where: str) -> Tensor:
    """x, shape (n, p): `features` as they are, or `features_u8` times `scale`."""
    if _one_of(arrays, ("features", "features_u8"), where) == "features":
        stored = arrays["features"]
        if stored.dtype.kind != "f":
            raise InvalidData(
                f"'{where}': 'features' must be floats, not {stored.dtype}. Convert them; bytes go under 'features_u8' "
                "with a 'scale' for every column."
            )
        _check_matrix(stored, "features", where)
        wide = np.float64 if stored.dtype.itemsize > 4 else np.float32
        with np.errstate(all="ignore"):  # what overflows is found below
            x = np.ascontiguousarray(stored, dtype=wide)
    else:
        x = _unpacked(arrays, where)
    for start in range(0, len(x), ROWS_AT_A_TIME):
        bad = ~np.isfinite(x[start : start + ROWS_AT_A_TIME]).all(axis=1)
        if bad.any():
            raise InvalidData(
                f"'{where}': row {start + int(bad.argmax())} of the features has NaN or an infinite value. Extract the "
                "features again, or leave such samples out."
            )
    return torch.from_numpy(x)


def _unpacked(arrays: Arrays, where: str) -> np.ndarray:
    stored, scale = arrays["features_u8"], arrays.get("scale")
    if stored.dtype != np.uint8:
        raise InvalidData(f"'{where}': 'features_u8' must be uint8, not {stored.dtype}. Floats go under 'features'.")
    _check_matrix(stored, "features_u8", where)
    columns = stored.shape[1]
    if scale is None or scale.dtype.kind != "f" or scale.shape != (columns,):
        came = "it is missing" if scale is None else f"it is {scale.dtype} of shape {scale.shape}"
        raise InvalidData(
            f"'{where}': 'features_u8' needs a 'scale' of floats, shape ({columns},), for features_u8 * scale; {came}."
        )
    x = stored.astype(np.float32, order="C")
    with np.errstate(all="ignore"):
        x *= scale.astype(np.float32)
    return x


def _check_matrix(stored: np.ndarray, key: str, where: str) -> None:
    if stored.ndim != 2 or 0 in stored.shape:
        raise InvalidData(
            f"'{where}': '{key}' must be a matrix, a row for every sample, not of shape {stored.shape}. Reshape it; "
            "it must not be empty."
        )


def _classes(arrays: Arrays, n: int, where: str) -> tuple[Tensor, tuple[str, ...]]:
    labels = _whole_numbers(arrays["labels"], "labels", n, where)
    names = _names(arrays, ("names", "class_names"), where)
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise InvalidData(f"'{where}': 'labels' must be 0, 1, 2, …; the least is {low}. Renumber the classes from 0.")
    if high >= (n if names is None else len(names)):
        limit = f"there are {n} samples" if names is None else f"there are {len(names)} names"
        raise InvalidData(
            f"'{where}': 'labels' go up to {high}, but {limit}. Renumber the classes from 0 without gaps"
            f"{' or give their names' if names is None else ', or give every class a name'}."
        )
    return torch.from_numpy(labels.astype(np.int64)), names or tuple(f"class {k}" for k in range(high + 1))


def _attributes(arrays: Arrays, n: int, where: str) -> tuple[Tensor, tuple[str, ...]]:
    stored = arrays["attributes"]
    if stored.dtype.kind not in "biuf" or stored.ndim != 2 or len(stored) != n or stored.shape[1] == 0:
        raise InvalidData(
            f"'{where}': 'attributes' must be a matrix of numbers with a row for each of the {n} samples, not "
            f"{stored.dtype} of shape {stored.shape}."
        )
    if not ((stored == 0) | (stored == 1)).all():
        raise InvalidData(f"'{where}': 'attributes' must be 0 or 1 only. Write -1 as 0, and leave no gaps.")
    names = _names(arrays, ("names", "attribute_names"), where)
    count = stored.shape[1]
    if names is not None and len(names) != count:
        raise InvalidData(f"'{where}': {count} attributes but {len(names)} names. Give every attribute one name.")
    return torch.from_numpy(stored.astype(np.float32, order="C")), names or tuple(
        f"attribute {k}" for k in range(count)
    )


def _split(arrays: Arrays, n: int, where: str) -> Tensor | None:
    if "split" not in arrays:
        return None
    split = _whole_numbers(arrays["split"], "split", n, where)
    if split.min() < 0 or split.max() >= SPLITS:
        raise InvalidData(f"'{where}': 'split' must be 0 (train), 1 (validation) or 2 (test) for every sample.")
    return torch.from_numpy(split.astype(np.int64))


def _whole_numbers(stored: np.ndarray, key: str, n: int, where: str) -> np.ndarray:
    if stored.dtype.kind not in "iu" or stored.shape != (n,):
        raise InvalidData(
            f"'{where}': '{key}' must be whole numbers of shape ({n},), one for every row of the features, not "
            f"{stored.dtype} of shape {stored.shape}."
        )
    return stored


def _names(arrays: Arrays, keys: tuple[str, ...], where: str) -> tuple[str, ...] | None:
    key = next((key for key in keys if key in arrays), None)
    return None if key is None else texts_of(arrays[key], key, where)


def texts_of(stored: np.ndarray, key: str, where: str) -> tuple[str, ...]:
    try:
        if stored.dtype.kind == "U" and stored.ndim == 1:
            texts = tuple(str(text) for text in stored.tolist())
            "".join(texts).encode()  # half a surrogate pair would be an error when printed
            return texts
    except (ValueError, SystemError):  # numbers that are no characters
        pass
    raise InvalidData(
        f"'{where}': '{key}' must be a list of texts, not {stored.dtype} of shape {stored.shape}. Write it as "
        "numpy.array([...], dtype=str)."
    )


def _one_of(arrays: Arrays, keys: tuple[str, str], where: str) -> str:
    found = [key for key in keys if key in arrays]
    if len(found) != 1:
        raise InvalidData(
            f"'{where}' must hold either '{keys[0]}' or '{keys[1]}'; it holds {'both' if found else 'neither'}. "
            "See docs/data.md for the format."
        )
    return found[0]
