"""Parameter distances, gaps, divergences, confidences and objectives: by hand and against plain loops."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import settings
from torch import nn

from ssse import metrics
from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from ssse.metrics.distance import parameter_distance
from tests.support import dense, problems
from tests.support.refusals import INF, NAN, refused

some = settings(max_examples=40, deadline=None)

# ── parameters ────────────────────────────────────────────────────────────────────────────────────────────────────


def linear_with(values: list[float], dtype: torch.dtype = torch.float64) -> nn.Module:
    model = nn.Linear(len(values), 1, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values]))
    return model


def test_parameter_distances_by_hand():
    erased, original, retrained = [0.0, 0.0], [3.0, 4.0], [5.0, 12.0]  # 5 and 13 away, √(4 + 64) apart
    for form in (torch.tensor, linear_with, list, np.array):
        three = form(erased), form(original), form(retrained)
        assert metrics.normalized_parameter_distance(*three) == pytest.approx(13 / 18)
        assert metrics.remaining_distance(*three) == pytest.approx(13 / math.sqrt(68))


def test_parameter_distances_at_the_ends():
    start, goal = torch.arange(4.0), torch.ones(4)
    assert metrics.normalized_parameter_distance(start, start, goal) == 1
    assert metrics.normalized_parameter_distance(goal, start, goal) == 0
    assert metrics.remaining_distance(start, start, goal) == 1
    assert metrics.remaining_distance(goal, start, goal) == 0
    for measure in (metrics.normalized_parameter_distance, metrics.remaining_distance):
        same = measure(goal, goal, goal)
        assert same == 0.5
        assert "0/0" in same.flags[0]


def test_nothing_to_erase_is_not_half_way():
    found = metrics.remaining_distance(torch.zeros(3), torch.ones(3), torch.ones(3))
    assert found == math.inf
    assert found.flags == ("the original and the retrained model are the same",)


def test_parameter_distance_of_a_large_model_in_low_precision():
    """More than a million bfloat16 numbers, each 2⁻⁷ away, summed in float64."""
    size = 2**20 + 77_777
    goal = torch.ones(size, dtype=torch.bfloat16)
    assert parameter_distance(goal + 2.0**-7, goal) == pytest.approx(2.0**-7 * math.sqrt(size), rel=1e-12)


def test_parameter_distances_refuse():
    deep = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False))
    flat = nn.Linear(4, 3, bias=False)  # as many numbers, of another shape
    with refused(InvalidModel, "must have the same parameters, in shape too; they have 12 and 12 numbers", deep, flat):
        metrics.normalized_parameter_distance(deep, flat, flat)
    with refused(InvalidModel, "they have 2 and 3 numbers"):
        metrics.remaining_distance(torch.zeros(2), torch.zeros(3), torch.zeros(3))
    with refused(InvalidModel, "NaN, infinite or beyond all measure"):
        metrics.remaining_distance(torch.zeros(2), torch.zeros(2), torch.tensor([0.0, NAN]))
    with refused(InvalidModel, "no parameters"):
        metrics.normalized_parameter_distance(nn.ReLU(), nn.ReLU(), nn.ReLU())


# ── gaps ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_gaps_by_hand():
    model = {"retained": 0.9, "forgotten": 0.5, "test": 0.8}
    retrained = {"retained": 0.95, "forgotten": 0.3, "test": 0.7}
    assert metrics.mean_gap(model, retrained) == pytest.approx((0.05 + 0.2 + 0.1) / 3)
    assert metrics.tug_of_war(model, retrained) == pytest.approx(0.95 * 0.8 * 0.9)
    assert metrics.tug_of_war(retrained, retrained) == 1
    worst = {"retained": 0.0, "forgotten": 1.0, "test": 0.0}
    assert metrics.tug_of_war(worst, {split: 1 - value for split, value in worst.items()}) == 0


def test_gaps_refuse():
    three = {"retained": 0.9, "forgotten": 0.5, "test": 0.8}
    with refused(InvalidData, r"same splits; found \['forgotten', 'retained', 'test'\] and \['forgotten'\]"):
        metrics.mean_gap(three, {"forgotten": 0.2})
    with refused(InvalidData, "same splits"):
        metrics.mean_gap({}, {})
    with refused(InvalidData, "missing: test"):
        metrics.tug_of_war(three, {"retained": 0.9, "forgotten": 0.5})
    with refused(InvalidData, "between 0 and 1, not per cent"):
        metrics.tug_of_war(three, {split: 100 * value for split, value in three.items()})


def test_accuracy_by_hand():
    assert metrics.accuracy([[3.0, 1.0, 2.0], [0.0, 1.0, 2.0]], [0, 1]) == 0.5
    logits = [[2.0, -1.0, 0.5], [-1.0, 1.0, 0.0]]  # a logit of 0 is no "yes"
    assert metrics.accuracy(logits, [[1, 0, 0], [1, 1, 0]]) == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert metrics.accuracy([1.0, -1.0, 2.0], [1, 1, 1]) == pytest.approx(2 / 3)


def test_divergence_by_hand():
    """The retrained model says ½ ½ and the other ¾ ¼: the expectation is the retrained model's."""
    half, model = [[0.0, 0.0]], [[math.log(3), 0.0]]
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert metrics.divergences(model, [half], [0]) == pytest.approx([expected])
    other = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert metrics.divergences(half, [model], [0]) == pytest.approx([other])
    # One attribute that is there with probability ¾ is the same two outcomes.
    assert metrics.divergences([math.log(3)], [[0.0]], [1]) == pytest.approx([expected])


@pytest.mark.parametrize("references", [1, 3])
def test_divergences_of_classes_against_torch(references):
    generator = torch.Generator().manual_seed(4)
    z, *others = (3 * torch.randn(20, 5, generator=generator, dtype=torch.float64) for _ in range(1 + references))
    labels = torch.randint(5, (20,), generator=generator)
    mean = torch.stack([other.softmax(1) for other in others]).mean(0)
    expected = F.kl_div(z.log_softmax(1), mean, reduction="none").sum(1)
    assert metrics.divergences(z, others, labels) == pytest.approx(expected.numpy(), abs=1e-12)


@pytest.mark.parametrize("references", [1, 3])
def test_divergences_of_attributes_against_torch(references):
    generator = torch.Generator().manual_seed(5)
    z, *others = (3 * torch.randn(20, 4, generator=generator, dtype=torch.float64) for _ in range(1 + references))
    labels = torch.randint(2, (20, 4), generator=generator)
    expected = torch.zeros(20, dtype=torch.float64)
    for a in range(4):
        mean = torch.stack([other[:, a].sigmoid() for other in others]).mean(0)
        two = torch.stack([mean, 1 - mean], 1)
        log_p = torch.stack([F.logsigmoid(z[:, a]), F.logsigmoid(-z[:, a])], 1)
        expected += F.kl_div(log_p, two, reduction="none").sum(1)
    assert metrics.divergences(z, others, labels) == pytest.approx(expected.numpy(), abs=1e-12)


def test_divergences_where_probabilities_underflow():
    """Two models sure of different classes: 2,000 nats, and no NaN from 0 · ∞."""
    sure, other = np.array([[1000.0, -1000.0]]), np.array([[-1000.0, 1000.0]])
    assert metrics.divergences(sure, [other], [0]) == pytest.approx([2000.0])
    assert metrics.divergences(sure, [sure], [0]) == [0.0]
    assert metrics.divergences(sure[0], [other[0]], [1, 1]) == pytest.approx([2000.0 / 2] * 2)


def test_divergence_needs_a_reference():
    with refused(InvalidData, "at least one retrained model"):
        metrics.divergences([[0.0, 1.0]], [], [0])


# ── φ ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def log_odds(p: Decimal) -> float:
    """log p − log(1 − p), as it is written."""
    return float(p.ln() - (1 - p).ln())


def test_confidence_in_a_class_to_the_last_digit():
    """Also where p is 1 in float64: from 1 − 10⁻¹⁷ to 1 − 10⁻²⁶⁰, and where it is as near to 0."""
    logits = np.array(
        [[0.1, 0.2, 0.3], [40.0, 1.0, 0.0], [0.0, 600.0, 1.0], [-5.0, 600.0, 3.0], [300.0, 299.5, -300.0]]
    )
    labels = [2, 0, 1, 0, 1]
    with localcontext() as context:
        context.prec = 300
        expected = []
        for z, y in zip(logits, labels, strict=True):
            e = [Decimal(float(value)).exp() for value in z]
            expected.append(log_odds(e[y] / sum(e)))
    assert metrics.confidences(logits, labels) == pytest.approx(expected, rel=1e-14)


def test_confidence_in_attributes_to_the_last_digit():
    logits = np.array([[0.5, -0.2, 1.0], [40.0, -45.0, 50.0], [200.0, -300.0, 250.0], [-300.0, 2.0, 1.0]])
    labels = np.array([[1, 1, 0], [1, 0, 1], [1, 0, 1], [1, 0, 0]])
    with localcontext() as context:
        context.prec = 400
        expected = []
        for z, y in zip(logits, labels, strict=True):
            p = Decimal(1)
            for value, label in zip(z, y, strict=True):
                p *= 1 / (1 + Decimal(float(-value if label else value)).exp())
            expected.append(log_odds(p))
    assert metrics.confidences(logits, labels) == pytest.approx(expected, rel=1e-12)


def test_confidence_in_one_attribute_is_its_logit():
    assert metrics.confidences([[3.0], [-800.0], [900.0]], [1, 0, 0]).tolist() == [3.0, 800.0, -900.0]


def test_confidence_stays_finite():
    assert np.isfinite(metrics.confidences([[900.0, -900.0], [-900.0, 900.0]], [[1, 0], [1, 0]])).all()
    assert metrics.confidences([[1e300, 0.0]], [1]).tolist() == [-1e300]


# ── L₋S and ‖∇L₋S‖ ────────────────────────────────────────────────────────────────────────────────────────────────

PROBLEMS = [
    problems.linear("cross_entropy"),
    problems.linear("binary_cross_entropy", bias=False),
    problems.linear("mse"),
    problems.mlp(),
    problems.mlp("binary_cross_entropy"),
    problems.tied(),
    problems.conv(),
]


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("sample", PROBLEMS, ids=lambda sample: sample.name)
def test_objective_against_dense(sample, weight_decay):
    theta, n = dense.theta(sample.model), len(sample.x)
    loss = float(dense.LOSSES[sample.loss](sample.model(sample.x), sample.y).detach()) / n
    slope = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x, sample.y) / n + weight_decay * theta
    batches = [(sample.x[:7], sample.y[:7]), (sample.x[7:], sample.y[7:])]
    found = metrics.objective(sample.model, sample.loss, batches, weight_decay=weight_decay)
    assert found.loss == pytest.approx(loss + weight_decay / 2 * float(theta @ theta), rel=1e-10)
    assert found.gradient_norm == pytest.approx(float(slope.norm()), rel=1e-10)
    assert found.count == n


def test_objective_of_the_head():
    """θ is the last layer: its gradient and its penalty alone."""
    sample, w = problems.mlp(), 0.2
    head = slice(-(6 * 3 + 3), None)
    theta = dense.theta(sample.model)[head]
    loss = float(dense.LOSSES[sample.loss](sample.model(sample.x), sample.y).detach()) / len(sample.x)
    slope = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x, sample.y)[head] / len(sample.x)
    found = metrics.objective(sample.model, sample.loss, sample.data, weight_decay=w, parameters="head")
    assert found.loss == pytest.approx(loss + w / 2 * float(theta @ theta), rel=1e-10)
    assert found.gradient_norm == pytest.approx(float((slope + w * theta).norm()), rel=1e-10)


def test_objective_of_a_loss_of_your_own():
    sample = problems.mlp()
    named = metrics.objective(sample.model, "cross_entropy", sample.data)
    own = metrics.objective(sample.model, lambda z, y: F.cross_entropy(z, y), sample.data)
    assert own.loss == pytest.approx(named.loss, rel=1e-10)
    assert own.gradient_norm == pytest.approx(named.gradient_norm, rel=1e-10)


def test_objective_at_the_minimum():
    sample = problems.converged(problems.linear("cross_entropy"), 0.05)
    assert metrics.objective(sample.model, sample.loss, sample.data, weight_decay=0.05).gradient_norm < 1e-8


def test_objective_refuses():
    sample = problems.mlp()
    with refused(InvalidData, "no samples", sample.model):
        metrics.objective(sample.model, sample.loss, [])
    with refused(InvalidData, "no samples", sample.model):
        metrics.objective(sample.model, sample.loss, sample.part(slice(0, 0)))
    for bad in (-0.1, NAN, INF):
        with refused(InvalidSetting, "weight_decay must be zero or positive", sample.model):
            metrics.objective(sample.model, sample.loss, sample.data, weight_decay=bad)
    with refused(InvalidModel, "training mode"):
        metrics.objective(nn.Sequential(nn.Linear(4, 3), nn.Dropout()).double(), sample.loss, sample.data)
