"""What the documentation shows is run, and its numbers are those that the command prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import ssse
from ssse.cli.app import app
from ssse.cli.console import BUSY, CAUTION, DAMAGED, FAILED, IMPOSSIBLE, REFUSED, STOPPED
from ssse.demo import LOSS, Digits, train
from ssse.workspace.settings import Settings

ROOT = Path(__file__).parent.parent


def run(*arguments: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def code_in(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize(("place", "verdict"), [(0, "ok"), (1, "ok")], ids=["torch", "scikit-learn"])
def test_the_readmes_code_runs(place, verdict, tmp_path):
    (tmp_path / "story.py").write_text(code_in("README.md")[place])
    assert f"verdict: {verdict}" in run("story.py", folder=tmp_path)


def test_the_code_about_scikit_learn_runs_from_top_to_bottom(tmp_path):
    (tmp_path / "story.py").write_text("".join(code_in("docs/scikit-learn.md")))
    assert "verdict:" in run("story.py", folder=tmp_path)


def test_the_readmes_reproduction_is_that_of_the_results(monkeypatch):
    """The file `benchmarks/reproduced.py` fills the table; nothing in it is written by hand."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from reproduced import table  # type: ignore[import-not-found]  # a script's folder

    assert f"<!-- reproduced -->\n{table()}\n<!-- end -->" in (ROOT / "README.md").read_text()


def test_the_table_of_attacks_is_that_of_the_results(monkeypatch):
    """As `benchmarks/adversary.py` wrote it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from adversary import table  # type: ignore[import-not-found]  # a script's folder

    assert f"<!-- adversary -->\n{table()}\n<!-- end -->" in (ROOT / "docs" / "requests.md").read_text()


@pytest.mark.long
def test_the_readmes_table_is_the_demos(tmp_path):
    printed = run("-m", "ssse", "demo", folder=tmp_path).splitlines()
    block = re.search(r"```text\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    shown = block.group(1).splitlines()
    start = next(place for place, line in enumerate(printed) if line.startswith(shown[0][: shown[0].index(".")]))
    for line, wanted in zip(printed[start:], shown, strict=False):
        assert_reads_alike(line, wanted)
    assert printed[-1] == "The page: out/demo/ws/report.html"
    assert "Refused: Its only sample was never in the training data" in "\n".join(printed)
    page = (tmp_path / "out" / "demo" / "ws" / "report.html").read_text()
    assert page.count("<svg") >= 3


def test_the_demo_leaves_a_folder_of_somebody_elses_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = CliRunner().invoke(app, ["demo", "--output", "mine"])
    assert done.exit_code == 2
    assert "not of this demo" in done.stderr
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def commands(page: str) -> list[list[str]]:
    """Lines after a $ in the console blocks of a page, with those that a backslash continues; code as ["python", …]."""
    found = []
    for kind, block in re.findall(r"```(console|python)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        found += [["python", block]] if kind == "python" else [shlex.split(x[2:]) for x in lines if x.startswith("$ ")]
    return found


@pytest.mark.parametrize("page", ["docs/requests.md"])
def test_the_commands_of_the_documentation_run_as_written(page, tmp_path, monkeypatch):
    """In this process, for importing torch anew takes longer than the command."""
    monkeypatch.chdir(tmp_path)
    found = commands(page)
    assert len(found) > 10
    for program, *arguments in found:
        if program == "cd":
            monkeypatch.chdir(arguments[0])
            continue
        if program == "python":
            exec(arguments[0], {})
            continue
        assert program == "ssse"
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code in (0, CAUTION), (arguments, done.output)
    assert {arguments[0] for program, *arguments in found if program == "ssse"} == {
        "demo", "init", "fit", "erase", "repair", "inbox", "confirm", "revert", "log", "calibrate", "evaluate",
        "report", "verify", "key", "prove", "receipt", "check", "upgrade"
    }  # fmt: skip


def test_the_documentation_names_every_setting():
    text = (ROOT / "docs" / "requests.md").read_text()
    for section, field in Settings.model_fields.items():
        line = next(line for line in text.splitlines() if line.startswith(f"| `[{section}]`"))
        assert isinstance(field.annotation, type)
        assert re.findall(r"`(\w+)`", line) == list(field.annotation.model_fields), section


def test_the_documentation_names_every_exit_code():
    text = (ROOT / "docs" / "requests.md").read_text()
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]
    assert codes == [0, FAILED, IMPOSSIBLE, REFUSED, DAMAGED, BUSY, CAUTION, STOPPED]


def test_the_code_of_the_evidence_page_runs(tmp_path, monkeypatch):
    """With the names that the page takes for granted, on digits."""
    monkeypatch.chdir(tmp_path)
    digits = Digits.load()
    keep = torch.ones(len(digits.y), dtype=torch.bool)
    places = digits.members(3, 0.5)
    keep[places] = False
    model, retrained = train(digits.x, digits.y), train(digits.x[keep], digits.y[keep])
    forget = [(digits.x[places], digits.y[places])]
    curvature = ssse.Curvature.fit(model, LOSS, [(digits.x, digits.y)], weight_decay=1e-3)
    names = {
        "ssse": ssse,
        "model": model,
        "curvature": curvature,
        "loss": LOSS,
        "forget": forget,
        "erasure": ssse.erase(model, curvature, LOSS, forget),
        "retrained_without_forget": retrained,
        "retained": [(digits.x[keep], digits.y[keep])],
        "held_out": [(digits.test_x[digits.test_y == 3], digits.test_y[digits.test_y == 3])],
        "another_request": [(digits.x[:3], digits.y[:3])],
        "train_set": TensorDataset(digits.x, digits.y),
        "test_set": TensorDataset(digits.test_x, digits.test_y),
        "test_labels": digits.test_y,
        "data": [(digits.x, digits.y)],
        "judge": lambda model: float(model(digits.test_x).argmax(1).eq(digits.test_y).double().mean()),
        "forget_index": places,
        **dict.fromkeys(("first_seed", "second_seed", "third_seed"), retrained),
    }
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "evidence.md").read_text(), re.DOTALL)
    classifiers = [block for block in blocks if "causal_lm" not in block]  # the other: tests/rows/test_gpt_rows.py
    assert len(classifiers) == 4
    for block in classifiers:
        exec(block, names)
    assert len(names["tuned"].values) == 6
    assert (tmp_path / "table.svg").stat().st_size > 1000
    assert (tmp_path / "curve.svg").stat().st_size > 1000


def assert_reads_alike(line: str, wanted: str) -> None:
    """The same words, and numbers as near as processors agree on where an optimiser stops: a sample in 73 may flip."""
    words, wanted_words = line.split(), wanted.split()
    assert len(words) == len(wanted_words), (line, wanted)
    for word, meant in zip(words, wanted_words, strict=True):
        if re.fullmatch(r"\d+\.\d+(e-\d+)?", meant):
            number, expected = float(word), float(meant)
            room = 1.5 if expected > 10 else 0.02 if expected > 0.05 else 2e-3  # points; shares; the rest
            assert number == pytest.approx(expected, rel=0.02, abs=room), (line, wanted)
        else:
            assert word == meant, (line, wanted)


def test_importing_the_package_does_not_import_torch():
    code = "import sys, ssse; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
