"""Training by hand, for the tests of what trains: plain steps that know nothing of the library's."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from ssse import baselines
from tests.support import problems

RATE, MOMENTUM, DECAY, SIZE, SEED = 0.05, 0.8, 0.02, 4, 3


class Loop:
    """SGD with momentum, parameter by parameter."""

    def __init__(self, sample: problems.Sample, mode: str, mask: Tensor | None = None):
        self.model = copy.deepcopy(sample.model).train(mode == "train")
        self.velocity = [torch.zeros_like(p) for p in self.model.parameters()]
        sizes = [p.numel() for p in self.model.parameters()]
        every = torch.ones(sum(sizes), dtype=torch.float64) if mask is None else mask
        self.masks = every.split(sizes)

    def step(self, loss: Tensor, rate: float = RATE) -> None:
        slopes = torch.autograd.grad(loss, list(self.model.parameters()))
        for p, v, m, g in zip(self.model.parameters(), self.velocity, self.masks, slopes, strict=True):
            v.mul_(MOMENTUM).add_((g + DECAY * p.detach()) * m.view(p.shape))
            p.data -= rate * v

    def assert_equals(self, updated: baselines.Updated) -> None:
        """Parameters and buffers, those of the training included."""
        found = updated.model.state_dict()
        for name, value in self.model.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)
        assert not any(module.training for module in updated.model.modules())


def places(count: int, size: int = SIZE, single: bool = False) -> Iterator[Tensor]:
    """Of mini-batches; a last one of a single sample joins the one before, but for `single`."""
    generator = torch.Generator().manual_seed(SEED)
    while True:
        order, start = torch.randperm(count, generator=generator), 0
        while start < count:
            stop = start + size
            if count - stop <= 1 and not (single and count - stop == 1):
                stop = count
            yield order[start:stop]
            start = stop
