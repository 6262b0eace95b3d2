"""Which code is run: what `init` was told, found after the installed modules; and nothing that a request brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import workspaces
from tests.support.commands import call, call_error, call_json
from tests.support.sizes import sized

DROPPED = ("pandas", "numpy", "torch", "pyarrow", "skops", "sklearn", "tomli_w", "safetensors", "matplotlib", "jinja2")
MODEL = """
import torch
from helper_of_the_user import made
def model():
    return made()
def loss(z, y):
    return torch.nn.functional.cross_entropy(z, y, reduction="none")
"""
ALL = """
import sys
from ssse.cli.app import main
for words in {commands!r}:
    sys.argv = ["ssse", *words]
    try:
        main()
    except SystemExit as end:
        if end.code not in (0, None, 6):
            sys.exit(f"{{words}}: {{end.code}}")
"""


@pytest.fixture
def home(tmp_path) -> Path:
    """A folder with the user's module, and files in it that are called as installed modules and must not be run."""
    made = tmp_path / "home"
    x, y = workspaces.files(made)
    for name in ("train", "test"):
        stored = np.load(made / f"{name}.npz")
        rows = enumerate(zip(stored["x"].tolist(), stored["y"].tolist(), strict=True))
        lines = [f"{','.join(map(str, row))},{label},s{place}" for place, (row, label) in rows]
        (made / f"{name}.csv").write_text("\n".join(["f0,f1,f2,f3,y,id", *lines]))
    (made / "model_of_the_user.py").write_text(MODEL)
    (made / "helper_of_the_user.py").write_text("import torch\ndef made(): return torch.nn.Linear(4, 3)\n")
    for name in DROPPED:
        (made / f"{name}.py").write_text(f"open('was-run', 'a').write('{name} ')\nraise SystemExit('{name} was run')\n")
    np.savez(made / "forget.npz", x=x[:1].numpy(), y=y[:1].numpy())
    return made


def commands(form: str) -> list[list[str]]:
    ws = f"ws-{form}"
    named = ["--model", "model_of_the_user:model", "--loss", "model_of_the_user:loss"]
    data = ["--data", f"train.{form}", "--test", f"test.{form}", "--weights", "w.safetensors"]
    return [
        ["init", ws, *named, *data, "--weight-decay", "0.01", "--device", "cpu", "--quiet"],
        ["fit", ws, "--quiet"],
        ["erase", ws, "--request", "r", "--ids", "s3", "--quiet"],
        ["evaluate", ws, "--test", f"test.{form}", "--quiet"],
        ["report", ws, "--quiet"],
        ["verify", ws, "--quiet"],
    ]


def run(home: Path, *words: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=home, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not (home / "was-run").exists(), (home / "was-run").read_text()


def test_no_command_runs_what_was_dropped_into_the_folder(home):
    """As the command `ssse` is started: without the folder itself where Python looks."""
    run(home, "-P", "-c", ALL.format(commands=[*commands("npz"), *commands("csv")[:4]]))
    assert call_json("verify", home / "ws-csv")["ok"]


def test_nor_does_python_m(home):
    for command in sized(commands("csv")[:1], [*commands("csv"), *commands("npz")]):
        run(home, "-m", "ssse", *command)


def test_a_module_of_the_user_that_is_hidden_is_named(home, monkeypatch):
    monkeypatch.chdir(home)
    (home / "json.py").write_text("raise SystemExit('was run')")
    said = call_error(
        *("init", home / "ws", "--model", "json:model", "--weights", home / "w.safetensors"),
        *("--data", home / "train.npz", "--weight-decay", "0.01"),
    )
    assert "'json' is also an installed module" in said
    assert f"Rename '{home / 'json.py'}'." in said


# ---------------------------------------------------------------------------------------- files are data

CALLED = """
def spy():
    open('called', 'w').close()
    raise SystemExit('called')
"""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> workspaces.Made:
    made = workspaces.make(tmp_path_factory.mktemp("pristine"), n=24, p=3)
    made.workspace.erase("r-0", ids=["s9", "s10"])
    return made


@pytest.fixture
def made(pristine, tmp_path, monkeypatch) -> workspaces.Made:
    monkeypatch.chdir(tmp_path)
    copy = workspaces.copy(pristine, tmp_path / "home")
    (copy.home / "spy_of_the_user.py").write_text(CALLED)
    return copy


@pytest.mark.parametrize("spec", ["os:abort", "spy_of_the_user:spy"])
@pytest.mark.parametrize(
    "words",
    [
        ["erase", "--request", "r", "--forget"],
        ["calibrate", "--forget"],
        ["calibrate", "--ids", "s1,s2", "--held-out"],
        ["evaluate", "--forget"],
        ["evaluate", "--test"],
        ["evaluate", "--original"],
        ["evaluate", "--retrained"],
        ["calibrate", "--ids", "s1,s2", "--retrained"],
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
def test_what_a_command_brings_is_a_file(words, spec, made):
    before = workspaces.snapshot(made.path)
    said = call_error(words[0], made.path, *words[1:], spec)
    assert f"'{spec}' is not a file" in said
    assert not Path("called").exists()
    assert "spy_of_the_user" not in sys.modules
    assert workspaces.snapshot(made.path) == before


def test_a_file_that_is_called_like_code_is_a_file(made):
    shutil.copy(made.forget_file([3]), "os:abort.npz")
    assert call_json("erase", made.path, "--request", "r", "--forget", "os:abort.npz")["outcome"] == "erased"
    Path("spy:data").mkdir()
    np.save("spy:data/x.npy", made.x[:24].numpy())
    np.save("spy:data/y.npy", made.y[:24].numpy())
    call(
        *(
            "init",
            "another",
            "--model",
            "torch.nn:Linear",
            "--argument",
            "in_features=3",
            "--argument",
            "out_features=3",
        ),
        *("--weights", made.home / "w.safetensors", "--data", "spy:data", "--weight-decay", "0.01", "--device", "cpu"),
    )
    assert '"../spy:data"' in Path("another/ssse.toml").read_text()
    call("fit", "another")


# ---------------------------------------------------------------------------------------- an edited text file


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('factory = "torch.nn:Linear"', 'factory = "spy_of_the_user:spy"', "model.factory"),
        ('search = ".."', 'search = "../elsewhere"', "model.search"),
        ('loss = "cross_entropy"', 'loss = "spy_of_the_user:spy"', "model.loss"),
        ('train = "../train.npz"', 'train = "spy_of_the_user:spy"', "data.train"),
        ('test = "../test.npz"', 'test = "spy_of_the_user:spy"', "data.test"),
    ],
)
def test_it_names_no_other_code(old, new, key, made):
    settings = made.path / "ssse.toml"
    good = settings.read_text()
    assert old in good
    settings.write_text(good.replace(old, new))
    before = workspaces.snapshot(made.path)
    for words in (["fit", "--again"], ["erase", "--request", "r", "--ids", "s3"], ["evaluate"], ["report"]):
        said = call_error(words[0], made.path, *words[1:])
        assert f"'{key}' is " in said
        assert "make a new workspace" in said
        assert f"--set {key}=" in said
    assert not Path("called").exists()
    assert workspaces.snapshot(made.path) == before
    settings.write_text(good)
    assert call_json("erase", made.path, "--request", "r", "--ids", "s3")["outcome"] == "erased"


def test_files_may_be_named_anew_and_so_may_losses_of_ours(made):
    settings = made.path / "ssse.toml"
    shutil.copy(made.home / "test.npz", made.home / "other.npz")
    settings.write_text(settings.read_text().replace("../test.npz", "../other.npz"))
    assert call_json("erase", made.path, "--request", "r", "--ids", "s3")["outcome"] == "erased"


def test_the_command_line_is_the_operators_own_word(made):
    (made.home / "elsewhere").mkdir()
    words = ["--set", "model.search=../elsewhere", "--set", "model.loss=cross_entropy"]
    assert call_json("erase", made.path, "--request", "r", "--ids", "s3", *words)["outcome"] == "erased"
    assert call_json("verify", made.path)["ok"]


def test_a_workspace_that_was_moved_with_its_data_goes_on(made):
    made.home.rename("moved")
    assert call_json("erase", "moved/ws", "--request", "r", "--ids", "s3")["outcome"] == "erased"
