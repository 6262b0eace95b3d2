"""Whatever is typed, configured or handed in: an error in words, never a traceback, never a changed workspace."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save
from typer.testing import CliRunner

from ssse.cli.app import app
from ssse.cli.console import HINT
from ssse.workspace.settings import Settings
from tests.support.sizes import fuzzed
from tests.support.workspaces import Made, copy, make, snapshot

SIGNS = st.characters(codec="utf-8") | st.sampled_from("\0\n\r\t\x1b\x7f\u202e\u2028,@=.'\"\\[]{}%/ é💥")
TEXTS = st.text(SIGNS, max_size=20) | st.sampled_from(
    [
        *("", " ", "\0", "-", "--", "-q", "@", "@.", "@/dev/null", "@\0", ",", "s1,,s2", "s1,s1", "s3,s4", "\ufffd"),
        *(
            "x" * 10_000,
            "9" * 5000,
            "'; DROP TABLE entries; --",
            "$(true)",
            "../..",
            "/",
            ".",
            "nan",
            "inf",
            "-1",
            "1e999",
        ),
    ]
)
NUMBERS = (
    st.integers()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.floats()
    | st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**400, 0.0, -0.0, 1e-320, 1e300, float("nan"), float("inf")])
)
PLAIN = st.booleans() | NUMBERS | TEXTS | st.dates() | st.times()
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
KEYS = [f"{s}.{k}" for s, f in Settings.model_fields.items() for k in f.annotation.model_fields]  # type: ignore[union-attr]
TRICKY = {  # values that have the right type and no meaning, or an odd one
    "model.factory": [
        "torch.nn:Linear",
        "sklearn.linear_model:Ridge",
        "sklearn.",
        "sys:exit",
        "json:dumps",
        "nowhere:at_all",
        "tests.support.commands:NOT_A_FUNCTION",
        ":",
    ],
    "model.device": ["meta", "cpu:7", "cuda:99", "mps", "xla", "privateuseone", "cpu", ""],
    "model.loss": ["mse", "binary_cross_entropy", "tests.support.commands:raises", "sys:exit", "builtins:len", "a:b"],
    "model.search": ["\0", "/dev/null", "..", "x" * 4000],
    "model.arguments": [{}, {"in_features": -1}, {"in_features": "4"}, {"in_features": 4, "out_features": 10**12}],
    "data.train": ["..", "/dev/null", "../w.safetensors", "../test.npz", "sys:exit", "builtins:len", "~"],
    "data.inputs": ["y", "id", ["x", "y"], ["x", "x"], []],
    "data.labels": ["x", "id", "nowhere"],
    "data.ids": ["x", "y", "place", "nowhere"],
    "data.classes": [["a"], ["a", "a"], ["0", "1", "2"]],
    "data.batch_size": [1, 2**31 - 1],
    "fit.parameters": ["head", [], ["weight"], ["weight", "weight"], "nowhere"],
    "fit.memory_budget": ["1 byte", "-3", "lots", 1, 2**53, "1e400 GiB"],
    "fit.rank": [1, 2**31 - 1],
    "fit.blocks": [1, 2**31 - 1, "output"],
    "fit.structure": ["lowrank", "diagonal", "matrix_free", "recurrence"],
    "fit.rows": ["empirical", "margin", "sampled"],
    "fit.rows_per_batch": [2, 2**31 - 1],
    "fit.dtype": ["float32"],
    "fit.preconditioner": ["diagonal", "nonsense"],
    "fit.damping": [1e-300, 1e300, 1e-16],
    "fit.weight_decay": [0, 1e-300, 1e300],
    "fit.tolerance": [1e-300, 1e300],
    "calibrate.scales": [[1.0], [2.0, 1.0], [1.0, 1.0], [1e300], [1e-300]],
    "calibrate.dampings": [[1e-300], [1e300], [1.0] * 3],
    "calibrate.method": ["retrained", "attack_parity", "loss_search"],
    "erase.scale": [1e-300, 1e300, 1e30],
    "evaluate.same": ["none", "-1", 7, "9" * 30],
}
REQUEST = ["--request", "new"]
COMMANDS = [
    ["fit", "--again", "-q"],
    ["calibrate", "--ids", "s3,s4", "--method", "line_search", "--scales", "0.5,1,2"],
    ["erase", *REQUEST, "--ids", "s3,s4"],
    ["evaluate"],
]


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> Made:
    made = make(tmp_path_factory.mktemp("ready") / "home", n=12)
    made.workspace.erase("old", ids=["s1"])
    return made


@pytest.fixture
def made(ready, tmp_path, monkeypatch) -> Made:
    made = copy(ready, tmp_path / "home")
    monkeypatch.chdir(made.home)  # what is typed may name a file of this folder, and no other
    return made


def ended(made: Made, command: str, *words: object) -> int:
    """Run a command; whatever it was, it ends in one of the ways that a script can rely on."""
    before = snapshot(made.home)
    arguments = [command, *map(str, words)]
    done = CliRunner().invoke(app, arguments)
    shown = (arguments, done.exit_code, done.stdout, done.stderr)
    if not isinstance(done.exception, SystemExit | None):
        raise AssertionError(shown) from done.exception
    assert done.exit_code in range(7), shown
    assert "Traceback" not in done.output, shown
    assert HINT not in done.output, shown  # a line for errors that nobody thought of
    if "--help" in arguments:
        return 0
    if done.exit_code in (1, 2, 4, 5):
        if command != "verify":  # whose result it is that something is damaged
            assert re.fullmatch(r"Error: [^\n]*\n", done.stderr), shown
            assert done.stderr[:-1].isprintable(), shown
        assert snapshot(made.home) == before, shown
    if "--json" in arguments:
        assert isinstance(json.loads(done.stdout), dict), shown
    if snapshot(made.home) != before:
        assert done.exit_code in (0, 3, 6), shown
        if (made.path / "ledger.sqlite").is_file():
            assert made.workspace.verify().ok, shown
    return done.exit_code


def restore(made: Made, ready: Made) -> None:
    shutil.rmtree(made.home)
    shutil.copytree(ready.home, made.home, symlinks=True)


# Settings


def configure(made: Made, key: str, value: object) -> bool:
    section, name = key.split(".")
    content = made.workspace.settings().to_dict()
    content[section][name] = value
    try:
        (made.path / "ssse.toml").write_text(tomli_w.dumps(content))
    except (TypeError, ValueError):  # no TOML can say it
        return False
    return True


@pytest.mark.parametrize("key", TRICKY)
def test_values_that_are_nearly_right(made, ready, key):
    reads = {"fit": COMMANDS[:1], "calibrate": COMMANDS[1:2], "erase": COMMANDS[2:3], "evaluate": COMMANDS[3:]}
    for value in TRICKY[key]:
        for command in reads.get(key.split(".")[0], COMMANDS):
            configure(made, key, value)
            ended(made, command[0], made.path, *command[1:])
            restore(made, ready)


@fuzzed(16, 280)
@given(
    st.sampled_from(KEYS),
    VALUES,
    st.sampled_from(COMMANDS),
)
def test_values_of_settings(made, ready, key, value, command):
    if configure(made, key, value):
        ended(made, command[0], made.path, *command[1:], "--json")
        restore(made, ready)
    ended(made, command[0], made.path, *command[1:], "--set", f"{key}={value}")
    restore(made, ready)


@fuzzed(12, 200)
@given(st.data(), st.sampled_from([COMMANDS[0], COMMANDS[2]]))
def test_pieces_of_settings(made, ready, data, command):
    """Bytes cut, put in and exchanged."""
    path = made.path / "ssse.toml"
    content = path.read_bytes()
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(start + 20, len(content))))
    middle = data.draw(
        st.binary(max_size=10)
        | TEXTS.map(str.encode)
        | st.sampled_from(
            [b"[" * 3000, b"a" + b".a" * 3000 + b" = 1", b"\n[model]\n", b"\nx = 1\n", b'"""', b"9" * 5000]
        )
    )
    path.write_bytes(content[:start] + middle + content[end:])
    ended(made, command[0], made.path, *command[1:])
    restore(made, ready)


# Files


def _suffixed(content: bytes) -> st.SearchStrategy[tuple[str, bytes]]:
    return st.sampled_from([".npz", ".safetensors", ".csv", ".parquet", ".pt", ".bin", ".txt", ""]).map(
        lambda suffix: ("given" + suffix, content)
    )


BYTES = (
    st.binary(max_size=60)
    | st.builds(lambda n, body: n.to_bytes(8, "little") + body, st.integers(0, 2**64 - 1), st.binary(max_size=40))
    | st.text(st.sampled_from('xyid,0123\n\r" .-e\t'), max_size=60).map(str.encode)
    | st.text(max_size=30).map(lambda text: (len(text.encode())).to_bytes(8, "little") + text.encode())
    | st.dictionaries(st.sampled_from("xyzi"), st.sampled_from([(0,), (3,), (3, 4), (2, 4), (3, 0), ()])).map(
        lambda shapes: save({name: np.zeros(shape) for name, shape in shapes.items()})
    )
)
USES = [
    ["erase", *REQUEST, "--forget"],
    ["erase", *REQUEST, "--ids"],
    ["calibrate", "--forget"],
    ["calibrate", "--ids", "s3", "--retrained"],
    ["calibrate", "--ids", "s3", "--held-out"],
    ["evaluate", "--test"],
    ["evaluate", "--forget"],
    ["evaluate", "--retrained"],
    ["evaluate", "--original"],
    ["init", "--model", "torch.nn:Linear", "--data", "train.npz", "--weights"],
]


@fuzzed(16, 320)
@given(BYTES.flatmap(_suffixed), st.sampled_from(USES))
def test_files_of_anything(made, ready, file, use):
    name, content = file
    (made.home / name).write_bytes(content)
    where = made.home / "new" if use[0] == "init" else made.path
    ended(made, use[0], where, *use[1:], "@" + name if use[-1] == "--ids" else name)
    restore(made, ready)


# Words


@fuzzed(16, 320)
@given(TEXTS, TEXTS, st.booleans(), st.booleans())
def test_ids_of_anything(made, ready, request_id, ids, dry, real):
    words = ["--request", request_id, "--ids", "s3" if real else ids, *(["--dry-run"] if dry else [])]
    ended(made, "erase", made.path, *words, "--json")
    ended(made, "log", made.path, "--request", request_id, "--json")
    restore(made, ready)


OPTIONS = {
    "init": [
        *("--model", "--weights", "--data", "--loss", "--argument", "--test", "--inputs", "--labels", "--ids"),
        *("--classes", "--weight-decay", "--damping", "--rows", "--parameters", "--device", "--set"),
    ],
    "fit": ["--damping", "--rows", "--structure", "--set", "--again"],
    "calibrate": ["--forget", "--ids", "--retrained", "--held-out", "--method", "--scales", "--dampings", "--set"],
    "erase": ["--request", "--forget", "--ids", "--scale", "--policy", "--accept", "--old-weights", "--set"],
    "evaluate": ["--test", "--retrained", "--original", "--forget", "--request", "--same", "--set"],
    "log": ["--request"],
    "verify": ["--head"],
}
USUAL = {
    "init": ["--model", "torch.nn:Linear", "--data", "train.npz", "--weights", "w.safetensors", "--device", "cpu"],
    "erase": ["--request", "new"],
    "calibrate": ["--method", "line_search"],
}


@fuzzed(24, 440)
@given(
    st.sampled_from(list(OPTIONS)).flatmap(
        lambda command: st.tuples(
            st.just(command),
            st.lists(st.tuples(st.sampled_from(OPTIONS[command]), TEXTS | NUMBERS.map(str)), min_size=1, max_size=3),
        )
    ),
    st.booleans(),
)
def test_options_of_anything(made, ready, words, as_json):
    command, pairs = words
    where = made.home / "new" if command == "init" else made.path
    options = [word for pair in pairs for word in pair]
    ended(made, command, where, *USUAL.get(command, []), *options, *(["--json"] if as_json else []))
    restore(made, ready)


@fuzzed(10, 160)
@given(st.sampled_from(["init", *OPTIONS, "report"]), TEXTS)
def test_workspaces_of_anything(made, ready, command, where):
    if Path(where).is_absolute() or ".." in where:  # outside the folder that is ours
        return
    ended(made, command, where, *USUAL.get(command, []), *(["--ids", "s1"] if command == "erase" else []))
    restore(made, ready)
