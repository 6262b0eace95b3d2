"""Models that nothing can be computed with as they are: one sentence each, before any work."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ssse.errors import InvalidModel

HALF = (torch.float16, torch.bfloat16)
REAL = (torch.float32, torch.float64, *HALF)
# Where the modules of quantised models come from; of those that keep their weights outside of parameters, too.
QUANTISED = ("torch.ao.nn.quantized", "torch.nn.quantized", "bitsandbytes", "torchao", "optimum.quanto", "gptqmodel")


def refuse_unusable(model: Any) -> None:
    """Whatever θ is: no values, values in pieces, values that stand for others."""
    if not isinstance(model, nn.Module):
        other = " Models of scikit-learn are for ssse.sklearn.Eraser." * hasattr(model, "get_params")
        raise InvalidModel(f"The model must be a torch.nn.Module, not a {type(model).__name__}.{other}")
    for name, module in model.named_modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise InvalidModel(_in_pieces(f"Module '{name}' is in FullyShardedDataParallel"))
        if is_fully_sharded(module):
            raise InvalidModel(
                _in_pieces(f"Module '{name}' is sharded by fully_shard")
                + " Where the last linear layer is all to erase from, leave it as it is: ssse.ShardedHead(model)."
            )
    for name, value in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(value):
            raise InvalidModel(
                f"'{name}' belongs to a lazy layer that has not seen a batch yet, so the model is not trained. Run it "
                "once, load its weights, and try again."
            )
        if value.is_meta:
            raise InvalidModel(
                f"'{name}' is on the meta device, which has shapes and no values (init_empty_weights, or offloaded by "
                "a device_map?). Load the model with its weights, whole, on one device."
            )
        if hasattr(value, "device_mesh"):
            raise InvalidModel(_in_pieces(f"'{name}' is a DTensor"))
        if value.is_floating_point() and value.dtype not in REAL:
            raise InvalidModel(_quantised(f"'{name}' is {value.dtype}"))


def is_fully_sharded(module: nn.Module) -> bool:
    """By `torch.distributed.fsdp.fully_shard`, whether its values are here just now or not."""
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)


def refuse_in_theta(parameters: Mapping[str, Tensor]) -> None:
    """What may be in a model but not in θ."""
    for name, value in parameters.items():
        if value.is_complex():
            raise InvalidModel(
                f"Parameter '{name}' is complex ({value.dtype}), and θ is a vector of real numbers. Keep its real and "
                "imaginary parts as two parameters (torch.view_as_complex in forward()), or leave it out of parameters."
            )
        if value.layout != torch.strided:
            raise InvalidModel(f"Parameter '{name}' is sparse ({value.layout}). Make it dense, or leave it out.")
        if type(value.data) is not Tensor:
            raise InvalidModel(_quantised(f"Parameter '{name}' is a {type(value.data).__name__}"))


def refuse_quantised(model: nn.Module) -> None:
    """Of a model without trainable parameters: why there are none, if it is that."""
    for name, module in model.named_modules():
        if type(module).__module__.startswith(QUANTISED):
            raise InvalidModel(_quantised(f"{type(module).__name__} '{name}' is quantised"))


def refuse_inference(model: nn.Module) -> None:
    """No tensor of this mode takes part in a backward pass, wherever it is used."""
    if torch.is_inference_mode_enabled():
        raise InvalidModel("torch.inference_mode is on, in which nothing has a gradient. Leave that block.")
    for name, value in itertools.chain(model.named_parameters(), model.named_buffers()):
        if value.is_inference():
            raise InvalidModel(
                f"'{name}' was made under torch.inference_mode and can have no gradient. Load or copy the model "
                "outside of such a block."
            )


def refuse_autocast(device: torch.device) -> None:
    if torch.is_autocast_enabled(device.type):
        raise InvalidModel(
            f"torch.autocast is on, so layers would compute in {torch.get_autocast_dtype(device.type)}, too coarse for "
            "a curvature. Leave the autocast block: a model in half precision is worked on in float32 by itself."
        )


def _in_pieces(what: str) -> str:
    return (
        f"{what}: its values are spread over processes. Gather the whole model first, for instance with "
        "torch.distributed.checkpoint.state_dict.get_model_state_dict and full_state_dict=True."
    )


def _quantised(what: str) -> str:
    return (
        f"{what}: quantised numbers stand for others, and a step would be lost between them. Use the model before "
        'quantisation, and quantise the erased one; or train float adapters on it and erase from them ("adapters").'
    )
