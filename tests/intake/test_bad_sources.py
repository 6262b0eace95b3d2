"""Data that cannot be used is refused in words, and nothing in it is ever executed."""

from __future__ import annotations

import builtins
import io
import pickle
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssse.errors import InvalidData, InvalidSetting
from ssse.intake.sources import Columns
from tests.support.data_files import FORMATS, IDS, NUMBERS, Bomb, X, Y, opened, standard, write

every_format = pytest.mark.parametrize("form", FORMATS)


def refused(folder: Path, name: str, words: str, error: type[Exception] = InvalidData, **columns: Any) -> str:
    with pytest.raises(error, match=words) as caught:
        opened(folder, name, search=folder, **columns)
    assert Path(name).name in str(caught.value)
    return str(caught.value)


# Where the data is


@every_format
def test_a_missing_file_has_a_neighbour(tmp_path, form):
    name = standard(tmp_path, form)
    refused(tmp_path, name.replace("data", "dada"), rf"is not a file\. Did you mean '{name}'")


def test_no_such_folder(tmp_path):
    refused(tmp_path, "nowhere/data.npz", "no folder")


@pytest.mark.parametrize("name", ["data.txt", "data", "data.npy", "data.pkl", "data.pt"])
def test_formats_that_are_not_known(tmp_path, name):
    (tmp_path / name).write_bytes(b"something")
    refused(tmp_path, name, r"\.npz, \.safetensors, \.csv, \.parquet, a folder of \.npy files or pkg\.module:dataset")


def test_a_folder_without_arrays(tmp_path):
    (tmp_path / "data").mkdir()
    refused(tmp_path, "data", "without npy files")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    name = standard(tmp_path, "parquet")
    imported = builtins.__import__

    def without(module: str, *rest: Any, **more: Any) -> Any:
        if module.startswith("pyarrow"):
            raise ModuleNotFoundError(module, name=module)
        return imported(module, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    refused(tmp_path, name, r"pip install 'ssse\[tables\]'", InvalidSetting)


# What belongs together


@pytest.mark.parametrize("form", ["npz", "safetensors", "npy"])
@pytest.mark.parametrize(
    ("arrays", "columns", "words"),
    [
        ({"x": X}, {}, r"needs its labels under one of y, label.*\[data\] labels.*'x'"),
        ({"y": Y, "z": X}, {}, r"needs its inputs under one of x, inputs.*\[data\] inputs"),
        ({"x": X, "features": X, "y": Y}, {}, r"say in \[data\] inputs which"),
        ({"x": X, "y": Y, "label": Y}, {}, r"say in \[data\] labels which"),
        ({"x": X, "y": Y, "id": NUMBERS, "ids": NUMBERS}, {}, r"say in \[data\] ids which"),
        ({"x": X, "y": Y}, {"inputs": "xx"}, r"no 'xx', which \[data\] inputs names; it holds 'x', 'y'"),
        ({"x": X, "target": Y}, {"labels": "targets"}, r"\[data\] labels.*Did you mean 'target'"),
        ({"x": X, "y": Y}, {"ids": "who"}, r"no 'who', which \[data\] ids names"),
        ({"x": X, "y": Y[:5]}, {}, "differ in length: 'x' has 7, 'y' has 5"),
        ({"x": X, "y": Y, "id": NUMBERS[:5]}, {}, "7 samples but 5 ids"),
        ({"x": X, "y": Y, "id": NUMBERS // 20}, {}, "'0', '1', '3' as the id of more than one"),
        ({"x": X, "y": Y, "id": X[:, 0]}, {}, "ids, 'id', must be texts or whole numbers"),
        ({"x": X, "y": Y, "id": np.stack([NUMBERS, NUMBERS], 1)}, {}, "one a sample, not int64 of shape"),
        ({"x": X[:0], "y": Y[:0]}, {}, "is empty"),
        ({"x": X[:, :0], "y": Y}, {}, r"'x' is empty; its shape is \(7, 0\)"),
        ({"x": np.array(3.0), "y": Y}, {}, "'x' is a single number"),
        ({"x": X, "y": np.array(3)}, {}, "'y' is a single number"),
        ({"x": X.astype(np.uint64), "y": Y}, {}, "uint64"),
        ({"x": X, "y": Y}, {"classes": ("no", "yes")}, r"'0' is none of \[data\] classes, 'no', 'yes'"),
        ({"x": X, "y": X[:, 0]}, {"classes": ("no", "yes")}, "must be one class a sample, not float64"),
        ({"x": X, "y": Y, "place": Y}, {"ids": "place"}, r"\[data\] ids = \"place\".*Rename it"),
    ],
)
def test_arrays_that_do_not_belong_together(tmp_path, form, arrays, columns, words):
    name = write(tmp_path, form, **arrays)
    refused(tmp_path, name, words, InvalidSetting if "Rename" in words else InvalidData, **columns)


@pytest.mark.parametrize("form", ["npz", "npy"])
@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": X + 1j, "y": Y}, "'x' must be numbers that PyTorch computes with, not complex128"),
        ({"x": X.astype("m8[s]"), "y": Y}, "timedelta64"),
        ({"x": X.astype(np.longdouble), "y": Y}, "float128"),
        ({"x": np.array(IDS), "y": Y}, "'x' must be numbers"),
        ({"x": np.zeros(7, [("a", "f4")]), "y": Y}, "'x' must be numbers"),
        ({"x": X, "y": np.array(IDS)}, r"'y', are words, such as s-0é.*\[data\] classes"),
        ({"x": X, "y": Y, "id": np.array([*IDS[:6], ""])}, "id of sample 6 is empty"),
        ({"x": X, "y": Y, "id": np.array([b"\xff"] * 7)}, "ids, 'id', must be texts"),
        ({"x": X, "y": Y, "id": np.full(7, 0xD800, np.uint32).view("U1")}, "ids, 'id', must be texts"),
        ({"x": X, "y": Y, "id": np.full(7, 0xFFFFFFFF, np.uint32).view("U1")}, "ids, 'id', must be texts"),
    ],
)
def test_arrays_of_the_wrong_kind(tmp_path, form, arrays, words):
    refused(tmp_path, write(tmp_path, form, **arrays), words)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"classes": ("a", "b", "a")}, r"classes names 'a' more than once"),
        ({"inputs": ()}, "inputs is an empty list"),
        ({"inputs": ("x", "x")}, "'x' is named more than once"),
        ({"inputs": "x", "labels": "x"}, "'x' is named more than once"),
        ({"labels": "x", "ids": "x"}, "'x' is named more than once"),
    ],
)
def test_settings_that_contradict_themselves(columns, words):
    with pytest.raises(InvalidSetting, match=words):
        Columns(**columns)


# Which samples


def test_requests_that_name_no_samples(tmp_path):
    source = opened(tmp_path, standard(tmp_path, "npz"))
    with pytest.raises(InvalidData, match=r"no sample with the id 's-0'\. Did you mean 's-0é'"):
        source.places_of([IDS[1], "s-0"])
    with pytest.raises(InvalidData, match=r"'0', '1', '2', '3', '4' and 2 more\.$"):
        source.places_of([str(number) for number in range(7)])
    with pytest.raises(InvalidData, match="names 's-3é' more than once"):
        source.places_of([IDS[3], IDS[1], IDS[3]])
    nameless = opened(tmp_path, write(tmp_path, "csv", x=X[:, 0], y=Y))
    with pytest.raises(InvalidData, match=r"has no ids.*--forget.*ids = \"place\""):
        nameless.places_of(["a"])


@pytest.mark.parametrize("places", [[7], [-1], [0.5], [True, False], [[1]]])
def test_places_outside_of_the_data(tmp_path, places):
    with pytest.raises(InvalidData, match=r"[Pp]laces"):
        opened(tmp_path, standard(tmp_path, "npz")).batches(np.array(places))


def test_batches_without_samples(tmp_path):
    with pytest.raises(InvalidSetting, match="not 0"):
        opened(tmp_path, standard(tmp_path, "npz")).batches(size=0)


# Tables


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty; its first line should name the columns"),
        ("\n\n", "is empty; its first line"),
        ("f,y\n", "has a header but no lines"),
        ("f,y\n1,2\n1,2,3\n", "line 3: 3 cells, but the header names 2"),
        ("f,y\n1,2\n1\n", "line 3: 1 cells"),
        ("f,y\n1,2\n\n\none,2\n", "line 5, column 'f': 'one' is not a finite number"),
        ("f,y\n1,2\n ,2\n", "line 3, column 'f': the cell is empty"),
        ("f,y\nnan,2\n", "line 2, column 'f': 'nan' is not a finite number"),
        ("f,y\n1e999,2\n", "'1e999' is not a finite number"),
        ("f,y\n1_000,2\n", "'1_000' is not a finite number"),
        ("f,g,y\n1,0x10,2\n", "column 'g': '0x10' is not"),
        ("f,y\n1,\n", "line 2, column 'y': the label is missing"),
        ("f,y\n1,2\n1,cat\n", r"line 3, column 'y': the label 'cat' is not a number.*\[data\] classes"),
        ("f,y\n1,2\n1,inf\n", "line 3, column 'y': the label 'inf' is not a number"),
        (f"f,y\n1,{2**63}\n", "too large a number"),
        (f"f,y\n1,{'9' * 5000}\n", "too large a number"),
        ("f,f,y\n1,1,2\n", "more than one column is called 'f'"),
        (",f,y\n0,1,2\n", "column 1 of the header has no name.*index=False"),
        ("f;y\n1;2\n", "Separate the columns by commas"),
        ("y\n1\n", "holds no inputs"),
        ("f,g\n1,2\n", r"needs its labels under one of y.*\[data\] labels names; it holds 'f', 'g'"),
        ("f,y,label\n1,2,3\n", r"say in \[data\] labels which"),
        ("id,f,y\na,1,2\na,1,2\n", "'a' as the id of more than one"),
        ("id,f,y\na,1,2\n,1,2\n", "id of sample 1 is empty"),
        ('f,y\n1,"2\n', "not CSV"),
        ('f,y\n1,"2"3\n', "line 2: not CSV"),
        (b"f,y\n1,2\n\xff,2\n", "not UTF-8"),
        (b"\xff\xfef\x00,\x00y\x00", "not UTF-8"),
    ],
)
def test_csv_files_that_are_wrong(tmp_path, text, words):
    (tmp_path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(tmp_path, "t.csv", words)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_nothing_slips_into_the_inputs_of_a_table(tmp_path, form):
    name = write(tmp_path, form, id=NUMBERS, f=X[:, 0], y=Y, species=Y)
    refused(tmp_path, name, r"'y' would be taken for inputs.*\[data\] inputs", labels="species")
    refused(tmp_path, name, r"'id' would be taken for inputs", ids="place")
    refused(tmp_path, write(tmp_path, form, __index_level_0__=Y, f=Y, y=Y), "'__index_level_0__' would be taken")
    refused(tmp_path, name, "no 'g', which", inputs=("f", "g"))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_label_that_is_no_class(tmp_path, form):
    name = write(tmp_path, form, f=[1.0, 2.0], label=["dog", "cta"])
    where = {"csv": "line 3", "parquet": "row 1"}[form]
    refused(tmp_path, name, f"{where}: the label 'cta' is none .*Did you mean 'cat'", classes=("cat", "dog"))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"f": [1.0, None], "y": [1, 2]}, "row 1, column 'f': the cell is empty"),
        ({"f": [1.0, float("nan")], "y": [1, 2]}, "row 1, column 'f': not a finite number"),
        ({"f": [1.0, 2.0], "y": [1, None]}, "row 1, column 'y': the cell is empty"),
        ({"f": ["1", "2"], "y": [1, 2]}, "column 'f': inputs must be numbers, not string"),
        ({"f": [[1.0], [2.0]], "y": [1, 2]}, "must be numbers, not list"),
        ({"f": [1.0, 2.0], "y": [[1], [2]]}, "labels and ids must be numbers or texts, not list"),
        ({"f": [1.0, 2.0], "y": ["a", "b"]}, r"are words, such as a.*\[data\] classes"),
        ({"f": pa.array([], pa.float64()), "y": pa.array([], pa.int64())}, "has columns but no rows"),
        ({"f": [1.0, 2.0], "y": [1, 2], "id": [1.5, 2.5]}, "ids, 'id', must be texts or whole numbers"),
    ],
)
def test_parquet_files_that_are_wrong(tmp_path, table, words):
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    refused(tmp_path, "t.parquet", words)


def test_parquet_columns_of_one_name(tmp_path):
    pq.write_table(pa.table([[1.0], [2.0], [1]], names=["f", "f", "y"]), tmp_path / "t.parquet")
    refused(tmp_path, "t.parquet", "more than one column is called 'f'")


# Objects of the user

BAD = """
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

number = 7
nothing = TensorDataset(torch.zeros(0, 2), torch.zeros(0))
uneven = [(torch.zeros(2), 0), (torch.zeros(3), 1)]
words = [(torch.zeros(2), "a"), (torch.zeros(2), "b")]
triples = [(torch.zeros(2), 0, 1)] * 3
ragged = {"x": [[1.0], [2.0, 3.0]], "y": [0, 1]}
floats = [(torch.zeros(2), 0.5)]

def factory():
    raise OSError("no network")

def needs(size):
    return size

class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(2), 0)])

class Own(Dataset):
    def __len__(self):
        return 3
    def __getitem__(self, place):
        return torch.zeros(2), place % 2

class Random(Own):
    def __getitem__(self, place):
        return torch.rand(2), 0

class Failing(Own):
    def __getitem__(self, place):
        raise KeyError("lost")

class Short(Own):
    ids = ["a"]

class Twice(Own):
    ids = ["a", "b", "a"]

class Objects(Own):
    ids = [object(), object(), object()]
"""


@pytest.mark.parametrize(
    ("name", "columns", "words"),
    [
        ("number", {}, "must be a torch Dataset with __len__ and __getitem__, a pair .*not a int"),
        ("Stream", {}, "an iterable is not enough"),
        ("nothing", {}, "is empty"),
        ("uneven", {}, None),
        ("words", {}, r"labels are words, 'a' for instance.*\[data\] classes"),
        ("words", {"classes": ("b", "c")}, r"label 'a' is none of \[data\] classes"),
        ("triples", {}, "of length 3"),
        ("ragged", {}, "'x', a list, is not an array"),
        ("floats", {"classes": ("a", "b")}, "every label must be one class"),
        ("factory", {}, "raised OSError: no network when it was called"),
        ("needs", {}, "missing 1 required positional argument.*called without arguments"),
        ("Random", {}, "random augmentation"),
        ("Failing", {}, "reading sample 0 raised KeyError: 'lost'"),
        ("Short", {}, "3 samples but 1 ids"),
        ("Twice", {}, "'a' as the id of more than one sample"),
        ("Objects", {}, "ids, 'ids', must be texts"),
        ("Own", {"ids": "names"}, r"no attribute 'names', which \[data\] ids names"),
        ("Own", {"labels": "y"}, "without keys"),
        ("Own.__len__.nothing", {}, "has no 'Own.__len__.nothing'"),
        ("Twise", {}, "has no 'Twise'. Did you mean 'Twice'"),
    ],
)
def test_objects_that_are_no_data(tmp_path, name, columns, words):
    (tmp_path / "bad_data.py").write_text(BAD, encoding="utf-8")
    if words is None:
        source = opened(tmp_path, f"bad_data:{name}", search=tmp_path)
        with pytest.raises(InvalidData, match=r"reading samples 0 … 1 raised RuntimeError: stack expects"):
            list(source.batches())
        return
    with pytest.raises((InvalidData, InvalidSetting), match=words):
        opened(tmp_path, f"bad_data:{name}", search=tmp_path, **columns)


# Files that are damaged or malicious


def test_other_files_under_these_names(tmp_path):
    np.save(tmp_path / "one.npy", X)
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    refused(tmp_path, "one.npz", "is a single array, not an npz file")
    np.savez(tmp_path / "many.npz", x=X, y=Y)
    (tmp_path / "folder").mkdir()
    (tmp_path / "many.npz").rename(tmp_path / "folder" / "x.npy")
    np.save(tmp_path / "folder" / "y.npy", Y)
    with pytest.raises(InvalidData, match=r"x\.npy' cannot be read as an npy file"):
        opened(tmp_path, "folder")


def test_members_of_an_npz_that_are_no_arrays(tmp_path):
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("x", b"text")
        archive.writestr("y.npy", array_bytes(Y))
    refused(tmp_path, "d.npz", "'x' is not an array")
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        for name in ("x", "x.npy", "y.npy"):
            archive.writestr(name, array_bytes(X))
    refused(tmp_path, "d.npz", "'x' more than once")


def array_bytes(array: np.ndarray) -> bytes:
    held = io.BytesIO()
    np.save(held, array, allow_pickle=True)
    return held.getvalue()


@pytest.mark.parametrize("name", ["d.npz", "d.safetensors", "d.csv", "d.parquet", "d/x.npy"])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_under_another_name_is_never_executed(tmp_path, name, protocol):
    proof = tmp_path / "executed"
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(proof), protocol))
    if name == "d/x.npy":
        np.save(tmp_path / "d" / "y.npy", Y)
    with pytest.raises(InvalidData, match=r"cannot be read|not UTF-8|needs its labels"):
        opened(tmp_path, name.removesuffix("/x.npy"))
    assert not proof.exists()


@pytest.mark.parametrize("form", ["npz", "npy"])
def test_an_array_of_objects_is_never_executed(tmp_path, form):
    proof = tmp_path / "executed"
    held = array_bytes(np.array([Bomb(proof)] * 7, dtype=object))
    name = write(tmp_path, form, y=Y)
    if form == "npz":
        with zipfile.ZipFile(tmp_path / name, "a") as archive:
            archive.writestr("x.npy", held)
    else:
        (tmp_path / name / "x.npy").write_bytes(held)
    with pytest.raises(InvalidData, match=r"holds Python objects.*never unpickled"):
        opened(tmp_path, name)
    assert not proof.exists()


@pytest.mark.parametrize("form", ["npz", "npy"])
def test_headers_that_claim_too_much(tmp_path, form):
    name = write(tmp_path, form, y=Y)
    header = array_bytes(X).replace(b"(7, 3)", b"(7" + b"0" * 15 + b"," + b"3)")
    for held in (header, array_bytes(X).replace(b"'shape'", b"'\\d sh'")):
        if form == "npz":
            (tmp_path / name).unlink()
            with zipfile.ZipFile(tmp_path / name, "w") as archive:
                archive.writestr("y.npy", array_bytes(Y))
                archive.writestr("x.npy", held)
        else:
            (tmp_path / name / "x.npy").write_bytes(held)
        with pytest.raises(InvalidData, match=r"cannot be read as an np[yz] file"):
            opened(tmp_path, name)


def held_files(folder: Path, form: str) -> dict[Path, bytes]:
    path = folder / standard(folder, form)
    return {one: one.read_bytes() for one in (sorted(path.iterdir()) if path.is_dir() else [path])}


def survives(folder: Path, form: str) -> None:
    """A valid source, or an error in words; nothing else, no warning, and no word that cannot be printed."""
    try:
        source = opened(folder, "data" if form == "npy" else f"data.{form}")
        for x, y in source.batches(size=4):
            assert isinstance(x, torch.Tensor)
            assert len(x) == len(y)
    except (InvalidData, InvalidSetting) as error:
        str(error).encode()


quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=FORMATS)
def whole(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, str, dict[Path, bytes]]:
    return tmp_path, request.param, held_files(tmp_path, request.param)


def swap(files: dict[Path, bytes], which: int, content: Iterable[int] | bytes) -> None:
    """One of the files gets another content, the others theirs."""
    for place, (path, held) in enumerate(files.items()):
        path.write_bytes(bytes(content) if place == which % len(files) else held)


@quick
@given(st.integers(0, 2), st.binary(max_size=300))
def test_random_bytes(whole, which, content):
    folder, form, files = whole
    swap(files, which, content)
    survives(folder, form)


@quick
@given(st.integers(0, 2), st.floats(0, 1, exclude_max=True))
def test_truncations(whole, which, part):
    folder, form, files = whole
    held = list(files.values())[which % len(files)]
    swap(files, which, held[: int(part * len(held))])
    survives(folder, form)


@settings(quick, max_examples=100)
@given(st.integers(0, 2), st.floats(0, 1, exclude_max=True), st.integers(1, 255), st.booleans())
def test_a_changed_byte(whole, which, part, change, early):
    """Half of them in the first 128 bytes, where the headers are."""
    folder, form, files = whole
    held = bytearray(list(files.values())[which % len(files)])
    held[int(part * min(len(held), 128 if early else len(held)))] ^= change
    swap(files, which, held)
    survives(folder, form)


@quick
@given(st.text(alphabet='0123456789.,-e"\n\r;yxid ', max_size=60))
def test_any_text_as_csv(tmp_path, text):
    (tmp_path / "data.csv").write_text("id,f,y\n" + text, encoding="utf-8", newline="")
    survives(tmp_path, "csv")


@quick
@given(st.text(alphabet="{}()[]'\"\\,: descrfortran_ordershape<f8TrueFals0123456789", max_size=90))
def test_any_text_as_the_header_of_an_array(tmp_path, text):
    folder = tmp_path / "data"
    folder.mkdir(exist_ok=True)
    np.save(folder / "y.npy", Y)
    header = text.encode().ljust(117) + b"\n"
    (folder / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + X.tobytes())
    survives(tmp_path, "npy")
