"""`ssse.evaluate`: every number against a plain recomputation, and what is left out where something is missing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import ssse
from ssse import metrics
from tests.support.evaluation_problems import (
    CASES,
    FEATURES,
    OUTPUTS,
    SIZES,
    WHOLE,
    Case,
    Plain,
    evaluate,
    expected_values,
    family,
    logits,
    make,
    model,
    number,
    seeds,
    values_of,
)


@pytest.mark.parametrize("task", CASES)
@pytest.mark.parametrize(("retrained", "erased", "original"), [(1, 1, 1), (2, 1, 1), (3, 2, 2), (2, 3, 2)])
def test_every_number_against_a_plain_recomputation(task, retrained, erased, original):
    models = family(retrained, erased, original)
    found = evaluate(models, CASES[task].splits)
    values, floors = expected_values(Plain(models, CASES[task].data, task))
    for (name, key), (mean, spread) in values.items():
        cell = found.cells[key][name]
        assert cell.value == pytest.approx(mean, rel=1e-9, abs=1e-12), (name, key)
        assert (cell.spread is None) == (spread is None), (name, key)
        assert (cell.spread or 0) == pytest.approx(spread or 0, rel=1e-7, abs=1e-12), (name, key)
    shown = {(name, key) for key, row in found.cells.items() for name in row}
    assert shown == set(values)
    assert found.floors == pytest.approx(floors, rel=1e-9, abs=1e-12)
    assert (not floors) == (retrained == 1)
    assert found.counts == SIZES
    assert found.seeds == {"original": original, "erased": erased, "retrained": retrained}


@pytest.mark.parametrize("task", CASES)
def test_a_test_set_without_a_forgotten_kind(task):
    case, models = make(task, WHOLE), family(2)
    found = evaluate(models, case.splits)
    values, floors = expected_values(Plain(models, case.data, task))
    for (name, key), (mean, _) in values.items():
        assert found[name, key] == pytest.approx(mean, rel=1e-9, abs=1e-12), (name, key)
    assert found.floors == pytest.approx(floors, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("task", CASES)
def test_the_models_that_are_compared_with_are_at_the_ends(task):
    models = family()
    found = evaluate({**models, "copy": models["retrained"]}, CASES[task].splits)
    at_original, at_retrained = (1, 0) if task == "classes" else (0, 1)
    key = "delta" if task == "classes" else "gamma"
    assert (found["original", key], found["copy", key]) == (at_original, at_retrained)
    assert (found["original", "distance"], found["copy", "distance"]) == (1, 0)
    assert (found["copy", "mean_gap"], found["copy", "tow"]) == (0, 1)
    assert found["copy", "kl_forgotten"] == pytest.approx(0, abs=1e-15)


def test_identical_models_are_half_way_and_flagged():
    models = {name: model(1) for name in ("original", "erased", "retrained")}
    for case, key in ((CASES["classes"], "delta"), (CASES["attributes"], "gamma")):
        found = evaluate(models, case.splits)
        assert found["erased", key] == 0.5
        assert found["erased", "distance"] == 0.5
        flag = "of original, erased: no difference to either model: 0/0 counts as 0.5."
        assert f"{key} {flag}" in found.flags
        assert f"distance {flag}" in found.flags


def test_names_of_your_own():
    models = family(2)
    found = evaluate(
        {"before": models["original"], "after": models["erased"], "again": models["retrained"]},
        CASES["classes"].splits,
        original="before",
        retrained="again",
    )
    expected = evaluate(models, CASES["classes"].splits)
    renamed = {"before": "original", "after": "erased", "again": "retrained", "floor": "floor"}
    assert {
        f"{renamed[key.split(', ')[0]]}, {key.split(', ')[1]}": value for key, value in values_of(found).items()
    } == values_of(expected)


# ── what is left out ──────────────────────────────────────────────────────────────────────────────────────────────


def test_without_retrained_models():
    models = family()
    del models["retrained"]
    found = evaluate(models, CASES["classes"].splits)
    assert list(found.cells) == [f"accuracy_{split}" for split in SIZES] + ["attack", "member_rate"]
    assert (
        found.flags[-1] == "No model is called 'retrained' (retrained=), so that all comparisons with it are left out."
    )
    assert str(found)
    assert isinstance(found.figure(), Figure)


def test_without_the_original():
    models = family(2)
    del models["original"]
    found = evaluate(models, CASES["classes"].splits)
    expected = evaluate(family(2), CASES["classes"].splits)
    assert list(found.cells) == [key for key in expected.cells if key not in ("delta", "distance")]
    assert found["erased", "kl_forgotten"] == expected["erased", "kl_forgotten"]
    assert any("'original'" in flag for flag in found.flags)


def test_with_retrained_models_alone():
    found = evaluate({"retrained": family(3)["retrained"]}, CASES["attributes"].splits)
    assert found.floors["mean_gap"] > 0
    assert found["retrained", "mean_gap"] is None
    assert str(found)
    assert isinstance(found.figure(), Figure)


def test_with_some_of_the_splits():
    splits, models = CASES["classes"], family(2)
    assert list(evaluate(models, splits.part("forgotten")).cells) == [
        "accuracy_forgotten",
        "mean_gap",
        "kl_forgotten",
        "delta",
        "distance",
    ]
    found = evaluate(models, splits.part("retained", "test_same"))
    assert "attack" not in found.cells
    assert "delta" not in found.cells


def test_half_a_test_set_is_not_the_test_set():
    """ToW and the members' threshold are about all of T; with T_a alone they would be other numbers."""
    for part in ("test_same", "test_other"):
        found = evaluate(family(), CASES["classes"].part("retained", "forgotten", part))
        assert "tow" not in found.cells
        assert "member_rate" not in found.cells
        assert "mean_gap" in found.cells
    assert "attack" in evaluate(family(), CASES["classes"].part("forgotten", "test_same")).cells


def test_tow_where_nothing_is_right_on_the_test_set():
    case = make("classes", WHOLE)
    x, _ = case.data["test"]
    retrained = family()["retrained"]
    case.data["test"] = x, torch.tensor(logits(retrained, x).argmin(1))
    assert evaluate(family(), case.splits)["retrained", "accuracy_test"] == 0
    plain = Plain(family(), case.data, "classes")
    expected = plain.tow(family()["erased"], [retrained])
    assert evaluate(family(), case.splits)["erased", "tow"] == pytest.approx(expected)


def test_gamma_that_is_not_defined_is_left_empty():
    """One sample, or attributes that all of S shares: the other measures are still there."""
    case = make("attributes", {**SIZES, "forgotten": 1})
    found = evaluate(family(2), case.splits)
    assert found["erased", "gamma"] is None
    assert found["erased", "kl_forgotten"] is not None
    assert any(
        flag.startswith("gamma of original, erased, retrained: Every attribute is the same") for flag in found.flags
    )
    assert "gamma" not in found.floors
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["values"]["gamma"]["erased"]["value"] is None


def test_a_model_that_is_constant_on_s_alone():
    case, models = CASES["attributes"], family(2)
    forgotten = case.data["forgotten"][0]

    def collapsed(x: Tensor) -> Tensor:
        return torch.zeros(len(x), OUTPUTS) if torch.equal(x, forgotten) else models["erased"](x)

    found = evaluate({**models, "collapsed": collapsed}, case.splits)
    assert found["collapsed", "gamma"] is None
    assert found["erased", "gamma"] == evaluate(models, case.splits)["erased", "gamma"]
    assert any(flag.startswith("gamma of collapsed: scores: the scores are constant") for flag in found.flags)


def test_other_architectures_have_no_parameter_distance():
    deep = nn.Sequential(nn.Linear(FEATURES, 3), nn.Tanh(), nn.Linear(3, OUTPUTS)).double().eval()
    found = evaluate({"deep": deep, **family(2)}, CASES["classes"].splits)
    assert found["deep", "distance"] is None
    assert found["erased", "distance"] == evaluate(family(2), CASES["classes"].splits)["erased", "distance"]
    assert "distance" not in evaluate({**family(2), "original": deep}, CASES["classes"].splits).cells


class Table(nn.Module):
    """No parameters at all."""

    def __init__(self, seed: int):
        super().__init__()
        self.inner = [model(seed)]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner[0](x)


def test_modules_without_parameters():
    found = evaluate(
        {n: Table(i).eval() for i, n in enumerate(("original", "erased", "retrained"))}, CASES["classes"].splits
    )
    assert "distance" not in found.cells
    assert found["erased", "delta"] is not None


# ── the loss and relearning ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("loss", "task"), [("cross_entropy", "classes"), ("binary_cross_entropy", "attributes")])
def test_the_training_objective(loss, task):
    case, models = CASES[task], family(2, 2)
    found = evaluate(models, case.splits, loss_fn=loss, weight_decay=0.1)
    for name, given in models.items():
        each = [metrics.objective(m, loss, case.splits["retained"], weight_decay=0.1) for m in seeds(given)]
        assert found[name, "objective"] == pytest.approx(np.mean([one.loss for one in each]))
        assert found[name, "gradient_norm"] == pytest.approx(np.mean([one.gradient_norm for one in each]))
    x, y = case.data["retained"]
    first, theta = models["original"], torch.cat([p.detach().reshape(-1) for p in models["original"].parameters()])
    plain = F.cross_entropy(first(x), y) if task == "classes" else _attribute_loss(first(x), y)
    assert found["original", "objective"] == pytest.approx(float(plain.detach() + 0.05 * theta @ theta))


def _attribute_loss(z: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z, y.double(), reduction="sum") / len(z)


def test_the_objective_of_a_loss_of_your_own_and_of_the_head():
    case, models = CASES["classes"], family()
    named = evaluate(models, case.splits, loss_fn="cross_entropy")
    own = evaluate(models, case.splits, loss_fn=F.cross_entropy, parameters="head")
    assert own["erased", "gradient_norm"] == pytest.approx(named["erased", "gradient_norm"])
    weights = evaluate(models, case.splits, loss_fn="cross_entropy", parameters=["weight"])
    assert number(weights, "erased", "gradient_norm") < number(named, "erased", "gradient_norm")


def test_functions_have_no_objective():
    models = family()
    found = evaluate(
        {**models, "erased": lambda x: models["erased"](x)}, CASES["classes"].splits, loss_fn="cross_entropy"
    )
    assert found["erased", "objective"] is None
    assert found["original", "objective"] is not None
    assert "objective" not in evaluate(models, CASES["classes"].part("forgotten"), loss_fn="cross_entropy").cells


def test_relearn_time():
    case, models = CASES["classes"], family(2)
    options = {"learning_rate": 0.5, "max_steps": 400}
    found = evaluate(models, case.splits, loss_fn="cross_entropy", relearn=options)
    target = 1.05 * metrics.objective(models["original"], "cross_entropy", case.splits["forgotten"]).loss
    for name, given in models.items():
        roads = [
            metrics.relearn_time(m, "cross_entropy", case.splits["forgotten"], target=target, **options)
            for m in seeds(given)
        ]
        assert number(found, name, "relearn") * len(roads) == sum(road.steps or 0 for road in roads)
    assert found["original", "relearn"] == 0
    assert number(found, "retrained", "relearn") > 0


def test_relearning_that_takes_too_long_is_not_averaged_away():
    models = family(2)
    models["retrained"][0] = models["original"]  # is there already; the other one does not get there in three steps
    data = {split: (x, models["original"](x).argmax(1)) for split, (x, _) in CASES["classes"].data.items()}
    options = {"learning_rate": 1e-4, "max_steps": 3}
    found = evaluate(models, Case("classes", data).splits, loss_fn="cross_entropy", relearn=options)
    assert found["retrained", "relearn"] is None
    assert found.cells["relearn"]["retrained"].note == "1/2 > 3"
    assert found.cells["relearn"]["erased"].note == "> 3"
    assert "– > 3" in str(found)
    assert found["original", "relearn"] == 0


def test_relearning_to_a_target_of_your_own():
    case, models = CASES["classes"], family()
    start = metrics.objective(models["erased"], "cross_entropy", case.splits["forgotten"]).loss
    del models["original"]
    found = evaluate(models, case.splits, loss_fn="cross_entropy", relearn={"target": start + 1e-9})
    assert found["erased", "relearn"] == 0


@pytest.mark.parametrize("task", CASES)
def test_resurfacing_of_every_module(task):
    case, models = CASES[task], family(2)
    loss = "cross_entropy" if task == "classes" else "binary_cross_entropy"
    options: dict[str, Any] = {"epochs": (0, 2), "learning_rate": 0.1, "batch_size": 8}
    found = evaluate(
        {**models, "function": lambda x: models["erased"](x)}, case.splits, loss_fn=loss, weight_decay=0.1,
        resurfacing=options,
    )  # fmt: skip
    for name, given in models.items():
        runs = [
            metrics.resurfacing(
                m, case.splits["retained"], case.splits["forgotten"], loss, held_out=case.splits["test_same"],
                weight_decay=0.1, progress=False, **options,
            )
            for m in seeds(given)
        ]  # fmt: skip
        for place, epoch in enumerate((0, 2)):
            for key, scale in (("accuracy", 100), ("loss", 1), ("advantage", 1)):
                wanted = sum(scale * getattr(run.moments[place], key) for run in runs) / len(runs)
                assert number(found, name, f"resurfacing_{key}_{epoch}") == pytest.approx(wanted)
        assert number(found, name, "resurfacing_rise") == pytest.approx(sum(r.rise or 0 for r in runs) / len(runs))
        assert found[name, "resurfacing_accuracy_0"] == pytest.approx(found[name, "accuracy_forgotten"])
    assert found["function", "resurfacing_rise"] is None
    assert "after 2 epochs" in str(found)
    assert ssse.Evaluation.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_resurfacing_without_held_out_samples_and_of_functions_alone():
    case, models = CASES["classes"], family()
    found = evaluate(models, case.part("retained", "forgotten"), loss_fn="cross_entropy", resurfacing={"epochs": [0]})
    assert "resurfacing_advantage_0" not in found.cells
    assert "resurfacing_loss_0" in found.cells
    alone = {"function": lambda x: models["erased"](x)}
    found = evaluate(alone, case.splits, loss_fn="cross_entropy", resurfacing=True)
    assert "resurfacing_rise" not in found.cells


# ── many models of a kind ─────────────────────────────────────────────────────────────────────────────────────────


def test_distributions_need_four_models_of_each_kind():
    for retrained, erased, there in ((4, 4, True), (3, 4, False), (4, 3, False)):
        found = evaluate(family(retrained, erased, 1), CASES["classes"].splits)
        assert ("klom" in found.cells) == ("u_lira" in found.cells) == there


def test_klom_and_u_lira_are_those_of_the_margins():
    case, models = CASES["classes"], family(8, 4, 5)
    plain = Plain(models, case.data, "classes")
    found = evaluate(models, case.splits, level=0.1)
    phi = {name: np.stack([plain.phi(m, "forgotten") for m in given]) for name, given in models.items()}
    for name in ("original", "erased"):
        margins = metrics.klom(phi[name][:4], phi["retrained"])
        assert found[name, "klom"] == pytest.approx(margins.mean)
        assert found.floors["klom"] == pytest.approx(margins.floor_mean)  # one floor, for equally many models
        told = metrics.u_lira(phi[name], phi["retrained"], level=0.1)
        assert found[name, "u_lira"] == pytest.approx(100 * told.accuracy)
        assert found.cells["u_lira"][name].note == f"[{100 * told.low:.0f}, {100 * told.high:.0f}]"
        assert told.flags[0].removesuffix(".") in " ".join(flag for flag in found.flags if name in flag)
    half = metrics.u_lira(phi["retrained"][:4], phi["retrained"][4:], level=0.1)
    assert found.floors["u_lira"] == pytest.approx(100 * half.accuracy)
    assert "u_lira" not in evaluate(family(7, 4), case.splits).floors


@pytest.mark.parametrize("key", ["mean_gap", "tow", "kl_forgotten", "kl_retained", "delta", "distance"])
def test_one_of_the_retrained_models_is_at_the_floor(key):
    """Call each of four in turn the erased one: over all turns, its value is the floor that the others have."""
    case, four = CASES["classes"], family(retrained=4)["retrained"]
    values, floors = [], []
    for i, one in enumerate(four):
        rest = [other for other in four if other is not one]
        found = evaluate({"original": family()["original"], "erased": one, "retrained": rest}, case.splits)
        values.append(number(found, "erased", key))
        floors.append(found.floors[key])
        assert i == 0 or key != "mean_gap" or values[0] != values[i]
    assert np.mean(values) == pytest.approx(np.mean(floors), rel=1e-9)


def test_audits_of_other_classes_are_flagged():
    x = torch.randn(60, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % OUTPUTS
    own = y == 0
    whole = evaluate({"original": model(0)}, {"forgotten": [(x[own], y[own])], "test": [(x, y)]})
    assert any("share only 25% of their classes" in flag for flag in whole.flags)
    splits = {"forgotten": [(x[own], y[own])], "test_same": [(x[own] + 1, y[own])]}
    assert not evaluate({"original": model(0)}, splits).flags[1:]
