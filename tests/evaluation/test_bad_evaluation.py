"""What `ssse.evaluate` refuses, in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from tests.support import problems
from tests.support.evaluation_problems import CASES, FEATURES, OUTPUTS, evaluate, family, model, seeds, values_of
from tests.support.refusals import NAN, refused

# ── what must be refused ──────────────────────────────────────────────────────────────────────────────────────────

X, Y = CASES["classes"].data["forgotten"]
ATTRIBUTES = CASES["attributes"].data["forgotten"][1]
GOOD = CASES["classes"].splits

BAD_SPLITS: dict[str, tuple[Any, str]] = {
    "none": ({}, "no splits to look at; name some of retained, forgotten"),
    "empty": ({**GOOD, "forgotten": []}, "The split 'forgotten' is empty; leave it out"),
    "empty batch": ({**GOOD, "forgotten": [(X[:0], Y[:0])]}, "The split 'forgotten' is empty"),
    "misspelt": ({"forgoten": GOOD["forgotten"]}, "Unknown split 'forgoten'.* Did you mean 'forgotten'?"),
    "unknown": ({"zzz": GOOD["forgotten"]}, "Unknown split 'zzz'; the splits are retained, forgotten, .*, test.$"),
    "not a name": ({1: GOOD["forgotten"]}, "Unknown split '1'"),
    "both": ({**GOOD, "test": GOOD["test_same"]}, "either 'test' or its two parts"),
    "another task": ({**GOOD, "test_same": [(X, ATTRIBUTES)]}, "labels of 'test_same' are attributes, .* it classes"),
    "two tasks": ({**GOOD, "forgotten": [(X, Y), (X, ATTRIBUTES)]}, "Some batches of 'forgotten' have class indices"),
    "a class too many": ({**GOOD, "forgotten": [(X, Y + 1)]}, "4 columns, so labels lie in 0 … 3; found 1 … 4"),
    "regression": ({**GOOD, "forgotten": [(X, X[:, :OUTPUTS])]}, "Attributes must be 0 or 1; found"),
    "NaN inputs": ({**GOOD, "forgotten": [(NAN * X, Y)]}, "x: sample 0 of a batch of 12 holds NaN"),
    "drop_last": ({"test": DataLoader(TensorDataset(X, Y), drop_last=True)}, "drop_last=True"),
}


@pytest.mark.parametrize(("splits", "message"), BAD_SPLITS.values(), ids=BAD_SPLITS)
def test_splits_that_are_refused(splits, message):
    models = family()
    with refused(InvalidData, message, *models.values()):
        evaluate(models, splits)


WIDE, NARROW = nn.Linear(FEATURES, 5).double().eval(), nn.Linear(FEATURES, 1).double().eval()
BAD_MODELS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "none": ({}, InvalidSetting, "There are no models"),
    "no seeds": ({"erased": []}, InvalidSetting, "'erased' is an empty list"),
    "other classes": (
        {"a": model(0), "b": WIDE},
        InvalidData,
        "'a' has 4 outputs, 'b' has 5. Compare .* still has an output",
    ),
    "other classes of a seed": ({"a": [model(0), WIDE]}, InvalidData, r"'a' has 4 outputs, 'a \(1\)' has 5"),
    "wrong width": ({"a": NARROW}, InvalidData, "One column of logits cannot tell more than two classes apart"),
    "too few samples": ({"a": lambda x: model(0)(x)[1:]}, InvalidData, "39 samples of logits and 40 labels"),
    "constant": ({"a": model(0), "b": lambda x: torch.ones(len(x), 4)}, InvalidData, "'b': the logits are constant"),
    "NaN": ({"b": lambda x: NAN * model(0)(x)}, InvalidData, "b: the logits of sample 0 hold NaN"),
    "training": (
        {"b": nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4)).double()},
        InvalidModel,
        "'b': BatchNorm1d '1' is in training mode",
    ),
    "dropout": (
        {"b": nn.Sequential(nn.Linear(FEATURES, 4), nn.Dropout()).double().train()},
        InvalidModel,
        r"'b': Dropout '1' is in training mode and drops at random. Call model.eval\(\)",
    ),
    "not callable": ({"b": 3}, InvalidModel, "'b' must be a torch module or a function from inputs to logits"),
    "not logits": ({"b": lambda x: None}, InvalidData, "b: numbers are needed, not object"),
    "an image": (
        {"b": lambda x: x[:, None, None]},
        InvalidData,
        r"b: logits have the shape .* these have \(40, 1, 1, 6\)",
    ),
    "no tensor": ({"b": nn.LSTM(FEATURES, 4).double().eval()}, InvalidModel, "must return a tensor or an object with"),
    "a name twice": ({"a": [model(0), model(1)], "a (1)": model(2)}, InvalidSetting, "end up with the same name"),
}


@pytest.mark.parametrize(("models", "error", "message"), BAD_MODELS.values(), ids=BAD_MODELS)
def test_models_that_are_refused(models, error, message):
    nets = [m for given in models.values() for m in seeds(given) if isinstance(m, nn.Module)]
    with refused(error, message, *nets):
        evaluate(models, GOOD)


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "level 0": ({"level": 0.0}, "level is the rate of false alarms .* not 0.0"),
    "level 1": ({"level": 1.0}, "between 0 and 1, not 1.0"),
    "level NaN": ({"level": NAN}, "not nan"),
    "relearn without a loss": ({"relearn": {}}, "pass loss_fn"),
    "unknown relearn option": (
        {"relearn": {"lr": 1}, "loss_fn": "cross_entropy"},
        "no option 'lr'; its options are target, learning_rate",
    ),
    "resurfacing without a loss": ({"resurfacing": True}, "means training: pass loss_fn"),
    "unknown resurfacing option": (
        {"resurfacing": {"held_out": []}, "loss_fn": "cross_entropy"},
        "no option 'held_out'; its options are epochs, learning_rate",
    ),
    "unknown original": (
        {"original": "orignal"},
        "original='orignal', but .* original, erased.* Did you mean 'original'?",
    ),
    "unknown retrained": (
        {"retrained": "oracle"},
        "retrained='oracle', but the models are original, erased, retrained.$",
    ),
    "one for both": ({"retrained": "original"}, "'original' cannot be both"),
    "weight decay": ({"loss_fn": "cross_entropy", "weight_decay": -1}, "weight_decay must be zero or positive"),
    "no such parameter": ({"loss_fn": "cross_entropy", "parameters": ["wait"]}, "no parameter 'wait'"),
}


@pytest.mark.parametrize(("options", "message"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_settings_that_are_refused(options, message):
    models = family()
    with refused(InvalidSetting, message, *models.values()):
        evaluate(models, GOOD, **options)


def test_constant_on_each_batch_is_not_constant():
    """Batches of one sample, and logits that are all alike: what counts is all batches together."""
    splits = {"forgotten": [(torch.tensor([[float(i)]]), torch.tensor([i % 2])) for i in (2, 1, 0)]}
    found = evaluate({"slow": lambda x: x.expand(-1, 2)}, splits)
    assert found["slow", "accuracy_forgotten"] == pytest.approx(200 / 3)
    with refused(InvalidData, "'slow': the logits are constant"):
        evaluate({"slow": lambda x: 0 * x.expand(-1, 2)}, splits)


def test_resurfacing_needs_what_stays_and_s():
    with refused(InvalidSetting, "seen on 'forgotten' along a training on 'retained'; pass both"):
        evaluate(family(), CASES["classes"].part("forgotten"), loss_fn="cross_entropy", resurfacing=True)


def test_relearning_needs_the_original_and_s():
    models, splits = family(), CASES["classes"]
    with refused(InvalidSetting, "counted on 'forgotten' until the loss of 'original'"):
        evaluate(models, splits.part("retained"), loss_fn="cross_entropy", relearn={})
    del models["original"]
    with refused(InvalidSetting, "pass both, the model as a torch module"):
        evaluate(models, splits.splits, loss_fn="cross_entropy", relearn={})
    with refused(InvalidSetting, "pass both, the model as a torch module"):
        evaluate({"original": model(0).forward}, splits.splits, loss_fn="cross_entropy", relearn={})


def test_data_that_can_be_read_once_cannot_have_a_loss():
    with refused(InvalidSetting, "'retained' can be read only once"):
        evaluate(family(), {"retained": iter(GOOD["retained"])}, loss_fn="cross_entropy")


def test_a_binary_task_of_one_output():
    """S of one kind only, as when a class is forgotten: no γ, and everything else."""
    case = problems.linear("binary_cross_entropy", c=1)
    nets = {name: problems.linear("binary_cross_entropy", c=1, seed=i).model for i, name in enumerate(family())}
    yes = case.y[:, 0] == 1
    splits = {"retained": case.part(~yes), "forgotten": case.part(yes), "test": case.data}
    found = evaluate(nets, splits)
    expected = 100 * float((nets["erased"](case.x[yes]) > 0).double().mean())
    assert found["erased", "accuracy_forgotten"] == pytest.approx(expected)
    assert found["erased", "gamma"] is None
    vector = {split: [(x, y[:, 0]) for x, y in batches] for split, batches in splits.items()}
    assert values_of(evaluate(nets, vector)) == values_of(found)


def test_probabilities_are_no_logits():
    softmax = {"original": model(0), "careless": lambda x: model(1)(x).softmax(1)}
    with refused(InvalidData, "'careless': the outputs are probabilities.*Leave the softmax out"):
        evaluate(softmax, GOOD)
    assert evaluate({"original": lambda x: model(1)(x).log_softmax(1)}, GOOD).models == ("original",)


def test_one_hot_labels_are_pointed_out():
    x, y = CASES["classes"].data["forgotten"]
    found = evaluate({"original": model(0)}, {"forgotten": [(x, torch.eye(OUTPUTS)[y])]})
    assert any("one-hot labels" in flag for flag in found.flags)


def test_what_is_not_a_mapping():
    with refused(InvalidSetting, "models is a mapping from names to models, not a list"):
        evaluate([model(0)], GOOD)  # type: ignore[arg-type]
    with refused(InvalidData, "splits is a mapping from names to batches, not a list"):
        evaluate({"original": model(0)}, list(GOOD.values()))
    table = evaluate({"original": model(0)}, GOOD, loss_fn="cross_entropy", relearn=True)
    assert "relearn" in table.cells
    assert "relearn" not in evaluate({"original": model(0)}, GOOD, relearn=False).cells
