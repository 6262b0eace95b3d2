"""Rows of all samples at once: one sample's backward pass, mapped over the batch by torch.func."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import vjp, vmap

from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import map_inputs
from ssse.problem.cores import BlockCores, Cores
from ssse.problem.derivatives.settings import kernels
from ssse.problem.derivatives.ways import CoresOf, RowWay, count_of, refuse_compiled
from ssse.problem.parameters import Layout
from ssse.problem.view import ModelView

SLOW = "There is a performance drop because we have not yet implemented the batching rule for"  # torch's own words
AT_A_TIME = 2**24  # numbers of the output space, where a sample's rows come one after another


@dataclass(frozen=True)
class Vectorised(RowWay):
    """`patient`: also where torch has no vectorised form of an operation, and does it one sample at a time."""

    patient: bool = False

    words: ClassVar[str] = "vectorised"

    def __str__(self) -> str:
        return f"{super().__str__()}, in part one sample at a time" if self.patient else super().__str__()

    @torch.no_grad()  # parameters outside θ may ask for gradients of their own
    def rows(self, view: ModelView, x: Inputs, cores: CoresOf) -> tuple[Tensor, Tensor]:
        refuse_compiled(view)

        count = count_of(x)

        def of_one(parameters: dict[str, Tensor], x: Inputs, place: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            z, pull = vjp(lambda p: view.call(p, _batch_of_one(x))[0], parameters)[:2]
            return _pull_each(pull, cores(z[None], place[None]), count), z

        with kernels(view.model, self.portable), warnings.catch_warnings():
            if self.patient:  # known, and chosen all the same
                warnings.filterwarnings("ignore", SLOW)
            places = torch.arange(count, device=view.device)
            rows, z = vmap(of_one, in_dims=(None, 0, 0))(view.parameters(), x, places)
        return _joined(view.layout, rows), z


def _joined(layout: Layout, parts: dict[str, Tensor]) -> Tensor:
    """The rows of all parameters as one matrix, shape (n, r, d); each part is freed as soon as it is there."""
    lead = parts[layout.names[0]].shape[:2]
    joined = parts[layout.names[0]].new_empty(*lead, layout.dim)
    for name, place in zip(layout.names, joined.split(layout.sizes, dim=2), strict=True):
        place.copy_(parts.pop(name).flatten(2))
    return joined


def _pull_each(pull: Callable[[Tensor], tuple[dict[str, Tensor]]], cores: Cores, count: int) -> dict[str, Tensor]:
    """The vector-Jacobian product with every core of one of `count` samples, shape (r, …).

    Cores with a part of the outputs each are made whole when their turn comes, as many at a time as are AT_A_TIME
    numbers over all samples.
    """
    _, r, c = cores.shape
    if r == 1:
        return {name: part[None] for name, part in pull(cores.row(0)[0])[0].items()}
    if not isinstance(cores, BlockCores):
        return vmap(pull)(cores.dense()[0])[0]
    blocks, parts = cores.values[0], torch.arange(r, device=cores.values.device)

    def of_part(part: Tensor) -> dict[str, Tensor]:
        return pull((blocks * (parts == part)[:, None]).flatten())[0]

    return vmap(of_part, chunk_size=max(1, AT_A_TIME // (count * c)))(parts)


def _batch_of_one(x: Inputs) -> Inputs:
    return map_inputs(lambda value: value[None], x)
