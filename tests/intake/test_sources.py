"""The user's data: every format gives the same samples, in batches, by place and by id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ssse.problem.batches import count_samples, read_batch
from ssse.problem.labels import label_values
from tests.support.data_files import FORMATS, IDS, NUMBERS, X, Y, ids_in, opened, read, standard, write

every_format = pytest.mark.parametrize("form", FORMATS)
TRUTH = torch.from_numpy(X)
LABELS = torch.from_numpy(Y)

DATASETS = """
import numpy as np, torch
from torch.utils.data import Dataset, TensorDataset

X = np.random.default_rng(3).normal(size=(7, 3))
Y = np.array([0, 2, 1, 1, 0, 2, 2])

pair = (torch.tensor(X), torch.tensor(Y))
as_list = [X, Y]
tensors = TensorDataset(torch.tensor(X, requires_grad=True), torch.tensor(Y))
samples = [(x, y) for x, y in zip(X, Y)]

def mapping():
    return {"features": X, "label": Y, "sample_id": [f"s-{k}é" for k in range(7)]}

def two_inputs():
    return {"a": X, "b": X[:, :1]}, Y

class Own(Dataset):
    def __init__(self):
        self.ids = [f"s-{k}é" for k in range(7)]
    def __len__(self):
        return 7
    def __getitem__(self, k):
        return {"x": X[k], "y": ["no", "yes", "maybe"][Y[k]], "id": self.ids[k]}

class Nested:
    own = Own()
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    (tmp_path / "user_data.py").write_text(DATASETS, encoding="utf-8")
    return tmp_path


@every_format
def test_every_format_gives_the_same_samples(tmp_path, form):
    source = opened(tmp_path, standard(tmp_path, form))
    assert (len(source), source.name) == (7, "data" if form == "npy" else f"data.{form}")
    for size in (1, 3, 7, 100):
        x, y = read(source, size=size)
        assert torch.equal(x, TRUTH)
        assert torch.equal(y, LABELS)
        assert y.dtype == torch.int64
    assert source.ids is not None
    assert source.ids.dtype.kind == "U"
    assert source.ids.tolist() == ids_in(form)


@every_format
def test_samples_by_id(tmp_path, form):
    source = opened(tmp_path, standard(tmp_path, form))
    names = ids_in(form)
    places = source.places_of([names[5], names[0], names[4]])
    assert places.tolist() == [5, 0, 4]
    x, y = read(source, places.tolist(), size=2)
    assert torch.equal(x, TRUTH[[5, 0, 4]])
    assert torch.equal(y, LABELS[[5, 0, 4]])
    assert source.places_of([]).tolist() == []


@every_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floats_come_in_the_models_dtype(tmp_path, form, dtype):
    x, y = read(opened(tmp_path, standard(tmp_path, form), dtype))
    assert torch.equal(x, TRUTH.to(dtype))
    assert y.dtype == torch.int64


@every_format
def test_without_a_dtype_arrays_stay_and_tables_are_float32(tmp_path, form):
    x, _ = read(opened(tmp_path, standard(tmp_path, form), None))
    assert x.dtype == (torch.float32 if form in ("csv", "parquet") else torch.float64)


@every_format
def test_a_place_as_the_id(tmp_path, form):
    arrays = {"x": X[:, 0] if form in ("csv", "parquet") else X, "y": Y}
    source = opened(tmp_path, write(tmp_path, form, **arrays), ids="place")
    assert source.places_of(["6", "0"]).tolist() == [6, 0]
    assert opened(tmp_path, source.name).ids is None


@every_format
def test_batches_can_be_read_again_and_counted(tmp_path, form):
    source = opened(tmp_path, standard(tmp_path, form))
    batches = source.batches(np.array([3, 1, 2]), 2)
    first, second = list(batches), list(batches)
    assert len(batches) == len(first) == 2
    assert count_samples(batches) == 3
    for (x, y), (again, labels) in zip(first, second, strict=True):
        assert torch.equal(x, again)  # type: ignore[arg-type]
        assert torch.equal(label_values(y), label_values(labels))
        read_batch((x, y), None)
    assert list(source.batches(np.array([], dtype=np.int64))) == []


@every_format
def test_what_a_model_does_to_a_batch_stays_there(tmp_path, form):
    source = opened(tmp_path, standard(tmp_path, form))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for x, y in source.batches():
        x.zero_()  # type: ignore[union-attr]
        label_values(y).zero_()
    x, y = read(source)
    assert torch.equal(x, TRUTH)
    assert torch.equal(y, LABELS)
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("form", ["npz", "safetensors", "npy"])
def test_bytes_and_token_ids_stay_what_they_are(tmp_path, form):
    tokens = np.arange(14, dtype=np.int32).reshape(7, 2)
    mask = tokens % 3 == 0
    images = tokens.astype(np.uint8)
    name = write(tmp_path, form, input_ids=tokens, mask=mask, pixels=images, labels=Y.astype(np.uint8), x=X)
    x, y = read(opened(tmp_path, name, inputs=("mask", "input_ids", "pixels", "x")))
    assert [(key, value.dtype) for key, value in x.items()] == [
        ("mask", torch.bool),
        ("input_ids", torch.int32),
        ("pixels", torch.uint8),
        ("x", torch.float64),
    ]
    assert torch.equal(x["input_ids"], torch.from_numpy(tokens))
    assert (y.dtype, y.tolist()) == (torch.int64, Y.tolist())
    assert isinstance(read(opened(tmp_path, name, inputs=("pixels",)))[0], torch.Tensor)


@pytest.mark.parametrize("stored", [np.uint16, np.uint32, ">i4", ">f8", "F", "reversed", "read-only"])
def test_what_torch_hardly_computes_with_is_widened(tmp_path, stored):
    tokens = np.arange(14).reshape(7, 2)
    x = {"F": np.asfortranarray(tokens), "reversed": tokens[:, ::-1], "read-only": tokens}.get(stored)
    x = tokens.astype(stored) if x is None else x
    x, expected = (x, tokens[:, ::-1] if stored == "reversed" else tokens)
    found, _ = read(opened(tmp_path, write(tmp_path, "npy", x=x, y=Y)), [4, 2])
    assert found.dtype == {">f8": torch.float64, ">i4": torch.int32}.get(stored, torch.int64)
    assert found.is_contiguous()
    assert found.tolist() == expected[[4, 2]].tolist()


def test_float_labels_follow_the_model(tmp_path):
    attributes = (X > 0).astype(np.float32)
    _, y = read(opened(tmp_path, write(tmp_path, "npz", x=X, y=attributes)))
    assert (y.dtype, y.tolist()) == (torch.float64, attributes.tolist())
    _, y = read(opened(tmp_path, write(tmp_path, "csv", f=X[:, 0], y=X[:, 1])))
    assert (y.dtype, y.tolist()) == (torch.float64, X[:, 1].tolist())


def test_bfloat16_in_safetensors(tmp_path):
    save_file({"X": TRUTH.bfloat16(), "Y": LABELS.float()}, tmp_path / "half.safetensors")
    x, y = read(opened(tmp_path, "half.safetensors", torch.float32))
    assert torch.equal(x, TRUTH.bfloat16().float())
    assert y.dtype == torch.float32


@pytest.mark.parametrize("form", ["npz", "npy", "csv", "parquet"])
def test_words_as_labels(tmp_path, form):
    classes = ("no", "yes", "maybe")
    words = np.array(classes)[Y]
    name = write(tmp_path, form, x=X[:, 0], y=words)
    _, y = read(opened(tmp_path, name, classes=classes))
    assert (y.dtype, y.tolist()) == (torch.int64, Y.tolist())


@every_format
def test_classes_that_are_numbers_by_name(tmp_path, form):
    name = write(tmp_path, form, x=X[:, 0], y=Y * 10)
    _, y = read(opened(tmp_path, name, classes=("0", "10", "20")))
    assert y.tolist() == Y.tolist()


def test_categories_of_parquet(tmp_path):
    words = pa.array(np.array(["b", "a", "c"])[Y]).dictionary_encode()
    flags = pa.array(X[:, 0] > 0)
    pq.write_table(pa.table({"flag": flags, "count": pa.array(NUMBERS), "label": words}), tmp_path / "t.parquet")
    x, y = read(opened(tmp_path, "t.parquet", classes=("b", "a", "c")))
    assert x.tolist() == np.stack([X[:, 0] > 0, NUMBERS], 1).astype(float).tolist()
    assert y.tolist() == Y.tolist()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_columns_of_a_table_by_setting(tmp_path, form):
    name = standard(tmp_path, form)
    x, y = read(opened(tmp_path, name, inputs=("f3", "f1"), labels="y", ids="id"))
    assert torch.equal(x, TRUTH[:, [2, 0]])
    assert torch.equal(y, LABELS)
    x, _ = read(opened(tmp_path, name, inputs="f2"))
    assert torch.equal(x, TRUTH[:, 1:2])


@pytest.mark.parametrize("form", ["npz", "safetensors", "npy"])
def test_arrays_by_setting(tmp_path, form):
    name = write(tmp_path, form, vectors=X, classes=Y, who=NUMBERS, x=np.zeros(3), other=np.zeros((0, 2)))
    source = opened(tmp_path, name, inputs="vectors", labels="classes", ids="who")
    assert torch.equal(read(source)[0], TRUTH)
    assert source.places_of(["27"]).tolist() == [2]


def test_what_a_setting_names_is_not_found_as_something_else(tmp_path):
    name = write(tmp_path, "npz", target=X, y=Y, ids=NUMBERS[:, None], data=NUMBERS)
    source = opened(tmp_path, name, inputs=("target", "ids"), ids="data")
    x, y = read(source)
    assert torch.equal(x["target"], TRUTH)
    assert torch.equal(y, LABELS)
    assert source.places_of(["5"]).tolist() == [0]
    assert opened(tmp_path, name, inputs=("target", "ids")).ids is None


def test_csv_as_spreadsheets_write_it(tmp_path):
    text = '\ufeffsample_id, f1 ,f2,Label\r\n"a, b", 1.5 ,2e0,0\r\n\r\nc,-.5,+3, 2 \r\n\r\n'
    (tmp_path / "sheet.CSV").write_bytes(text.encode())
    source = opened(tmp_path, "sheet.CSV")
    x, y = read(source)
    assert (x.tolist(), y.tolist()) == ([[1.5, 2.0], [-0.5, 3.0]], [0, 2])
    assert source.ids is not None
    assert source.ids.tolist() == ["a, b", "c"]


def test_long_tables_are_read_in_parts(tmp_path):
    n = 4096 * 2 + 5
    for form in ("csv", "parquet"):
        x, y = read(opened(tmp_path, write(tmp_path, form, f=np.arange(n) / 8, y=np.arange(n) % 3)))
        assert x.ravel().tolist() == (np.arange(n) / 8).tolist()
        assert y.tolist() == (np.arange(n) % 3).tolist()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 9)), min_size=1))
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_numbers_of_a_table_are_exact(tmp_path, form, values):
    f, y = np.array([value for value, _ in values]), np.array([label for _, label in values])
    found, labels = read(opened(tmp_path, write(tmp_path, form, f=f, y=y)))
    assert found.ravel().tolist() == f.tolist()
    assert labels.tolist() == y.tolist()


def test_files_are_mapped_not_read(tmp_path):
    """A gigabyte of holes opens at once and in little memory."""
    (tmp_path / "data").mkdir()
    holes = np.lib.format.open_memmap(tmp_path / "data" / "x.npy", mode="w+", dtype=np.float64, shape=(7, 2**24))
    del holes
    np.save(tmp_path / "data" / "y.npy", Y)
    source = opened(tmp_path, "data")
    (x, _), *_ = source.batches(np.array([6]))
    assert x.shape == (1, 2**24)  # type: ignore[union-attr]


def test_paths(tmp_path, monkeypatch):
    name = standard(tmp_path, "npz")
    assert len(opened(tmp_path / "elsewhere", str(tmp_path / name))) == 7
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(opened(Path("/"), f"~/{name}")) == 7
    np.savez(tmp_path / "a:b.npz", x=X, y=Y)
    assert len(opened(tmp_path, "a:b.npz")) == 7


@pytest.mark.parametrize("name", ["pair", "as_list", "tensors", "samples", "mapping", "two_inputs"])
def test_objects_of_the_user(user, name):
    source = opened(user, f"user_data:{name}", search=user, inputs=("b", "a") if name == "two_inputs" else None)
    for size in (2, 9):
        x, y = read(source, size=size)
        assert torch.equal(x["a"] if isinstance(x, dict) else x, TRUTH)
        assert torch.equal(y, LABELS)
    x, y = read(source, [6, 2, 3], size=2)
    assert torch.equal(x["a"] if isinstance(x, dict) else x, TRUTH[[6, 2, 3]])
    assert torch.equal(y, LABELS[[6, 2, 3]])
    assert (source.ids is None) == (name != "mapping")


@pytest.mark.parametrize("name", ["Own", "Nested.own"])
def test_a_dataset_of_mappings_with_words_and_ids(user, name):
    source = opened(user, f"user_data:{name}", torch.float32, user, classes=("no", "yes", "maybe"))
    x, y = read(source, source.places_of([IDS[4], IDS[1]]).tolist())
    assert torch.equal(x, TRUTH[[4, 1]].float())
    assert y.tolist() == [0, 2]
    assert opened(user, f"user_data:{name}", search=user, ids="place", classes=("no", "yes", "maybe")).places_of(["3"])
    x, _ = read(opened(user, f"user_data:{name}", search=user, inputs="x", labels="y", classes=("no", "yes", "maybe")))
    assert torch.equal(x, TRUTH)


def test_reading_draws_nothing_from_the_global_generator(user):
    before = torch.random.get_rng_state()
    read(opened(user, "user_data:tensors", search=user))
    assert torch.equal(before, torch.random.get_rng_state())


def test_features_of_the_table_come_in_the_order_of_the_file(tmp_path):
    name = write(tmp_path, "csv", **dict(zip(("z", "a", "m"), X.T, strict=True)), target=Y)
    assert torch.equal(read(opened(tmp_path, name))[0], TRUTH)
