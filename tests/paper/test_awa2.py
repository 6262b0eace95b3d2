"""Animals with Attributes 2 in both official forms, what stands in for it, and the random split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from ssse.errors import InvalidData, InvalidSetting, MissingData
from ssse.paper.data.features import load_awa2, random_split
from tests.paper.test_data import GOOD, X, Y, npz

NAMES = ("antelope", "grizzly+bear", "killer+whale")


def matlab(folder: Path, **changes: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"features": X.T.astype(float), "labels": Y[:, None].astype(np.uint8) + 1, "image_files": np.zeros(1)}
    savemat(folder / "res101.mat", {**arrays, **changes})
    savemat(folder / "att_splits.mat", {"allclasses_names": np.array([[name] for name in NAMES], dtype=object)})
    return folder


def text(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savetxt(folder / "AwA2-features.txt", X)
    np.savetxt(folder / "AwA2-labels.txt", Y + 1, fmt="%d")
    return folder


@pytest.mark.parametrize("place", ["", "AWA2", "xlsa17/data/AWA2"])
def test_matlab_files(tmp_path, place):
    matlab(tmp_path / place)
    (found,) = load_awa2(tmp_path)
    assert (found.x.dtype, found.x.tolist()) == (torch.float32, X.tolist())
    assert found.y.tolist() == Y.tolist()
    assert (found.names, found.split) == (NAMES, None)
    assert found.source == "AwA2, res101.mat with att_splits.mat: 4 samples × 3 features, 3 classes"


@pytest.mark.parametrize("place", ["", "Animals_with_Attributes2/Features/ResNet101"])
def test_text_files(tmp_path, place):
    text(tmp_path / place)
    (found,) = load_awa2(tmp_path)
    np.testing.assert_allclose(found.x.numpy(), X, rtol=1e-6)
    assert found.y.tolist() == Y.tolist()
    assert found.names == ("class 0", "class 1", "class 2")
    home = tmp_path / place.split("/")[0]
    (home / "classes.txt").write_text("".join(f"{k + 1:7d}\t{name}\n" for k, name in enumerate(NAMES)))
    assert load_awa2(tmp_path)[0].names == NAMES


def test_both_forms_are_the_same_data(tmp_path):
    one, two = load_awa2(matlab(tmp_path / "mat"))[0], load_awa2(text(tmp_path / "text"))[0]
    assert one.digest == two.digest


def test_stand_ins_in_this_order_and_without_their_splits(tmp_path):
    npz(tmp_path, "animals50.npz", **GOOD, split=Y)
    npz(tmp_path, "pets.npz", **GOOD, split=Y, class_names=np.array(NAMES))
    found = load_awa2(tmp_path)
    assert [one.source.split(":")[0] for one in found] == ["pets.npz", "animals50.npz"]
    assert [one.split for one in found] == [None, None]
    assert found[0].names == NAMES
    npz(tmp_path, "awa2-features.npz", **GOOD, split=Y)  # one's own come before what stands in
    assert [found.source.split(":")[0] for found in load_awa2(tmp_path)] == ["awa2-features.npz"]
    assert load_awa2(text(tmp_path))[0].source.startswith("AwA2, AwA2-features.txt")  # and the official files first


def test_a_stand_in_without_classes(tmp_path):
    npz(tmp_path, "pets.npz", features=X, attributes=np.ones((4, 2)))
    with pytest.raises(InvalidData, match=r"pets.npz' has no 'labels'"):
        load_awa2(tmp_path)


def test_no_awa2(tmp_path):
    words = (
        r"xlsa17.zip.*res101.mat and att_splits.mat.*AwA2-features.zip.*Unpack it.*awa2-features.npz.*extract_features"
    )
    with pytest.raises(MissingData, match=words):
        load_awa2(tmp_path)
    with pytest.raises(MissingData, match="which is not a folder"):
        load_awa2(tmp_path / "nowhere")


def test_one_of_two_files(tmp_path):
    (matlab(tmp_path / "mat") / "att_splits.mat").unlink()
    with pytest.raises(MissingData, match=r"att_splits.mat with the names is not beside it"):
        load_awa2(tmp_path / "mat")
    (text(tmp_path / "text") / "AwA2-labels.txt").unlink()
    with pytest.raises(MissingData, match=r"AwA2-labels.txt is not beside it"):
        load_awa2(tmp_path / "text")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": Y}, "must have labels 1, 2, 3"),
        ({"labels": Y + 1.5}, "must have labels 1, 2, 3"),
        ({"labels": np.array(list("abcd"))}, "must have labels 1, 2, 3"),
        ({"labels": Y + 2}, "go up to 3, but there are 3 names"),
        ({"labels": Y[:3] + 1}, r"'labels' must be whole numbers of shape \(4,\)"),
        ({"features": np.full((3, 4), np.inf)}, "NaN or an infinite"),
        ({"features": X.T.astype(float) * 1e300}, "NaN or an infinite"),
    ],
)
def test_matlab_files_that_do_not_fit(tmp_path, changes, words):
    with pytest.raises(InvalidData, match=words):
        load_awa2(matlab(tmp_path, **changes))


@pytest.mark.parametrize("length", [0, 100, 200, 300])
def test_damaged_matlab_files(tmp_path, length):
    path = matlab(tmp_path) / "res101.mat"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InvalidData, match=r"res101.mat' must be a MATLAB file with features and labels.*Download"):
        load_awa2(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("AwA2-features.txt", "", "numbers, one line for every sample"),
        ("AwA2-features.txt", "1 2\n1\n", "numbers, one line for every sample"),
        ("AwA2-features.txt", "1 x\n", "numbers, one line for every sample"),
        ("AwA2-features.txt", "1 nan\n" * 4, "NaN"),
        ("AwA2-features.txt", "1 2\n" * 3, r"'labels' must be whole numbers of shape \(3,\)"),
        ("AwA2-labels.txt", "1 2\n3 4\n", "numbers, one line for every sample"),
        ("AwA2-labels.txt", "0\n1\n2\n3\n", "must have labels 1, 2, 3"),
        ("AwA2-labels.txt", "1\n1\n1\n1e30\n", "go up to 9007199254740991"),
        ("classes.txt", "1 cat\n3 dog\n", "numbered from 1"),
        ("classes.txt", "cat\n", "numbered from 1"),
        ("classes.txt", "1 cat\n", "there are 1 names"),
    ],
)
def test_text_files_that_do_not_fit(tmp_path, name, content, words):
    (text(tmp_path) / name).write_text(content)
    with pytest.raises(InvalidData, match=words):
        load_awa2(tmp_path)


def test_random_split():
    split = random_split(37_322, seed=0)
    assert split.bincount().tolist() == [26_125, 3_733, 7_464]
    assert torch.equal(split, random_split(37_322, seed=0))
    assert not torch.equal(split, random_split(37_322, seed=1))
    assert random_split(10, 0, (0.5, 0.0, 0.5)).bincount().tolist() == [5, 0, 5]
    assert random_split(1, 0).tolist() == [0]


@pytest.mark.parametrize(
    ("n", "shares"), [(0, (0.7, 0.1, 0.2)), (9, (0.7, 0.1)), (9, (0.7, 0.1, 0.1)), (9, (1.2, -0.2, 0))]
)
def test_splits_that_mean_nothing(n, shares):
    with pytest.raises(InvalidSetting, match="three shares that sum to 1"):
        random_split(n, 0, shares)
