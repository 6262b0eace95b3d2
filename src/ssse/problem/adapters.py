"""Adapters that peft put into a model, known by their form: peft itself is never imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from ssse.errors import InvalidModel, InvalidSetting

# Where peft keeps what it trains besides the layers it adds: whole modules, virtual tokens, rows of an embedding.
WHOLE = ("modules_to_save", "prompt_encoder", "trainable_tokens_delta")


def adapter_names(model: nn.Module, trainable: Iterable[str]) -> list[str]:
    """Of the trainable parameters those that peft made trainable; none of a model without adapters."""
    configurations = [c for m in model.modules() for c in _configurations(m)]
    layers = [m for _, m in _adapted_layers(model)]
    if not configurations and not layers:
        return []
    parts = {*WHOLE, *(name for layer in layers for name in layer.adapter_layer_names)}  # type: ignore[union-attr]
    biases = any(getattr(c, "bias", "none") != "none" for c in configurations)  # peft may train those of the base too
    return [name for name in trainable if parts & {*name.split(".")} or (biases and name.endswith("bias"))]


def choose_adapters(model: nn.Module, trainable: Iterable[str]) -> list[str]:
    """As `adapter_names`, where there must be some."""
    names = adapter_names(model, trainable)
    if names:
        return names
    if any(True for _ in _adapted_layers(model)):
        raise InvalidModel(
            "The adapters of the model are frozen (requires_grad=False), as peft loads them for inference. Load them "
            "with is_trainable=True."
        )
    raise InvalidSetting(
        'parameters="adapters" is for models with adapters of peft, and this one has none (merged and unloaded?). Take '
        '"trainable", or name the parameters.'
    )


def refuse_idle_adapters(model: nn.Module, names: Iterable[str]) -> None:
    """Adapters that are merged into the weights, or switched off, take no part in forward()."""
    chosen = list(names)
    for label, layer in _adapted_layers(model):
        if not any(name.startswith(f"{label}.") for name in chosen):
            continue
        if getattr(layer, "merged", False):
            raise InvalidModel(
                f"The adapters in '{label}' are merged into its weights, so that changing them changes nothing. Call "
                "model.unmerge_adapter() first."
            )
        if getattr(layer, "disable_adapters", False):
            raise InvalidModel(f"The adapters in '{label}' are switched off. Call model.enable_adapter_layers() first.")


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, m) for name, m in model.named_modules() if hasattr(m, "adapter_layer_names"))


def _configurations(module: nn.Module) -> list[object]:
    found = module.__dict__.get("peft_config")
    return list(found.values()) if isinstance(found, dict) else []
