"""A trial on a few samples: what one sample costs to compute, in operations, memory and seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import Batch, slice_batch, take_samples
from ssse.problem.losses import CustomLoss
from ssse.problem.problem import PROBE_SAMPLES, Problem
from ssse.problem.weighted_loss import unweighted
from ssse.rows.autodiff import NetworkRows
from ssse.rows.kinds import RowKind, rows_of

PATIENCE = 0.3  # seconds that one measurement may take before it is not repeated on more samples
LONG = 0.03  # seconds from which on one measurement is enough
SHARE = 0.1  # of the memory budget, for a trial
MANY = 32  # samples of a call, after which one more costs what each did before
PROBED_NUMBERS = 2**25  # parameters × samples that a model is looked at with, so that a large one is looked at quickly


@dataclass(frozen=True)
class Pace:
    """Seconds of one call, however many samples it is for, and of each sample in it."""

    call: float = 0.0
    each: float = 0.0

    def seconds(self, samples: float, calls: float) -> float:
        return calls * self.call + samples * self.each

    def __add__(self, other: Pace) -> Pace:
        return Pace(self.call + other.call, self.each + other.each)

    def __mul__(self, times: float) -> Pace:
        return Pace(times * self.call, times * self.each)

    def less(self, part: Pace) -> Pace:
        """Without what is a part of it; both are measured, so that half of it is left at least."""
        return Pace(max(self.call - part.call, 0.5 * self.call), max(self.each - part.each, 0.5 * self.each))


@dataclass(frozen=True)
class Trial:
    """Of one sample, but for `spectrum`.

    Attributes:
        operations: floating-point ones of its outputs; of a model that is linear in θ not counted.
        inputs: numbers in it.
        activations: numbers in the outputs of all layers; widest: in the largest of them.
        forward: the pace of its outputs. row: of its outputs and one row. gradient: of a sum of gradients over samples.
            product: of its outputs, one product with its rows and one with their transpose. All but the first are zero
            where the model is linear in θ and has a closed form of them, and the last is None where there are no such
            products.
        start_seconds: until model and samples are looked at and ways to derivatives are found, once a request.
        spectrum: eigenvalues of RᵀR/n, the largest first, as a few samples show them.
    """

    operations: float = 0.0
    inputs: int = 0
    activations: int = 0
    widest: int = 0
    forward: Pace = Pace()
    row: Pace = Pace()
    gradient: Pace = Pace()
    product: Pace | None = Pace()
    start_seconds: float = 0.0
    spectrum: tuple[float, ...] = ()


def samples_to_look_at(model: nn.Module) -> int:
    """Two at least: one alone cannot show cross-talk."""
    size = sum(p.numel() for p in model.parameters())
    return max(2, min(PROBE_SAMPLES, PROBED_NUMBERS // max(size, 1)))


def run_trial(problem: Problem, batch: Batch, budget: int, start_seconds: float = 0.0) -> Trial:
    """Within a share of the memory budget and about a second, on as many of the samples as that allows.

    `start_seconds`: that it took to look at the model.
    """
    one = _first(batch, 1)
    widths = _layer_widths(problem, one[0])
    size = 3 * max(sum(widths), 1) * torch.finfo(problem.dtype).bits // 8
    many = max(2, min(MANY, int(SHARE * budget / size)))  # where no rows are formed
    forward = _pace(lambda part: problem.forward(part[0])[0], batch, many)
    looked_at = Trial(0.0, _numbers(one[0]), sum(widths), max(widths, default=0), forward, start_seconds=start_seconds)
    if problem.linear is not None:
        return looked_at
    _warm_up(problem)
    began = time.perf_counter()
    problem.derivatives.choose(problem, batch[0])
    chosen = time.perf_counter() - began
    size = 3 * (problem.layout.dim + looked_at.activations) * torch.finfo(problem.dtype).bits // 8
    most = max(1, min(len(batch[1]), int(SHARE * budget / size)))
    # Of labels drawn from the model where the loss knows how: gradients of true ones vanish where a model is sure.
    kind = RowKind("empirical" if isinstance(unweighted(problem.loss), CustomLoss) else "sampled")
    rows, theta = _Rows(), problem.theta()

    def unformed(part: Batch) -> NetworkRows:
        return _unformed(problem, kind, part)

    row = _pace(lambda part: rows.keep(unformed(part)), batch, most)
    gradient = _pace(lambda part: _times_ones(unformed(part)), batch, many)
    times = None
    if problem.derivatives.product_way is not None:
        times = _pace(lambda part: unformed(part).times(theta), batch, many)
    return replace(
        looked_at,
        operations=_operations(problem, one[0]),
        row=row.less(forward),  # without the outputs that come before all rows
        gradient=gradient.less(forward),
        product=None if times is None else times + gradient.less(forward),
        start_seconds=start_seconds + chosen,
        spectrum=rows.spectrum(),
    )


def trial_of_part(problem: Problem, whole: Trial, batch: Batch, budget: int) -> Trial:
    """Of a part of the parameters of a model that was tried as a whole: the rows of two samples, timed anew."""
    if problem.linear is not None:
        return Trial(
            0.0, whole.inputs, whole.activations, whole.widest, whole.forward, start_seconds=whole.start_seconds
        )
    kind, rows = RowKind("empirical"), _Rows()
    few = min(2, len(batch[1]))
    seconds = _seconds(lambda: rows.keep(_unformed(problem, kind, _first(batch, few))))
    row = Pace(0.0, seconds / few).less(Pace(0.0, whole.forward.seconds(few, 1) / few))
    share = min(1.0, few * row.each / max(whole.row.seconds(few, 1), 1e-9))
    product = None if whole.product is None else whole.product * share
    return replace(whole, row=whole.row * share, gradient=whole.gradient * share, product=product)


def _unformed(problem: Problem, kind: RowKind, part: Batch) -> NetworkRows:
    rows = rows_of(problem, kind, part)
    assert isinstance(rows, NetworkRows)
    return rows


@dataclass
class _Rows:
    """The last that were formed, of which there are the most."""

    values: Tensor | None = None

    def keep(self, rows: NetworkRows) -> Tensor:
        self.values = None  # first: two of them may be too many
        self.values = rows.explicit().values
        return self.values

    def spectrum(self) -> tuple[float, ...]:
        """Eigenvalues of RᵀR/n, the largest first."""
        assert self.values is not None
        kernel = (self.values @ self.values.mT).double() / len(self.values)
        return tuple(torch.linalg.eigvalsh(kernel).flip(0).clamp_min(0).tolist())


def _times_ones(rows: NetworkRows) -> Tensor:
    return rows.transposed_times(torch.ones(rows.count, dtype=rows.problem.dtype, device=rows.problem.device))


def _pace(function: Callable[[Batch], Tensor], batch: Batch, most: int) -> Pace:
    """On as many samples as `most` and our patience allow: a few tell little of many at once.

    More than there are, by coming again: reading the weights of a large model takes longer than a sample does.
    """
    count, first = min(2, most), None
    while True:
        part = take_samples(batch, torch.arange(count, device=batch[1].device) % len(batch[1]))
        took = _seconds(partial(function, part))
        first = first or (count, took)
        if count == most or took * 2 > PATIENCE:
            break
        count = min((4 if took * 4 <= PATIENCE else 2) * count, most)
    if count == first[0]:
        return Pace(0.0, took / count)
    each = max((took - first[1]) / (count - first[0]), took / count / 4)  # what is measured is noisy, and never free
    return Pace(max(0.0, took - count * each), each)


def _seconds(function: Callable[[], Tensor]) -> float:
    best = float("inf")
    for _ in range(2):  # the first run in a process also warms up
        began = time.perf_counter()
        float(function().reshape(-1)[0])  # waits for the device
        best = min(best, time.perf_counter() - began)
        if best > LONG:
            break
    return best


def _warm_up(problem: Problem) -> None:
    """The first use of torch.func in a process loads modules for a second or two: not what a sample costs."""
    x = torch.ones(2, dtype=problem.dtype, device=problem.device)
    vmap(grad(lambda v: v.square()))(x)
    jvp(torch.square, (x,), (x,))


def _operations(problem: Problem, x: Inputs) -> float:
    """Of the outputs of one sample, as torch counts those of products and convolutions."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        problem.forward(x)
    return float(counter.get_total_flops())


def _layer_widths(problem: Problem, x: Inputs) -> list[int]:
    """Numbers in the output of every layer that runs, for one sample."""
    widths: list[int] = []

    def note(_: nn.Module, __: Any, output: Any) -> None:
        widths.append(sum(value.numel() for value in _tensors(output)))

    leaves = [module for module in problem.model.modules() if next(module.children(), None) is None]
    layers = [layer for layer in leaves if not isinstance(layer, torch.jit.ScriptModule)]  # which has no hooks
    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        problem.forward(x)
    finally:
        for handle in handles:
            handle.remove()
    return widths


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for one in value for tensor in _tensors(one)] if isinstance(value, list | tuple) else []


def _numbers(x: Inputs) -> int:
    return sum(value.numel() for value in _tensors(x))


def _first(batch: Batch, count: int) -> Batch:
    return slice_batch(batch[0], slice(0, count)), batch[1][:count]
