"""The guide to models: its code runs, its table of layers is what is chosen for the zoo, its numbers are measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ssse.errors import InvalidSetting
from ssse.problem.problem import Problem
from tests.support.zoo import ZOO, Animal, animal

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "models.md").read_text()

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),  # of torch's encoder
    pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning"),
]


def table_of_layers() -> dict[str, tuple[str, str]]:
    """Model of the zoo → how its rows and its products are taken, as the guide says."""
    found: dict[str, tuple[str, str]] = {}
    block = re.search(r"<!-- layers -->\n(.*?)\n<!-- end -->", GUIDE, re.DOTALL)
    assert block is not None
    _, _, *lines = block[1].splitlines()
    for line in lines:
        _, rows, products, models = (cell.strip() for cell in line.strip("|").split(" | "))
        for name in re.findall(r"`([^`]+)`", models):
            assert found.setdefault(name, (rows, products)) == (rows, products), f"{name} is in two lines that differ"
    return found


TABLE = table_of_layers()


def chosen_ways(creature: Animal) -> tuple[str, str]:
    """Whether with plain kernels is left out: it depends on the processor."""
    problem = Problem(creature.model, "cross_entropy", "all", (creature.x, creature.y))
    rows = problem.derivatives.choose_rows(problem, creature.x)
    try:
        products = str(problem.derivatives.choose_products(problem, creature.x))
    except InvalidSetting:
        products = "none"
    plain = " with plain kernels"
    return str(rows).replace(plain, ""), products.replace(plain, "")


@pytest.mark.parametrize("name", ZOO)
def test_the_table_of_layers_is_what_is_chosen(name):
    assert TABLE[name] == chosen_ways(animal(name))


def transformers_zoo() -> dict[str, Callable[[], Animal]]:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from tests.support.hugging_face import HUGGING_FACE

    return HUGGING_FACE


def test_the_table_of_layers_is_what_is_chosen_for_models_of_transformers():
    zoo = transformers_zoo()
    assert {name: TABLE[name] for name in zoo} == {name: chosen_ways(animal(name, zoo)) for name in zoo}


def test_no_model_of_the_zoo_is_missing_and_none_is_invented():
    assert set(TABLE) == {*ZOO, *transformers_zoo()}


def test_the_code_of_the_guide_runs_from_top_to_bottom(capsys):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        for block in blocks:
            exec(block, names)
    assert re.search(
        r"^by the gradient \S+, which leaves \d+% of it; by the optimiser \S+$", capsys.readouterr().out, re.M
    )
    told, of_optimiser = names["decay"], names["decay_of_adamw"](names["optimiser"])
    assert 1e-5 < told < 1e-2  # far below the optimiser's 0.1
    assert 0.2 < told / of_optimiser < 5  # the two forms of the nearest decay


def test_the_measured_decays_are_those_of_the_results(monkeypatch):
    """As `benchmarks/weight_decay.py` wrote them."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from weight_decay import table  # type: ignore[import-not-found]  # a script's folder

    assert f"<!-- weight_decay -->\n{table()}\n<!-- end -->" in GUIDE


@pytest.mark.parametrize("page", ["README.md", "docs/using.md"])
def test_the_guide_is_linked(page):
    assert "models.md" in (ROOT / page).read_text()
