"""BatchNorm's statistics after a step, from any samples of the same kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidModel
from ssse.problem.batch_forms import LABEL_KEYS, Inputs, as_inputs, parts_of
from ssse.problem.batch_statistics import reestimate, statistics_layers
from ssse.problem.batches import join_batches, named_inputs, read_batch, regroup
from ssse.problem.loaders import Data, as_batches
from ssse.problem.short_training import PASS, as_the_first, keep_as_given
from ssse.problem.unusable import refuse_autocast
from ssse.problem.working import Working
from ssse.problem.wrappers import copied
from ssse.system.group import current_group
from ssse.system.progress import track


def recalibrate(model: nn.Module, data: Data, *, label_key: str | None = None, progress: bool = True) -> nn.Module:
    """A copy of a model whose BatchNorm statistics are those of these samples; its parameters are untouched.

        model = ssse.recalibrate(erasure.model, batches)

    A large step moves what every layer gives, and the statistics stored in a BatchNorm network are then those of
    another one: the step looks ruined, or looks as if nothing was forgotten. Whoever has the retained data repairs
    (`ssse.repair`), which ends with the same. Without it any data of the same kind will do, with labels or without.
    The samples to forget should not be among it. For whole classes this is most of the repair; for half a class it does
    not help by itself.

    Args:
        data: batches x, (x, y), or mappings; labels are not looked at. The statistics are averages over batches of 512,
            as training takes them.
        label_key: as in `ssse.Curvature.fit`.

    Returns: a new module in eval mode; the one passed in is untouched. A curvature fitted before does not belong to it.

    Raises:
        InvalidModel: it has no BatchNorm statistics. InvalidData: there are no samples.
    """
    if not isinstance(model, nn.Module) or not statistics_layers(model):
        raise InvalidModel(
            f"The model ({type(model).__name__}) has no BatchNorm statistics that could be estimated anew; there is "
            "nothing to recalibrate, and nothing that needs it."
        )
    given = copied(model).eval()
    working = Working.of(given)
    device = next(working.model.buffers()).device
    refuse_autocast(device)
    groups = regroup(_read(data, label_key, device), PASS)
    whole = track(_without_a_single_one(groups), None, "recalibrating", progress)
    reestimate(working.model, statistics_layers(working.model).values(), (x for x, _ in whole))
    if working.widened:
        keep_as_given(working.model, working.inner)
    as_the_first(given, current_group(device))
    return given


def _without_a_single_one(groups: Iterable[tuple[Inputs, Any]]) -> Iterator[tuple[Inputs, Any]]:
    """The same groups, but for a last one of one sample, which joins the one before it: alone it has no variance."""
    held = None
    for group in groups:
        if held is not None and len(group[1]) == 1 and _same_shapes(held[0], group[0]):
            group = join_batches([held, group])
        elif held is not None:
            yield held
        held = group
    if held is not None:
        yield held


def _same_shapes(one: Inputs, other: Inputs) -> bool:
    shapes = [{name: value.shape[1:] for name, value in named_inputs(x).items()} for x in (one, other)]
    return shapes[0] == shapes[1]


def _read(data: Data, label_key: str | None, device: torch.device) -> Iterator[tuple[Inputs, Tensor]]:
    """Inputs, and a number for each sample in the place of labels, which are not looked at."""
    if isinstance(data, (list, tuple)) and data and all(_is_array(x) and x.ndim > 1 for x in data):
        data = [(x,) for x in data]  # batches without labels
    for batch in as_batches(data):
        x = _inputs_of(batch, label_key, device)
        lengths = {len(value) for value in named_inputs(x).values()}
        if not lengths:
            raise InvalidData("A batch holds no inputs.")
        if len(lengths) != 1:
            raise InvalidData(f"The inputs of a batch differ in length: {sorted(lengths)}.")
        count = lengths.pop()
        if count:
            yield x, torch.zeros(count)


def _inputs_of(batch: Any, label_key: str | None, device: torch.device) -> Inputs:
    if _is_array(batch):
        batch = (batch,)
    if isinstance(batch, (tuple, list)) and len(batch) == 1:
        return _finite(as_inputs(batch[0], device, len(batch[0])))
    labelled = LABEL_KEYS if label_key is None else (label_key,)
    if isinstance(batch, Mapping) and not any(key in batch for key in labelled):
        inputs = as_inputs(batch, device, len(next(iter(batch.values()), ())))
        return _finite(next(iter(inputs.values())) if isinstance(inputs, dict) and len(inputs) == 1 else inputs)
    if isinstance(batch, Mapping):
        x, y, _ = parts_of(batch, label_key)
        batch = (x, y)
    return read_batch(batch, device)[0]


def _finite(x: Inputs) -> Inputs:
    for name, value in named_inputs(x).items():
        if value.dim() == 0 or (value.is_floating_point() and not bool(torch.isfinite(value).all())):
            raise InvalidData(f"{name} of a batch holds NaN or infinity, or is no batch. Remove or repair it first.")
    return x


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)
