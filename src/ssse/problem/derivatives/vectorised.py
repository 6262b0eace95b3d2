"""Rows of all samples at once: one sample's backward pass, mapped over the batch by torch.func."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import vjp, vmap

from ssse.problem.batches import Inputs
from ssse.problem.derivatives.settings import kernels
from ssse.problem.derivatives.ways import Cores, RowWay, count_of, refuse_compiled
from ssse.problem.view import ModelView

SLOW = "There is a performance drop because we have not yet implemented the batching rule for"  # torch's own words


@dataclass(frozen=True)
class Vectorised(RowWay):
    """`patient`: also where torch has no vectorised form of an operation, and does it one sample at a time."""

    patient: bool = False

    words: ClassVar[str] = "vectorised"

    @torch.no_grad()  # parameters outside θ may ask for gradients of their own
    def rows(self, view: ModelView, x: Inputs, cores: Cores) -> tuple[Tensor, Tensor]:
        refuse_compiled(view)

        def of_one(parameters: dict[str, Tensor], x: Inputs, place: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            z, pull = vjp(lambda p: view.call(p, _batch_of_one(x))[0], parameters)[:2]
            return _pull_each(pull, cores(z[None], place[None])[0]), z

        with kernels(view.model, self.portable), warnings.catch_warnings():
            if self.patient:  # known, and chosen all the same
                warnings.filterwarnings("ignore", SLOW)
            places = torch.arange(count_of(x), device=view.device)
            rows, z = vmap(of_one, in_dims=(None, 0, 0))(view.parameters(), x, places)
        return view.layout.flatten(rows, lead=2), z


def _pull_each(pull: Callable[[Tensor], tuple[dict[str, Tensor]]], cores: Tensor) -> dict[str, Tensor]:
    """The vector-Jacobian product with every core of a sample, shape (r, …)."""
    return vmap(pull)(cores)[0] if len(cores) > 1 else {k: v[None] for k, v in pull(cores[0])[0].items()}


def _batch_of_one(x: Inputs) -> Inputs:
    return {key: value[None] for key, value in x.items()} if isinstance(x, dict) else x[None]
