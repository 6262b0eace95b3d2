"""The zoo, continued: models of transformers and peft, with attention masks, tied words and adapters."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

from ssse.problem.derivatives.layerwise import Layerwise
from ssse.problem.problem import Problem
from tests.support.hugging_face import HUGGING_FACE
from tests.support.zoo import animal
from tests.test_zoo import check_animal


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_each_is_served(name):
    check_animal(animal(name, HUGGING_FACE))


def test_a_mask_is_no_reason_to_take_one_sample_after_another():
    creature = animal("bert", HUGGING_FACE)
    problem = Problem(creature.model, "cross_entropy", "all", (creature.x, creature.y))
    assert problem.derivatives.choose_rows(problem, creature.x) == Layerwise()
    (passed,) = problem.derivatives.passed
    assert passed.layer == "BertModel 'bert'"
    assert "Rows are taken layer by layer; not vectorised: BertModel 'bert' says “vmap:" in problem.derivatives.notes[0]
