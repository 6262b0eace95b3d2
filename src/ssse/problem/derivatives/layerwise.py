"""Rows of all samples from one ordinary forward and backward pass, layer by layer.

A layer's parameters get their gradient from its input a and from the gradient g of its output, and a batched pass has
both for every sample. So the model runs as it always does, masks and control flow and all, and only the last product of
each layer is done sample by sample. What a layer gets that is called twice is added up, as is what two layers get that
share a parameter. A use of a parameter anywhere but in the forward of its own layer is missed: the trial sees that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, vjp, vmap
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from ssse.problem.batch_forms import Inputs
from ssse.problem.derivatives.settings import kernels
from ssse.problem.derivatives.ways import (
    CoresOf,
    RowWay,
    Unsuited,
    count_of,
    differentiable_outputs,
    own_parameters,
    refuse_compiled,
)
from ssse.problem.view import ModelView

WEIGHT: dict[int, Callable[..., Tensor]] = {1: conv1d_weight, 2: conv2d_weight, 3: conv3d_weight}
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
IN_GROUPS = ("cpu",)  # devices on which a convolution with a group for each image is faster than its windows
AT_A_TIME = {"cpu": 2**21, "cuda": 2**28}  # bytes of a convolution's samples at once


@dataclass(frozen=True)
class Call:
    """One run of a layer: its input, shape (n, t, …), and where the gradient of its output passes.

    t = 1 where the layer saw n samples; it may have seen t parts of each, one after another.
    """

    layer: nn.Module
    input: Tensor
    output: GradientEdge


@dataclass(frozen=True)
class Layerwise(RowWay):
    words: ClassVar[str] = "layer by layer"

    @torch.enable_grad()
    def rows(self, view: ModelView, x: Inputs, cores: CoresOf) -> tuple[Tensor, Tensor]:
        refuse_compiled(view)
        count = count_of(x)
        with kernels(view.model, self.portable):
            places = _places(view)
            with _watched(view.model, set(places), count) as calls:
                z = differentiable_outputs(view, x)
            edges = [call.output for call in calls]
            if not edges:
                raise Unsuited("no layer that holds some of θ is called as a layer")
            vectors = cores(z.detach(), slice(None))
            r = vectors.shape[1]
            rows = z.new_empty(count, r, view.layout.dim)
            for row in range(r):
                last = row + 1 == r
                gradients = torch.autograd.grad(z, edges, vectors.row(row), retain_graph=not last, allow_unused=True)
                with torch.no_grad():
                    lacking = dict(places)
                    for call, g in zip(calls, gradients, strict=True):
                        if g is not None:
                            _add(rows[:, row], places, lacking, call, g)
                    for place in lacking.values():
                        rows[:, row, place] = 0
        return rows, z.detach()


def _places(view: ModelView) -> dict[int, slice]:
    """Where each parameter, by its identity, is in θ."""
    places, start = {}, 0
    for parameter in own_parameters(view):
        places[id(parameter)] = slice(start, start + parameter.numel())
        start += parameter.numel()
    return places


@contextmanager
def _watched(model: nn.Module, wanted: set[int], count: int) -> Iterator[list[Call]]:
    """The runs of all layers that hold one of the wanted parameters themselves, in order."""
    calls: list[Call] = []

    def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Tensor | None:
        entered = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if len(entered) != 1 or not isinstance(output, Tensor):
            raise Unsuited(f"{type(layer).__name__} does not make one tensor of one tensor")
        if not output.requires_grad:
            return None  # under no_grad: nothing flows back
        a, shared = entered[0].detach(), output.shape[0] == 1 < count and len(entered[0]) == 1
        if shared:  # positions, for instance, are looked up once for all samples
            a, output = a.expand(count, *a.shape[1:]), output.expand(count, *output.shape[1:])
        if len(a) % count or len(output) % count:
            raise Unsuited(f"{type(layer).__name__} does not have the samples first")
        calls.append(Call(layer, _by_sample(a, count), get_gradient_edge(output)))
        return output if shared else None

    holding = [m for m in model.modules() if any(id(p) in wanted for p in m.parameters(recurse=False))]
    handles = [layer.register_forward_hook(note, with_kwargs=True) for layer in holding]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _by_sample(tensor: Tensor, count: int) -> Tensor:
    """(n·t, …) as (n, t, …)."""
    return tensor.reshape(count, len(tensor) // count, *tensor.shape[1:])


def _add(rows: Tensor, places: dict[int, slice], lacking: dict[int, slice], call: Call, g: Tensor) -> None:
    """What one run of a layer gives to the rows, shape (n, d); `lacking`: the parameters that nothing was given yet."""
    parameters = {name: p for name, p in call.layer.named_parameters(recurse=False) if id(p) in places}
    first = {name: lacking.pop(id(p), None) is not None for name, p in parameters.items()}
    rule, g = _rule(call.layer), _by_sample(g, len(rows))
    for some in _at_a_time(call, g, sum(p.numel() for p in parameters.values())):
        parts = rule(call.layer, call.input[some], g[some], set(parameters))
        for name, parameter in parameters.items():
            target, part = rows[some, places[id(parameter)]], parts[name].flatten(1)
            if first[name]:  # a pass less over the rows than to add to zeros
                target.copy_(part)
            else:
                target += part


def _at_a_time(call: Call, g: Tensor, parameters: int) -> Iterator[slice]:
    """Of a convolution so many samples as fit AT_A_TIME with what they give; of other layers all."""
    few = len(g)
    if type(call.layer) in CONVOLUTIONS:
        numbers = call.input[0].numel() + g[0].numel() + parameters
        if g.device.type not in IN_GROUPS:  # the windows too
            numbers += call.input[0].numel() * math.prod(call.layer.weight.shape[2:])  # type: ignore[operator,union-attr]
        few = max(1, AT_A_TIME[g.device.type] // (numbers * g.element_size()))
    return (slice(start, start + few) for start in range(0, len(g), few))


Rule = Callable[[nn.Module, Tensor, Tensor, set[str]], dict[str, Tensor]]


def _rule(layer: nn.Module) -> Rule:
    """By the class itself: one that is derived from it may compute something else."""
    if type(layer).__name__ == "Conv1D" and hasattr(layer, "nf"):  # of transformers: linear, its weight transposed
        return _linear_transposed
    return RULES.get(type(layer), _any_layer)


def _linear(layer: nn.Module, a: Tensor, g: Tensor, names: set[str]) -> dict[str, Tensor]:
    a, g = _tokens(a), _tokens(g)
    parts = {"weight": g.mT @ a} if "weight" in names else {}
    return parts | ({"bias": g.sum(1)} if "bias" in names else {})


def _linear_transposed(layer: nn.Module, a: Tensor, g: Tensor, names: set[str]) -> dict[str, Tensor]:
    a, g = _tokens(a), _tokens(g)
    parts = {"weight": a.mT @ g} if "weight" in names else {}
    return parts | ({"bias": g.sum(1)} if "bias" in names else {})


def _embedding(layer: nn.Module, a: Tensor, g: Tensor, names: set[str]) -> dict[str, Tensor]:
    assert isinstance(layer, nn.Embedding)
    if layer.scale_grad_by_freq or layer.max_norm is not None:
        raise Unsuited("an Embedding with scale_grad_by_freq or max_norm mixes the samples of a batch")
    return {"weight": _sum_by_entry(layer, a.flatten(1), g.reshape(len(a), -1, layer.embedding_dim))}


def _embedding_bag(layer: nn.Module, a: Tensor, g: Tensor, names: set[str]) -> dict[str, Tensor]:
    """Of bags that are the lines of a matrix; each entry of a bag gets the bag's gradient, or its share."""
    assert isinstance(layer, nn.EmbeddingBag)
    if layer.mode == "max" or layer.scale_grad_by_freq or layer.max_norm is not None:
        return _any_layer(layer, a, g, names)
    if layer.mode == "mean":
        kept = torch.ones_like(a) if layer.padding_idx is None else a != layer.padding_idx
        g = g / kept.sum(-1, keepdim=True).clamp_min(1)
    shares = g.unsqueeze(-2).expand(*a.shape, layer.embedding_dim)
    return {"weight": _sum_by_entry(layer, a.flatten(1), shares.reshape(len(a), -1, layer.embedding_dim))}


def _sum_by_entry(layer: nn.Embedding | nn.EmbeddingBag, ids: Tensor, g: Tensor) -> Tensor:
    """What each sample's ids, shape (n, t), give to the entries, shape (n, entries, width)."""
    n, (entries, width) = len(ids), layer.weight.shape
    if layer.padding_idx is not None:
        g = g.masked_fill((ids == layer.padding_idx).unsqueeze(2), 0)
    places = ids + entries * torch.arange(n, device=ids.device).unsqueeze(1)
    return g.new_zeros(n * entries, width).index_add_(0, places.flatten(), g.flatten(0, 1)).view(n, entries, width)


def _convolution(layer: nn.Module, a: Tensor, g: Tensor, names: set[str]) -> dict[str, Tensor]:
    """On a CPU the kernel that the sum over a batch is taken by, with a group for each image: as fast as that while all
    of it is in the cache. Elsewhere g Uᵀ of every image, U the windows that its outputs look at.
    """
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return _any_layer(layer, a, g, names)
    n, parts = len(a), a.shape[1]  # each sample may be several images
    a, images = a.flatten(0, 1), g.flatten(0, 1).shape
    g = g.reshape(n * parts, layer.groups, layer.out_channels // layer.groups, -1)
    found = {"bias": _sum_of_parts(g.sum(3).view(n, parts, -1))} if "bias" in names else {}
    if "weight" not in names:
        return found
    if a.device.type in IN_GROUPS and layer.groups == 1:
        size = (len(a) * layer.out_channels, *layer.weight.shape[1:])
        whole = [t.reshape(1, -1, *shape[2:]) for t, shape in ((a, a.shape), (g, images))]
        pull = WEIGHT[len(layer.kernel_size)]
        weight = pull(whole[0], size, whole[1], layer.stride, layer.padding, layer.dilation, len(a))
    else:
        weight = g @ _windows(layer, a).view(*g.shape[:2], -1, g.shape[3]).mT
    return found | {"weight": _sum_of_parts(weight.view(n, parts, *layer.weight.shape))}


def _sum_of_parts(each: Tensor) -> Tensor:
    """(n, t, …) summed over t; where there is one, no copy is made."""
    return each.squeeze(1) if each.shape[1] == 1 else each.sum(1)


def _windows(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, a: Tensor) -> Tensor:
    """Shape (n, channels, *kernel, *outputs), in that order in memory."""
    padded = torch.nn.functional.pad(a, [p for p in reversed(layer.padding) for _ in range(2)])  # type: ignore[misc]
    axes = len(layer.kernel_size)
    for axis, (size, stride, dilation) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), start=2
    ):
        padded = padded.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    order = [0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes)]
    return padded.permute(order).contiguous()


def _batch_norm(layer: nn.Module, a: Tensor, g: Tensor, names: set[str]) -> dict[str, Tensor]:
    """With the statistics that it holds; by those of the batch, samples are not apart, and the trial sees that."""
    assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:
        raise Unsuited("a batch norm without statistics mixes the samples of a batch")
    n = len(a)
    a, g = (t.flatten(0, 1).reshape(n * t.shape[1], layer.num_features, -1) for t in (a, g))
    root = (variance + layer.eps).rsqrt()
    found = {"weight": torch.linalg.vecdot(g, a - mean[:, None]) * root} if "weight" in names else {}
    found |= {"bias": g.sum(2)} if "bias" in names else {}
    return {name: _sum_of_parts(part.view(n, -1, layer.num_features)) for name, part in found.items()}


def _layer_norm(layer: nn.Module, a: Tensor, g: Tensor, names: set[str]) -> dict[str, Tensor]:
    assert isinstance(layer, nn.LayerNorm)
    normal = torch.nn.functional.layer_norm(a, layer.normalized_shape, None, None, layer.eps)
    size = layer.weight.numel()
    parts = {"weight": (g * normal).reshape(len(a), -1, size).sum(1)} if "weight" in names else {}
    return parts | ({"bias": g.reshape(len(a), -1, size).sum(1)} if "bias" in names else {})


def _any_layer(layer: nn.Module, a: Tensor, g: Tensor, names: set[str]) -> dict[str, Tensor]:
    """The layer alone, run once more: its own backward pass, mapped over the samples."""
    own = {name: p.detach() for name, p in layer.named_parameters(recurse=False) if name in names}

    def of_one(a: Tensor, g: Tensor) -> dict[str, Tensor]:
        return vjp(lambda p: functional_call(layer, p, (a,)), own)[1](g)[0]

    return vmap(of_one)(a, g)


def _tokens(tensor: Tensor) -> Tensor:
    """(n, t, width): all that a linear layer does for a sample."""
    return tensor.reshape(len(tensor), -1, tensor.shape[-1])


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _embedding_bag,
    nn.LayerNorm: _layer_norm,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm,
}
