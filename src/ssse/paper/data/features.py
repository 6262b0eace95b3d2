"""Features of the paper's CelebA and AwA2, or of what stands in for them, from a folder."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData, InvalidSetting, MissingData
from ssse.paper.data.npz import Features, features_of, read_arrays, read_features, texts_of

__all__ = ["Features", "load_awa2", "load_celeba", "random_split", "read_features"]

CELEBA_FEATURES, CELEBA_STAND_IN = "celeba-features.npz", "faces.npz"
CELEBA_ATTRIBUTES, CELEBA_PARTITION = "list_attr_celeba.txt", "list_eval_partition.txt"
CELEBA_FOLDERS = ("", "Anno", "Eval", "celeba", "CelebA", "CelebA/Anno", "CelebA/Eval")
CELEBA_REPAIR = (
    "Download CelebA, from its authors' page (MMLAB, CUHK): 'Align&Cropped Images' for the images, 'Anno' (and 'Eval') "
    f"for the two lists {CELEBA_ATTRIBUTES} and {CELEBA_PARTITION}. Put the lists into the folder, and beside them "
    f"{CELEBA_FEATURES} with 'features' and the images' names under 'files', which you make with "
    f"ssse.paper.data.extract.extract_features and save_features. Or put {CELEBA_STAND_IN} there, with features, "
    "attributes and split in the npz format. docs/data.md shows both."
)

AWA2_STAND_INS, AWA2_FEATURES = ("pets.npz", "animals50.npz"), "awa2-features.npz"
AWA2_FOLDERS = (
    "",
    "AWA2",
    "data/AWA2",
    "xlsa17/data/AWA2",
    "Features/ResNet101",
    "Animals_with_Attributes2/Features/ResNet101",
)
AWA2_CLASSES = ("", "Animals_with_Attributes2")
AWA2_REPAIR = (
    "Download either the 'Proposed Split' archive (xlsa17.zip) of 'Zero-Shot Learning: the Good, the Bad and the Ugly' "
    "(MPI Informatics), for res101.mat and att_splits.mat; or 'ResNet101 features' (AwA2-features.zip) of Animals with "
    "Attributes 2 from its authors' page (ISTA), for AwA2-features.txt and AwA2-labels.txt. Unpack it in the folder. "
    f"Or put {AWA2_FEATURES} there, or {' and '.join(AWA2_STAND_INS)}, with features and labels in the npz format; "
    "ssse.paper.data.extract.extract_features and save_features make one from images. docs/data.md shows all of it."
)


def load_celeba(folder: str | Path) -> Features:
    """40 attributes of faces: your features with the official lists, matched by file name; else faces.npz.

    The rows come in the order of the official list, whatever the order of the features.

    Raises:
        MissingData: says what to download and where to put it.
    """
    folder = Path(folder)
    names = (CELEBA_FEATURES, CELEBA_ATTRIBUTES, CELEBA_PARTITION)
    features, attributes, partition = (_find(folder, CELEBA_FOLDERS, name) for name in names)
    if features and attributes and partition:
        return _official_celeba(features, attributes, partition)
    # Somebody who made the features wants CelebA, not the stand-in: say what is missing instead.
    if features is None and (folder / CELEBA_STAND_IN).is_file():
        return read_features(folder / CELEBA_STAND_IN)
    paths = zip(names, (features, attributes, partition), strict=True)
    missing = ", ".join(name for name, path in paths if path is None)
    raise MissingData(f"CelebA is not in {_words(folder)}; missing: {missing}. {CELEBA_REPAIR}")


def _official_celeba(features: Path, attributes: Path, partition: Path) -> Features:
    arrays = read_arrays(features, ("features", "features_u8", "scale", "files"))
    if "files" not in arrays:
        raise InvalidData(
            f"'{features}' has no 'files', the image file name of every row. Write it again with save_features(..., "
            "files=...)."
        )
    files = texts_of(arrays["files"], "files", str(features))
    stored = arrays.get("features", arrays.get("features_u8"))
    if stored is None or stored.ndim != 2 or len(stored) != len(files):
        shape = "are missing" if stored is None else f"have shape {stored.shape}"
        raise InvalidData(f"'{features}' has {len(files)} 'files', but its features {shape}. Save a row for each file.")
    names, place, values = _attribute_list(attributes)
    parts = _partition_list(partition)
    for file in files:
        for known, where in ((place, attributes), (parts, partition)):
            if file not in known:
                raise InvalidData(
                    f"'{features}' has features of '{file}', which '{where.name}' does not list. Name files as the "
                    "list does (000001.jpg, without folders), and download the list again if it is cut short."
                )
    rows = np.array([place[file] for file in files], dtype=np.int64)
    order = np.argsort(rows, kind="stable")
    twice = np.flatnonzero(np.diff(rows[order]) == 0)
    if len(twice):
        raise InvalidData(f"'{features}' has '{files[order[twice[0]]]}' twice. Save every image once.")
    if (np.diff(rows) < 0).any():  # else the copy would be for nothing, and it may be of gigabytes
        for key in ("features", "features_u8"):
            if key in arrays:
                arrays[key] = arrays[key][order]
    del stored
    arrays["attributes"] = values[rows[order]]
    arrays["split"] = np.array([parts[files[k]] for k in order], dtype=np.int64)
    arrays["names"] = np.array(names)
    return features_of(arrays, str(features), f"CelebA, {features.name} with the official lists")


def _attribute_list(path: Path) -> tuple[list[str], dict[str, int], np.ndarray]:
    """Names of the attributes; file name → row; the attributes as 0 and 1, shape (images, attributes)."""
    lines = _lines(path)
    try:
        count, names, body = int(lines[0]), lines[1].split(), lines[2:]
        place = {line.split(maxsplit=1)[0]: row for row, line in enumerate(body)}
        values = np.loadtxt(body, dtype=np.int8, usecols=range(1, len(names) + 1), ndmin=2, comments=None)
    except (ValueError, IndexError) as error:
        raise _unreadable(path, "a count, a line of names, then lines such as '000001.jpg -1 1 …'", error) from error
    if not len(body) == len(place) == len(values) == count:
        raise InvalidData(f"'{path}' says {count} images and lists {len(place)}; it is cut short. Download it again.")
    if not (np.abs(values) == 1).all():
        raise InvalidData(f"'{path}' has attributes other than -1 and 1. Download it again.")
    return names, place, (values > 0).astype(np.uint8)


def _partition_list(path: Path) -> dict[str, int]:
    expected = "lines such as '000001.jpg 0', with 0, 1 or 2"
    try:
        parts = {file: int(part) for file, part in (line.split() for line in _lines(path))}
    except ValueError as error:
        raise _unreadable(path, expected, error) from error
    if not set(parts.values()) <= {0, 1, 2}:
        raise InvalidData(f"'{path}' must have {expected}. Download it again.")
    return parts


def load_awa2(folder: str | Path) -> list[Features]:
    """Animals with Attributes 2, from either official form; else awa2-features.npz; else pets.npz and animals50.npz.

    Without a split: the paper makes its own at random (`random_split`), and the stand-ins' splits mean other things.

    Raises:
        MissingData: says what to download and where to put it.
    """
    folder = Path(folder)
    if mat := _find(folder, AWA2_FOLDERS, "res101.mat"):
        return [_awa2_matlab(mat)]
    if text := _find(folder, AWA2_FOLDERS, "AwA2-features.txt"):
        return [_awa2_text(folder, text)]
    files = [folder / AWA2_FEATURES] if (folder / AWA2_FEATURES).is_file() else []
    files = files or [folder / name for name in AWA2_STAND_INS if (folder / name).is_file()]
    if not files:
        raise MissingData(f"AwA2 is not in {_words(folder)}. {AWA2_REPAIR}")
    return [_without_split(file) for file in files]


def _without_split(path: Path) -> Features:
    keys = ("features", "features_u8", "scale", "labels", "names", "class_names")
    arrays = read_arrays(path, keys)
    if "labels" not in arrays:
        raise InvalidData(f"'{path}' has no 'labels', the class of every row. See docs/data.md for the format.")
    return features_of(arrays, str(path), path.name)


def _awa2_matlab(path: Path) -> Features:
    stored = _read_matlab(path, ("features", "labels"))
    labels = _from_zero(stored["labels"].ravel(), path)
    with np.errstate(over="ignore"):  # what overflows is found with the infinite values
        arrays = {"features": stored["features"].T.astype(np.float32), "labels": labels}
    del stored
    beside = path.with_name("att_splits.mat")
    if not beside.is_file():
        raise MissingData(f"'{path}' is there, but att_splits.mat with the names is not beside it. {AWA2_REPAIR}")
    cells = _read_matlab(beside, ("allclasses_names",))["allclasses_names"].ravel()
    arrays["names"] = np.array([str(np.ravel(cell)[0]) if np.size(cell) else "" for cell in cells], dtype=str)
    return features_of(arrays, str(path), f"AwA2, {path.name} with {beside.name}")


def _read_matlab(path: Path, keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    from scipy.io import loadmat  # only here, and not quick to import

    try:
        stored = loadmat(path, variable_names=keys)
        return {key: np.asarray(stored[key]) for key in keys}
    except Exception as error:  # a damaged file makes scipy raise nearly anything
        raise _unreadable(path, f"a MATLAB file with {' and '.join(keys)}", error) from error


def _awa2_text(folder: Path, path: Path) -> Features:
    beside = path.with_name("AwA2-labels.txt")
    if not beside.is_file():
        raise MissingData(f"'{path}' is there, but AwA2-labels.txt is not beside it. {AWA2_REPAIR}")
    arrays = {
        "labels": _from_zero(_numbers(beside, np.float64, 1), beside),  # first: quick to read, and as soon wrong
        "features": _numbers(path, np.float32, 2),
    }
    if classes := _find(folder, AWA2_CLASSES, "classes.txt"):
        arrays["names"] = np.array(_class_list(classes))
    return features_of(arrays, str(path), f"AwA2, {path.name} with {beside.name}")


def _numbers(path: Path, dtype: type[np.floating], ndim: Literal[1, 2]) -> np.ndarray:
    """With numpy's C reader: 76 million numbers of AwA2 take ten to twenty seconds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of an empty file, which is found just below
            numbers = np.loadtxt(path, dtype=dtype, ndmin=ndim, comments=None)
        if not numbers.size or numbers.ndim != ndim:
            raise ValueError(f"shape {numbers.shape}")
    except (ValueError, OSError) as error:
        raise _unreadable(path, "numbers, one line for every sample", error) from error
    return numbers


def _class_list(path: Path) -> list[str]:
    try:
        names = {int(number): name for number, name in (line.split(maxsplit=1) for line in _lines(path))}
        return [names[k + 1].strip() for k in range(len(names))]
    except (ValueError, KeyError) as error:
        raise _unreadable(path, "lines such as '1 antelope', numbered from 1", error) from error


def _from_zero(labels: np.ndarray, path: Path) -> np.ndarray:
    """The official labels count from one."""
    if labels.dtype.kind not in "iuf" or not (np.isfinite(labels) & (labels >= 1) & (labels % 1 == 0)).all():
        raise InvalidData(f"'{path}' must have labels 1, 2, 3, … for every sample. Download it again.")
    return np.minimum(labels, 2.0**53).astype(np.int64) - 1


def random_split(n: int, seed: int, shares: Sequence[float] = (0.7, 0.1, 0.2)) -> Tensor:
    """0 train, 1 validation, 2 test for every sample, drawn without regard to the classes, as in the paper."""
    if n < 1 or len(shares) != 3 or min(shares) < 0 or not math.isclose(sum(shares), 1):
        raise InvalidSetting(f"A split needs samples and three shares that sum to 1, not n={n} and shares={shares}.")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    split = torch.zeros(n, dtype=torch.int64)
    split[order[round(shares[0] * n) :]] = 1
    split[order[n - round(shares[2] * n) :]] = 2
    return split


def _find(folder: Path, places: Sequence[str], name: str) -> Path | None:
    return next((folder / place / name for place in places if (folder / place / name).is_file()), None)


def _words(folder: Path) -> str:
    return f"'{folder}'" if folder.is_dir() else f"'{folder}', which is not a folder"


def _lines(path: Path) -> list[str]:
    """Lines that are not blank."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, "a text file", error) from error


def _unreadable(path: Path, expected: str, error: Exception) -> InvalidData:
    reason = f"{type(error).__name__}: {error}"
    return InvalidData(f"'{path}' must be {expected}; reading it failed ({reason}). Download it again.")
