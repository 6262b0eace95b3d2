"""The weight decay as the gradient at θ* tells it: a wrong one is named with its likely cause, a right one is not."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ssse
from ssse.curvature.decay import estimate_decay
from ssse.problem.parameters import Layout
from tests.support import problems, refusals
from tests.support.refusals import fit

DECAY = 0.03


def trained(loss: str, **options) -> problems.Sample:
    return problems.converged(problems.linear(loss, n=60, **options), DECAY)


def doubt(sample: problems.Sample, weight_decay: float, **options) -> str:
    """What is warned of, which is also among the notes."""
    with pytest.warns(ssse.DoubtfulSetting) as caught:
        curvature = fit(sample, weight_decay=weight_decay, damping=None if weight_decay else 1e-2, **options)
    (said,) = [warning for warning in caught if warning.category is ssse.DoubtfulSetting]  # torch has its own
    assert curvature.notes[-1] == str(said.message)
    assert said.filename == refusals.__file__  # where `Curvature.fit` was called
    return str(said.message)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy", "mse"])
@pytest.mark.parametrize("factor", [0.8, 1.0, 1.3])
def test_nothing_is_said_of_the_right_one(loss, factor):
    sample = trained(loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(sample, weight_decay=factor * DECAY, damping=None).notes == ()


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy", "mse"])
@pytest.mark.parametrize("factor", [1e-3, 0.1, 10, 1e3])
def test_a_wrong_one_is_told_with_the_right_one(loss, factor):
    said = doubt(trained(loss), factor * DECAY)
    assert "stationary for a weight decay of 0.03" in said
    assert "100.0% of" in said
    assert f"{factor * DECAY:.3g} given" in said


def test_none_was_given():
    assert "None was given. Is weight_decay=0.03 what" in doubt(trained("cross_entropy"), 0.0)


CAUSES = [  # loss, ŵ/w, what is said
    ("cross_entropy", 1 / 60, "The loss was summed over the 60 samples"),
    ("cross_entropy", 60, "It was divided by n = 60"),
    ("cross_entropy", 2, "The penalty was w‖θ‖², and not"),
    ("cross_entropy", 1 / 16, "summed and not averaged, as of batches of 16 samples.* or AdamW"),
    ("binary_cross_entropy", 3, "number of attributes, 3: torch's own averages"),
    ("mse", 3 / 2, "number of outputs, 3: torch's own is 2/c"),
]


@pytest.mark.parametrize(("loss", "ratio", "cause"), CAUSES)
def test_the_cause_is_named_by_the_ratio(loss, ratio, cause):
    assert re.search(cause, doubt(trained(loss), DECAY / ratio * (0.999 if loss == "mse" else 1)))


def test_a_loss_that_averages_over_outputs_where_a_sum_was_trained_with():
    sample = trained("binary_cross_entropy")
    said = doubt(sample, DECAY, loss=nn.BCEWithLogitsLoss())
    assert "number of outputs, 3: this one averages over the outputs" in said


def test_biases_without_decay():
    sample = problems.linear("cross_entropy", n=60)
    sample.y[:40] = 0  # a bias that matters
    model = sample.model
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=3000, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(model(sample.x), sample.y) + DECAY / 2 * next(model.parameters()).square().sum()
        value.backward()
        return value

    optimiser.step(closure)
    assert "weight decay of 0.03 of the weights alone, without biases" in doubt(sample, 10 * DECAY)


def test_adamw_is_named():
    """Its decay is decoupled from the loss: the gradient that stays is far smaller than wθ."""
    sample = problems.linear("cross_entropy", n=200)
    optimiser = torch.optim.AdamW(sample.model.parameters(), lr=3e-3, weight_decay=1.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        for part in torch.randperm(200, generator=generator).split(20):
            optimiser.zero_grad()
            F.cross_entropy(sample.model(sample.x[part]), sample.y[part]).backward()
            optimiser.step()
    assert "AdamW" in doubt(sample, 1.0)


def test_a_norm_takes_the_scale_of_weights_out_again_and_says_nothing_of_their_decay():
    """Their gradient is orthogonal to them, so that ŵ of the whole is far too small; the head's is right."""
    sample, decay = problems.mlp(n=60), 1e-2
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(4, 40, bias=False), nn.LayerNorm(40, elementwise_affine=False), nn.Tanh())
        model = nn.Sequential(body, nn.Linear(40, 3, bias=False)).to(sample.x.dtype)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=decay)
    for _ in range(400):
        optimiser.zero_grad()
        F.cross_entropy(model(sample.x), sample.y).backward()
        optimiser.step()
    with torch.no_grad():
        next(model.parameters()).mul_(5)  # which changes no output
    sample = replace(sample, model=model.eval())
    slope = fit(sample, weight_decay=decay, damping=None).gradient
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert slope is not None
    found = estimate_decay(slope - decay * theta, theta, Layout(("body", "head"), ((40, 4), (3, 40))))
    assert found is not None
    assert found.value < decay / 1.5  # which would be a contradiction
    assert found.last == pytest.approx(decay, rel=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(sample, weight_decay=decay, damping=None)
    said = re.search(r"weight decay of about (\S+), far below the 0.2 given", doubt(sample, 20 * decay))
    assert said is not None
    assert float(said[1]) == pytest.approx(decay, rel=0.3)


@pytest.mark.parametrize("steps", [0, 5, 50])
def test_a_network_that_is_not_trained_to_the_end_says_nothing_of_its_decay(steps):
    sample = problems.mlp(n=60)
    optimiser = torch.optim.SGD(sample.model.parameters(), lr=0.1, weight_decay=1e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(sample.model(sample.x), sample.y).backward()
        optimiser.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curvature = fit(sample, weight_decay=1e-3)
    found = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2))).diagnostics
    assert found.decay_estimate is None
    assert any("Train further" in reason for reason in found.reasons)


def test_the_verdict_names_the_decay_and_not_the_training():
    sample = trained("cross_entropy")
    with pytest.warns(ssse.DoubtfulSetting):
        curvature = fit(sample, weight_decay=DECAY / 10, damping=None)
    found = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2))).diagnostics
    assert found.verdict == "caution"
    assert found.decay_estimate == pytest.approx(DECAY)
    assert any("rather with 0.03. Fit again" in reason for reason in found.reasons)
    assert not any("Train further" in reason for reason in found.reasons)
    right = ssse.erase(
        sample.model, fit(sample, weight_decay=DECAY, damping=None), sample.loss, sample.part(slice(0, 2))
    )
    assert (right.diagnostics.verdict, right.diagnostics.decay_estimate) == ("ok", None)


def test_the_estimate_by_hand():
    layout = Layout(("weight", "bias"), ((1, 2), (1,)))
    theta, gradient = torch.tensor([3.0, 4.0, 1.0]), torch.tensor([-0.3, -0.4, 0.0])
    found = estimate_decay(gradient, theta, layout)
    assert found is not None
    assert found.value == pytest.approx(2.5 / 26)
    assert found.residual == pytest.approx(math.sqrt(0.25 - 2.5**2 / 26) / 0.5, rel=1e-6)
    alone = estimate_decay(torch.tensor([-0.3, -0.4, 0.0]), torch.tensor([3.0, 4.0, 20.0]), layout)
    assert alone is not None
    assert alone.weights_only
    assert (alone.value, alone.residual) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-6))
    assert estimate_decay(gradient, torch.zeros(3), layout) is None
    assert estimate_decay(torch.zeros(3), theta, layout) is None


def test_a_mean_with_class_weights():
    """Refused with its repair; following it gets near the model that is trained without S, the sum alone does not."""
    weights = torch.tensor([0.02, 0.1, 0.4], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    sample = problems.linear("cross_entropy", n=600, p=6)
    true = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(600, 3, generator=generator, dtype=torch.float64)
    sample.y[:] = (sample.x @ true + noise).argmax(1)

    def minimum(start: int) -> nn.Module:
        model = problems.linear("cross_entropy", p=6).model
        optimiser = torch.optim.LBFGS(
            model.parameters(),
            max_iter=3000,
            tolerance_grad=1e-11,
            tolerance_change=1e-15,
            line_search_fn="strong_wolfe",
        )

        def closure() -> torch.Tensor:
            optimiser.zero_grad()
            penalty = torch.stack([p.square().sum() for p in model.parameters()]).sum() * 0.01 / 2
            value = F.cross_entropy(model(sample.x[start:]), sample.y[start:], weight=weights) + penalty
            value.backward()
            return value

        optimiser.step(closure)
        return model.eval()

    def theta(model: nn.Module) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    sample.model, retrained = minimum(0), minimum(20)
    mean = float(weights[sample.y].mean())
    said = (
        rf"Use reduction='sum', and as weight_decay .*mean\(\): of these 32 it is {weights[sample.y[:32]].mean():.3g}"
    )
    with pytest.raises(ssse.SSSEError, match=said):
        fit(sample, loss=nn.CrossEntropyLoss(weight=weights), weight_decay=0.01)
    loss = nn.CrossEntropyLoss(weight=weights, reduction="sum")
    assert f"A mean with class weights divides by their mean, {mean:.4g}" in doubt(sample, 0.01, loss=loss)
    distance = {}
    for decay in (0.01, 0.01 * mean):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ssse.DoubtfulSetting)
            curvature = fit(sample, loss=loss, weight_decay=decay, damping=None, rows="expected")
        erased = ssse.erase(sample.model, curvature, loss, sample.part(slice(0, 20))).model
        distance[decay] = float((theta(erased) - theta(retrained)).norm())
    assert distance[0.01 * mean] < distance[0.01] / 3


def test_the_advice_to_fit_without_any_decay_can_be_followed():
    """Without a weight decay there is no damping by default, so that the advice names one."""
    sample = problems.mlp(n=60)  # never trained, with any
    with pytest.warns(ssse.DoubtfulSetting):
        curvature = fit(sample, weight_decay=2.0, damping=None)
    with pytest.raises(ssse.Refused, match="Fit again with weight_decay=0 and a small damping of your own, if the"):
        ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)))
