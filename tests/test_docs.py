"""What the documentation shows is run, and its numbers are those that the command prints."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
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


def test_the_tables_of_what_was_reproduced_are_those_of_the_results(monkeypatch):
    """The file `benchmarks/reproduced.py` fills them; nothing in them is written by hand."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from reproduced import PAGES  # type: ignore[import-not-found]  # a script's folder

    assert set(PAGES) == {"README.md", "docs/reproduction.md"}
    for page, (mark, table) in PAGES.items():
        assert f"<!-- {mark} -->\n{table()}\n<!-- end -->" in (ROOT / page).read_text()


def test_the_table_of_attacks_is_that_of_the_results(monkeypatch):
    """As `benchmarks/adversary.py` wrote it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from adversary import table  # type: ignore[import-not-found]  # a script's folder

    assert f"<!-- adversary -->\n{table()}\n<!-- end -->" in (ROOT / "docs" / "requests.md").read_text()


@pytest.mark.long
def test_the_table_of_the_evidence_page_is_the_demos(tmp_path):
    printed = run("-m", "ssse", "demo", folder=tmp_path).splitlines()
    block = re.search(r"```text\n(.*?)\n```", (ROOT / "docs" / "evidence.md").read_text(), re.DOTALL)
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
    """Lines after a $ in the console blocks of a page, with those that a backslash continues; code as ["python", …].

    Cells of notebooks are code, with commands after a !.
    """
    found = []
    blocks = re.findall(r"```(console|python|\{code-cell\} ipython3)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    for kind, block in blocks:
        block = re.sub(r"\A---\n.*?\n---\n", "", block, flags=re.DOTALL)  # what a cell says about itself
        lines = block.replace("\\\n", " ").splitlines()
        if kind == "console":
            found += [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]
        else:
            code = [line for line in lines if not line.startswith(("!", "%", ":tags:"))]
            found += [["python", "\n".join(code)]] if code else []
            found += [shlex.split(line[1:]) for line in lines if line.startswith("!")]
    return found


@pytest.mark.long
@pytest.mark.parametrize("page", ["docs/index.md", "docs/tutorials/inbox.md", "docs/tutorials/comparing.md"])
def test_the_notebooks_run_from_top_to_bottom(page, monkeypatch):
    """In this process; `make docs` runs them as Jupyter does."""
    monkeypatch.chdir(ROOT)  # a notebook goes to a folder of its own
    monkeypatch.setenv("TTY_COMPATIBLE", "0")  # which it sets, too
    names: dict[str, object] = {}
    for program, *arguments in commands(page):
        if program == "python":
            with torch.random.fork_rng():
                exec(arguments[0], names)
            continue
        assert program == "ssse"
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code in (0, CAUTION), (arguments, done.output)
    if page.endswith("inbox.md"):
        answers = {
            path.name.partition(".")[0]: json.loads(path.read_text()) for path in Path("inbox").glob("*.answer.json")
        }
        assert {name: answer["outcome"] for name, answer in answers.items()} == {
            "alice": "erased", "bob": "erased", "carol": "erased", "dave": "refused"
        }  # fmt: skip
        entries = ssse.Workspace("ws").log("all-eights").entries
        assert entries[-1].kind == "reverted"  # the step fell short, as the page says
        assert Path("ws/report.html").is_file()


def test_the_code_about_using_it_runs(tmp_path, monkeypatch):
    """Each block by itself, with the names and files that the page takes for granted, on digits."""
    monkeypatch.chdir(tmp_path)
    digits = Digits.load()
    keep = torch.ones(len(digits.y), dtype=torch.bool)
    places = digits.members(3, 0.1)
    keep[places] = False
    x, test_x, model = digits.x, digits.test_x, train(digits.x, digits.y)
    curvature = ssse.Curvature.fit(model, LOSS, [(x, digits.y)], weight_decay=1e-3)
    names = {
        "ssse": ssse,
        "model": model,
        "curvature": curvature,
        "loader": [(x, digits.y)],
        "forget_loader": [(x[places], digits.y[places])],
        "retained_loader": [(x[keep], digits.y[keep])],
        "test_loader": [(test_x, digits.test_y)],
        "validation_loader": [(test_x, digits.test_y)],
        "same_kind_loader": [(test_x[digits.test_y == 3], digits.test_y[digits.test_y == 3])],
    }
    np.save("x.npy", x.numpy())
    np.save("y.npy", digits.y.numpy())
    blocks = [block for block in code_in("docs/using.md") if "causal_lm" not in block]
    assert len(blocks) == 6
    for block in blocks:
        exec(block, dict(names))


def test_the_code_about_language_models_runs():
    """On an untrained one, whose request may well be refused."""
    pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    small: Any = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2, "use_cache": False}
    where = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(GPT2LMHeadModel(GPT2Config(**small, bos_token_id=0, eos_token_id=0)), where).eval()
    ids = torch.randint(20, (30, 8))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    tokenizer_batch = {name: value[:1] for name, value in batch.items()}
    names = {"ssse": ssse, "model": model, "loader": [batch], "tokenizer_batch": tokenizer_batch}
    (block,) = (block for block in code_in("docs/using.md") if "causal_lm" in block)
    with suppress(ssse.Refused):
        exec(block, names)
    assert isinstance(names["curvature"], ssse.Curvature)


def test_the_code_about_extracting_features_runs(tmp_path, monkeypatch):
    """With a stand-in for torchvision, which ssse does not need, and on the CPU."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DIR").mkdir()
    (tmp_path / "img_align_celeba").mkdir()
    for place in range(3):
        (tmp_path / "img_align_celeba" / f"00000{place}.jpg").touch()
    network = torch.nn.Sequential(torch.nn.Flatten())
    network.classifier = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(6)])
    weights = SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: lambda image: image.float()))
    models = SimpleNamespace(VGG16_Weights=weights, vgg16=lambda weights: network)
    io = SimpleNamespace(decode_image=lambda path: torch.zeros(3, 4, 4))
    for name, module in {"torchvision": SimpleNamespace(), "torchvision.io": io, "torchvision.models": models}.items():
        monkeypatch.setitem(sys.modules, name, module)
    (block,) = code_in("docs/data.md")
    exec(block.replace('device="cuda"', 'device="cpu"'), {})
    assert (tmp_path / "DIR" / "celeba-features.npz").is_file()


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


def test_importing_the_package_imports_nothing_heavy():
    heavy = ("torch", "numpy", "scipy", "safetensors", "sklearn", "matplotlib", "rich", "typer", "pydantic", "jinja2")
    code = f"import sys, ssse; sys.exit(', '.join({{*sys.modules}} & {{*{heavy}}}) or 0)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_links_of_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text)
    assert len(links) > 15
    for path, anchor in links:
        assert (ROOT / path).exists(), path
        if anchor:
            titles = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, anchor
