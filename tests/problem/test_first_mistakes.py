"""What a new user passes at first: one sentence each, with the repair, before anything is computed."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ssse
from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from tests.support import problems
from tests.support.refusals import fit, refused

SAMPLE = problems.mlp(dtype=torch.float32)
X, Y = SAMPLE.x, SAMPLE.y


def frame() -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"a": [1.0, 2.0], "label": [0, 1]})


DATA = {
    "a pair": (lambda: (X, Y), r"one batch itself.*pass \[\(x, y\)\]"),
    "a list of two": (lambda: [X.numpy(), Y.numpy()], r"one batch itself.*pass \[\(x, y\)\]"),
    "with weights": (lambda: (X, Y, torch.ones(len(Y))), r"one batch itself.*pass \[\(x, y\)\]"),
    "one array": (lambda: X, r"one array.*pass \[\(x, y\)\]"),
    "nothing": (lambda: None, "must be batches, such as a DataLoader or a list of.*not None"),
    "a number": (lambda: 3, "must be batches.*not 3"),
    "a path": (lambda: "train.csv", r"must be batches.*not 'train.csv'"),
    "a frame": (frame, r"The data is a frame.*pass \[\(frame\[inputs\], frame\[label\]\)\]"),
    "a batch that is a frame": (lambda: [frame()], r"not a DataFrame: pass \(frame\[inputs\], frame\[label\]\)"),
    "labels of text": (lambda: [{"x": X[:2], "label": ["cat", "dog"]}], "text as labels. Encode them as whole numbers"),
    "inputs of text": (lambda: [(["a", "b"], Y[:2])], "text as x. Encode it as numbers, or leave it out"),
    "no labels": (lambda: [(X, None)], "NoneType as labels, which is not a tensor"),
    "too few columns": (lambda: [(X[:, :2], Y)], r"fails on the first samples, x \(\d+, 2\) of torch.float32: Runtime"),
    "whole numbers": (lambda: [(X.long(), Y)], r"fails on the first samples, x .* of torch.int64: RuntimeError"),
    "weights of zero": (lambda: [(X, Y, torch.zeros(len(Y)))], "weights of all samples are zero"),
}


@pytest.mark.parametrize("case", DATA)
def test_what_is_no_data_of_the_model(case):
    make, sentence = DATA[case]
    with refused(InvalidData, sentence, SAMPLE.model):
        fit(SAMPLE, data=make())


def test_a_request_is_looked_at_in_the_same_way():
    curvature = fit(SAMPLE)
    for forget, sentence in (((X[:2], Y[:2]), "one batch itself"), ([(X[:2, :2], Y[:2])], "fails on the first")):
        with refused(InvalidData, sentence, SAMPLE.model):
            ssse.erase(SAMPLE.model, curvature, forget=forget)


@pytest.mark.parametrize("name", ["weight_decay", "damping"])
@pytest.mark.parametrize("value", ["1e-3", [1e-3]])
def test_a_setting_that_is_no_number(name, value):
    with refused(InvalidSetting, f"{name} must be a number, not ", SAMPLE.model):
        fit(SAMPLE, **{"damping": 0.1, name: value})


def test_numbers_of_numpy_are_numbers():
    assert fit(SAMPLE, weight_decay=np.float32(0.5), damping=None).damping == 0.5


def test_a_loss_that_is_a_class():
    with refused(
        InvalidSetting, r"CrossEntropyLoss is a class; pass one made of it, CrossEntropyLoss\(\)", SAMPLE.model
    ):
        fit(SAMPLE, loss=nn.CrossEntropyLoss)


def test_an_estimator_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    with pytest.raises(InvalidModel, match=r"not a LogisticRegression. Models of .* for ssse.sklearn.Eraser"):
        ssse.Curvature.fit(LogisticRegression(), "cross_entropy", [(X, Y)], damping=0.1)  # type: ignore[arg-type]


def test_inference_mode():
    with torch.inference_mode():
        model, x = copy.deepcopy(SAMPLE.model), X.clone()
        with refused(InvalidModel, "torch.inference_mode is on.*Leave that block", SAMPLE.model):
            fit(SAMPLE)
    with pytest.raises(InvalidModel, match=r"'0\.weight' was made under torch\.inference_mode"):
        ssse.Curvature.fit(model, "cross_entropy", [(X, Y)], damping=0.1, progress=False)
    wanted = ssse.erase(SAMPLE.model, fit(SAMPLE), forget=SAMPLE.part(slice(0, 2))).step
    found = ssse.erase(SAMPLE.model, fit(SAMPLE, data=[(x, Y)]), forget=[(x[:2], Y[:2])]).step
    assert torch.equal(found, wanted)  # inputs of that mode are copied
