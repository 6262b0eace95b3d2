"""What the baselines that train do to a network that knows its digits by heart, and how their settings are found."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssse import baselines
from ssse.errors import InvalidData, InvalidSetting
from tests.support import dense, digits, problems
from tests.support.refusals import refused, snapshot
from tests.support.training_loops import DECAY, MOMENTUM, SEED, Loop, places


def digits_problem() -> problems.Sample:
    """A network with BatchNorm that knows its 400 digits by heart."""
    x, y = digits.training_data()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        for some in torch.randperm(len(y), generator=generator).split(50):
            optimiser.zero_grad()
            F.cross_entropy(model(x[some]), y[some]).backward()
            optimiser.step()
    sample = problems.Sample("digits", model.eval(), "cross_entropy", x, y)
    model.zero_grad()
    assert accuracy(model, x, y) > 0.98
    return sample


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return int((model(x).argmax(1) == y).sum()) / len(y)


def test_scrub_rewinds_to_the_epoch_that_knows_s_as_well_as_what_it_never_saw():
    sample, models = digits_problem(), []
    held_out = [(digits.held_out()[0][:200], digits.held_out()[1][:200])]
    options: Any = {"data": sample.data, "epochs": 6, "max_epochs": 4, "learning_rate": 0.01, "batch_size": 100}
    options |= {"forget_batch_size": 10, "progress": False, "temperature": 1.0, "alpha": 0.1}
    arguments = (sample.model, None, sample.loss, sample.part(slice(0, 40)))
    found = baselines.scrub(*arguments, held_out=held_out, after_epoch=lambda _, m: models.append(m), **options)
    errors = [1 - accuracy(model, sample.x[:40], sample.y[:40]) for model in models]
    target = 1 - accuracy(models[-1], *held_out[0])
    apart = [abs(error - target) for error in errors]
    best = max(epoch for epoch in range(6) if apart[epoch] == min(apart))
    assert len(set(errors)) > 1
    assert snapshot(found.model) == snapshot(models[best])
    assert f"rewound to epoch {best + 1} of 6" in found.notes[1]
    assert snapshot(baselines.scrub(*arguments, **options).model) == snapshot(models[-1])
    with refused(InvalidData, "no held-out samples", sample.model):
        baselines.scrub(*arguments, held_out=[], **options)


def test_on_digits_all_of_them_forget_what_fine_tuning_keeps():
    sample = digits_problem()
    inside = sample.y == 3
    part = {"forget": sample.part(inside), "data": sample.data, "batch_size": 50, "progress": False}
    settings: dict[str, dict[str, Any]] = {
        "fine_tuning": {"batch_norm": "train", "epochs": 5},
        "neggrad_plus": {"beta": 0.8},
        "scrub": {"learning_rate": 5e-3, "forget_batch_size": 10, "batch_norm": "eval"},
        "random_labels": {},
        "salun": {},
    }
    right = {}
    for method, options in settings.items():
        model = getattr(baselines, method)(sample.model, None, sample.loss, **part, **options).model
        right[method] = [accuracy(model, sample.x[some], sample.y[some]) for some in (inside, ~inside)]
    assert right["fine_tuning"][0] > 0.9
    for method in ("neggrad_plus", "scrub", "random_labels", "salun"):
        assert right[method][0] < 0.5, right
        assert right[method][1] > 0.8, right


def test_ascent_ends_with_the_step_that_was_enough():
    sample = digits_problem()
    forget, x, y = sample.part(slice(0, 40)), sample.x[:40], sample.y[:40]
    options: Any = {"learning_rate": 2e-3, "batch_size": 16, "seed": SEED, "momentum": MOMENTUM, "progress": False}
    ascend = partial(baselines.gradient_ascent_until, sample.model, None, sample.loss, forget, **options)
    loop, order, seen = Loop(sample, "eval"), places(40, 16), [1.0]
    while seen[-1] > 0.6:
        i = next(order)
        loop.step(-F.cross_entropy(loop.model(x[i]), y[i]), 2e-3)
        seen.append(accuracy(loop.model, x, y))
    found = ascend(stop_accuracy=0.6, weight_decay=DECAY, epochs=200)
    loop.assert_equals(found)
    assert found.notes[0].startswith(f"{len(seen) - 1} steps")
    assert len(seen) > 5
    assert accuracy(found.model, x, y) == seen[-1] <= 0.6 < min(seen[:-1])
    with refused(InvalidSetting, r"After 3 steps .* of S are still right, more than stop_accuracy=0.6", sample.model):
        ascend(stop_accuracy=0.6, epochs=1)


def test_tune_keeps_what_the_judge_likes_best_and_shows_why():
    sample = problems.conv()
    settings: Any = {"data": sample.data, "batch_size": 4, "progress": False}
    forget = sample.part(slice(3, 8))
    method = partial(baselines.neggrad_plus, sample.model, None, sample.loss, forget, **settings)
    length = {}

    def judge(model: nn.Module) -> float:
        length[len(length)] = float((dense.theta(model) - dense.theta(sample.model)).norm())
        return -length[len(length) - 1]

    found = baselines.tune(method, {"learning_rate": [0.01, 0.05, 1e300], "epochs": [1, 2]}, judge)
    assert [one for one, _ in found.values] == [
        {"learning_rate": rate, "epochs": epochs} for rate in (0.01, 0.05, 1e300) for epochs in (1, 2)
    ]
    values = [value for _, value in found.values]
    assert values[:4] == [-length[i] for i in range(4)]
    assert values[4:] == [math.inf, math.inf]
    assert found.value == min(values)
    assert found.settings == found.values[values.index(min(values))][0]
    assert snapshot(found.updated.model) == snapshot(method(**found.settings).model)
    assert baselines.tune(method, [{}], lambda _: 1.0).settings == {}
    for tried, say, match in [
        ([], 1.0, "no settings to try"),
        ([{}], math.nan, "gave NaN for the model with the settings {}"),
        ([{"learning_rate": 1e300}], 1.0, "diverged with all 1 settings"),
        ([{"epochs": 0}], 1.0, "epochs must be at least 1"),
    ]:
        with refused(InvalidSetting, match, sample.model):
            baselines.tune(method, tried, lambda _, say=say: say)
    with pytest.raises(TypeError, match="lr"):
        baselines.tune(method, [{"lr": 1}], lambda _: 1.0)
