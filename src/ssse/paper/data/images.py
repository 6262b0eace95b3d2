"""CIFAR-10 in either official form, checked against its published sums; and scikit-learn's digits as images."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from ssse.errors import InvalidData, MissingData
from ssse.system.digests import digest_tensors, md5

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
ROWS, PIXELS = 10_000, 3 * 32 * 32  # of every file; of every image

BINARY_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
PYTHON_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
REPAIR = (
    "Download 'CIFAR-10 binary version' (cifar-10-binary.tar.gz) or 'CIFAR-10 python version' (cifar-10-python.tar.gz) "
    "from its author's page (Alex Krizhevsky, University of Toronto) and unpack it in the folder."
)


@dataclass(frozen=True)
class Images:
    """Normalised images, shape (n, channels, height, width), float32, and their classes, int64.

    Attributes:
        names: of the classes. source: in one line, what this is. digest: SHA-256 of the images and the classes.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    names: tuple[str, ...]
    source: str
    digest: str


def load_cifar10(folder: str | Path) -> Images:
    """50,000 images to train on and 10,000 to test on; the folder may be that of the files or the one above.

    Raises:
        MissingData: says what to download and where to put it. InvalidData: a file is not the published one.
    """
    folder = Path(folder)
    forms = (("cifar-10-batches-bin", BINARY_MD5, _binary), ("cifar-10-batches-py", PYTHON_MD5, _python))
    for name, sums, read in forms:
        for place in (folder, folder / name):
            if any((place / file).is_file() for file in sums):
                return _normalised(*_raw(place, sums, read), f"{name}, files as published")
    words = f"'{folder}'" if folder.is_dir() else f"'{folder}', which is not a folder"
    raise MissingData(f"CIFAR-10 is not in {words}. {REPAIR}")


def _raw(place: Path, sums: dict[str, str], read: Callable[[bytes], Any]) -> tuple[Tensor, Tensor]:
    """All bytes of all files, shape (n, 3072), and the labels; the test file comes last."""
    missing = [file for file in sums if not (place / file).is_file()]
    if missing:
        raise MissingData(f"'{place}' lacks {', '.join(missing)}. {REPAIR}")
    pixels, labels = [], []
    for file, published in sums.items():
        content = (place / file).read_bytes()
        if read is _binary and len(content) != ROWS * (1 + PIXELS):
            raise InvalidData(
                f"'{place / file}' must have {ROWS * (1 + PIXELS):,} bytes, not {len(content):,}; it is truncated or "
                f"another file. {REPAIR}"
            )
        # What is hashed is what is read: opening the file again could find another one.
        if md5(content) != published:
            raise InvalidData(
                f"'{place / file}' ({len(content):,} bytes) is not the published file: its md5 is not {published}. It "
                f"was not read. It is truncated or altered: {REPAIR}"
            )
        x, y = read(content)
        if x.shape != (ROWS, PIXELS) or x.dtype != np.uint8 or y.shape != (ROWS,) or not set(y) <= set(range(10)):
            raise InvalidData(f"'{place / file}' does not hold {ROWS:,} images with labels 0 to 9. {REPAIR}")
        pixels.append(torch.from_numpy(x))
        labels.append(torch.from_numpy(y.astype(np.int64)))
    return torch.cat(pixels), torch.cat(labels)


def _binary(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """A row is a label and then the image."""
    rows = np.frombuffer(content, np.uint8).reshape(ROWS, 1 + PIXELS)
    return rows[:, 1:].copy(), rows[:, 0]


def _python(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        return np.array(batch[b"data"]), np.array(batch[b"labels"])  # copies: those of a pickle may be read-only
    except InvalidData:
        raise
    except Exception as error:  # bytes that are no pickle make it raise nearly anything
        raise InvalidData(
            f"A Python batch of CIFAR-10 cannot be read ({type(error).__name__}: {error}). {REPAIR}"
        ) from error


class ArrayUnpickler(pickle.Unpickler):
    """Makes numpy arrays and what Python has built in; a second lock behind the published sums."""

    _reconstruct = np.empty(0).__reduce__()[0]  # its module's name differs between versions of numpy
    ALLOWED: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in self.ALLOWED:
            raise InvalidData(f"A pickle of images asked for {module_name}.{global_name}; it was not run. {REPAIR}")
        return self.ALLOWED[module_name, global_name]


def _normalised(raw: Tensor, labels: Tensor, source: str) -> Images:
    mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
    x = raw.reshape(-1, 3, 32, 32).float().div_(255).sub_(mean).div_(std)
    # Of the bytes, not of the floats: a quarter to hash, and the same for both forms.
    digest = digest_tensors({"raw": raw, "labels": labels, "mean": mean, "std": std})
    test = len(x) - ROWS
    words = f"CIFAR-10 ({source}): {test:,} + {ROWS:,} images, 10 classes"
    return Images(x[:test], labels[:test], x[test:], labels[test:], CLASSES, words, digest)


def digits_as_images() -> Images:
    """scikit-learn's 8×8 digits, shape (n, 1, 8, 8), split as the demonstration does; mean 0 and variance 1."""
    flat, classes = load_digits(return_X_y=True)
    parts = train_test_split(flat / 16.0, classes, test_size=0.2, random_state=0, stratify=classes)
    x, test_x, y, test_y = (torch.from_numpy(part) for part in parts)
    mean, std = x.mean(), x.std()
    x, test_x = (((part - mean) / std).float().reshape(-1, 1, 8, 8) for part in (x, test_x))
    digest = digest_tensors({"x": x, "y": y, "test_x": test_x, "test_y": test_y})
    words = f"scikit-learn's digits: {len(x):,} + {len(test_x):,} images, 10 classes"
    return Images(x, y, test_x, test_y, tuple(f"digit {k}" for k in range(10)), words, digest)
