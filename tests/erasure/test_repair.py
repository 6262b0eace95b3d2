"""A repair heals what a step hurt, on a copy, on what stays and nothing else."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.erasure.repair import EPOCH_SHARE, LARGEST_RATE_SHARE, RATE_SHARE, RATE_STEPS
from ssse.errors import Diverged, InvalidData, InvalidModel, InvalidSetting, ModelMismatch
from tests.erasure.test_interruption import everywhere
from tests.problem.test_short_training import by_hand
from tests.problem.test_wrappers import every_wrapper
from tests.support import digit_networks as networks
from tests.support import problems
from tests.support.refusals import refused, snapshot
from tests.support.sequences import language_model, sequences

QUIET: dict[str, Any] = {"progress": False}


def ruined(by: float = 1.0) -> nn.Sequential:
    """The original after a long step that is of no use to anybody."""
    model = copy.deepcopy(networks.original())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            step = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += by * step * parameter.norm() / step.norm()
    return model


def repaired(model: nn.Module, **options) -> ssse.Repair:
    options = {"forget": networks.part(networks.forgotten()), "training": networks.TRAINING, **QUIET, **options}
    return ssse.repair(model, networks.part(networks.retained()), "cross_entropy", **options)


def test_it_heals_and_says_so():
    model, test = ruined(), networks.held_out(same=False)
    before, accuracy = snapshot(model), networks.accuracy(model, test)
    found = repaired(
        model, epochs=5, learning_rate=0.1, original=networks.original(), probe=networks.part(test),
        held_out=networks.part(networks.held_out()),
    )  # fmt: skip
    assert accuracy < 0.7
    assert networks.accuracy(found.model, test) > 0.9
    assert (found.epochs, found.learning_rate, found.steps) == (5, 0.1, 5 * (len(networks.retained()) // 64))
    assert (found.samples, found.forgotten) == (len(networks.retained()), len(networks.forgotten()))
    assert [point.epoch for point in found.curve] == [0, 1, 2, 3, 4, 5]
    first, last = found.curve[0], found.curve[-1]
    assert first.accuracies["probe"] == accuracy
    assert last.accuracies["probe"] == networks.accuracy(found.model, test)
    assert last.accuracies["forget"] == networks.accuracy(found.model, networks.forgotten())
    assert last.accuracies["retained"] == networks.accuracy(found.model, networks.retained())
    assert found.original is not None
    assert found.original["accuracy"] == networks.accuracy(networks.original(), networks.retained())
    assert not any(module.training for module in found.model.modules())
    assert snapshot(model) == before
    assert json.loads(json.dumps(found.to_dict()))["curve"][5]["accuracies"]["probe"] == last.accuracies["probe"]
    for word in ("5 epochs over", "verdict:", "S: loss", "held-out: loss", "probe: loss", "D∖S: loss"):
        assert word in str(found)


def test_a_repair_that_does_not_heal_is_not_vouched_for():
    found = repaired(ruined(), epochs=1, learning_rate=1e-9, original=networks.original())
    assert found.verdict == "caution"
    assert "has not healed the model" in found.reasons[0]


def test_fine_tuning_alone_leaves_what_is_remembered():
    """Labels of S that nothing but memory can tell: of the model that learnt them nothing is gone after a repair."""
    x, y = networks.digits()
    wrong = torch.cat([(y[:20] + 5) % 10, y[20:100], (y[100:200] + 5) % 10])
    model = networks.network().train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[:100]), wrong[:100]).backward()
        optimiser.step()
    found = ssse.repair(
        model.eval(), [(x[20:100], wrong[20:100])], "cross_entropy", forget=[(x[:20], wrong[:20])],
        held_out=[(x[100:200], wrong[100:])], epochs=1, learning_rate=1e-4, batch_size=40, **QUIET,
    )  # fmt: skip
    assert found.curve[-1].accuracies["forget"] > 0.9
    assert any("S is still remembered" in reason for reason in found.reasons)


def test_it_is_the_plain_loop_and_then_the_statistics_of_all_samples():
    sample = problems.conv()
    training = ssse.Training(epochs=2, learning_rate=0.05, batch_size=5, weight_decay=1e-2)
    found = ssse.repair(
        sample.model, sample.data, sample.loss, forget=None, seed=7, epochs=2, learning_rate=0.05, batch_size=5,
        weight_decay=1e-2, **QUIET,
    )  # fmt: skip
    wanted = by_hand(sample.model, sample.x, sample.y, training)
    for name, value in wanted.named_parameters():
        assert torch.allclose(dict(found.model.named_parameters())[name], value, rtol=1e-6), name
    wanted = ssse.recalibrate(wanted, [sample.x], **QUIET)
    assert torch.allclose(
        found.model.get_buffer("norm.running_mean"), wanted.get_buffer("norm.running_mean"), rtol=1e-9
    )
    assert torch.allclose(found.model.get_buffer("norm.running_var"), wanted.get_buffer("norm.running_var"), rtol=1e-9)


@pytest.mark.parametrize("epochs", [1, 10, 14, 40, 100])
def test_by_default_it_is_a_small_share_of_the_training(epochs):
    whole = replace(networks.TRAINING, epochs=epochs)
    found = repaired(networks.original(), training=replace(whole, learning_rate=1e-3))
    assert found.training is not None
    assert found.epochs == max(1, int(EPOCH_SHARE * epochs + 1e-9))
    assert found.epochs == 1 or found.epochs <= 0.1 * epochs
    few = RATE_STEPS / (found.training.epochs * (len(networks.retained()) // whole.batch_size))
    assert found.learning_rate == pytest.approx(1e-3 * min(max(RATE_SHARE, RATE_SHARE * few), LARGEST_RATE_SHARE))
    assert (found.training.batch_size, found.training.weight_decay) == (whole.batch_size, whole.weight_decay)


def test_forgotten_samples_among_the_retained_ones_are_refused_with_their_number():
    x, y = networks.digits()
    forget, model = networks.forgotten(), networks.original()
    data = torch.cat([networks.retained(), forget[:3]])
    with refused(InvalidData, "^3 of the retained samples are forgotten ones", model):
        ssse.repair(model, networks.part(data), "cross_entropy", forget=networks.part(forget), **QUIET)
    weighted = [(x[data], y[data], torch.ones(len(data)))]
    with refused(InvalidData, "^3 of the retained samples", model):  # a weight makes no other sample of it
        ssse.repair(model, weighted, "cross_entropy", forget=networks.part(forget), **QUIET)
    data = torch.cat([networks.retained(), forget[:1]])
    with refused(InvalidData, "^1 of the retained samples is a forgotten one", model):
        ssse.repair(model, networks.part(data), "cross_entropy", forget=networks.part(forget), **QUIET)


def test_another_label_is_another_sample():
    x, y = networks.digits()
    forget = networks.forgotten()
    relabelled = [*networks.part(networks.retained()), (x[forget], (y[forget] + 1) % 10)]
    found = ssse.repair(
        networks.original(), relabelled, "cross_entropy", forget=networks.part(forget), epochs=1,
        learning_rate=1e-3, **QUIET,
    )  # fmt: skip
    assert found.samples == networks.TRAINED


def test_forget_has_to_be_said_and_none_is_noted():
    with pytest.raises(TypeError, match="forget"):
        ssse.repair(networks.original(), networks.part(networks.retained()), "cross_entropy")  # pyright: ignore[reportCallIssue]
    found = repaired(networks.original(), forget=None)
    assert any("it was not checked" in note for note in found.notes)
    assert found.forgotten is None


def test_the_curvature_from_before_does_not_belong_to_it():
    sample = problems.conv()
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=1e-2, **QUIET)
    found = ssse.repair(sample.model, sample.part(slice(2, 16)), sample.loss, forget=sample.part(slice(0, 2)), **QUIET)
    assert any("another θ" in note for note in found.notes)
    with pytest.raises(ModelMismatch):
        ssse.erase(found.model, curvature, sample.loss, sample.part(slice(0, 2)))


def test_interrupted_it_leaves_the_model_as_it_was():
    sample = problems.conv()
    before, state = snapshot(sample.model), torch.get_rng_state()

    def call() -> None:
        ssse.repair(sample.model, sample.part(slice(2, 16)), sample.loss, forget=sample.part(slice(0, 2)), **QUIET)

    for at in everywhere(call, 40):
        assert snapshot(sample.model) == before, at
        assert torch.equal(torch.get_rng_state(), state), at


def test_what_it_will_cost_is_said_before_it_begins(monkeypatch):
    sample, told = problems.conv(), []
    monkeypatch.setattr("ssse.erasure.repair.say", lambda text, show: told.append((text, show)))
    ssse.repair(sample.model, sample.data, sample.loss, forget=None, epochs=2, learning_rate=0.05, batch_size=5)
    assert told == [("repair: 2 epochs over 16 samples, 6 steps of 5, largest rate 0.05", True)]


def test_a_linear_model_is_told_of_refining():
    sample = problems.linear("cross_entropy")
    found = ssse.repair(sample.model, sample.data, sample.loss, forget=None, **QUIET)
    assert any("ssse.refine" in note for note in found.notes)


def test_a_rate_that_is_too_large():
    sample = problems.mlp("mse")
    with refused(Diverged, "The repair diverged.*nothing was changed", sample.model):
        ssse.repair(sample.model, sample.data, sample.loss, forget=None, epochs=30, learning_rate=1e6, **QUIET)


def test_frozen_parameters_stay():
    sample = problems.conv()
    sample.model.get_submodule("conv").requires_grad_(False)
    found = ssse.repair(sample.model, sample.data, sample.loss, forget=None, **QUIET).model
    assert torch.equal(found.get_parameter("conv.weight"), sample.model.get_parameter("conv.weight"))
    assert not found.get_parameter("conv.weight").requires_grad
    assert not torch.equal(found.get_parameter("head.weight"), sample.model.get_parameter("head.weight"))
    assert found.get_parameter("head.weight").requires_grad
    assert all(parameter.grad is None for parameter in found.parameters())


def layered(dtype: torch.dtype = torch.float64) -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).to(dtype).eval()
    return model, torch.randn(30, 4, dtype=dtype), torch.randint(3, (30,))


@every_wrapper
def test_wrapped_as_the_one_inside(wrap):
    model, x, y = layered()
    wanted = ssse.repair(model, [(x, y)], "cross_entropy", forget=None, batch_size=8, **QUIET).model
    given = wrap(copy.deepcopy(model))
    before = snapshot(given)
    found = ssse.repair(given, [(x, y)], "cross_entropy", forget=None, batch_size=8, **QUIET).model
    assert type(found) is type(given)
    assert snapshot(given) == before
    for one, other in zip(found.state_dict().values(), wanted.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(found(x), wanted(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision(dtype):
    model, x, y = layered(torch.float32)
    half = copy.deepcopy(model).to(dtype)
    wanted = ssse.repair(copy.deepcopy(half).float(), [(x, y)], "cross_entropy", forget=None, batch_size=8, **QUIET)
    found = ssse.repair(half, [(x, y)], "cross_entropy", forget=None, batch_size=8, **QUIET)
    assert {value.dtype for value in found.model.parameters()} == {dtype}
    for one, other in zip(found.model.parameters(), wanted.model.parameters(), strict=True):
        assert torch.equal(one, other.to(dtype))


def test_sequences_in_mappings():
    batch = sequences()
    kept, gone = ({key: value[part] for key, value in batch.items()} for part in (slice(3, 12), slice(0, 3)))
    found = ssse.repair(language_model(), [kept], "causal_lm", forget=[gone], epochs=3, learning_rate=0.1,
                        batch_size=4, **QUIET)  # fmt: skip
    assert found.curve[-1].losses["retained"] < found.curve[0].losses["forget"]
    with pytest.raises(InvalidData, match="3 of the retained"):
        ssse.repair(language_model(), [batch], "causal_lm", forget=[gone], **QUIET)


def own_training(model: nn.Module, batches: list) -> nn.Module:
    assert model.training
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(5):
        for x, y in batches:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    return model


def test_a_training_of_the_users_own():
    model = ruined(0.3)
    before = snapshot(model)
    found = repaired(model, training=None, train=own_training)
    assert snapshot(model) == before
    assert (found.epochs, found.steps, found.training) == (None, None, None)
    assert [point.epoch for point in found.curve] == [0, None]
    assert networks.accuracy(found.model, networks.retained()) > networks.accuracy(model, networks.retained())
    assert not found.model.training
    (x, _), norm = networks.part(networks.retained())[0], found.model.get_submodule("1")
    parts = [found.model.get_submodule("0")(part) for part in x.tensor_split(2)]
    assert torch.allclose(norm.get_buffer("running_mean"), found.model.get_submodule("0")(x).mean(0), rtol=1e-9)
    assert torch.allclose(
        norm.get_buffer("running_var"), torch.stack([part.var(0) for part in parts]).mean(0), rtol=1e-2
    )


def spoilt(model: nn.Module, _: list) -> nn.Module:
    nn.init.constant_(model.get_parameter("0.weight"), float("nan"))
    return model


def test_trainings_of_the_users_own_that_are_none():
    model = networks.original()
    for train, error, match in (
        (lambda m, _: None, InvalidModel, "must return the trained nn.Module"),
        (lambda m, _: model, InvalidModel, "the very model that was passed in"),
        (lambda m, _: nn.Linear(64, 10), ModelMismatch, "same architecture"),
        (spoilt, InvalidModel, "NaN or infinity"),
    ):
        with refused(error, match, model):
            repaired(model, training=None, train=train)
    with refused(InvalidSetting, "leave epochs= out", model):
        repaired(model, training=None, train=own_training, epochs=3)
    with refused(InvalidSetting, "leave training= out", model):
        repaired(model, train=own_training)


def test_what_cannot_be():
    model = networks.original()
    with refused(InvalidData, "The retained data is empty", model):
        ssse.repair(model, [], "cross_entropy", forget=None)
    with refused(InvalidData, "There are no samples to forget", model):
        repaired(model, forget=[])
    with refused(InvalidSetting, "training must be an ssse.Training", model):
        repaired(model, training=3)
    with refused(InvalidSetting, "epochs must be a whole number", model):
        repaired(model, epochs=0)
    training = copy.deepcopy(model).train()
    with refused(InvalidModel, "Call model.eval\\(\\) first", training):
        repaired(training)
