"""float32 at the paper's sizes, B = 4096 and λ = 10⁻⁴, on gradients of a trained model."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import ssse
from ssse.curvature import gram as grams
from ssse.curvature.choices import StructureName
from ssse.curvature.gram import DampedGram, symmetric_product
from ssse.errors import NotPositiveDefinite, PrecisionLost

B, DAMPING = 4096, 1e-4


def trained() -> tuple[nn.Linear, Tensor, Tensor]:
    """A model of the test's own; the data are everybody's."""
    model, x, y = train_once()
    return copy.deepcopy(model), x, y


@cache
def train_once() -> tuple[nn.Linear, Tensor, Tensor]:
    """Is it a three? 4,096 random ReLU features of the digits; a few steps of training in float64."""
    generator = torch.Generator().manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16.0)
    x = (x - x.mean(0)) / (x.std(0) + 0.1)
    x = torch.relu(x @ torch.randn(64, B, generator=generator, dtype=torch.float64) / 8)
    y = torch.tensor(labels == 3, dtype=torch.float64)[:, None]
    model = nn.Linear(B, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=40, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        loss = loss + DAMPING / 2 * model.weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return model.eval(), x, y


@pytest.mark.parametrize("rows", ["empirical", "expected"])
def test_float32_solves_as_float64_does(rows):
    model, x, y = trained()
    exact = ssse.Curvature.fit(model, "binary_cross_entropy", [(x, y)], damping=DAMPING, rows=rows)
    coarse = ssse.Curvature.fit(model.float(), "binary_cross_entropy", [(x.float(), y)], damping=DAMPING, rows=rows)
    model.double()
    threes = (y[:, 0] == 1).nonzero()[:100, 0]
    g = ((model(x[threes]).sigmoid() - 1) * x[threes]).sum(0).detach()
    wanted = exact.solve(g)
    error = float((coarse.solve(g.float()).double() - wanted).norm() / wanted.norm())
    assert error < 1e-3


def test_float32_that_cannot_is_refused_with_the_number():
    model, x, y = trained()
    x, weight = x * 300, model.weight.detach() / 300  # the same predictions from features in another unit
    with torch.no_grad():
        model.weight.copy_(weight)
    options = {"damping": 1e-3, "rows": "expected"}
    with pytest.raises(PrecisionLost, match=r"relative error of \d\.\de[+-]\d\d.*dtype=torch.float64"):
        ssse.Curvature.fit(model.float(), "binary_cross_entropy", [(x.float(), y)], **options)
    ssse.Curvature.fit(model.double(), "binary_cross_entropy", [(x, y)], **options)


def test_the_measured_error_is_the_true_one():
    """On a matrix whose conditioning costs float32 most of its digits."""
    generator = torch.Generator().manual_seed(1)
    q = torch.linalg.qr(torch.randn(200, 200, generator=generator, dtype=torch.float64)).Q
    exact = (q * torch.logspace(0, 5, 200, dtype=torch.float64)) @ q.T
    square = exact.float()
    gram = DampedGram.factorise(square.clone(), 1e-3, "test")
    v = torch.randn(200, generator=generator)
    wanted = torch.linalg.solve(square.double() + 1e-3 * torch.eye(200, dtype=torch.float64), v.double())
    true = float((gram.solve(v[:, None])[:, 0].double() - wanted).norm() / wanted.norm())
    assert 1e-4 < true < 0.1
    assert gram.solve_error(v) == pytest.approx(true, rel=0.2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 7, 32, 33, 100])
def test_symmetric_product_reads_the_lower_triangle_alone(monkeypatch, size, dtype):
    monkeypatch.setattr(grams, "TILE_BYTES", {"cpu": 1})  # by the fewest lines
    generator = torch.Generator().manual_seed(2)
    a = torch.randn(size, size, generator=generator).to(dtype)
    x = torch.randn(size, 2, generator=generator, dtype=torch.float64)
    whole, before = a.double().tril() + a.double().tril(-1).T, a.clone()
    torch.testing.assert_close(symmetric_product(a, x), whole @ x, rtol=1e-13, atol=1e-13)
    assert torch.equal(a, before)


@pytest.mark.parametrize("damping", [1e-3, 1e-5])
def test_truncated_directions_stay_orthonormal_in_float32(damping):
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images[:400] / 16.0), torch.tensor(labels[:400])
    torch.manual_seed(0)
    model = nn.Linear(64, 10).double().eval()
    options = {"damping": damping, "rows": "empirical", "structure": ssse.LowRank(rank=390)}
    exact = ssse.Curvature.fit(model, "cross_entropy", [(x, y)], **options)
    coarse = ssse.Curvature.fit(model.float(), "cross_entropy", [(x.float(), y)], **options)
    v = torch.randn(650, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    wanted = exact.solve(v)
    assert float((coarse.solve(v.float()).double() - wanted).norm() / wanted.norm()) < 1e-3


def test_leaving_out_that_loses_its_digits_is_refused_not_returned():
    """One sample alone holds a direction, 10⁷ times more than the damping does."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(60, 8, generator=generator)
    x[:, 7] = 0
    x[0, 7] = 3000.0
    y = torch.randn(60, 1, generator=generator)
    model = nn.Linear(8, 1, bias=False).eval()

    def fit_and_erase(structure: StructureName) -> ssse.Erasure:
        curvature = ssse.Curvature.fit(model, "mse", [(x, y)], damping=1e-7, structure=structure)
        return ssse.erase(model, curvature, "mse", [(x[:1], y[:1])])

    with pytest.raises(PrecisionLost, match=r"determine a direction up to 1 part in .*float64"):
        fit_and_erase("dense")
    with pytest.raises((PrecisionLost, NotPositiveDefinite), match="float64"):  # the one or the other, as it rounds
        fit_and_erase("lowrank")
    model.double()
    for structure in ("dense", "lowrank"):
        curvature = ssse.Curvature.fit(model, "mse", [(x.double(), y.double())], damping=1e-7, structure=structure)
        erasure = ssse.erase(model, curvature, "mse", [(x[:1].double(), y[:1].double())], override=ssse.BOUNDS)
        rows = x[1:].double()
        m = rows.T @ rows + 59e-7 * torch.eye(8, dtype=torch.float64)
        g = (model(x[:1].double()) - y[:1].double()) @ x[:1].double()
        wanted = torch.linalg.solve(m, g[0].detach())
        assert float((erasure.step - wanted).norm() / wanted.norm()) < 1e-3
