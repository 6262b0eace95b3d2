"""The last linear layer of a model that `fully_shard` (FSDP2) has spread over processes, as a model of its own.

The weights of the body are gathered as its forward goes along, by all processes at once: they must all run it equally
often, or some wait for ever. Shares of the data are not of equal length, so whoever is through runs its last batch
again, for the others.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import Batch, given_form, read_batch
from ssse.problem.labels import Labels
from ssse.problem.loaders import Data, as_batches
from ssse.problem.shares import deal
from ssse.problem.training_mode import refuse_training_mode
from ssse.problem.unusable import is_fully_sharded
from ssse.problem.view import arguments, flat_outputs
from ssse.system.group import current_group

TOLERANCE = {torch.float64: 1e-9}  # of others 5e-3, as where a model is looked at


class ShardedHead:
    """The last linear layer of a model that `torch.distributed.fsdp.fully_shard` has spread over processes.

        head = ssse.ShardedHead(model)  # called by all processes, as is all that follows
        share = head.share(loader)
        curvature = ssse.Curvature.fit(head.layer, "cross_entropy", share, weight_decay=1e-3, structure="dense")
        erasure = ssse.erase(head.layer, curvature, "cross_entropy", head.features(forget))
        head.replace(erasure.model)  # in the sharded model

    Erasing from the last layer alone needs of the rest only what it hands to that layer: its features. They are
    computed by the sharded model as it is; curvature, step and verdict are those of `parameters="head"`. On one
    process, and of a model that is whole, it does the same.

    Attributes:
        layer: the layer, whole, a copy on each process; after `replace` a new one.
    """

    def __init__(self, model: nn.Module, layer: str | None = None):
        """`layer`: the name of another linear layer that ends the model than the one registered last.

        Raises:
            InvalidModel: it is spread in another way than by `fully_shard` over all processes; or its layer cannot be
                taken alone. InvalidSetting: there is no such layer.
        """
        if not isinstance(model, nn.Module):
            raise InvalidModel(f"The model must be a torch.nn.Module, not a {type(model).__name__}.")
        refuse_training_mode(model)
        self._model = model
        self._spread = [module for module in model.modules() if is_fully_sharded(module)]
        self._let_go()
        name, self._own = _layer_of(model, layer)
        self._refuse_other_ways()
        users = [key for key, p in model.named_parameters(remove_duplicate=False) if p is self._own.weight]
        if len(users) > 1:
            raise InvalidModel(f"The weight of '{name}' is that of {', '.join(users)}: it cannot be taken alone.")
        whole = {key: _whole(value.detach()) for key, value in self._own.named_parameters()}
        weight = whole["weight"]
        self.layer: nn.Linear = nn.Linear(
            weight.shape[1], weight.shape[0], "bias" in whole, weight.device, weight.dtype
        ).eval()
        self.layer.load_state_dict({key: value.clone() for key, value in whole.items()})
        self._group = current_group(weight.device)

    def features(self, data: Data, *, label_key: str | None = None) -> list[Any]:
        """What the body hands to the layer, with the labels: of the same samples on every process, as a request has
        them. `label_key`: as in `ssse.Curvature.fit`."""
        found = []
        for features, y in self._in_step(as_batches(data, label_key)):
            self._group.spread(features, 0)  # to the last bit the same
            found.append(given_form((features, y)))
        return found

    def share(self, data: Data, *, label_key: str | None = None) -> OwnBatches:
        """The same of this process's own samples, for `ssse.Curvature.fit`: data that can be read at any place is dealt
        out, a stream is each process's own. They are held on the host."""
        with self._group.together():
            own = deal(as_batches(data, label_key), self._group, 1).data
        return OwnBatches([given_form((x.cpu(), y)) for x, y in self._in_step(own)])

    @torch.no_grad()
    def replace(self, layer: nn.Module) -> None:
        """Write an erased layer into the model, in the parts that each process has of it."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        given = dict(layer.named_parameters())
        if {key: value.shape for key, value in given.items()} != {
            key: value.shape for key, value in self.layer.named_parameters()
        }:
            raise InvalidModel("The layer to write is not of the form of the model's: pass erasure.model.")
        self._let_go()
        own = dict(self._own.named_parameters())
        for key, value in given.items():
            now, whole = own[key], value.detach().to(own[key].device, own[key].dtype)
            now.copy_(distribute_tensor(whole, now.device_mesh, now.placements) if isinstance(now, DTensor) else whole)
        self.layer = copy.deepcopy(self.layer)
        self.layer.load_state_dict({key: value.detach() for key, value in given.items()})

    def _in_step(self, batches: Iterable[Any]) -> Iterator[tuple[Tensor, Labels]]:
        """All processes run the model equally often; what was run for the others is left out."""
        group, device = self._group, self.layer.weight.device
        read = (batch for batch in (read_batch(raw, device) for raw in batches) if len(batch[1]))
        last: Batch | None = None
        while True:
            with group.together():
                batch = next(read, None)
            told = group.numbers(batch is not None, batch is not None or last is not None)
            if not bool(told[:, 0].any()):
                break
            without = (told[:, 1] == 0).nonzero()[:, 0].tolist()
            if without:
                raise InvalidData(f"Rank {without[0]} of {group.size} has no samples, and the others have some.")
            last = batch or last
            assert last is not None
            features, z = self._run(last[0])
            with group.together():
                self._check(features, z)
            if batch is not None:
                yield features, batch[1]
        self._let_go()
        if last is None:
            raise InvalidData("There are no samples.")

    @torch.no_grad()
    def _run(self, x: Inputs) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        handle = self._own.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
        args, kwargs = arguments(x)
        try:
            z = flat_outputs(self._model(*args, **kwargs))
        finally:
            handle.remove()
        return (seen[-1] if seen else z.new_empty(0)).to(self.layer.weight.dtype), z

    @torch.no_grad()
    def _check(self, features: Tensor, z: Tensor) -> None:
        alone = self.layer(features) if features.dim() == 2 else None
        tolerance = TOLERANCE.get(z.dtype, 5e-3)
        if alone is None or alone.shape != z.shape or not torch.allclose(alone.to(z.dtype), z, tolerance, tolerance):
            raise InvalidModel(
                "The model's output is not that of the layer, of one line of features for each sample: name the linear "
                "layer that ends it, layer=."
            )

    def _let_go(self) -> None:
        """Each process has its part alone; after a forward the outermost module keeps all of its weights."""
        for module in self._spread:
            module.reshard()  # type: ignore[operator]

    def _refuse_other_ways(self) -> None:
        size = current_group(next(self._own.parameters()).device).size
        for name, value in self._model.named_parameters():
            mesh = getattr(value, "device_mesh", None)
            if mesh is not None and not self._spread:
                raise InvalidModel(
                    f"'{name}' is a DTensor, and the model is not sharded by fully_shard: which samples which process "
                    "must see is not known (tensor parallel?). Gather the layer with full_tensor(), and fit it on "
                    "features that you compute."
                )
            if mesh is not None and (mesh.ndim != 1 or mesh.size() != size):
                raise InvalidModel(
                    f"'{name}' is spread over a mesh of {tuple(mesh.shape)} processes, of {size} in the group: a mesh "
                    "of one dimension over all of them is expected. Gather the layer with full_tensor(), and fit it on "
                    "features that you compute."
                )


class OwnBatches:
    """Batches that this process alone has, to be read again and again."""

    def __init__(self, batches: list[Any]):
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def _layer_of(model: nn.Module, name: str | None) -> tuple[str, nn.Linear]:
    layers = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not layers:
        raise InvalidSetting("A head is a linear layer; the model has none.")
    chosen = list(layers)[-1] if name is None else name
    if chosen not in layers:
        raise InvalidSetting(f"The model has no linear layer '{chosen}'. It has {', '.join(list(layers)[-5:])}.")
    return chosen, layers[chosen]


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value  # type: ignore[operator]
