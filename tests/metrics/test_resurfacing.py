"""What is hidden comes back along a harmless training, and what was never learnt does not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import nn

from ssse.errors import InvalidData, InvalidSetting
from ssse.metrics import Resurfacing, resurfacing, threshold_attack
from ssse.metrics.looks import look
from ssse.metrics.scores import confidences
from ssse.problem.short_training import Trainee, Training
from tests.support import digit_networks as networks
from tests.support import problems
from tests.support.refusals import refused, snapshot
from tests.support.sequences import language_model, sequences

OPTIONS: dict[str, Any] = {"learning_rate": 0.05, "batch_size": 64, "weight_decay": networks.DECAY, "progress": False}


def hidden() -> nn.Sequential:
    """The original with its forgotten class never answered: all of its memory is still there."""
    model = copy.deepcopy(networks.original())
    with torch.no_grad():
        model.get_parameter("6.bias")[networks.GONE] -= 20
    return model


def followed(model: nn.Module, **options) -> Resurfacing:
    retained, forget = networks.part(networks.retained()), networks.part(networks.forgotten())
    return resurfacing(model, retained, forget, "cross_entropy", **{**OPTIONS, **options})


def test_what_is_hidden_comes_back_beside_a_retrained_model():
    model, held_out = hidden(), networks.part(networks.held_out())
    before, other = snapshot(model), snapshot(networks.retrained())
    found = followed(model, held_out=held_out, retrained=networks.retrained())
    assert found.epochs == (0, 1, 3, 8)
    assert found.moments[0].accuracy == 0
    assert found.rise is not None
    assert found.rise > 50
    assert found.retrained_rise is not None
    assert abs(found.retrained_rise) < 20
    assert snapshot(model) == before
    assert snapshot(networks.retrained()) == other
    text = str(found)
    assert f"changes by {found.rise:+.1f} points" in text
    assert len([line for line in text.splitlines() if line.strip()[0].isdigit()]) == 4
    record = json.loads(json.dumps(found.to_dict()))
    assert record["rise"] == found.rise
    assert [moment["epoch"] for moment in record["moments"]] == [0, 1, 3, 8]
    assert record["training"]["epochs"] == 8


def test_the_attack_is_the_packages_own():
    held_out = networks.part(networks.held_out())
    found = followed(networks.original(), held_out=held_out, epochs=(0,))
    outputs = {}
    for name, ((x, y),) in {"s": networks.part(networks.forgotten()), "t": held_out}.items():
        outputs[name] = confidences(networks.original()(x).detach(), y)
    attack = threshold_attack(outputs["s"], outputs["t"])
    (moment,) = found.moments
    assert moment.auc == pytest.approx(attack.auc)
    assert moment.advantage == pytest.approx(attack.advantage)
    assert moment.accuracy == networks.accuracy(networks.original(), networks.forgotten())
    assert moment.held_out_accuracy == networks.accuracy(networks.original(), networks.held_out())
    assert found.rise == 0


def test_one_training_measured_on_the_way():
    """After its last epoch it is the model that a training of as many epochs gives."""
    found = followed(hidden(), epochs=(2, 0, 3))
    trainee = Trainee.of(hidden(), "cross_entropy", networks.part(networks.retained()))
    trainee.train(Training(3, 0.05, 64, networks.DECAY), progress=False)
    last = look(trainee.problem, trainee.read(networks.part(networks.forgotten()), "S"))
    assert found.epochs == (0, 2, 3)
    assert found.moments[-1].loss == last.loss
    assert found.moments[-1].auc is None
    assert found.moments[-1] == followed(hidden(), epochs=(3,)).moments[0]


def test_sequences_and_losses_without_a_right():
    batch = sequences()
    kept, gone = ({key: value[part] for key, value in batch.items()} for part in (slice(3, 12), slice(0, 3)))
    model = language_model()
    found = resurfacing(model, [kept], [gone], "causal_lm", held_out=[gone], epochs=(0, 1), **OPTIONS)
    labels = nn.functional.pad(gone["labels"][:, 1:], (0, 1), value=-100)
    scores = model(gone["input_ids"], gone["attention_mask"]).detach()
    wanted = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=-100)
    known = labels != -100
    right = (((scores.argmax(2) == labels) & known).sum(1) / known.sum(1)).double().mean()
    assert found.moments[0].loss == pytest.approx(float(wanted))
    assert found.moments[0].accuracy == pytest.approx(float(right))
    assert found.moments[0].auc == 0.5

    sample = problems.mlp("mse")
    found = resurfacing(
        sample.model, sample.part(slice(5, 30)), sample.part(slice(0, 5)), "mse", epochs=[0, 1], **OPTIONS
    )
    assert found.moments[0].accuracy is None
    assert found.rise is None
    assert "–" in str(found)


def test_a_loss_of_the_users_own():
    sample = problems.mlp()
    forget, retained = sample.part(slice(0, 5)), sample.part(slice(5, 30))
    named = resurfacing(sample.model, retained, forget, "cross_entropy", epochs=[0, 1], **OPTIONS)
    own = resurfacing(sample.model, retained, forget, nn.functional.cross_entropy, epochs=[0, 1], **OPTIONS)
    assert own.moments[0].accuracy == named.moments[0].accuracy
    assert own.moments[1].loss == pytest.approx(named.moments[1].loss)


def test_what_cannot_be():
    model = networks.original()
    retained, forget = networks.part(networks.retained()), networks.part(networks.forgotten())
    with refused(InvalidData, f"{len(networks.forgotten())} of the retained samples are forgotten ones", model):
        resurfacing(model, [*retained, *forget], forget, "cross_entropy")
    with refused(InvalidData, "There are no held-out samples", model):
        followed(model, held_out=[])
    for epochs in ((), (-1,), (1.5,), 3):
        with refused(InvalidSetting, "epochs are whole numbers from 0 on", model):
            followed(model, epochs=epochs)
    with refused(InvalidSetting, "learning_rate must be a positive number", model):
        followed(model, learning_rate=-1)
    wrong = problems.mlp().model
    with refused(InvalidData, "The model fails on the first samples", model, wrong):  # before the first is trained
        followed(model, retrained=wrong, learning_rate=1e30)
