"""Rows of convolutions and batch norms layer by layer, against a loop of single backward passes in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ssse.problem.cores import DenseCores
from ssse.problem.derivatives import layerwise
from ssse.problem.derivatives.layerwise import Layerwise
from ssse.problem.derivatives.loop import Loop
from ssse.problem.problem import Problem

LAYERS = [
    nn.Conv1d(4, 6, 3, padding=1),
    nn.Conv1d(4, 6, 2, stride=2, dilation=2, bias=False),
    nn.Conv1d(4, 8, 3, groups=2),
    nn.Conv2d(4, 6, 3, padding=1),
    nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False),
    nn.Conv2d(4, 8, 3, groups=4, stride=2),
    nn.Conv2d(4, 4, 3, groups=4, padding=(2, 0)),
    nn.Conv2d(4, 3, 3, padding="same"),
    nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"),
    nn.Conv3d(4, 2, 2, stride=(1, 2, 1), padding=(0, 1, 0)),
    nn.Conv3d(4, 4, 2, groups=2),
    nn.BatchNorm1d(4),
    nn.BatchNorm2d(4),
    nn.BatchNorm3d(4),
]
SHAPES = {"1d": (9,), "2d": (7, 6), "3d": (4, 5, 3)}


class Twice(nn.Module):
    """A layer between two others; called twice, so that its gradients add up."""

    def __init__(self, layer: nn.Module, times: int):
        super().__init__()
        self.first, self.layer, self.times, self.last = nn.Linear(1, 4), layer, times, nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x.movedim(1, -1)).movedim(-1, 1).tanh()
        z = sum((self.layer(h * (1 + i)).tanh().flatten(1) for i in range(self.times)), torch.zeros(()))
        return self.last(z[:, :5]) + z.square().mean(1, keepdim=True)


@pytest.mark.parametrize("in_groups", [("cpu",), ()], ids=["groups", "windows"])
@pytest.mark.parametrize("at_a_time", [1, 2**21])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_rows_of_a_layer(
    layer: nn.Module, times: int, at_a_time: int, in_groups: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a CPU, and as on a GPU."""
    monkeypatch.setattr(layerwise, "IN_GROUPS", in_groups)
    monkeypatch.setitem(layerwise.AT_A_TIME, "cpu", at_a_time)
    generator = torch.Generator().manual_seed(0)
    model = Twice(layer, times).double().eval()
    with torch.no_grad():
        for tensor in [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]:
            tensor.copy_(0.5 + 0.4 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(5, 1, *SHAPES[type(layer).__name__[-2:]], generator=generator, dtype=torch.float64)
    problem = Problem(model, "cross_entropy", "all", (x, torch.zeros(5, dtype=torch.long)))
    cores = DenseCores(torch.randn(5, 2, 3, generator=generator, dtype=torch.float64))
    true, outputs = Loop().rows(problem, x, lambda _, which: cores.samples(which))
    rows, z = Layerwise().rows(problem, x, lambda _, which: cores.samples(which))
    torch.testing.assert_close(rows, true, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(z, outputs)
    assert float(true.norm()) > 0.1


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if isinstance(layer, nn.Conv2d)][:2], ids=repr)
def test_the_windows_are_those_of_unfold(layer: nn.Conv2d) -> None:
    a = torch.randn(3, 4, 7, 6, generator=torch.Generator().manual_seed(0))
    assert not isinstance(layer.padding, str)
    true = nn.functional.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    assert torch.equal(layerwise._windows(layer, a.to(a)).flatten(1, 3).flatten(2), true)
