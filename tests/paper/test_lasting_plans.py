"""Every plan of the study, trained in lanes, against the library's own function, in float64 and with BatchNorm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ssse
from ssse import baselines
from ssse.baselines.salun import salient
from ssse.calibration.lengths import DAMPINGS
from ssse.errors import Diverged
from ssse.metrics import resurfacing
from ssse.paper.lasting import methods, plans
from ssse.paper.lasting.case import Case
from ssse.paper.lasting.lanes import Plan, train_lanes
from ssse.paper.lasting.networks import LOSS, Form, Ground, Twins
from ssse.paper.settings import Settings
from ssse.paper.study import Removal
from ssse.paper.training import Recipe
from ssse.problem.short_training import Trainee
from tests.support.refusals import snapshot

CLASSES, SIZE, N = 4, 16, 96  # complete batches alone: 16 divides what stays and what goes
RECIPE = Recipe(epochs=30, batch=SIZE, rate=0.1, widths=(4, 8), blocks=1, autocast=False)  # repaired in 3 epochs
FORM = Form("tiny", RECIPE, None, 24, 1, (0.5,), 0.1, 1, lengths=(0.1, 0.2, 0.3))


def images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Of classes that can be told apart, most of the time."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=generator)
    x = torch.randn(n, 1, 6, 6, generator=generator, dtype=torch.float64)
    return x + 0.7 * y[:, None, None, None], y


def original(x: Tensor, y: Tensor) -> nn.Module:
    """A few steps from its beginning, so that its statistics are of the data and no gradient is zero."""
    torch.manual_seed(0)
    model = RECIPE.network(CLASSES, 1).double().train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(12):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    model.zero_grad(set_to_none=True)
    return model.eval()


def a_case(gone: int = 2 * SIZE, form: Form = FORM) -> Case:
    (x, y), (held_x, held_y), (test_x, test_y) = images(N, 0), images(24, 1), images(24, 2)
    forget = torch.randperm(N, generator=torch.Generator().manual_seed(5))[:gone].sort().values
    stays = torch.ones(N, dtype=torch.bool)
    stays[forget] = False
    removal = Removal("the data at random", 0, 0.5, forget, stays.nonzero()[:, 0], torch.ones(24, dtype=torch.bool))
    names = tuple(f"class {k}" for k in range(CLASSES))
    settings = Settings(device="cpu", show_progress=False)
    ground = Ground(form, settings, x, y, held_x, held_y, test_x, test_y, names, "", "", (removal,))
    model = original(x, y)
    return Case(ground, Twins(0, model, {removal.words: model}, 1.0, (x[:8], y[:8])), removal)


def lane(case: Case, plan: Plan) -> nn.Module:
    (model,) = train_lanes(case.ground.x, [case.original], [plan], progress=False)
    assert model is not None
    return model


def assert_same(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-6) -> None:
    """Parameters and buffers, relative to the largest entry of each."""
    wanted = theirs.state_dict()
    assert list(ours.state_dict()) == list(wanted)
    for name, value in ours.state_dict().items():
        scale = max(float(wanted[name].abs().max()), 1.0)
        torch.testing.assert_close(
            value, wanted[name], rtol=0, atol=tolerance * scale, msg=lambda m, name=name: f"{name}: {m}"
        )
    assert not any(module.training for module in ours.modules())


def moved(case: Case, model: nn.Module) -> float:
    pairs = zip(model.parameters(), case.original.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def retained(case: Case) -> list[tuple[Tensor, Tensor]]:
    keep = case.removal.keep
    return [(case.ground.x[keep], case.ground.y[keep])]


def library(case: Case, name: str, settings: Mapping[str, Any]) -> nn.Module:
    """The baseline of that name, as the study means it."""
    return getattr(baselines, name)(
        case.original,
        None,
        LOSS,
        case.forget,
        data=[(case.ground.x, case.ground.y)],
        epochs=case.repairing.epochs,
        batch_size=RECIPE.batch,
        weight_decay=RECIPE.decay,
        seed=0,
        progress=False,
        **settings,
    ).model


def test_the_repair_is_the_librarys():
    case = a_case()
    before = snapshot(case.original)
    training, ours = case.repairing, lane(case, plans.repair_plan(case))
    assert (training.epochs, training.steps(len(case.removal.keep))) == (3, 12)
    trainee = Trainee.of(case.original, LOSS, retained(case))
    trainee.train(training, seed=0, progress=False)
    assert_same(ours, trainee.problem.model, 1e-10)
    assert moved(case, ours) > 1e-3
    whole = ssse.Training(RECIPE.epochs, RECIPE.rate, RECIPE.batch, RECIPE.decay, RECIPE.momentum)
    repaired = ssse.repair(
        case.original, retained(case), LOSS, forget=case.forget, training=whole, seed=0, progress=False
    )
    assert repaired.training == training
    assert_same(case.finished(ours), repaired.model, 1e-10)
    assert snapshot(case.original) == before


def test_what_comes_back_is_looked_at_as_the_library_does():
    case = a_case()
    training = case.harmless
    assert training == replace(case.repairing, learning_rate=case.repairing.learning_rate / 2)
    (found,) = methods.resurfaced([case], [case.original], always=True)
    held_out = [(case.ground.held_x, case.ground.held_y)]
    wanted = resurfacing(
        case.original,
        retained(case),
        case.forget,
        LOSS,
        held_out=held_out,
        learning_rate=training.learning_rate,
        batch_size=training.batch_size,
        weight_decay=training.weight_decay,
        momentum=training.momentum,
        progress=False,
    )
    assert [one["epoch"] for one in found["moments"]] == [0, 1, 3, 8] == list(wanted.epochs)
    for ours, theirs in zip(found["moments"], wanted.moments, strict=True):
        assert theirs.accuracy is not None
        assert ours["accuracy"] == pytest.approx(100 * theirs.accuracy)
        assert ours["loss"] == pytest.approx(theirs.loss, rel=1e-9)
        assert ours["auc"] == pytest.approx(theirs.auc)
    longer = lane(case, plans.cycle_plan(case, case.repairing, 8))
    trainee = Trainee.of(case.original, LOSS, retained(case))
    trainee.train(replace(case.repairing, epochs=8), progress=False)
    assert_same(longer, trainee.problem.model, 1e-9)
    (pressed,) = methods.pressed([case], [case.original])
    before, after = pressed["pressed"]
    assert before == found["moments"][0]
    assert after == case.moment(longer, 8)


@pytest.mark.parametrize("gone", [2 * SIZE, SIZE])
def test_neggrad_plus(gone):
    case, settings = a_case(gone), {"learning_rate": 0.02, "beta": 0.9}
    ours = lane(case, plans.neggrad_plus_plan(case, settings))
    assert_same(ours, library(case, "neggrad_plus", settings))
    assert moved(case, ours) > 1e-3


def test_neggrad_plus_with_fewer_samples_than_a_batch_has_all_of_them_in_each():
    """Eight of S beside sixteen others, in every step: S counts as much as with many."""
    case = a_case(8)
    settings: Any = {"learning_rate": 0.02, "beta": 0.9}
    case = replace(case, removal=replace(case.removal, keep=case.removal.keep[:80]))
    plan = plans.neggrad_plus_plan(case, settings)
    assert plan.places.shape == (15, 24)
    keep = torch.cat([case.removal.keep, case.removal.forget])  # the library has S and what stays, and nothing else
    found = baselines.neggrad_plus(
        case.original,
        None,
        LOSS,
        case.forget,
        data=[(case.ground.x[keep], case.ground.y[keep])],
        epochs=3,
        batch_size=SIZE,
        weight_decay=RECIPE.decay,
        progress=False,
        **settings,
    )
    assert_same(lane(case, plan), found.model)


@pytest.mark.parametrize("settings", [{"learning_rate": 0.02}, {"learning_rate": 0.05, "max_epochs": 2}], ids=str)
@pytest.mark.parametrize("gone", [2 * SIZE, SIZE])
def test_scrub(gone, settings):
    """The teacher, both losses, their order, and the fall of the rate."""
    case = a_case(gone)
    plan = plans.scrub_plan(case, settings)
    most = settings.get("max_epochs", 3)
    assert plan.steps == 3 * (N - gone) // SIZE + most * gone // SIZE
    ours = lane(case, plan)
    assert_same(ours, library(case, "scrub", settings))
    assert moved(case, ours) > 1e-3


def test_random_labels():
    case, settings = a_case(), {"learning_rate": 0.02}
    plan = plans.random_labels_plan(case, settings)
    gone, keep = case.removal.forget, case.removal.keep
    assert bool((plan.labels[gone] != case.ground.y[gone]).all())
    assert torch.equal(plan.labels[keep], case.ground.y[keep])
    ours = lane(case, plan)
    assert_same(ours, library(case, "random_labels", settings))
    assert moved(case, ours) > 1e-3


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_salun(share):
    """Half of θ by default; what is not salient stays bit by bit, weight decay or not."""
    case, settings = a_case(), {"learning_rate": 0.02} | ({} if share == 0.5 else {"share": share})
    plan = plans.salun_plan(case, settings)
    ours = lane(case, plan)
    assert_same(ours, library(case, "salun", settings))
    mask = salient(case.twins.problem, [*case.forget], share)
    sizes = [p.numel() for p in case.original.parameters()]
    assert int(mask.sum()) == round(share * sum(sizes))
    for after, before, may in zip(ours.parameters(), case.original.parameters(), mask.split(sizes), strict=True):
        stays = may.view_as(after) == 0
        assert torch.equal(after[stays], before[stays])
    assert moved(case, ours) > 1e-3


def test_ours_is_what_erase_and_repair_does():
    """The same trials, and the same step of them; the study repairs all at once and walks through them."""
    case = a_case()
    data, whole = [(case.ground.x, case.ground.y)], ssse.Training(30, RECIPE.rate, SIZE, RECIPE.decay)
    curvature = ssse.Curvature.fit(
        case.original, LOSS, data, weight_decay=RECIPE.decay, damping=0.01, rows="margin", structure="lowrank",
        progress=False,
    )  # fmt: skip
    directions = {
        methods.pushed(case.words, times): ssse.erase(
            case.original, curvature.with_damping(times * 0.01), LOSS, case.forget, scale=1.0, push=0.0,
            override=ssse.BOUNDS, progress=False,
        ).direction
        for times in DAMPINGS
    }  # fmt: skip
    (ours,) = methods.lasting([case], directions, follow=False)
    theirs = ssse.erase_and_repair(
        case.original, curvature, LOSS, case.forget, retained=retained(case), held_out=case.held_out, training=whole,
        lengths=FORM.lengths, progress=False,
    )  # fmt: skip
    assert ours["length"] == theirs.length
    assert ours["damping"] / RECIPE.decay == pytest.approx(theirs.damping / 0.01)
    assert [one["length"] for one in ours["trials"]] == [one.length for one in theirs.trials]
    assert [one["shortfall"] for one in ours["trials"]] == pytest.approx([100 * one.shortfall for one in theirs.trials])
    assert len(ours["along"]) == 1 + case.repairing.epochs
    step = theirs.damping, theirs.length
    chosen = next(trial for trial in theirs.trials if (trial.damping, trial.length) == step)
    assert ours["along"][0] == pytest.approx(100 * chosen.before_repair.forgotten)
    assert ours["repaired"]["accuracy"]["forgotten"] == pytest.approx(100 * chosen.seen.forgotten)


def test_looks_come_after_their_steps_and_change_nothing():
    case = a_case()
    plan = plans.repair_plan(case)
    assert plan.looks == (4, 8, 12)
    looked: list[tuple[int, int, bool, int]] = []

    def look(place: int, steps: int, model: nn.Module) -> None:
        looked.append((place, steps, model.training, int(model.state_dict()["bn.num_batches_tracked"])))
        model(case.ground.x)

    begun = int(case.original.state_dict()["bn.num_batches_tracked"])
    both = [plan, replace(plan, looks=(1,))]
    models = train_lanes(case.ground.x, [case.original] * 2, both, look=look, progress=False)
    assert looked == [(0, s, False, begun + s) for s in (4, 8, 12)] + [(1, 1, False, begun + 1)]
    for model in models:
        assert model is not None
        assert_same(model, lane(case, plan), 0)


def test_each_lane_begins_from_its_own_network():
    case = a_case()
    other = original(*images(N, 3))
    plan = plans.repair_plan(case)
    found = train_lanes(case.ground.x, [case.original, other], [plan, plan], progress=False)
    (alone,) = train_lanes(case.ground.x, [other], [plan], progress=False)
    assert found[0] is not None
    assert found[1] is not None
    assert alone is not None
    assert_same(found[1], alone, 0)
    assert_same(found[0], lane(case, plan), 0)
    assert all(p.requires_grad and p.grad is None for p in found[0].parameters())


def test_a_callers_no_grad_does_not_matter():
    case = a_case()
    plan = plans.repair_plan(case)
    with torch.no_grad():
        ours = lane(case, plan)
    assert_same(ours, lane(case, plan), 0)


def test_a_lane_that_diverges():
    case = a_case()
    good = plans.repair_plan(case)
    wild = replace(good, cycle=torch.full_like(good.cycle, 1e200))
    before = snapshot(case.original)
    found = train_lanes(case.ground.x, [case.original] * 3, [good, wild, good], keep=True, progress=False)
    assert [model is None for model in found] == [False, True, False]
    with pytest.raises(Diverged, match="Training 1 diverged"):
        train_lanes(case.ground.x, [case.original] * 2, [good, wild], progress=False)
    assert snapshot(case.original) == before


def test_a_diverged_setting_of_an_opponent_is_never_the_best_of_its_grid():
    case = a_case()
    opponent = plans.Opponent(
        "wild", "wild", plans.random_labels_plan, ({"learning_rate": 1e200}, {"learning_rate": 0.02})
    )
    (found,) = methods.tuned([case], opponent)
    assert (found["alone"], found["repaired"]) == (1, 1)
    assert found["gaps"][0][0] == found["gaps"][1][0] == float("inf")
    (answer,) = methods.answered([case], opponent, [{"alone": 0, "repaired": 1}])
    assert "alone" not in answer
    assert "repaired" in answer


def test_what_an_opponent_was_tuned_on_it_has_answered():
    """The same as if it were trained again with the settings that were chosen."""
    case, other = a_case(), a_case(SIZE)
    opponent = plans.Opponent(
        "some", "some", plans.random_labels_plan, ({"learning_rate": 0.02}, {"learning_rate": 0.1})
    )
    (found,) = methods.tuned([case], opponent)
    bare = {key: value for key, value in found.items() if key != "answer"}
    again = methods.answered([case, other], opponent, [bare, bare])
    assert methods.answered([case], opponent, [found]) == [found["answer"]]
    mixed = methods.answered([other, case], opponent, [bare, found])
    assert mixed[1] is found["answer"]
    for one, trained in zip((found["answer"], mixed[0]), again, strict=True):
        assert one.keys() == trained.keys()
        for way in ("alone", "repaired"):
            assert one[way]["gap"] == pytest.approx(trained[way]["gap"])
            assert one[way]["phi"] == pytest.approx(trained[way]["phi"], abs=0.01)
        assert one["along"] == pytest.approx(trained["along"])
    for way, gaps in zip(("alone", "repaired"), found["gaps"], strict=True):
        assert found["answer"][way]["gap"] == min(gaps) == gaps[found[way]]


# What the plans do not do as the library. No form of the study meets the first two; the last, the digits alone.


@pytest.mark.parametrize("name", ["neggrad_plus", "random_labels"])
def test_fewer_samples_than_a_batch(name):
    case = a_case(form=replace(FORM, recipe=replace(RECIPE, batch=128)))
    settings = {"learning_rate": 0.02} | ({"beta": 0.9} if name == "neggrad_plus" else {})
    ours = lane(case, getattr(plans, f"{name}_plan")(case, settings))
    options: Any = {"data": [(case.ground.x, case.ground.y)], "epochs": 3, "batch_size": 128, "progress": False}
    theirs = getattr(baselines, name)(
        case.original, None, LOSS, case.forget, weight_decay=RECIPE.decay, **options, **settings
    )
    assert_same(ours, theirs.model)


def test_a_repair_of_one_step():
    case = a_case(form=replace(FORM, recipe=replace(RECIPE, batch=64, epochs=1)))
    trainee = Trainee.of(case.original, LOSS, retained(case))
    trainee.train(case.repairing, progress=False)
    assert_same(lane(case, plans.repair_plan(case)), trainee.problem.model)
