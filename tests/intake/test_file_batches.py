"""Tables read from disk in parts: the same curvature as from memory, in bounded memory, and clear refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import ssse
from ssse.errors import InvalidData, InvalidSetting
from ssse.sklearn import Eraser

N, D = 103, 5


@pytest.fixture
def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((N, D)).astype(np.float32), rng.integers(0, 3, N)


def files(kind: str, folder: Path, x: np.ndarray, y: np.ndarray) -> tuple[Path, str]:
    if kind == "npy":
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", y)
        return folder / "x.npy", str(folder / "y.npy")
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {f"c{i}": x[:, i] for i in range(2)} | {"label": y} | {f"c{i}": x[:, i] for i in range(2, x.shape[1])}
    pq.write_table(pa.table(columns), folder / "t.parquet", row_group_size=40)
    return folder / "t.parquet", "label"


every_kind = pytest.mark.parametrize("kind", ["npy", "parquet"])


@every_kind
@pytest.mark.parametrize("size", [1, 17, N, 1000, None])
def test_every_sample_comes_once_in_order_again_and_again(kind, size, table, tmp_path):
    data = ssse.FileBatches(*files(kind, tmp_path, *table), size=size)
    for _ in range(2):
        batches = list(data)
        assert torch.equal(torch.cat([x for x, _ in batches]), torch.from_numpy(table[0]))
        assert torch.equal(torch.cat([y for _, y in batches]), torch.from_numpy(table[1]))
        assert all(len(x) <= data.size for x, _ in batches)
    assert len(data.sampler) == N
    assert next(iter(data))[0].shape[0] == min(N, data.size)  # who stops early leaves no thread that waits


@every_kind
def test_the_curvature_is_that_of_the_data_in_memory(kind, table, tmp_path):
    x, y = table
    model = torch.nn.Linear(D, 3).double().eval()
    data = ssse.FileBatches(*files(kind, tmp_path, x, y), size=16, dtype=torch.float64)
    settings = {"weight_decay": 0.1, "rows": "expected", "structure": "dense", "blocks": "one"}
    whole = [(torch.from_numpy(x).double(), torch.from_numpy(y))]
    found, true = (ssse.Curvature.fit(model, "cross_entropy", d, **settings) for d in (data, whole))
    assert found.n == N
    v = torch.randn(18, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(found.solve(v), true.solve(v), rtol=1e-10, atol=1e-12)
    features = torch.cat([whole[0][0], torch.ones(N, 1, dtype=torch.float64)], 1)
    p = model(whole[0][0]).detach().softmax(1)
    blocks = [
        [features.T @ (features * (p[:, a] * (int(a == b) - p[:, b]))[:, None]) for b in range(3)] for a in range(3)
    ]
    order = [c * (D + 1) + i for c in range(3) for i in range(D)] + [c * (D + 1) + D for c in range(3)]
    hessian = torch.cat([torch.cat(line, 1) for line in blocks])[order][:, order] / N
    torch.testing.assert_close(
        found.solve((hessian + 0.1 * torch.eye(18, dtype=torch.float64)) @ v), v, rtol=1e-8, atol=1e-10
    )


@every_kind
def test_an_eraser_learns_from_one_batch_after_another(kind, table, tmp_path):
    x, y = table
    model = LogisticRegression(C=0.5, tol=1e-8).fit(x, y)
    eraser = Eraser(model)
    for some, labels in ssse.FileBatches(*files(kind, tmp_path, x, y), size=20):
        eraser.partial_fit(some.numpy(), labels.numpy())
    true = Eraser(model).fit(x, y).erase(x[:2], y[:2])
    np.testing.assert_allclose(eraser.erase(x[:2], y[:2]).coef_, true.coef_, rtol=1e-6, atol=1e-9)


MEMORY = """
import sys, threading, time, torch, ssse
def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024
model = torch.nn.Linear(64, 1).eval()
ssse.Curvature.fit(model, "mse", [(torch.randn(4096, 64), torch.randn(4096, 1))], weight_decay=1e-3, progress=False)
before, most, done = anonymous(), 0.0, False
def watch():
    global most
    while not done:
        most = max(most, anonymous())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
data = ssse.FileBatches(sys.argv[1], sys.argv[2], size=4096)
ssse.Curvature.fit(model, "mse", data, weight_decay=1e-3, structure="dense", memory_budget="256MiB", progress=False)
done = True
thread.join()
print(most - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_the_memory_of_a_fit_does_not_grow_with_the_file(tmp_path):
    rng = np.random.default_rng(0)
    sizes = {}
    for n in (20_000, 400_000):  # 5 and 98 MiB
        x, y = tmp_path / f"x{n}.npy", tmp_path / f"y{n}.npy"
        np.save(x, rng.standard_normal((n, 64), dtype=np.float32))
        np.save(y, rng.standard_normal((n, 1), dtype=np.float32))
        done = subprocess.run([sys.executable, "-c", MEMORY, x, y], check=True, capture_output=True, text=True)
        sizes[n] = float(done.stdout)
    assert sizes[400_000] < sizes[20_000] + 48, sizes  # half of the file


def test_what_cannot_be_read_in_parts_is_refused(tmp_path, table):
    x, y = table
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "short.npy", y[:-1])
    np.save(tmp_path / "turned.npy", np.asfortranarray(x))
    np.save(tmp_path / "texts.npy", y.astype(str))
    np.save(tmp_path / "objects.npy", np.array([object()] * N), allow_pickle=True)
    np.save(tmp_path / "empty.npy", x[:0])
    np.save(tmp_path / "number.npy", np.float64(3))
    (tmp_path / "damaged.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-9])
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    good = tmp_path / "x.npy"
    for labels, why in [
        ("short.npy", "has 103 lines and .* 102"), ("texts.npy", "must hold numbers"),
        ("objects.npy", "cannot be read"),
        ("nowhere.npy", "is not a file"), ("number.npy", "a line for each sample"),
    ]:  # fmt: skip
        with pytest.raises(InvalidData, match=why):
            ssse.FileBatches(good, tmp_path / labels)
    for inputs, why in [
        ("turned.npy", "column by column"), ("empty.npy", "line for each sample|cannot be read"),
        ("damaged.npy", "cannot be read as an npy file"), ("nowhere.npy", "is not a file"),
    ]:  # fmt: skip
        with pytest.raises(InvalidData, match=why):
            ssse.FileBatches(tmp_path / inputs, tmp_path / "y.npy")
    with pytest.raises(InvalidSetting, match=r"must be an \.npy or a \.parquet file"):
        ssse.FileBatches(tmp_path / "x.csv", "b")
    for size in (0, -1, 1.5, True):
        with pytest.raises(InvalidSetting, match="size must be a number of samples"):
            ssse.FileBatches(good, tmp_path / "y.npy", size=size)  # type: ignore[arg-type]


def test_columns_that_are_no_numbers_are_refused(tmp_path, table):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, label = files("parquet", tmp_path, *table)
    with pytest.raises(InvalidSetting, match=r"has no column 'labels'\. Did you mean 'label'"):
        ssse.FileBatches(path, "labels")
    for column in ([None, 1.0], ["a", "b"]):
        pq.write_table(pa.table({"a": column, "label": [0, 1]}), tmp_path / "bad.parquet")
        with pytest.raises(InvalidData, match="column 'a': every cell must be a number"):
            list(ssse.FileBatches(tmp_path / "bad.parquet", label))


def test_a_file_that_shrinks_while_it_is_read_is_noticed(tmp_path, table):
    np.save(tmp_path / "x.npy", table[0])
    np.save(tmp_path / "y.npy", table[1])
    data = ssse.FileBatches(tmp_path / "x.npy", tmp_path / "y.npy", size=10)
    np.save(tmp_path / "x.npy", table[0][:50])
    with pytest.raises(InvalidData, match="shorter since it was opened"):
        list(data)
