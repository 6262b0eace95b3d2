"""The training objective on the samples that remain, and its gradient: one pass over them for each θ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssse.curvature.curvature import Curvature
from ssse.curvature.lowrank import LowRankStructure
from ssse.erasure.descent import LinearBatch, Point
from ssse.errors import InvalidData
from ssse.problem.batches import Batch, read_batch, regroup
from ssse.problem.cores import DenseCores
from ssse.problem.problem import Problem
from ssse.problem.sample_digests import digest_samples
from ssse.problem.view import flat_outputs
from ssse.rows.held import LinearRows

SAME_LOSS = 1e-4  # relative; above it, this is not the data that the curvature's mean loss is of


class RetainedObjective:
    """L(θ) = (1/n) Σ ℓᵢ(θ) + (w/2)‖θ‖² and ∇L, summed in float64, on a copy of the model.

    Attributes:
        passes: over the data, so far. keeps: whether a point comes with the features of a model linear in θ.
    """

    def __init__(
        self,
        problem: Problem,
        curvature: Curvature,
        data: Iterable[Any],
        *,
        keeps: bool = False,
        advance: Callable[[int], None] = lambda _: None,
    ):
        self.passes: int = 0
        self.keeps: bool = keeps and problem.linear is not None
        self._curvature, self._data, self._advance = curvature, data, advance
        self._problem: Problem = problem.copied()
        named = dict(self._problem.model.named_parameters())
        for name, parameter in named.items():  # what is outside θ needs no gradient, and no memory for one
            parameter.requires_grad_(name in problem.layout.names)
        self._leaves: dict[str, nn.Parameter] = {name: named[name] for name in problem.layout.names}

    def first(self, theta: Tensor) -> Point:
        """At the θ to start from; on the way, the data is checked to be what remains.

        Raises:
            InvalidData: it is not, or the objective there is NaN or infinite.
        """
        structure, digests = self._curvature.structure, list[Tensor]()

        def look(batch: Batch) -> None:
            self._problem.check_labels(batch[1])
            if isinstance(structure, LowRankStructure) and self._curvature.kind.per_batch == 1:
                digests.append(torch.from_numpy(digest_samples(batch, structure.salt).view(np.int64)))

        point = self(theta, look)
        if isinstance(structure, LowRankStructure) and digests:
            missing = structure.count_missing(torch.cat(digests))
            if missing:
                raise InvalidData(
                    f"{missing} of these {self._curvature.n} samples are not among those that the curvature stands "
                    "for: forgotten ones, or not bit for bit as they were (other preprocessing, other labels)."
                )
        if not math.isfinite(point.value):
            raise InvalidData("The loss or its gradient is NaN or infinite on the data that remains.")
        known, found = self._curvature.mean_loss, self.mean_loss(point)
        if known is not None and abs(found - known) > SAME_LOSS * abs(known):
            raise InvalidData(
                f"This is not the data that the curvature stands for: its mean loss is {found:.6g}, then it was "
                f"{known:.6g}."
            )
        return point

    def __call__(self, theta: Tensor, look: Callable[[Batch], None] = lambda _: None) -> Point:
        """At any θ; the objective is infinite where it, or its gradient, is not finite."""
        with torch.no_grad():
            for name, value in self._problem.layout.unflatten(theta).items():
                self._leaves[name].copy_(value)
        loss, size, count, kept = 0.0, 0.0, 0, list[LinearBatch]()
        gradient = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        for batch in self._batches():
            look(batch)
            z, total, slope = self._of_linear(batch, kept) if self.keeps else self._of_any(batch)
            loss, gradient, count = loss + total, gradient + slope, count + len(batch[1])
            size += float(z.abs().amax(1).sum(dtype=torch.float64))
            self._advance(len(batch[1]))
        self.passes += 1
        self._check_count(count)
        decay, wide = self._curvature.weight_decay, theta.double()
        gradient = gradient / count + decay * wide
        value = loss / count + decay / 2 * float(wide @ wide)
        finite = math.isfinite(value) and bool(torch.isfinite(gradient).all())
        magnitude = abs(value) + size / count  # a softmax loss is a difference of outputs
        return Point(theta, value if finite else math.inf, gradient.to(theta.dtype), magnitude, kept)

    def mean_loss(self, point: Point) -> float:
        """(1/n) Σ ℓᵢ."""
        wide = point.theta.double()
        return point.value - self._curvature.weight_decay / 2 * float(wide @ wide)

    def _of_any(self, batch: Batch) -> tuple[Tensor, float, Tensor]:
        """z, Σ ℓ and Σ ∇ℓ, by one forward and one backward pass."""
        x, y = batch
        with torch.enable_grad():
            z = flat_outputs(self._problem.outputs_of(x))
            losses = self._problem.loss.values(z, y)
            slopes = torch.autograd.grad(losses.sum(), list(self._leaves.values()))
        slope = self._problem.layout.flatten(dict(zip(self._leaves, slopes, strict=True)))
        return z.detach(), float(losses.detach().sum(dtype=torch.float64)), slope.double()

    def _of_linear(self, batch: Batch, kept: list[LinearBatch]) -> tuple[Tensor, float, Tensor]:
        """The same in closed form, from one forward pass whose features are kept: each pass has an order of its own."""
        (x, y), linear, loss = batch, self._problem.linear, self._problem.loss
        z, features = self._problem.forward(x)
        assert linear is not None
        assert features is not None
        if linear.bias:
            features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
        kept.append(LinearBatch(features, z, y))
        cores = DenseCores(loss.gradient(z, y).unsqueeze(1))
        slope = LinearRows(features, cores, linear).transposed_times(z.new_ones(len(y)))
        return z, float(loss.values(z, y).sum(dtype=torch.float64)), slope.double()

    def _batches(self) -> Iterator[Batch]:
        read = (read_batch(batch, self._problem.device) for batch in self._data)
        yield from regroup((batch for batch in read if len(batch[1])), self._curvature.group)

    def _check_count(self, count: int) -> None:
        expected, erased = self._curvature.n, self._curvature.erased
        if count == expected:
            return
        if self.passes > 1:
            raise InvalidData(f"The data that remains held {expected} samples at first and {count} when read again.")
        forgotten = " The forgotten ones are still among them: leave them out." * (count == expected + erased)
        raise InvalidData(
            f"The data that remains holds {count} samples; this curvature stands for {expected}.{forgotten} Pass the "
            "data it was fitted on, less what was erased since."
        )
