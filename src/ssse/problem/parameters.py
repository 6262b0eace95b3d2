"""Parameters → one flat vector θ → blocks of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ssse.errors import InvalidSetting


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the parameters that make up θ, in `named_parameters()` order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def dim(self) -> int:
        return sum(self.sizes)

    def restricted(self, names: Collection[str]) -> Layout:
        """Of these parameters alone, in the same order."""
        kept = [(name, shape) for name, shape in zip(self.names, self.shapes, strict=True) if name in names]
        return Layout(tuple(name for name, _ in kept), tuple(shape for _, shape in kept))

    def flatten(self, tensors: Mapping[str, Tensor], lead: int = 0) -> Tensor:
        """Concatenate along the last dimension, keeping the `lead` leading (sample) dimensions."""
        return torch.cat([tensors[name].flatten(lead) for name in self.names], dim=-1)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        parts = vector.split(self.sizes)
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}


@dataclass(frozen=True)
class Block:
    """A set of coordinates of θ, as ranges, whose curvature with all others is taken as zero."""

    name: str
    ranges: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        if len(self.ranges) == 1:  # of large models there are ten thousands
            ((start, stop),) = self.ranges
            return stop - start
        return sum(stop - start for start, stop in self.ranges)

    def take(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """The block's coordinates of `tensor` along `dim`; a view where the block is one range."""
        parts = [tensor.narrow(dim, start, stop - start) for start, stop in self.ranges]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def put(self, target: Tensor, values: Tensor) -> None:
        """Write `values`, ordered as `take` returns them, into `target` along its first dimension."""
        offset = 0
        for start, stop in self.ranges:
            target[start:stop] = values[offset : offset + stop - start]
            offset += stop - start


@dataclass(frozen=True)
class LinearShape:
    """θ as one linear layer z = Wx (+ b): W (outputs × inputs) row by row, then b."""

    outputs: int
    inputs: int
    bias: bool

    def pieces(self, block: Block) -> list[Piece]:
        """Cut the block's ranges where they cross from one output's parameters to the next."""
        pieces, place = [], 0
        p, weights = self.inputs, self.outputs * self.inputs
        for start, stop in block.ranges:
            while start < stop:
                if start < weights:
                    output, column = divmod(start, p)
                    end = min(stop, (output + 1) * p)
                else:
                    output, column, end = start - weights, p, start + 1
                width = end - start
                pieces.append(Piece(output, slice(column, column + width), slice(place, place + width)))
                start, place = end, place + width
        return pieces

    def slabs(self, block: Block) -> list[Slab]:
        """The same with consecutive outputs of the same columns together, so that whole outputs are one product."""
        slabs: list[Slab] = []
        for piece in self.pieces(block):
            first = piece.output
            if slabs and slabs[-1].columns == piece.columns and slabs[-1].outputs.stop == piece.output:
                first = slabs.pop().outputs.start
            slabs.append(Slab(slice(first, piece.output + 1), piece.columns))
        return slabs


@dataclass(frozen=True)
class Piece:
    """The part of a block that belongs to one output: its feature columns (the bias is the last), its place."""

    output: int
    columns: slice
    place: slice


@dataclass(frozen=True)
class Slab:
    """Consecutive outputs with the same feature columns: a linear layer of its own, without a bias."""

    outputs: slice
    columns: slice

    @property
    def shape(self) -> LinearShape:
        return LinearShape(self.outputs.stop - self.outputs.start, self.columns.stop - self.columns.start, bias=False)


BlockChoice = Literal["auto", "one", "parameter", "output"] | int


def make_blocks(layout: Layout, choice: BlockChoice, linear: LinearShape | None) -> tuple[Block, ...]:
    """Partition θ.

    Args:
        choice: `"one"` block over everything, one per `"parameter"` tensor, one per `"output"` of a
            linear layer (its weights and its bias together), or an integer: consecutive blocks of
            at most that many parameters, as in the paper.
    """
    dim = layout.dim
    if choice == "one":
        return (Block("all", ((0, dim),)),)
    if choice == "parameter":
        starts = _running_sum(layout.sizes)
        return tuple(
            Block(name, ((start, start + size),))
            for name, start, size in zip(layout.names, starts, layout.sizes, strict=True)
        )
    if choice == "output":
        if linear is None:
            raise InvalidSetting(
                'blocks="output" needs θ to be one linear layer whose output is the model\'s; here it is not. '
                'Use blocks="parameter", an integer, or parameters="head".'
            )
        return tuple(_output_block(linear, output) for output in range(linear.outputs))
    if isinstance(choice, int) and not isinstance(choice, bool) and choice > 0:
        return tuple(
            Block(f"{start}:{min(start + choice, dim)}", ((start, min(start + choice, dim)),))
            for start in range(0, dim, choice)
        )
    raise InvalidSetting(f'blocks must be "auto", "one", "parameter", "output" or a positive integer, not {choice!r}.')


def _output_block(linear: LinearShape, output: int) -> Block:
    ranges = [(output * linear.inputs, (output + 1) * linear.inputs)]
    if linear.bias:
        bias = linear.outputs * linear.inputs + output
        ranges.append((bias, bias + 1))
    return Block(f"output {output}", tuple(ranges))


def _running_sum(sizes: Iterable[int]) -> list[int]:
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += size
    return starts
