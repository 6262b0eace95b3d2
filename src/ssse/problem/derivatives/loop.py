"""Rows one sample at a time, by ordinary backward passes on the model's own parameters: what trains has these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import slice_batch
from ssse.problem.derivatives.settings import kernels
from ssse.problem.derivatives.ways import CoresOf, RowWay, count_of, differentiable_outputs, own_parameters, pull_back
from ssse.problem.view import ModelView


@dataclass(frozen=True)
class Loop(RowWay):
    words: ClassVar[str] = "one sample at a time"

    @torch.enable_grad()
    def rows(self, view: ModelView, x: Inputs, cores: CoresOf) -> tuple[Tensor, Tensor]:
        parameters, count = own_parameters(view), count_of(x)
        outputs: list[Tensor] = []
        rows = torch.empty(0)
        with kernels(view.model, self.portable):
            for place in range(count):
                one = slice(place, place + 1)
                z = differentiable_outputs(view, slice_batch(x, one))
                outputs.append(z.detach())
                vectors = cores(outputs[-1], one)
                r = vectors.shape[1]
                if place == 0:
                    rows = z.new_empty(count, r, view.layout.dim)
                for j in range(r):
                    pull_back(z, parameters, vectors.row(j), rows[place, j], keep=j + 1 < r)
        return rows, torch.cat(outputs)
