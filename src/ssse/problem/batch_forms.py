"""The forms that people's batches have: pairs, triples, mappings; tensors, arrays, lists, frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ssse.errors import InvalidData
from ssse.problem.labels import WeightedLabels, are_weights

LABEL_KEYS = ("y", "label", "labels", "target", "targets")
WEIGHT_KEYS = ("weight", "weights", "sample_weight")

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


def parts_of(batch: Any, label_key: str | None = None) -> tuple[Any, Any, Any]:
    """x, y and the weights, None where there are none; of a mapping the labels are under a usual name, or this one."""
    if isinstance(batch, PackedSequence):
        raise InvalidData(_PACKED)
    if isinstance(batch, Mapping):
        return _parts_of_mapping(batch, label_key)
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        x, y = batch
        return (x, y.values, y.weights) if isinstance(y, WeightedLabels) else (x, y, None)
    if isinstance(batch, (tuple, list)) and len(batch) == 3:
        _check_third(batch)
        return batch[0], batch[1], batch[2]
    if is_frame(batch):
        raise InvalidData(
            f"A batch must be a pair (x, y), not a {type(batch).__name__}: pass (frame[inputs], frame[label]), with "
            "the names of its columns."
        )
    size = f" of length {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    raise InvalidData(
        f"A batch must be a pair (x, y) or a mapping with labels, not a {type(batch).__name__}{size}. With weights it "
        "is (x, y, weight), with several inputs ((a, b), y)."
    )


def _check_third(batch: Any) -> None:
    """Three things are a batch with weights where the third looks like weights: labels would be read as such else."""
    weights, labels = (_tensor_of(part, "labels", None) for part in (batch[2], batch[1]))
    if labels.dim() and weights.is_floating_point() and are_weights(weights, len(labels)):
        return
    raise InvalidData(
        f"A batch must be a pair (x, y) or a mapping with labels, not a {type(batch).__name__} of length 3, the third "
        f"of {weights.dtype} and shape {tuple(weights.shape)}: three are (x, y, weight), the weight a floating number "
        "for each sample. Several inputs are passed as ((a, b), y)."
    )


def _parts_of_mapping(batch: Mapping[Any, Any], label_key: str | None) -> tuple[Any, Any, Any]:
    keys = ", ".join(map(str, batch))
    labels = [key for key in (LABEL_KEYS if label_key is None else (label_key,)) if key in batch]
    if label_key is not None and not labels:
        raise InvalidData(f"label_key='{label_key}' is none of the batch's keys, which are {keys}.")
    if len(labels) != 1:
        raise InvalidData(
            f"A mapping batch needs its labels under one of {', '.join(LABEL_KEYS)}; its keys are {keys}. Name another "
            "one with label_key=."
        )
    texts = [str(key) for key, value in batch.items() if key != labels[0] and _is_text(value)]
    if texts:
        raise InvalidData(
            f"The batch holds text under {', '.join(texts)}, which is no input of a model. Leave it out: "
            f"dataset.remove_columns({texts!r}), or dataset.set_format('torch', columns=[…]) with the columns to keep."
        )
    rest = {key: value for key, value in batch.items() if key != labels[0]}
    weights = _take_weights(rest, batch[labels[0]])
    own = _tensor_of(batch[labels[0]], "labels", None)
    rest = {key: _collated(value, len(own) if own.dim() else 0) for key, value in rest.items()}
    if not rest:
        raise InvalidData(f"A mapping batch needs inputs besides its labels; its only key is {labels[0]}.")
    return (next(iter(rest.values())) if len(rest) == 1 else rest), batch[labels[0]], weights


def _take_weights(rest: dict[Any, Any], labels: Any) -> Tensor | None:
    """Out of the inputs of a mapping: what is called so, and is one number a sample."""
    labels = _tensor_of(labels, "labels", None)
    found = {}
    for key in WEIGHT_KEYS:
        if key in rest and labels.dim():
            weights = _tensor_of(rest[key], key, None)
            if are_weights(weights, len(labels)):
                found[key] = weights
    if len(found) > 1:
        raise InvalidData(f"The batch has weights under {' and '.join(found)}; leave one of them.")
    for key, weights in found.items():
        del rest[key]
        return weights if weights.is_floating_point() else weights.float()
    return None


def as_inputs(x: Any, device: torch.device | None, n: int) -> Inputs:
    """Of n samples: one tensor, several in order, or several by name."""
    if isinstance(x, PackedSequence):
        raise InvalidData(_PACKED)
    if isinstance(x, Mapping):
        return {key: _tensor_of(_collated(value, n), str(key), device) for key, value in x.items()}
    if _are_several(x, n):
        return tuple(_tensor_of(part, f"x[{i}]", device) for i, part in enumerate(x))
    return _tensor_of(x, "x", device)


def as_label_tensor(y: Any, device: torch.device | None) -> Tensor:
    return _tensor_of(y, "labels", device)


def _are_several(x: Any, n: int) -> bool:
    """A sequence of tensors is one input each. One of arrays, as many as there are samples, is one array a sample."""
    if not isinstance(x, (tuple, list)) or not x or isinstance(x[0], str):
        return False
    if any(isinstance(part, PackedSequence) for part in x):
        raise InvalidData(_PACKED)
    if all(isinstance(part, Tensor) and part.dim() > 0 for part in x):
        return True
    arrays = all(isinstance(part, (Tensor, np.ndarray)) or is_frame(part) for part in x)
    return arrays and len(x) != n and all(len(part.shape) > 0 and len(part) == n for part in x)


def _collated(value: Any, n: int) -> Any:
    """torch's default_collate makes of samples that are lists one tensor a place: put side by side again."""
    if not isinstance(value, (tuple, list)) or isinstance(value, PackedSequence):
        return value
    parts = [part for part in value if isinstance(part, Tensor) and part.dim() > 0]
    if parts and len(parts) == len(value):
        if any(tuple(part.shape) != (n,) for part in parts):
            raise InvalidData(
                f"An entry of a mapping batch is a list of {len(value)} tensors; join them to one tensor, with the "
                "samples along its first dimension."
            )
        return torch.stack(parts, dim=1)
    return value


def _tensor_of(value: Any, name: str, device: torch.device | None) -> Tensor:
    if isinstance(value, PackedSequence):
        raise InvalidData(_PACKED)
    if is_frame(value):
        value = _frame_values(value, name)
    if _is_text(value):
        kind = "Encode them as whole numbers from 0" if name == "labels" else "Encode it as numbers, or leave it out"
        raise InvalidData(f"A batch holds text as {name}. {kind}.")
    try:
        tensor = torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidData(
            f"A batch holds a {type(value).__name__} as {name}, which is not a tensor or array."
        ) from error
    if tensor.is_inference():  # such a tensor takes part in no backward pass; a copy of it does
        tensor = tensor.clone()
    if tensor.is_nested:
        raise InvalidData(f"{name} is a nested tensor; pad it to one length, torch.nested.to_padded_tensor(x, 0.0).")
    if tensor.layout != torch.strided:
        raise InvalidData(f"{name} is a sparse tensor ({tensor.layout}); pass it dense, x.to_dense().")
    return tensor


def is_frame(value: Any) -> bool:
    """A data frame or one of its columns, of pandas or polars, which are not imported for it."""
    return not isinstance(value, (Tensor, np.ndarray)) and hasattr(value, "to_numpy") and hasattr(value, "shape")


def _frame_values(frame: Any, name: str) -> np.ndarray:
    if len(frame.shape) == 1:
        return _numbers(frame.to_numpy(), getattr(frame, "name", None) or name)
    columns = [_numbers(frame[column].to_numpy(), column) for column in frame.columns]
    return np.stack(columns, axis=1) if columns else np.empty(frame.shape)


def _numbers(values: np.ndarray, column: Any) -> np.ndarray:
    if values.dtype.kind not in "biuf":
        raise InvalidData(
            f"The column '{column}' of a frame holds {values.dtype} and not numbers; encode it, or leave it out."
        )
    return np.array(values)  # a frame's own may not be written to, which torch wants


def _is_text(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "US"
    return isinstance(value, str) or (isinstance(value, (tuple, list)) and bool(value) and isinstance(value[0], str))


_PACKED = (
    "A PackedSequence mixes the samples of a batch in one tensor. Pass the padded tensor with its lengths, "
    "((x, lengths), y), and pack it in the model's forward()."
)
