"""What a scan refuses, in which words; the forms that its arguments may have; and what it says of itself."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ssse import metrics
from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from ssse.evaluation.scan import DEFAULT_SCALES
from ssse.evaluation.splits import SPLITS
from tests.evaluation.test_scan import SCALES, SUBJECTS, S, Subject, outputs
from tests.support import problems
from tests.support.refusals import INF, NAN, refused


@pytest.mark.parametrize(
    "scales", [[], [1.0, 0.5], [1.0, 1.0], [-1.0, 1.0], [0.0, 1.0], [1.0, NAN], [1.0, INF], [[1.0]]]
)
def test_scales_that_are_none(scales):
    subject = SUBJECTS[0]
    with refused(InvalidSetting, r"scales must be positive, finite and rising, for instance", subject.sample.model):
        subject.scan(scales=scales)


def test_default_scales_hold_one():
    assert DEFAULT_SCALES[len(DEFAULT_SCALES) // 2] == pytest.approx(1.0, abs=1e-15)
    assert SUBJECTS[0].scan(scales=iter([0.5, 1])).scales.tolist() == [0.5, 1.0]  # any iterable, any numbers


@pytest.mark.parametrize("scales", ["all", None, [1.0, "two"]])
def test_scales_that_are_no_numbers(scales):
    subject = SUBJECTS[0]
    with refused(InvalidSetting, r"scales must be a number or several, for instance .* got", subject.sample.model):
        subject.scan(scales=scales)


def bad_calls() -> dict[str, tuple[dict, type[Exception], str]]:
    x, y = SUBJECTS[0].sample.data[0]
    wide = nn.Linear(5, 4).double().eval()
    training = nn.Sequential(nn.Linear(5, 3), nn.Dropout()).double()
    part = {"forgotten": [(x, y)]}
    broken = [(x[:20], y[:20]), (x[20:], torch.where(y[20:] == 0, 3, y[20:]))]
    dropping = DataLoader(TensorDataset(x, y), batch_size=7, drop_last=True)
    return {
        "short": ({"direction": torch.ones(17)}, InvalidSetting, r"must have shape \(18,\), one number .* got \(17,\)"),
        "matrix": ({"direction": torch.ones(18, 1)}, InvalidSetting, r"shape \(18,\).* got \(18, 1\)"),
        "nan": ({"direction": torch.full((18,), NAN)}, InvalidSetting, "direction holds NaN or infinity"),
        "part": (
            {"parameters": ["weight"]},
            InvalidSetting,
            r"\(15,\).* got \(18,\)\. .*=curvature\.layout\.names",
        ),
        "words": ({"direction": "down"}, InvalidSetting, r"a flat tensor or an array of numbers, .*; got str"),
        "nothing": ({"direction": None}, InvalidSetting, r"shape \(18,\).* got \(\)\."),
        "no parameter": ({"parameters": ["wait"]}, InvalidSetting, "no parameter 'wait'"),
        "empty": ({"splits": {**part, "test": []}}, InvalidData, "split 'test' is empty; leave it out"),
        "no samples": ({"splits": {"retained": [(x[:0], y[:0])]}}, InvalidData, "split 'retained' is empty"),
        "no splits": ({"splits": {}}, InvalidData, "no splits to look at; name some of retained, forgotten"),
        "unknown": ({"splits": {"forgoten": [(x, y)]}}, InvalidData, r"Unknown split 'forgoten'.* mean 'forgotten'\?"),
        "both": ({"splits": {"test": [(x, y)], "test_same": [(x, y)]}}, InvalidData, "either 'test' or its two parts"),
        "dropping": ({"splits": {"forgotten": dropping}}, InvalidData, "drop_last=True"),
        "label": ({"splits": {"retained": broken}}, InvalidData, r"Labels must lie in 0 … 2.* found . … 3"),
        "classes": ({"retrained": wide}, InvalidData, r"disagree on the classes: 'model' has 3 .*'retrained' has 4"),
        "dropout": ({"retrained": training}, InvalidModel, r"Dropout '1' is in training mode.*model\.eval\(\) first"),
        "no model": ({"retrained": 3}, InvalidModel, "'retrained' must be a torch module or a function"),
        "sick": ({"retrained": lambda x: x[:, :3] * INF}, InvalidData, "retrained: the logits of sample 0 hold NaN"),
    }


@pytest.mark.parametrize("case", bad_calls())
def test_bad_calls_are_refused_in_words(case):
    options, error, message = bad_calls()[case]
    subject = SUBJECTS[0]
    with refused(error, message, subject.sample.model, subject.retrained):
        subject.scan(**options)


def test_a_model_in_training_mode():
    subject = copy.deepcopy(SUBJECTS[7])
    subject.sample.model.train()
    with refused(InvalidModel, r"BatchNorm2d 'norm' is in training mode.*Call model\.eval\(\)", subject.sample.model):
        subject.scan()


# ---------------------------------------------------------------------------- other forms of the same arguments


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize("name", ["softmax", "head", "mlp"])
def test_a_retrained_model_with_other_names_is_compared_place_by_place(name):
    subject = next(s for s in SUBJECTS if s.name == name)
    wanted = subject.scan().distance
    assert wanted is not None
    for other in (Wrapped(subject.retrained), torch.compile(subject.retrained, backend="eager")):
        np.testing.assert_array_equal(subject.scan(retrained=other.eval()).distance, wanted)  # type: ignore[union-attr]


def test_arrays_lists_and_single_numbers():
    subject = SUBJECTS[0]
    wanted = subject.scan().to_dict()
    for direction in (subject.direction.numpy(), subject.direction.tolist()):
        assert subject.scan(direction=direction).to_dict() == wanted
    for one in (1.0, 1, np.float64(1), np.array(1.0), torch.tensor(1.0)):
        assert subject.scan(scales=one).to_dict() == subject.scan(scales=[1.0]).to_dict()


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_of_a_single_logit_either_label_is_a_kind(label):
    subject = Subject("one logit", problems.linear("binary_cross_entropy", c=1))
    subject.sample.y[S] = label
    found = subject.scan()
    assert found.recognised is not None
    np.testing.assert_array_equal(found.recognised, found.accuracy["forgotten"])
    assert len(set(found.recognised)) > 1
    subject.sample.y[:2] = 1 - label
    assert subject.scan().recognised is None


def test_of_several_attributes_only_what_s_has_counts():
    subject = Subject("attributes", problems.linear("binary_cross_entropy"))
    subject.sample.y[S] = 0.0
    assert subject.scan().recognised is None


def test_how_many_samples_tell_the_models_apart():
    subject = SUBJECTS[0]
    data = subject.splits["forgotten"]
    before, after = (outputs(model, data)[0] for model in (subject.sample.model, subject.retrained))
    labels = outputs(subject.sample.model, data)[1]
    found = subject.scan()
    assert found.apart == metrics.confusion_distance(before, after, labels) / 2
    assert found.apart
    assert found.to_dict()["apart"] == found.apart
    assert SUBJECTS[2].scan().apart is None
    assert subject.scan(retrained=None).apart is None


def test_a_scan_is_shown_in_a_line():
    found = SUBJECTS[0].scan()
    assert found.ratio is not None
    at = int(found.ratio.argmin())
    assert repr(found) == str(found)
    assert repr(found) == (
        f"Scan(5 ε from 0.05 to 20; samples of S (12), {SPLITS['test_same']} (20), "
        f"{SPLITS['retained']} (28); best δ {found.ratio[at]:.3f} at ε = {SCALES[at]:.3g})"
    )
    assert "best" not in repr(SUBJECTS[0].scan(retrained=None))
