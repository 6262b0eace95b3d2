"""A way is tried on two samples against a loop of single backward passes, and taken if both say the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
Check = Callable[[ModelView, Inputs, W], None]


@dataclass(frozen=True)
class Passed:
    """A way that was not taken: the layer that raised, where it is known, and why."""

    way: Way
    layer: str | None
    why: str

    def __str__(self) -> str:
        return f"{self.way}: {self.why}" if self.layer is None else f"{self.way}: {self.layer} says “{self.why}”"


class Disagrees(Unsuited):
    """A way runs, and gives something else than the loop."""


def first_that_agrees(
    view: ModelView, x: Inputs, ways: Iterable[W], check: Check[W]
) -> tuple[W | None, tuple[Passed, ...]]:
    """The first way that runs and agrees on a pair of the samples, and those that were tried before it."""
    passed: list[Passed] = []
    for way in ways:
        try:
            _try(view, x, way, check)
        except NOT_OURS:
            raise
        except Unsuited as reason:
            passed.append(Passed(way, None, str(reason)))
        except Exception as error:  # whatever a layer may raise
            passed.append(Passed(way, _layer(view, x, way, check), first_sentence(error)))
        else:
            with kernels(view.model, way.portable):
                refuse_hidden_gradients(view, slice_batch(x, slice(0, 1)))
            return way, tuple(passed)
    return None, tuple(passed)


def _layer(view: ModelView, x: Inputs, way: W, check: Check[W]) -> str | None:
    """That raised: in its forward, or else in its backward pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return layer_that_raises(view.model, lambda: _on_pairs(view, x, way, check)) or layer_without_backward(
            view.model, lambda: view.outputs_of(slice_batch(x, slice(0, 2))), isinstance(way, DoubleBackward)
        )


def _try(view: ModelView, x: Inputs, way: W, check: Check[W]) -> None:
    with warnings.catch_warnings(record=True) as warned:  # of what is only tried
        warnings.simplefilter("always")
        _on_pairs(view, x, way, check)
    for warning in warned:
        if str(warning.message).startswith(SLOW):
            operation = str(warning.message).removeprefix(SLOW).split(".")[0].strip()
            raise Unsuited(f"torch would do {operation} one sample at a time")


def _on_pairs(view: ModelView, x: Inputs, way: W, check: Check[W]) -> None:
    last = max(1, min(PAIRS, count_of(x) // 2)) - 1
    for pair in range(last + 1):
        try:
            return check(view, slice_batch(x, slice(2 * pair, 2 * pair + 2)), way)
        except Disagrees:
            if pair == last:
                raise


def check_rows(view: ModelView, x: Inputs, way: RowWay) -> None:
    """One row of each of two samples, then two of the first: torch may take another road for more than one."""
    for part, r in ((slice(0, 2), 1), (slice(0, 1), 2)):
        some = slice_batch(x, part)
        cores = _cores(view, some, r)
        rows, z = way.rows(view, some, lambda _, which, cores=cores: DenseCores(cores[which]))
        true, outputs = _truth(view, some, cores)
        _compare(view, rows, true, "rows")
        _compare(view, z.unsqueeze(1), outputs.unsqueeze(1), "outputs")


def check_times(view: ModelView, x: Inputs, way: ProductWay) -> None:
    """uᵀ(Jv) against (uᵀJ)v.

    With v along the rows themselves, where no part of J can be missing unseen; then where all rows are zero, which
    backward passes may have made so (the padding of an embedding), and Jv must be zero too.
    """
    cores = _cores(view, x, 1)
    rows = _truth(view, x, cores)[0].squeeze(1)
    norms = rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    rows /= norms

    def along(v: Tensor) -> Tensor:
        return ((cores[:, 0] * way.times(view, x, v)).sum(1, keepdim=True) / norms).unsqueeze(2)

    v = rows.sum(0)
    _compare(view, along(v), (rows @ v).view(-1, 1, 1), "products")
    zero, largest = (rows == 0).all(0), float(rows.abs().max())
    if not float(along(zero.to(v.dtype)).abs().max()) <= tolerance(view) * largest:
        raise Disagrees("the products of two samples are not zero where single backward passes are")


def check_transposed(view: ModelView, x: Inputs, way: TransposedWay) -> None:
    cores = _cores(view, x, 1)
    found = way.transposed_times(view, x, cores[:, 0])
    _compare(view, found.view(1, 1, -1), _truth(view, x, cores)[0].sum(0, keepdim=True), "products")


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
    """Every row by itself, against the longest."""
    longest = float(true.norm(dim=2).max())
    error = float((found - true).norm(dim=2).max()) / max(longest, torch.finfo(true.dtype).tiny)
    if not error <= tolerance(view):
        raise Disagrees(f"the {what} of two samples differ from those of single backward passes by {error:.0e}")


def tolerance(view: ModelView) -> float:
    """Relative to the longest row: rounding stays below, and what is wrong differs by far more."""
    if view.dtype == torch.float64:
        return 1e-9
    coarse = view.device.type != "cpu" or torch.get_float32_matmul_precision() != "highest"
    return 2e-2 if coarse else 1e-4  # products of float32 may be of ten bits there
