"""The step from projected gradients is the exact one where nothing is lost by the projection."""

from __future__ import annotations

import pytest
import torch

import ssse
from ssse.errors import InvalidModel
from ssse.paper.lasting.projected import ProjectedKernel, Projection, margin_of, projected_rows
from ssse.paper.resnet import ResNet20


def network() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ResNet20(4, 1, (4, 6), 1).double()
        model(torch.randn(50, 1, 8, 8, dtype=torch.float64))  # statistics that are not those of a new layer
    x = torch.randn(60, 1, 8, 8, generator=generator, dtype=torch.float64)
    return model.eval(), x, torch.randint(4, (60,), generator=generator)


def test_margins_are_those_of_the_loss():
    z = torch.randn(7, 4, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    phi = torch.stack([margin_of(one, label) for one, label in zip(z, y, strict=True)])
    p = z.softmax(1)[torch.arange(7), y]
    assert torch.allclose(phi.sigmoid(), p)


def test_projected_rows_are_the_gradients_between_the_projections():
    """A G Bᵀ of every sample and parameter, from single backward passes."""
    model, x, y = network()
    projection = Projection.of(model, side=3)
    rows, phi = projected_rows(model, x[:9], y[:9], projection)
    for row, value, image, label in zip(rows, phi, x, y, strict=False):
        margin = margin_of(model(image[None])[0], label)
        assert abs(float(margin.detach() - value)) < 1e-12
        wanted = []
        for name, slope in zip(projection.left, torch.autograd.grad(margin, list(model.parameters())), strict=True):
            a, b = projection.left[name], projection.right[name]
            wanted.append((a @ slope if b is None else a @ slope.flatten(1) @ b.mT).flatten())
        assert torch.allclose(row, torch.cat(wanted), rtol=1e-9, atol=1e-12)
    assert not any(layer._forward_hooks for layer in model.modules())


def test_layers_that_have_no_projection_are_named():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 4)).double().eval()
    with pytest.raises(InvalidModel, match="not of LayerNorm"):
        projected_rows(model, torch.randn(3, 1, 8, 8).double(), torch.arange(3), Projection.of(model))


@pytest.mark.parametrize("push", [None, 0.0, 0.5])
def test_without_loss_it_is_the_step_of_erase(push):
    model, x, y = network()
    kernel = ProjectedKernel.fit(model, x, y, Projection.of(model, side=10**6))
    curvature = ssse.Curvature.fit(
        model, "cross_entropy", [(x, y)], weight_decay=0.05, rows="margin", structure="lowrank", progress=False
    )
    forget = torch.arange(0, 60, 7)
    erasure = ssse.erase(
        model, curvature, "cross_entropy", [(x[forget], y[forget])], scale=1.0, push=push, override=ssse.BOUNDS,
        progress=False,
    )  # fmt: skip
    ours = kernel.direction(forget, decay=0.05, damping=0.05, push=1.0 if push is None else push)
    assert float((ours - erasure.direction).norm() / erasure.direction.norm()) < 1e-8


def test_projected_inner_products_are_right_on_average():
    model, x, y = network()
    exact, _ = projected_rows(model, x[:12], y[:12], Projection.of(model, side=10**6))
    wanted = exact @ exact.mT
    found = torch.zeros_like(wanted)
    for seed in range(60):
        rows, _ = projected_rows(model, x[:12], y[:12], Projection.of(model, side=4, seed=seed))
        assert rows.shape[1] < exact.shape[1]
        found += rows @ rows.mT / 60
    assert float((found - wanted).norm() / wanted.norm()) < 0.25
