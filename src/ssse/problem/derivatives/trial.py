"""A way is tried on two samples against a loop of single backward passes, and taken if both say the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from ssse.errors import InvalidModel, SSSEError
from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import slice_batch
from ssse.problem.cores import DenseCores
from ssse.problem.derivatives.blame import first_sentence, layer_that_raises, layer_without_backward
from ssse.problem.derivatives.hidden import refuse_hidden_gradients
from ssse.problem.derivatives.loop import Loop
from ssse.problem.derivatives.products import DoubleBackward
from ssse.problem.derivatives.settings import kernels
from ssse.problem.derivatives.vectorised import SLOW
from ssse.problem.derivatives.ways import ProductWay, RowWay, TransposedWay, Unsuited, Way, count_of
from ssse.problem.view import ModelView, flat_outputs

PAIRS = 3  # a kink of the model between two roundings may part two ways on one pair of samples, hardly on three
NOT_OURS = (SSSEError, MemoryError, torch.OutOfMemoryError)  # no reason to try another way

W = TypeVar("W", bound=Way)


@dataclass
class Pair:
    """Two samples, and what single backward passes say of them: computed once, whatever is held against it."""

    view: ModelView
    x: Inputs

    @cached_property
    def cores(self) -> Tensor:
        return _cores(self.view, self.x, 1)

    @cached_property
    def truth(self) -> tuple[Tensor, Tensor]:
        """Rows and outputs."""
        return _truth(self.view, self.x, self.cores)


class Pairs:
    """Of the samples at hand, the first few; gone with whoever made them."""

    def __init__(self, view: ModelView, x: Inputs):
        self.view: ModelView = view
        self.x: Inputs = x
        self.count: int = max(1, min(PAIRS, count_of(x) // 2))
        self._made: dict[int, Pair] = {}
        self._none_hidden: set[bool] = set()  # with these kernels

    def __getitem__(self, place: int) -> Pair:
        if place not in self._made:
            self._made[place] = Pair(self.view, slice_batch(self.x, slice(2 * place, 2 * place + 2)))
        return self._made[place]

    def refuse_hidden_gradients(self, portable: bool) -> None:
        if portable not in self._none_hidden:
            with kernels(self.view.model, portable):
                refuse_hidden_gradients(self.view, slice_batch(self.x, slice(0, 1)))
            self._none_hidden.add(portable)


Check = Callable[[Pair, W], None]


@dataclass(frozen=True)
class Passed:
    """A way that was not taken: the layer that raised, where it is known, and why."""

    way: Way
    layer: str | None
    why: str
    raised: bool = False  # by code that is not ours, whose words these are

    def __str__(self) -> str:
        if not self.raised:
            return f"{self.way}: {self.why}"
        return f"{self.way}: {self.layer or 'torch'} says “{self.why}”"


class Disagrees(Unsuited):
    """A way runs, and gives something else than the loop."""


def first_that_agrees(
    view: ModelView, x: Inputs, ways: Iterable[W], check: Check[W], pairs: Pairs | None = None
) -> tuple[W | None, tuple[Passed, ...]]:
    """The first way that runs and agrees on a pair of the samples, and those that were tried before it."""
    passed: list[Passed] = []
    pairs = pairs or Pairs(view, x)
    for way in ways:
        try:
            _try(pairs, way, check)
        except NOT_OURS:
            raise
        except Unsuited as reason:
            passed.append(Passed(way, None, str(reason)))
        except Exception as error:  # whatever a layer may raise
            passed.append(Passed(way, _layer(pairs, way, check), first_sentence(error), raised=True))
        else:
            pairs.refuse_hidden_gradients(way.portable)
            return way, tuple(passed)
    return None, tuple(passed)


def _layer(pairs: Pairs, way: W, check: Check[W]) -> str | None:
    """That raised: in its forward, or else in its backward pass."""
    view, x = pairs.view, pairs.x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return layer_that_raises(view.model, lambda: _on_pairs(pairs, way, check)) or layer_without_backward(
            view.model, lambda: view.outputs_of(slice_batch(x, slice(0, 2))), isinstance(way, DoubleBackward)
        )


def _try(pairs: Pairs, way: W, check: Check[W]) -> None:
    with warnings.catch_warnings(record=True) as warned:  # of what is only tried
        warnings.simplefilter("always")
        _on_pairs(pairs, way, check)
    for warning in warned:
        if str(warning.message).startswith(SLOW):
            operation = str(warning.message).removeprefix(SLOW).split(".")[0].strip()
            raise Unsuited(f"torch would do {operation} one sample at a time")


def _on_pairs(pairs: Pairs, way: W, check: Check[W]) -> None:
    for place in range(pairs.count):
        try:
            return check(pairs[place], way)
        except Disagrees:
            if place == pairs.count - 1:
                raise


def check_rows(pair: Pair, way: RowWay) -> None:
    """One row of each of two samples, then two of the first: torch may take another road for more than one."""
    view, x = pair.view, pair.x
    rows, z = way.rows(view, x, lambda _, which: DenseCores(pair.cores[which]))
    _compare_rows(view, rows, z, *pair.truth)
    del rows  # of a large model, each is a good part of the memory that a plan may take
    factors = torch.tensor([[[1.0], [-0.5]]], dtype=z.dtype, device=z.device)
    rows, z = way.rows(view, slice_batch(x, slice(0, 1)), lambda _, which: DenseCores(pair.cores[:1] * factors))
    rows.div_(factors)
    _compare_rows(view, rows, z, pair.truth[0][:1], pair.truth[1][:1])


def _compare_rows(view: ModelView, rows: Tensor, z: Tensor, true: Tensor, outputs: Tensor) -> None:
    _compare(view, rows, true, "rows")
    _compare(view, z.unsqueeze(1), outputs.unsqueeze(1), "outputs")


def check_times(pair: Pair, way: ProductWay) -> None:
    """uᵀ(Jv) against (uᵀJ)v.

    With v along the rows themselves, where no part of J can be missing unseen; then where all rows are zero, which
    backward passes may have made so (the padding of an embedding), and Jv must be zero too.
    """
    view, cores, rows = pair.view, pair.cores, pair.truth[0].squeeze(1)
    # In float64: millions of squares summed in float32 are off by more than what is looked for.
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).clamp_min(torch.finfo(rows.dtype).tiny)

    def along(v: Tensor) -> Tensor:
        return ((cores[:, 0] * way.times(view, pair.x, v)).double().sum(1) / norms).view(-1, 1, 1)

    v = (1 / norms).to(rows.dtype) @ rows
    true = torch.stack([_dot(row, v) for row in rows]) / norms
    _compare(view, along(v), true.view(-1, 1, 1), "products")
    zero, largest = (rows == 0).all(0), float((rows.abs().amax(1) / norms).max())
    if not float(along(zero.to(v.dtype)).abs().max()) <= tolerance(view) * largest:
        raise Disagrees("the products of two samples are not zero where single backward passes are")


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """In float64, without copies in it of long vectors."""
    parts = [p.double() @ q.double() for p, q in zip(a.split(2**20), b.split(2**20), strict=True)]
    return torch.stack(parts).sum()


def check_transposed(pair: Pair, way: TransposedWay) -> None:
    found = way.transposed_times(pair.view, pair.x, pair.cores[:, 0])
    _compare(pair.view, found.view(1, 1, -1), pair.truth[0].sum(0, keepdim=True), "products")


@torch.no_grad()
def _cores(view: ModelView, x: Inputs, r: int) -> Tensor:
    """Output-space vectors without a pattern, of length one, shape (n, r, c); no draw from anybody's generator."""
    z = flat_outputs(view.outputs_of(x))
    places = torch.arange(1, z.numel() * r + 1, dtype=torch.float64, device=z.device)
    cores = (places * places.sqrt()).cos().view(len(z), r, -1)
    return (cores / cores.norm(dim=2, keepdim=True)).to(z.dtype)


def _truth(view: ModelView, x: Inputs, cores: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and outputs by the loop; with plainer kernels where the usual ones have no gradient."""
    try:
        rows, z = Loop().rows(view, x, lambda _, which: DenseCores(cores[which]))
    except NOT_OURS:
        raise
    except Exception:
        rows, z = Loop(portable=True).rows(view, x, lambda _, which: DenseCores(cores[which]))
    total = rows.sum((0, 1))
    if not bool(torch.isfinite(total).all()):
        name = next(name for name, part in view.layout.unflatten(total).items() if not bool(part.isfinite().all()))
        raise InvalidModel(
            f"The gradient of a sample is NaN or infinite in parameter '{name}', though its outputs are not: look for "
            "a root, a norm or a logarithm at 0 in forward()."
        )
    return rows, z


def _compare(view: ModelView, found: Tensor, true: Tensor, what: str) -> None:
    """Every row by itself, against the longest. What was found is written over: it may be all that fits."""
    longest = float(true.norm(dim=2).max())
    error = float(found.sub_(true).norm(dim=2).max()) / max(longest, torch.finfo(true.dtype).tiny)
    if not error <= tolerance(view):
        raise Disagrees(f"the {what} of two samples differ from those of single backward passes by {error:.0e}")


def tolerance(view: ModelView) -> float:
    """Relative to the longest row: rounding stays below, and what is wrong differs by far more."""
    if view.dtype == torch.float64:
        return 1e-9
    coarse = view.device.type != "cpu" or torch.get_float32_matmul_precision() != "highest"
    return 2e-2 if coarse else 1e-4  # products of float32 may be of ten bits there
