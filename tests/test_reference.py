"""The reference: every public name is in it, with an example that runs."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import ssse
import ssse.baselines
import ssse.metrics
import ssse.sklearn
from ssse.workspace import results

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
EXAMPLES: dict[str, dict[str, str]] = tomllib.loads((FOLDER / "examples.toml").read_text())
MODULES = (ssse, ssse.metrics, ssse.baselines, ssse.sklearn)
SETUP, WORKSPACE = re.findall(r"```python\n(.*?)```", (FOLDER / "index.md").read_text(), re.DOTALL)


def public_names(module: ModuleType) -> set[str]:
    """What has no page of its own."""
    names = {name for name in module.__all__ if not inspect.ismodule(getattr(module, name))}
    return (names | {"DoubtfulSetting"}) - {"Workspace"} if module is ssse else names


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_is_in_the_reference_with_an_example(module):
    name = module.__name__
    page = (FOLDER / f"{name.removeprefix('ssse.')}.md").read_text()
    assert sorted(re.findall(rf"^\.\. auto\w+:: {name}\.(\w+)$", page, re.MULTILINE)) == sorted(public_names(module))
    assert {key for key in EXAMPLES[name] if "." not in key} == public_names(module)


def test_every_command_of_a_workspace_has_an_example():
    own = {name for name, value in vars(ssse.Workspace).items() if callable(value) or isinstance(value, classmethod)}
    assert set(EXAMPLES["ssse.Workspace"]) == {name for name in own if not name.startswith("_")}


def test_every_result_of_a_command_is_in_the_reference():
    own = {name for name, value in vars(results).items() if getattr(value, "__module__", None) == results.__name__}
    told = re.search(r":members: (.*)", (FOLDER / "workspace.md").read_text())
    assert told
    classes = {name for name in own if inspect.isclass(getattr(results, name))}
    assert set(told[1].split(", ")) == classes - {"CommandResult"}


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        exec(SETUP, names)
    return names


@pytest.mark.long
@pytest.mark.filterwarnings("default::ssse.errors.DoubtfulSetting")
@pytest.mark.parametrize("page", EXAMPLES)
def test_the_examples_run(page, given, tmp_path, monkeypatch):
    """A page from top to bottom, as its examples go on from each other."""
    monkeypatch.chdir(tmp_path)
    names = dict(given)
    if page == "ssse.Workspace":
        exec(WORKSPACE, names)
    with torch.random.fork_rng():
        for key, example in EXAMPLES[page].items():
            exec(compile(example, f"example of {page}.{key}", "exec"), names)


def test_an_example_that_fails_would_be_seen(given):
    with pytest.raises(ssse.SSSEError):
        exec("ssse.erase(model, curvature, forget=[(x[:3], y[:2])])", dict(given))
