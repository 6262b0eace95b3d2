"""What is kept between runs: found again, never mistaken, whole or not there, and its seconds counted once."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import ssse
from ssse import Curvature
from ssse.paper import cache as caching
from ssse.paper.cache import Cache, engine, key_of
from ssse.paper.linear import as_model

NUMBERS = {"gap": 0.25, "names": ["a", "θ"], "missing": None}
TENSORS = {"weights": torch.arange(12.0).view(3, 4), "seconds": torch.tensor(1.5, dtype=torch.float64)}
KINDS = ("numbers", "tensors")


def get(cache: Cache, kind: str, key: str = "key", make: Callable[[], Any] | None = None) -> Any:
    value = NUMBERS if kind == "numbers" else TENSORS
    return getattr(cache, kind)(key, make or (lambda: value))


def is_whole(kind: str, value: Any) -> bool:
    if kind == "numbers":
        return value == NUMBERS
    return value.keys() == TENSORS.keys() and all(torch.equal(value[name], TENSORS[name]) for name in TENSORS)


def refuse() -> Any:
    raise AssertionError("made again, although it is there")


def a_curvature() -> Curvature:
    x = torch.randn(20, 3, dtype=torch.float64, generator=torch.manual_seed(0))
    model = as_model(torch.ones(2, 3, dtype=torch.float64))
    return Curvature.fit(model, "cross_entropy", [(x, (x[:, 0] > 0).long())], weight_decay=0.1, progress=False)


@pytest.mark.parametrize("kind", KINDS)
def test_made_once_and_found_again(tmp_path, kind):
    first, later = Cache(tmp_path / "new" / "folder"), Cache(tmp_path / "new" / "folder")
    assert is_whole(kind, get(first, kind))
    assert is_whole(kind, get(later, kind, make=refuse))
    assert (first.found, first.made, later.found, later.made) == (0, 1, 1, 0)
    get(later, kind, "another key")
    assert (later.found, later.made) == (1, 1)


def test_nan_is_kept(tmp_path):
    for _ in range(2):
        assert math.isnan(Cache(tmp_path).numbers("key", lambda: [math.nan])[0])


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache, made = Cache(None), []
    for _ in range(2):
        assert cache.numbers("key", lambda: made.append(1) or len(made)) == len(made)
        assert is_whole("tensors", get(cache, "tensors"))
    assert len(made) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_curvature_solves_as_before(tmp_path):
    made = Cache(tmp_path).curvature("key", a_curvature)
    found = Cache(tmp_path).curvature("key", refuse)
    v = torch.arange(6.0, dtype=torch.float64)
    torch.testing.assert_close(found.solve(v), made.solve(v), rtol=1e-12, atol=1e-13)  # from the file's memory
    assert (found.n, found.damping, found.loss) == (20, 0.1, "cross_entropy")


@pytest.mark.parametrize(("room", "kept"), [(0, True), (-1, False)])
def test_a_curvature_that_is_too_large_is_not_written(tmp_path, monkeypatch, room, kept):
    curvature = a_curvature()
    size = sum(t.numel() * t.element_size() for t in curvature.structure.state().values())
    monkeypatch.setattr(caching, "LARGEST", size + room)
    assert Cache(tmp_path).curvature("key", lambda: curvature) is curvature
    assert (tmp_path / "key").exists() == kept
    again = Cache(tmp_path)
    again.curvature("key", a_curvature)
    assert (again.found, again.made) == (kept, not kept)


def swap_last(path: Path, old: bytes, new: bytes) -> None:
    head, found, tail = path.read_bytes().rpartition(old)
    assert found
    path.write_bytes(head + new + tail)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def file_instead(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("{}")


DAMAGES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "numbers, a digit changed": ("numbers", lambda p: swap_last(p, b"0.25", b"0.26")),
    "numbers, cut": ("numbers", cut),
    "numbers, empty": ("numbers", lambda p: p.write_bytes(b"")),
    "numbers, no text": ("numbers", lambda p: p.write_bytes(b"\xff\xfe\n\xff")),
    "numbers, a folder": ("numbers", folder_instead),
    "tensors, a byte changed": ("tensors", lambda p: swap_last(p / "curvature.safetensors", b"@", b"A")),
    "tensors, cut": ("tensors", lambda p: cut(p / "curvature.safetensors")),
    "tensors, a file is missing": ("tensors", lambda p: (p / "curvature.safetensors").unlink()),
    "tensors, no manifest": ("tensors", lambda p: (p / "manifest.json").unlink()),
    "tensors, manifest cut": ("tensors", lambda p: cut(p / "manifest.json")),
    "tensors, another manifest": ("tensors", lambda p: swap_last(p / "manifest.json", b"float32", b"float16")),
    "tensors, a file": ("tensors", file_instead),
}
for _kind in KINDS:
    DAMAGES[f"{_kind}, no seconds"] = (_kind, lambda p: p.with_name("key.seconds").unlink())
    DAMAGES[f"{_kind}, seconds empty"] = (_kind, lambda p: p.with_name("key.seconds").write_text(""))


@pytest.mark.parametrize(("kind", "damage"), DAMAGES.values(), ids=DAMAGES.keys())
def test_what_is_broken_is_made_anew(tmp_path, kind, damage):
    get(Cache(tmp_path), kind)
    damage(tmp_path / "key")
    cache = Cache(tmp_path)
    assert is_whole(kind, get(cache, kind))
    assert (cache.found, cache.made, cache.saved) == (0, 1, 0.0)
    assert is_whole(kind, get(Cache(tmp_path), kind, make=refuse))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_fails_leaves_nothing(tmp_path, kind, error):
    def fail() -> Any:
        raise error

    with pytest.raises(error):
        get(Cache(tmp_path), kind, make=fail)
    assert list(tmp_path.iterdir()) == []
    assert is_whole(kind, get(Cache(tmp_path), kind))


@pytest.mark.parametrize(("kind", "last_step"), [("numbers", "replace"), ("tensors", "rename")])
def test_interrupted_while_writing(tmp_path, monkeypatch, kind, last_step):
    move = getattr(os, last_step)

    def interrupt(source: Path, target: Path) -> None:
        if Path(target).name == "key":
            raise KeyboardInterrupt
        move(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, last_step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            get(Cache(tmp_path), kind)
    assert [path.name for path in tmp_path.iterdir()] == ["key.seconds"]
    assert is_whole(kind, get(Cache(tmp_path), kind))


KILLED = """
import os, signal, sys
from ssse.paper import cache
from ssse.system import store
from tests.paper.test_cache import KINDS, get

WATCHED, lines = (cache.__file__, store.__file__), 0

def watch(frame, event, _):
    global lines
    if frame.f_code.co_filename in WATCHED:
        lines += event == "line"
        if lines == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return watch

os.fsync = lambda handle: None  # what a killed process wrote is not lost; only power cuts need it, and it is slow
for kind in KINDS:
    for last in range(1, 1000):
        child = os.fork()
        if not child:
            kept = cache.Cache(sys.argv[1])
            sys.settrace(watch)
            get(kept, kind, f"{kind}-{last}")
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
    print(last)
"""


def test_killed_at_any_line_leaves_whole_entries_only(tmp_path):
    """One process a line of the cache and of the store, each killed when it comes there."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for kind, kills in zip(KINDS, map(int, done.stdout.split()), strict=True):
        assert 20 < kills < 999
        there = [last for last in range(1, kills) if (tmp_path / f"{kind}-{last}").exists()]
        assert 0 < len(there) < kills - 5  # killed before as well as after it was there
        for last in there:
            assert is_whole(kind, get(Cache(tmp_path), kind, f"{kind}-{last}", refuse))


def test_another_run_was_quicker(tmp_path):
    def make() -> Any:
        get(Cache(tmp_path), "tensors")
        return TENSORS

    assert is_whole("tensors", get(Cache(tmp_path), "tensors", make=make))
    assert is_whole("tensors", get(Cache(tmp_path), "tensors", make=refuse))


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """Seconds that pass only where a test says so."""
    found = SimpleNamespace(now=100.0)
    monkeypatch.setattr(caching, "time", SimpleNamespace(perf_counter=lambda: found.now))
    return found


OWN = {"request": 5.0, "model": 3.0, "data": 10.0}


def work(cache: Cache, clock: SimpleNamespace, name: str, *within: str) -> str:
    """Takes its own seconds, and those of what it needs: each name needs the next."""

    def make() -> str:
        if within:
            work(cache, clock, *within)
        clock.now += OWN[name]
        return name

    return cache.numbers(name, make)


@pytest.mark.parametrize(
    "gone",
    [set(c) for r in range(4) for c in itertools.combinations(OWN, r)],
    ids=lambda gone: "-".join(sorted(gone)) or "none",
)
def test_seconds_are_those_of_a_run_without_a_break(tmp_path, clock, gone):
    first = Cache(tmp_path)
    work(first, clock, *OWN)
    assert (first.saved, clock.now) == (0.0, 118.0)
    for name in gone:
        (tmp_path / name).unlink()
    for _ in range(2):  # the second time, everything is there
        cache, before = Cache(tmp_path), clock.now
        work(cache, clock, *OWN)
        assert cache.saved + clock.now - before == sum(OWN.values())


def test_what_this_run_made_is_not_saved(tmp_path, clock):
    cache = Cache(tmp_path)
    for _ in range(2):
        work(cache, clock, *OWN)
        work(cache, clock, "data")
    assert (cache.found, cache.made, cache.saved) == (0, 3, 0.0)


def test_what_two_values_share_is_counted_once(tmp_path, clock):
    for _ in range(2):
        cache, before = Cache(tmp_path), clock.now
        work(cache, clock, "request", "data")
        work(cache, clock, "model", "data")
        work(cache, clock, "data")
        assert cache.saved + clock.now - before == sum(OWN.values())


LIKE = (
    torch.zeros(4),
    torch.zeros(4, dtype=torch.float64),
    torch.zeros(4, dtype=torch.int32),  # the same bytes as the first
    torch.zeros(2, 2),
    torch.zeros(4, 1),
    torch.tensor([0.0, 0, 0, 1e-45]),
    torch.tensor([1e-45, 0.0, 0, 0]),
    [0.0, 0.0, 0.0, 0.0],
    "0",
    0,
    None,
    {"a": 0},
    {"a": "0"},
)


def test_keys_differ_where_their_parts_do():
    keys = [key_of("name", part) for part in LIKE]
    keys += [key_of("other name", LIKE[0]), key_of("name"), key_of("name", 1, 2), key_of("name", 2, 1)]
    keys += [
        key_of("name", [1, 2]),
        key_of("name", 12),
        key_of("name", "1", 2),
        key_of("name", "a", ""),
        key_of("name", "a"),
    ]
    assert len(set(keys)) == len(keys)


def test_keys_are_those_of_the_content():
    x = torch.arange(6.0).view(2, 3)
    assert key_of("name", x.mT.contiguous().mT, {"a": 1, "b": 2}) == key_of("name", x.clone(), {"b": 2, "a": 1})
    assert key_of("name", x).startswith("name-")


def test_a_key_depends_on_the_source(tmp_path):
    def module(text: str) -> ModuleType:
        path = tmp_path / f"recipe{len(list(tmp_path.iterdir()))}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec
        return importlib.util.module_from_spec(spec)

    first, same, other = (key_of("name", module(text)) for text in ("RATE = 1\n", "RATE = 1\n", "RATE = 2\n"))
    assert first == same != other


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    """The package once more, for `engine` to read."""
    root = tmp_path / "ssse"
    shutil.copytree(Path(ssse.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(caching, "PACKAGE", root)
    return root


def test_the_engine_is_its_source_and_torch(copied, monkeypatch):
    def now() -> str:
        return engine.__wrapped__()

    seen = [now()]
    assert now() == seen[0]
    for name in ("__init__.py", "problem/losses.py", "curvature/dense.py", "baselines/scrubbing.py"):
        with (copied / name).open("a") as file:
            file.write("\n# another line\n")
        seen.append(now())
    (copied / "metrics" / "new.py").write_text("")
    seen.append(now())
    (copied / "metrics" / "new.py").rename(copied / "metrics" / "newer.py")
    seen.append(now())
    monkeypatch.setattr(torch, "__version__", "0.0")
    seen.append(now())
    assert len(set(seen)) == len(seen)


NOT_OF_THE_ENGINE = ["__main__.py", "demo.py", "evaluation/figures.py"] + [
    f"{name}/__init__.py" for name in caching.AROUND
]


@pytest.mark.parametrize("name", [*NOT_OF_THE_ENGINE, "paper/celeba/run.py", "rendering/svg.py"])
def test_what_only_shows_numbers_is_not_of_the_engine(copied, name):
    before = engine.__wrapped__()
    (copied / name).write_text((copied / name).read_text() + "\n# another line\n")
    assert engine.__wrapped__() == before
