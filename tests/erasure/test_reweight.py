"""Re-weighted solves: Newton's steps on the linearised problem of what remains, against plain float64 refits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.curvature import reweighted
from ssse.curvature.gram import DampedGram
from ssse.errors import InvalidSetting
from ssse.rows.held import ExplicitRows
from tests.support import dense, problems
from tests.support.refusals import refused

DECAY, K = 0.02, 8
GONE, KEPT = slice(0, K), slice(K, None)


class ByHand(nn.Module):
    """Linear in θ, and nothing that is known to be: its rows are taken as a network's."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(outputs, inputs, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, None, :] * self.scale).sum(2)


def by_hand(loss: str, n: int = 60, seed: int = 0) -> problems.Sample:
    """Labels that x tells, most of the time, so that the step is long and its weights change."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    right = x @ torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.float64)
    label = (right + torch.randn(n, generator=generator, dtype=torch.float64)) > 0
    label[GONE] = ~label[GONE]  # the model leaned on these
    y = label.long() if loss == "cross_entropy" else label.double()[:, None]
    model = ByHand(4, 2 if loss == "cross_entropy" else 1).eval()
    return problems.Sample(loss, model, loss, x, y)


def refit(sample: problems.Sample, part: slice = slice(None), weights: Tensor | None = None) -> nn.Module:
    """The minimum of (1/n) Σ vℓ + (w/2)‖θ‖² over a part, by dense Newton steps in float64."""
    model = copy.deepcopy(sample.model)
    assert isinstance(model, ByHand)
    x, y = sample.x[part], sample.y[part]
    counts = torch.ones(len(x), dtype=torch.float64) if weights is None else weights[part]
    parameter = model.scale

    def objective(flat: Tensor) -> Tensor:
        z = (x[:, None, :] * flat.view_as(parameter)).sum(2)
        if sample.loss == "cross_entropy":
            losses = nn.functional.cross_entropy(z, y, reduction="none")
        else:
            losses = nn.functional.binary_cross_entropy_with_logits(z, y, reduction="none").sum(1)
        return (counts * losses).sum() + len(x) * DECAY / 2 * flat.square().sum()

    theta = newton(objective, parameter.detach().reshape(-1))
    with torch.no_grad():
        parameter.copy_(theta.view_as(parameter))
    return model


def newton(objective, start: Tensor) -> Tensor:
    theta = start.clone()
    for _ in range(100):
        slope, matrix = torch.func.grad(objective)(theta), torch.func.hessian(objective)(theta)
        step = -torch.linalg.solve(matrix, slope)
        if float(step.norm()) < 1e-14 * float(theta.norm()):
            return theta
        length = 1.0
        while float(objective(theta + length * step)) > float(objective(theta)) * (1 + 1e-14) and length > 1e-9:
            length /= 2
        theta = theta + length * step
    return theta


def fit(sample: problems.Sample, data=None, **options) -> ssse.Curvature:
    options = {"weight_decay": DECAY, "rows": "margin", "structure": "lowrank", **options}
    return ssse.Curvature.fit(sample.model, sample.loss, sample.data if data is None else data, **options)


def erase(sample: problems.Sample, curvature: ssse.Curvature, **options) -> ssse.Erasure:
    options = {"forget": sample.part(GONE), "override": ssse.BOUNDS, **options}
    return ssse.erase(sample.model, curvature, sample.loss, **options)


def distance(found: nn.Module, wanted: nn.Module) -> float:
    a, b = dense.theta(found), dense.theta(wanted)
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy"])
@pytest.mark.parametrize("residual", [False, True])
def test_of_a_model_linear_in_theta_it_is_the_refit_on_what_remains(loss, residual):
    sample = by_hand(loss)
    sample.model = refit(sample)
    curvature = fit(sample)
    assert curvature.linear is None  # margins of a network, for all that is known
    wanted = refit(sample, KEPT)
    once, often = (erase(sample, curvature, residual=residual, reweight=rounds) for rounds in (0, 30))
    assert distance(often.model, wanted) < 1e-8
    assert distance(once.model, wanted) > 1e-2
    assert 2 <= often.diagnostics.reweight_rounds < 15
    assert often.diagnostics.reweight_gradient is not None
    assert often.diagnostics.reweight_gradient < 1e-10
    assert often.diagnostics.solve_residual is not None
    assert often.diagnostics.solve_residual < 1e-10
    assert f"re-weighted: {often.diagnostics.reweight_rounds} times" in str(often.diagnostics)
    assert "re-weighted" not in str(once.diagnostics)


def test_residual_starts_from_a_model_that_was_not_trained_to_the_end():
    """F is then the training objective of what remains, wherever θ* is."""
    sample = by_hand("cross_entropy")
    sample.model = refit(sample)
    with torch.no_grad():
        sample.model.get_parameter("scale").add_(0.1 * torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    wanted = refit(sample, KEPT)
    assert distance(erase(sample, fit(sample), residual=True, reweight=30).model, wanted) < 1e-8
    assert distance(erase(sample, fit(sample), residual=False, reweight=30).model, wanted) > 1e-3


def test_samples_with_weights():
    sample = by_hand("cross_entropy")
    weights = torch.rand(len(sample.x), generator=torch.Generator().manual_seed(4), dtype=torch.float64) + 0.2
    sample.model = refit(sample, weights=weights)
    curvature = fit(sample, [(sample.x, sample.y, weights)])
    forget = [(sample.x[GONE], sample.y[GONE], weights[GONE])]
    found = erase(sample, curvature, forget=forget, reweight=30)
    assert distance(found.model, refit(sample, KEPT, weights)) < 1e-8


@pytest.mark.parametrize("residual", [False, True])
def test_of_a_network_it_is_the_minimum_of_the_linearised_objective(residual):
    sample, n = problems.mlp(n=40), 40
    curvature = fit(sample)
    theta = dense.theta(sample.model)
    weighted = dense.margin_rows(sample.model, sample.loss, sample.x, sample.y)
    p = sample.model(sample.x).softmax(1).gather(1, sample.y[:, None])[:, 0].detach()
    phi, slopes = p.log() - (1 - p).log(), weighted / (p * (1 - p)).sqrt()[:, None]
    loss = dense.LOSSES[sample.loss]
    right = dense.gradient(sample.model, loss, sample.x[GONE], sample.y[GONE]) + K * DECAY * theta
    if residual:
        right = -dense.gradient(sample.model, loss, sample.x[KEPT], sample.y[KEPT]) - (n - K) * DECAY * theta
    settled = (1 - p[KEPT]) @ slopes[KEPT]  # minus the gradient of the linearised losses at u = 0

    def objective(u: Tensor) -> Tensor:
        losses = nn.functional.softplus(-(phi[KEPT] + slopes[KEPT] @ u)).sum()
        return losses + settled @ u + (n - K) * DECAY / 2 * u.square().sum() - right @ u

    wanted = newton(objective, torch.zeros_like(theta))
    found = erase(sample, curvature, residual=residual, reweight=40)
    torch.testing.assert_close(found.direction, wanted, rtol=1e-7, atol=1e-9)
    first = erase(sample, curvature, residual=residual, reweight=1)
    torch.testing.assert_close(first.direction, erase(sample, curvature, residual=residual).direction)
    assert first.diagnostics.reweight_rounds == 1


def remaining(seed: int, confident: float = 0.0) -> reweighted.Remaining:
    """A system of its own, of random rows and margins."""
    generator = torch.Generator().manual_seed(seed)
    slopes = torch.randn(30, 50, generator=generator, dtype=torch.float64)
    phi = confident + torch.randn(30, generator=generator, dtype=torch.float64)
    gram = DampedGram.factorise((slopes @ slopes.T).tril(), 1.0, "test", torch.ones(30, dtype=torch.float64))
    right = torch.randn(50, generator=generator, dtype=torch.float64)
    index = torch.tensor([1, 5])
    return reweighted.Remaining(ExplicitRows(slopes), gram, phi, torch.ones_like(phi), index, right, 0.05)


def test_the_objective_never_rises_and_long_steps_are_shortened(monkeypatch):
    values, shortened = [], 0
    plain = reweighted.Remaining._lower

    def watched(self, point, step, value, *known):
        nonlocal shortened
        found = plain(self, point, step, value, *known)
        assert found is not None
        shortened += found[0].tau != point.tau + step.tau
        values.append((value, found[1]))
        return found

    monkeypatch.setattr(reweighted.Remaining, "_lower", watched)
    for seed in range(4):
        system, values = remaining(seed, confident=8.0), []
        found = system.newton(200)
        assert found.gradient < 1e-9
        assert all(after <= before + 1e-11 * abs(before) for before, after in values)
        slopes = system.slopes.values[reweighted_kept(system)]  # type: ignore[attr-defined]
        phi = system.phi[reweighted_kept(system)]
        change = (-phi).sigmoid() - (-(phi + slopes @ found.x)).sigmoid()
        gradient = slopes.T @ change + system.ridge * found.x - system.right
        assert float(gradient.norm()) < 1e-8 * float(system.right.norm())
    assert shortened > 0


def reweighted_kept(system: reweighted.Remaining) -> Tensor:
    kept = torch.ones(len(system.phi), dtype=torch.bool)
    kept[system.index] = False
    return kept


def test_nothing_to_remove_moves_nothing():
    system = remaining(0)
    still = reweighted.Remaining(
        system.slopes, system.gram, system.phi, system.counts, system.index[:0], 0 * system.right, system.ridge
    )
    found = still.newton(10)
    assert (found.rounds, found.residual, float(found.x.norm())) == (0, 0.0, 0.0)


def test_a_joint_stream_is_one_request_and_a_moved_model_is_told():
    sample = by_hand("cross_entropy")
    sample.model = refit(sample)
    curvature = fit(sample)
    joint = {"policy": "joint", "reweight": 30}
    first = erase(sample, curvature, forget=sample.part(slice(0, 3)), **joint)
    second = ssse.erase(
        first.model, first.curvature, sample.loss, sample.part(slice(3, K)), override=ssse.BOUNDS, **joint
    )
    assert distance(second.model, refit(sample, KEPT)) < 1e-8
    rebased = erase(sample, curvature, forget=sample.part(slice(0, 3)), reweight=30)
    with refused(InvalidSetting, "are no longer those of this model", rebased.model):
        ssse.erase(rebased.model, rebased.curvature, sample.loss, sample.part(slice(3, K)), reweight=3)


@pytest.mark.parametrize(
    ("options", "asked", "match"),
    [
        ({"rows": "expected"}, {}, 'rows="margin" and structure="lowrank"'),
        ({"structure": "dense"}, {}, 'rows="margin" and structure="lowrank"'),
        ({"blocks": 7}, {}, 'blocks="one"'),
        ({}, {"leave_out": False}, "leave_out=True"),
        ({}, {"reweight": -1}, "whole number of rounds"),
        ({}, {"reweight": 1.5}, "whole number of rounds"),
        ({}, {"reweight": True}, "whole number of rounds"),
    ],
)
@pytest.mark.filterwarnings("ignore::ssse.DoubtfulSetting")
def test_what_it_cannot_do_it_says(options, asked, match):
    sample = problems.mlp()
    curvature = fit(sample, **options)
    with refused(InvalidSetting, match, sample.model):
        erase(sample, curvature, **{"reweight": 3, **asked})


def test_a_linear_model_is_sent_to_refine():
    sample = problems.linear("cross_entropy")
    with refused(InvalidSetting, "ssse.refine", sample.model):
        erase(sample, fit(sample), reweight=3)


def test_a_scale_that_was_measured_for_the_one_step_is_not_taken():
    sample = problems.mlp()
    curvature = fit(sample).with_scale(0.5, "measured")
    with refused(InvalidSetting, "measured for the one step", sample.model):
        erase(sample, curvature, reweight=3)
    assert erase(sample, curvature, reweight=3, scale=0.5).diagnostics.scale == 0.5


def test_strangers_are_refused_as_ever():
    sample = problems.mlp()
    with refused(ssse.Refused, "not among the curvature's rows", sample.model):
        erase(sample, fit(sample), forget=[(sample.x[:2] + 1, sample.y[:2])], reweight=3)


def test_float32_rows_with_a_float64_kernel():
    """The same problem, in the rows' digits."""
    sample = problems.mlp(n=40, dtype=torch.float32)
    curvature = fit(sample)
    exact = problems.Sample("exact", copy.deepcopy(sample.model).double(), sample.loss, sample.x.double(), sample.y)
    wanted = erase(exact, fit(exact), reweight=40).direction
    found = erase(sample, curvature, reweight=40)
    assert float((found.direction.double() - wanted).norm() / wanted.norm()) < 1e-4
    assert found.diagnostics.solve_residual is not None
    assert found.diagnostics.solve_residual < 1e-10
