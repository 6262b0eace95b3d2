"""CIFAR-10 is read only as published; digits come with scikit-learn; features go through any backbone to a file."""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ssse.demo import Digits
from ssse.errors import InvalidData, InvalidModel, InvalidSetting, MissingData
from ssse.paper.data import extract, images
from ssse.paper.data.features import read_features

ROWS = 4


def old_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """The opcodes of the published files, which Python 2 wrote: its strings, and numpy's former module names."""
    text = lambda value: b"U" + bytes([len(value)]) + value  # noqa: E731
    parts = [b"\x80\x02}(", text(b"labels"), b"](", *(b"K" + bytes([int(label)]) for label in labels), b"e"]
    parts += [text(b"data"), b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85", text(b"b"), b"\x87R"]
    parts += [b"(K\x01M", struct.pack("<H", pixels.shape[0]), b"M", struct.pack("<H", pixels.shape[1]), b"\x86"]
    parts += [b"cnumpy\ndtype\n", text(b"u1"), b"K\x00K\x01\x87R(K\x03", text(b"|"), b"NNN"]
    parts += [
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T",
        struct.pack("<i", pixels.size),
        pixels.tobytes(),
        b"tbu.",
    ]
    return b"".join(parts)


def new_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol=3)


def binary(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def write(monkeypatch, folder: Path, form: str, encode=binary) -> tuple[np.ndarray, np.ndarray]:
    """Six small files, with their sums for the published ones."""
    table = images.BINARY_MD5 if form == "bin" else images.PYTHON_MD5
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (6, ROWS, images.PIXELS), dtype=np.uint8)
    labels = random.integers(0, 10, (6, ROWS), dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(images, "ROWS", ROWS)
    for k, file in enumerate(list(table)):
        publish(monkeypatch, folder / file, encode(pixels[k], labels[k]))
    return pixels.reshape(-1, 3, 32, 32), labels.ravel()


def publish(monkeypatch, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    table = images.BINARY_MD5 if path.suffix else images.PYTHON_MD5
    monkeypatch.setitem(table, path.name, hashlib.md5(content).hexdigest())


FORMS = [("bin", binary), ("py", old_pickle), ("py", new_pickle)]


@pytest.mark.parametrize(("form", "encode"), FORMS)
def test_both_forms_of_cifar(monkeypatch, tmp_path, form, encode):
    place = tmp_path / f"cifar-10-batches-{form}"
    pixels, labels = write(monkeypatch, place, form, encode)
    loaded = images.load_cifar10(tmp_path)
    x = (pixels / 255 - np.reshape(images.MEAN, (3, 1, 1))) / np.reshape(images.STD, (3, 1, 1))
    np.testing.assert_allclose(torch.cat([loaded.x, loaded.test_x]).numpy(), x, atol=1e-6)
    assert torch.cat([loaded.y, loaded.test_y]).tolist() == labels.tolist()
    assert len(loaded.test_y) == ROWS
    assert (loaded.x.dtype, loaded.y.dtype, loaded.names[9]) == (torch.float32, torch.int64, "truck")
    assert str(tmp_path) not in loaded.source
    assert images.load_cifar10(place).digest == loaded.digest  # the folder of the files itself


def test_the_digest_does_not_depend_on_the_form(monkeypatch, tmp_path):
    digests = set()
    for k, (form, encode) in enumerate(FORMS):
        write(monkeypatch, tmp_path / str(k), form, encode)
        digests.add(images.load_cifar10(tmp_path / str(k)).digest)
    assert len(digests) == 1


class Trap:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_an_altered_pickle_is_never_run(monkeypatch, tmp_path):
    write(monkeypatch, tmp_path, "py", old_pickle)
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung), protocol=2)
    (tmp_path / "data_batch_3").write_bytes(trap)
    with pytest.raises(InvalidData, match=r"data_batch_3'.*is not the published file.*was not read.*Download"):
        images.load_cifar10(tmp_path)
    assert not sprung.exists()
    publish(monkeypatch, tmp_path / "data_batch_3", trap)  # even if somebody forged the sum
    with pytest.raises(InvalidData, match=r"asked for posix.mkdir; it was not run"):
        images.load_cifar10(tmp_path)
    assert not sprung.exists()
    pickle.loads(trap)
    assert sprung.exists()  # the trap works


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        pickle.dumps([1]),
        pickle.dumps({b"data": 1}),
        new_pickle(np.zeros((2, 5), np.uint8), np.ones(2)),
    ],
)
def test_a_pickle_of_something_else(monkeypatch, tmp_path, content):
    write(monkeypatch, tmp_path, "py", old_pickle)
    publish(monkeypatch, tmp_path / "test_batch", content)
    with pytest.raises(InvalidData, match="Download"):
        images.load_cifar10(tmp_path)


def test_binary_files_that_are_not_cifar(monkeypatch, tmp_path):
    pixels, _ = write(monkeypatch, tmp_path, "bin")
    path = tmp_path / "data_batch_2.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(InvalidData, match=r"data_batch_2.bin' must have 12,292 bytes, not 12,291"):
        images.load_cifar10(tmp_path)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InvalidData, match="is not the published file"):
        images.load_cifar10(tmp_path)
    publish(monkeypatch, path, binary(pixels[:ROWS].reshape(ROWS, -1), np.full(ROWS, 10, np.uint8)))
    with pytest.raises(InvalidData, match="labels 0 to 9"):
        images.load_cifar10(tmp_path)
    path.unlink()
    with pytest.raises(MissingData, match=r"lacks data_batch_2.bin\. Download"):
        images.load_cifar10(tmp_path)


def test_no_cifar(tmp_path):
    with pytest.raises(MissingData, match=r"CIFAR-10 is not in .*cifar-10-binary.tar.gz.*unpack it in the folder"):
        images.load_cifar10(tmp_path)
    with pytest.raises(MissingData, match="not a folder"):
        images.load_cifar10(tmp_path / "nowhere")


def test_digits_are_the_demonstrations():
    digits, demo = images.digits_as_images(), Digits.load()
    assert digits.x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert torch.equal(digits.y, demo.y)
    assert torch.equal(digits.test_y, demo.test_y)
    again = digits.x.flatten(1).double() * demo.x.std() + demo.x.mean()
    torch.testing.assert_close(again, demo.x, atol=1e-6, rtol=0)
    assert abs(float(digits.x.mean())) < 1e-5
    assert abs(float(digits.x.std()) - 1) < 1e-5
    assert digits.digest == images.digits_as_images().digest


def backbone() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Dropout(0.5))
    model[1].eval()  # a frozen part of a model that is otherwise in training
    return model


def test_features_are_those_of_evaluation_mode():
    model, x, y = backbone(), torch.randn(7, 1, 4, 4), torch.arange(7)
    features, labels = extract.extract_features(model, [(x[:4], y[:4]), (x[4:], y[4:])])
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert labels is not None
    assert labels.tolist() == y.tolist()
    torch.testing.assert_close(features, model.eval()(x).flatten(1).detach())
    assert not features.requires_grad
    alone, none = extract.extract_features(model.half(), iter(x.half().split(3)), device="cpu", progress=False)
    assert none is None
    assert alone.dtype == torch.float32
    torch.testing.assert_close(alone, features, atol=1e-2, rtol=1e-2)


class Pair(nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize(
    ("model", "batches", "error", "words"),
    [
        (nn.Flatten(), [], InvalidData, "no batch"),
        (nn.Flatten(), [torch.full((2, 3), torch.nan)], InvalidModel, "batch 0 have NaN"),
        (nn.Flatten(), [torch.ones(2, 3), (torch.ones(2, 3), torch.ones(2))], InvalidData, "Some batches have labels"),
        (nn.Flatten(), [torch.ones(2, 3), torch.ones(2, 4)], InvalidModel, r"gave \[3, 4\] features"),
        (nn.Flatten(), [(torch.ones(2, 3), torch.ones(3))], InvalidData, "Batch 0 has 2 images"),
        (nn.Flatten(), ["image.jpg"], InvalidData, "not str"),
        (nn.Flatten(0), [torch.ones(2, 3)], InvalidModel, "a row for each of the 2 images"),
        (nn.Flatten(), [torch.ones(2, 3, dtype=torch.long)], InvalidModel, "float tensor"),
        (Pair(), [torch.ones(2, 3)], InvalidModel, "not tuple. Wrap it"),
    ],
)
def test_what_gives_no_features(model, batches, error, words):
    with pytest.raises(error, match=words):
        extract.extract_features(model, batches)
    assert model.training


def test_saved_features_are_read_again(tmp_path):
    x, path = torch.randn(5, 3), tmp_path / "new" / "some.npz"
    extract.save_features(
        path, x, labels=torch.tensor([0, 1, 0, 1, 1]), names=["cat", "dog"], split=torch.arange(5) % 3
    )
    found = read_features(path)
    assert torch.equal(found.x, x)
    assert found.names == ("cat", "dog")
    assert found.split is not None
    assert found.split.tolist() == [0, 1, 2, 0, 1]
    extract.save_features(path, x.bfloat16(), attributes=torch.ones(5, 2))  # replaces the other
    assert torch.equal(read_features(path).x, x.bfloat16().float())
    assert [file.name for file in path.parent.iterdir()] == ["some.npz"]
    assert path.stat().st_mode & 0o444


def test_what_could_not_be_read_again_is_not_written(monkeypatch, tmp_path):
    path, x = tmp_path / "some.npz", torch.ones(2, 3)
    with pytest.raises(InvalidSetting, match=r"must end in .npz"):
        extract.save_features(tmp_path / "some.npy", x, labels=torch.zeros(2).long())
    with pytest.raises(InvalidData, match="2 rows of features and 1 files"):
        extract.save_features(path, x, files=["000001.jpg"])
    with pytest.raises(InvalidData, match="row 0 of the features has NaN"):
        extract.save_features(path, x * torch.nan, files=["000001.jpg", "000002.jpg"])
    with pytest.raises(InvalidData, match="either 'labels' or 'attributes'"):
        extract.save_features(path, x)
    with pytest.raises(InvalidData, match="'labels' must be whole numbers"):
        extract.save_features(path, x, labels=torch.zeros(2))

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        extract.save_features(path, x, labels=torch.zeros(2).long())
    assert list(tmp_path.iterdir()) == []
