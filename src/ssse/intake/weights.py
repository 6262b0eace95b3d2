"""Files of weights: safetensors, and what torch.save wrote as far as it is tensors. No pickle is ever executed."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ssse.errors import InvalidData
from ssse.intake.arrays import read_safetensors
from ssse.intake.messages import listing, reading, require_file
from ssse.intake.npy import ZIP, starts_with
from ssse.intake.unfolding import refuse_unfolding
from ssse.system.files import open_to_owner, sync

SAFETENSORS = ".safetensors"
TORCH = "a file of torch.save"
PICKLES = (".pt", ".pth", ".bin", ".ckpt")
INSIDE = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights in a checkpoint
REPAIR = "Save the weights alone: safetensors.torch.save_file(model.state_dict(), path)."


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU.

    Raises:
        InvalidData: missing, damaged, of another format, or holding more than tensors.
    """
    require_file(path)
    suffix = path.suffix.lower()
    if suffix != SAFETENSORS and suffix not in PICKLES:
        raise InvalidData(
            f"'{path}': weights must be one of {', '.join((SAFETENSORS, *PICKLES))}, not "
            f"{suffix or 'a file without an extension'}. {REPAIR}"
        )
    if suffix == SAFETENSORS or _is_safetensors(path):
        weights: dict[str, Any] = dict(read_safetensors(path, lambda keys: keys))
    else:
        weights = _named_tensors(_unpickle_tensors(path), path)
    if not weights:
        raise InvalidData(f"'{path}' holds no tensors. {REPAIR}")
    return weights


def _is_safetensors(path: Path) -> bool:
    """By its content: the length of a header, then the header, which is JSON."""
    with open(path, "rb") as handle:
        start = handle.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size


def _unpickle_tensors(path: Path) -> Any:
    with open(path, "rb") as handle, reading(path, TORCH):
        if starts_with(handle, *ZIP):
            with zipfile.ZipFile(handle) as packed:
                refuse_unfolding(path, sum(part.file_size for part in packed.infolist()), REPAIR)
            handle.seek(0)
        try:
            return torch.load(handle, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            asked = re.search(r"GLOBAL ([\w.]+)", str(error))
            came = f" (it asks for {asked[1]})" if asked else ""
            raise InvalidData(
                f"'{path}' holds more than tensors{came}, or is damaged. Such a file is never executed. {REPAIR}"
            ) from error


def _named_tensors(stored: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(stored, Mapping):
        raise InvalidData(f"'{path}' holds a {type(stored).__name__}, not tensors by name. {REPAIR}")
    nested = [key for key in INSIDE if isinstance(stored.get(key), Mapping)]
    if len(nested) > 1:
        raise InvalidData(f"'{path}' holds {listing(nested)}, and only one can be the weights. {REPAIR}")
    weights = stored[nested[0]] if nested else stored
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InvalidData(
                f"'{path}': {str(name)!r} is a {type(value).__name__}, not a tensor with a name. {REPAIR}"
            )
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise InvalidData(f"'{path}': {name!r} is sparse, quantised or without values. Save it as a plain tensor.")
    # A view can repeat a few numbers without end.
    refuse_unfolding(path, sum(value.numel() * value.element_size() for value in weights.values()), REPAIR)
    return {name: value.detach() for name, value in weights.items()}


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """The same bytes for the same tensors; on the disk when this returns, but not atomic: write into a fresh folder."""
    save_file(without_shared_memory(weights), path)
    open_to_owner(path)
    sync(path)


def without_shared_memory(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, contiguous, and no two in the same memory, which safetensors could not tell apart."""
    seen: set[int] = set()
    separate = {}
    for name, value in weights.items():
        plain = value.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.nbytes() != plain.numel() * plain.element_size() or storage.data_ptr() in seen:
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        separate[name] = plain
    return separate
