"""The readers of features: official files and npz files are read as they are, or refused in words."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from ssse.errors import InvalidData, MissingData, SSSEError
from ssse.paper.data.features import load_celeba, read_features

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
Y = np.array([0, 1, 1, 2])
GOOD = {"features": X, "labels": Y}


def npz(folder: Path, name: str = "some.npz", /, **arrays: Any) -> Path:
    np.savez(folder / name, **arrays)
    return folder / name


def refused(path: Path, words: str) -> None:
    with pytest.raises(InvalidData, match=words) as caught:
        read_features(path)
    assert path.name in str(caught.value)


def test_classes(tmp_path):
    found = read_features(npz(tmp_path, **GOOD, split=np.array([0, 0, 1, 2], np.uint8), more=np.array([object()])))
    assert torch.equal(found.x, torch.from_numpy(X))
    assert (found.y.dtype, found.y.tolist()) == (torch.int64, Y.tolist())
    assert found.split is not None
    assert found.split.tolist() == [0, 0, 1, 2]
    assert found.names == ("class 0", "class 1", "class 2")
    assert found.source == ("some.npz: 4 samples × 3 features, 3 classes, split 2 / 1 / 1 (train / validation / test)")


def test_attributes_in_bytes(tmp_path):
    packed, scale = np.arange(6, dtype=np.uint8).reshape(2, 3), np.array([0.5, 1, 2])
    path = npz(tmp_path, features_u8=packed, scale=scale, attributes=np.array([[True, False], [True, True]]))
    found = read_features(path)
    assert (found.x.dtype, found.x.tolist()) == (torch.float32, (packed * scale).tolist())
    assert (found.y.dtype, found.y.tolist()) == (torch.float32, [[1, 0], [1, 1]])
    assert (found.split, found.names) == (None, ("attribute 0", "attribute 1"))
    assert found.source == "some.npz: 2 samples × 3 features, 2 attributes"


@pytest.mark.parametrize("key", ["names", "class_names"])
def test_names(tmp_path, key):
    assert read_features(npz(tmp_path, **{**GOOD, key: np.array(list("abc"))})).names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("stored", "read"),
    [("<f2", "float32"), (">f4", "float32"), ("<f8", "float64"), (">f8", "float64"), ("g", "float64")],
)
def test_every_float(tmp_path, stored, read):
    found = read_features(npz(tmp_path, features=np.asfortranarray(X.astype(stored)), labels=Y.astype(">i2")))
    assert found.x.dtype == getattr(torch, read)
    np.testing.assert_allclose(found.x.numpy(), X, atol=1e-3)
    assert found.y.tolist() == Y.tolist()


def test_the_digest_is_of_the_content(tmp_path):
    one = read_features(npz(tmp_path, "one.npz", **GOOD)).digest
    assert one == read_features(npz(tmp_path, "two.npz", **GOOD, other=X)).digest
    others = [{"features": X + 1, "labels": Y}, {"features": X, "labels": Y[::-1]}, {**GOOD, "split": Y}]
    assert len({one, *(read_features(npz(tmp_path, **other)).digest for other in others)}) == 4


BAD = [
    ({"labels": Y}, "either 'features' or 'features_u8'; it holds neither"),
    ({**GOOD, "features_u8": X}, "it holds both"),
    ({"features": X}, "either 'labels' or 'attributes'; it holds neither"),
    ({"features": X[0], "labels": Y}, r"'features' must be a matrix.*\(3,\)"),
    ({"features": X[:0], "labels": Y[:0]}, "must not be empty"),
    ({"features": X[:, :0], "labels": Y}, "must not be empty"),
    ({"features": X.astype(int), "labels": Y}, "must be floats, not int64"),
    ({"features": X.astype(complex), "labels": Y}, "must be floats, not complex128"),
    ({"features": np.where(X[2, 1] == X, np.nan, X), "labels": Y}, "row 2 of the features has NaN"),
    (
        {"features": X.astype("g") * np.longdouble("1e4000"), "labels": Y},
        "row 0 of the features has NaN or an infinite",
    ),
    ({"features_u8": X, "scale": X[0], "labels": Y}, "must be uint8, not float32"),
    ({"features_u8": X.astype(np.uint8), "labels": Y}, r"'scale' of floats, shape \(3,\).*it is missing"),
    ({"features_u8": X.astype(np.uint8), "scale": X[:, 0], "labels": Y}, r"it is float32 of shape \(4,\)"),
    ({"features_u8": np.ones((4, 3), np.uint8), "scale": np.full(3, 1e300), "labels": Y}, "row 0 of the features"),
    ({"features": X, "labels": Y[:3]}, r"'labels' must be whole numbers of shape \(4,\)"),
    ({"features": X, "labels": Y / 2}, "'labels' must be whole numbers"),
    ({"features": X, "labels": Y - 1}, "the least is -1. Renumber"),
    ({"features": X, "labels": Y + 2}, "'labels' go up to 4, but there are 4 samples"),
    ({"features": X, "labels": np.full(4, 2**64 - 1, np.uint64)}, "go up to 18446744073709551615"),
    ({**GOOD, "names": np.array(["a", "b"])}, "go up to 2, but there are 2 names"),
    ({**GOOD, "names": np.array([b"a", b"b", b"c"])}, "'names' must be a list of texts"),
    ({**GOOD, "names": np.frombuffer(b"\xff" * 12, "U1")}, "'names' must be a list of texts"),
    ({**GOOD, "names": np.array(["a", "b", "\ud800"])}, "'names' must be a list of texts"),
    ({**GOOD, "split": np.array([0, 1, 2, 3])}, r"'split' must be 0 \(train\)"),
    ({**GOOD, "split": np.array([0.0, 1, 2, 0])}, "'split' must be whole numbers"),
    ({"features": X, "attributes": Y}, "'attributes' must be a matrix"),
    ({"features": X, "attributes": Y[:, None]}, "0 or 1 only"),
    ({"features": X, "attributes": np.full((4, 2), np.nan)}, "0 or 1 only"),
    ({"features": X, "attributes": np.ones((4, 2)), "names": np.array(["a"])}, "2 attributes but 1 names"),
    ({"features": np.array([object()]), "labels": Y}, "holds Python objects"),
]


@pytest.mark.parametrize(("arrays", "words"), BAD, ids=[words for _, words in BAD])
def test_what_is_refused(tmp_path, arrays, words):
    refused(npz(tmp_path, **arrays), words)


def test_files_that_are_no_npz(tmp_path):
    path = tmp_path / "some.npz"
    with pytest.raises(MissingData, match=r"some.npz' is not a file"):
        read_features(path)
    for content in (b"", b"PK\x03\x04", b"some text"):
        path.write_bytes(content)
        refused(path, "cannot be read as an npz file.*download it again")
    with open(path, "wb") as handle:
        np.save(handle, X)
    refused(path, "is a single array, not an npz file")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features", b"no array")
    refused(path, "'features' is not an array")


def stored(arrays: dict[str, Any]) -> bytes:
    handle = io.BytesIO()
    np.savez_compressed(handle, **arrays)
    return handle.getvalue()


WHOLE = stored({**GOOD, "split": Y, "names": np.array(list("abc"))})
quick = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def only_our_errors(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        found = read_features(path)
    except SSSEError as error:
        assert path.name in str(error)  # noqa: PT017 (it may also be read)
    else:
        assert len(found.x) == len(found.y) > 0
        assert torch.isfinite(found.x).all()


@quick
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), st.booleans())
def test_damaged_files_are_refused_in_words(tmp_path, place, value, cut):
    only_our_errors(tmp_path / "some.npz", WHOLE[:place] + (b"" if cut else bytes([value]) + WHOLE[place + 1 :]))


any_array = arrays_of.arrays(
    arrays_of.scalar_dtypes() | arrays_of.unicode_string_dtypes(max_len=2),
    arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)


@quick
@given(
    st.dictionaries(
        st.sampled_from(["features", "features_u8", "scale", "labels", "attributes", "split", "names"]), any_array
    )
)
def test_other_arrays_are_refused_in_words(tmp_path, arrays):
    only_our_errors(tmp_path / "some.npz", stored({**({} if "features_u8" in arrays else GOOD), **arrays}))


FILES = ["000001.jpg", "000002.jpg", "000003.jpg", "000004.jpg"]
ATTRIBUTES = np.array([[0, 1], [1, 0], [1, 1], [0, 0]])
PARTS = [0, 2, 1, 0]


def celeba(folder: Path, lists: str = "") -> Path:
    (folder / lists).mkdir(exist_ok=True)
    rows = [
        f"{file} {' '.join(f'{2 * value - 1:2d}' for value in row)}"
        for file, row in zip(FILES, ATTRIBUTES, strict=True)
    ]
    (folder / lists / "list_attr_celeba.txt").write_text("4\nBald Young \n" + "\n".join(rows) + "\n")
    rows = [f"{file} {part}\n" for file, part in zip(FILES, PARTS, strict=True)]
    (folder / lists / "list_eval_partition.txt").write_text("".join(rows))
    return folder


@pytest.mark.parametrize("lists", ["", "Anno"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1], [3, 1], [2]])
def test_celeba_is_matched_by_name(tmp_path, order, lists):
    celeba(tmp_path, lists)
    npz(tmp_path, "celeba-features.npz", features=X[order], files=np.array(FILES)[order])
    npz(tmp_path, "faces.npz", **GOOD)  # the official files come first
    found, rows = load_celeba(tmp_path), sorted(order)
    assert found.x.tolist() == X[rows].tolist()
    assert found.y.tolist() == ATTRIBUTES[rows].tolist()
    assert found.split is not None
    assert found.split.tolist() == [PARTS[row] for row in rows]
    assert found.names == ("Bald", "Young")
    assert found.source.startswith("CelebA, celeba-features.npz with the official lists")


def test_celeba_in_bytes(tmp_path):
    packed, order = np.arange(8, dtype=np.uint8).reshape(4, 2), [1, 0, 3, 2]
    files = np.array(FILES)[order]
    npz(celeba(tmp_path), "celeba-features.npz", features_u8=packed[order], scale=np.ones(2), files=files)
    assert load_celeba(tmp_path).x.tolist() == packed.tolist()


def test_without_celeba_faces_stand_in(tmp_path):
    npz(tmp_path, "faces.npz", features=X, attributes=ATTRIBUTES)
    assert load_celeba(tmp_path).source.startswith("faces.npz")
    npz(tmp_path, "celeba-features.npz", features=X, files=np.array(FILES))
    with pytest.raises(MissingData, match=r"missing: list_attr_celeba.txt, list_eval_partition.txt\. Download"):
        load_celeba(tmp_path)


def test_no_celeba(tmp_path):
    words = r"MMLAB, CUHK.*'Align&Cropped Images'.*'Anno'.*Put the lists into.*extract_features.*faces.npz"
    with pytest.raises(MissingData, match=words):
        load_celeba(tmp_path)
    with pytest.raises(MissingData, match="which is not a folder"):
        load_celeba(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"features": X}, "has no 'files'"),
        ({"features": X, "files": np.array(FILES[:2])}, r"has 2 'files', but its features have shape \(4, 3\)"),
        ({"files": np.array(FILES)}, "its features are missing"),
        ({"features": X, "files": np.array([*FILES[:3], "000009.jpg"])}, "'000009.jpg', which 'list_attr_celeba.txt'"),
        ({"features": X, "files": np.array([*FILES[:3], FILES[1]])}, "has '000002.jpg' twice"),
        ({"features": X * np.nan, "files": np.array(FILES)}, "has NaN"),
    ],
)
def test_celeba_features_that_do_not_match(tmp_path, arrays, words):
    npz(celeba(tmp_path), "celeba-features.npz", **arrays)
    with pytest.raises(InvalidData, match=words):
        load_celeba(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("list_attr_celeba.txt", b"", "must be a count, a line of names"),
        ("list_attr_celeba.txt", b"4\nBald\n000001.jpg x\n", "must be a count, a line of names"),
        ("list_attr_celeba.txt", b"4\nBald\n000001.jpg 1\n", "says 4 images and lists 1; it is cut short"),
        ("list_attr_celeba.txt", b"1\nBald\n000001.jpg 0\n", "other than -1 and 1"),
        ("list_attr_celeba.txt", b"\xff\xfe", "must be a text file"),
        ("list_eval_partition.txt", b"000001.jpg\n", "must be lines such as '000001.jpg 0'"),
        ("list_eval_partition.txt", b"000001.jpg 3\n", "must have lines such as"),
        ("list_eval_partition.txt", b"000001.jpg 0\n", "which 'list_eval_partition.txt' does not list"),
    ],
)
def test_lists_that_are_not_celebas(tmp_path, name, content, words):
    npz(celeba(tmp_path), "celeba-features.npz", features=X, files=np.array(FILES))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidData, match=words):
        load_celeba(tmp_path)
