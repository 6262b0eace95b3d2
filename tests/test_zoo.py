"""A zoo of models: each is fitted, erased from and diagnosed, and its rows are those of plain backward passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ssse
from ssse.errors import InvalidSetting
from ssse.problem.losses import as_loss
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowKind, RowName, measure, measure_held
from tests.support.zoo import ZOO, Animal, Inputs, animal

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),  # of torch's encoder
    pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning"),
]
CLOSE = 1e-5  # float32, relative to the longest row
UNPRODUCTIVE = {  # whose Jacobian cannot be multiplied with, and the layer that is to be named
    "embedding bag": "EmbeddingBag 'bag'",
    "sparse embedding bag": "EmbeddingBag 'bag'",
    "own function, once": "",
}


def outputs(model: nn.Module, x: Inputs) -> Tensor:
    z = model(**x) if isinstance(x, dict) else model(x)
    return z if isinstance(z, Tensor) else z.logits


def part(x: Inputs, where: slice) -> Inputs:
    return {key: value[where] for key, value in x.items()} if isinstance(x, dict) else x[where]


def plain_rows(creature: Animal, name: RowName) -> Tensor:
    """One ordinary backward pass after another, each of one sample alone."""
    rows = []
    for i in range(len(creature.y)):
        one = slice(i, i + 1)
        z = outputs(creature.model, part(creature.x, one))
        cores = RowKind(name).cores(as_loss("cross_entropy"), z.detach(), creature.y[one], z.detach()).dense()[0]
        for core in cores:
            rows.append(gradient(creature.model, (z[0] * core).sum()))
    return torch.stack(rows)


def gradient(model: nn.Module, value: Tensor) -> Tensor:
    model.zero_grad()
    value.backward(retain_graph=True)
    parts = [(p, p.grad) for p in model.parameters() if p.requires_grad]
    flat = [torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g for p, g in parts]
    model.zero_grad()
    return torch.cat([part.flatten() for part in flat]).detach()


def assert_close(found: Tensor, true: Tensor) -> None:
    assert found.shape == true.shape
    assert float((found - true).norm(dim=-1).max()) <= CLOSE * float(true.norm(dim=-1).max())


def check_animal(creature: Animal, products: bool = True) -> None:
    """Rows of every kind, sums, products; then a fit and a request by rows, and one by products."""
    batch = (creature.x, creature.y)
    before = {name: value.clone() for name, value in creature.model.state_dict().items()}
    problem = Problem(creature.model, "cross_entropy", "all", batch)
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(problem.layout.dim, generator=generator)
    slopes = torch.empty(0)
    for name in ("empirical", "margin", "expected"):
        true = plain_rows(creature, name)
        rows, measured = measure_held(problem, RowKind(name), batch)
        assert_close(rows.matrix(), true)
        slopes = true.sum(0) if name == "empirical" else slopes
        assert_close(measured.gradient[None], slopes[None])
        if products:
            free = measure(problem, RowKind(name), batch).rows
            image = free.times(v)
            assert_close(image[None], (true @ v)[None])
            assert_close(free.transposed_times(image)[None], (true.T @ image)[None])
    forget = [(part(creature.x, slice(0, 2)), creature.y[:2])]
    steps = []
    for structure in ("dense", "matrix_free") if products else ("dense",):
        curvature = ssse.Curvature.fit(
            creature.model,
            "cross_entropy",
            [batch],
            weight_decay=2.0,
            rows="margin",
            structure=structure,
            progress=False,
        )
        erased = ssse.erase(creature.model, curvature, forget=forget, override=ssse.BOUNDS)
        assert float(erased.step.norm()) > 0
        assert erased.diagnostics.loss_after == pytest.approx(loss_of(erased.model, forget), rel=1e-4)
        steps.append(erased.step)
    torch.testing.assert_close(steps[-1], steps[0], rtol=2e-2, atol=2e-2 * float(steps[0].abs().max()))
    now = creature.model.state_dict()
    assert all(torch.equal(now[name], value) for name, value in before.items())
    assert all(p.grad is None for p in creature.model.parameters())


@torch.no_grad()
def loss_of(model: nn.Module, batches: list[tuple[Inputs, Tensor]]) -> float:
    return float(sum(F.cross_entropy(outputs(model, x), y, reduction="sum") for x, y in batches)) / 2


@pytest.mark.parametrize("name", ZOO)
def test_each_is_served(name):
    check_animal(animal(name), products=name not in UNPRODUCTIVE)


@pytest.mark.parametrize("name", UNPRODUCTIVE)
def test_without_products_matrix_free_is_refused_before_the_long_pass(name):
    creature, read = animal(name), []

    def data() -> Iterator[tuple[Inputs, Tensor]]:
        for start in (0, 5):
            read.append(start)
            yield part(creature.x, slice(start, start + 5)), creature.y[start : start + 5]

    class Data:
        def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
            return data()

    with pytest.raises(InvalidSetting, match=f"matrix_free.*{UNPRODUCTIVE[name]}.*Use structure='lowrank'"):
        ssse.Curvature.fit(creature.model, "cross_entropy", Data(), damping=0.1, structure="matrix_free", n=10)
    assert read.count(5) <= 1
