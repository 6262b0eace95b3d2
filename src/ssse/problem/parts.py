"""Natural parts of a model: its adapters, its last blocks, its head."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ssse.errors import InvalidModel, InvalidSetting
from ssse.problem.adapters import adapter_names
from ssse.problem.wrappers import unwrapped


@dataclass(frozen=True)
class Part:
    """Some of the trainable parameters, under a name that `parameters=` takes. size: numbers in them."""

    name: str
    parameters: tuple[str, ...]
    size: int


def parts(model: nn.Module) -> list[Part]:
    """From the largest to the smallest, less than all that is trainable; each set of parameters once."""
    model = unwrapped(model)
    trainable = trainable_parameters(model)
    found = {"adapters": adapter_names(model, trainable)}
    found |= last_blocks(model)
    if any(isinstance(module, nn.Linear) for module in model.modules()):
        found["head"] = [name for name, p in trainable.items() if any(p is own for own in _last_linear(model)[1])]
    seen = {frozenset[str](), frozenset(trainable)}
    listed = []
    for name in reversed(found):  # "head" before a last block that is no more than it
        names = frozenset(found[name])
        if names not in seen:
            seen.add(names)
            listed.append(Part(name, tuple(found[name]), sum(trainable[one].numel() for one in found[name])))
    return sorted(listed, key=lambda part: part.size, reverse=True)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def head_names(model: nn.Module) -> list[str]:
    """Of the linear layer that is registered last."""
    if not any(isinstance(module, nn.Linear) for module in model.modules()):
        raise InvalidSetting('parameters="head" needs a linear layer; the model has none. Name parameters instead.')
    label, own = _last_linear(model)
    names = [name for name, p in trainable_parameters(model).items() if any(p is one for one in own)]
    if not names:
        raise InvalidModel(f"The last linear layer, '{label}', is frozen (requires_grad=False).")
    return names


def _last_linear(model: nn.Module) -> tuple[str, list[Tensor]]:
    label, layer = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)][-1]
    return label, [p for p in (layer.weight, layer.bias) if p is not None]


def last_blocks(model: nn.Module) -> dict[str, list[str]]:
    """By name, the largest first: the trainable parameters of the last blocks and of what is registered after them,
    such as a final norm and the head."""
    names = list(trainable_parameters(model))
    begins = []
    for block in _blocks(model, ""):
        inside = [place for place, name in enumerate(names) if name.startswith(block)]
        begins += inside[:1]  # none where all are tied to parameters with an earlier name
    return {
        f"last {len(begins) - place} blocks" if place < len(begins) - 1 else "last block": names[begin:]
        for place, begin in enumerate(begins)
    }


def _blocks(module: nn.Module, prefix: str) -> list[str]:
    """Prefixes of the names in each block, in order. Children of one type in a ModuleList or Sequential are blocks of a
    stack, and not cut further; in a Sequential of several types a child without a stack in it is a block itself."""
    children = [
        (f"{prefix}{name}.", child)
        for name, child in module.named_children()
        if any(p.requires_grad for p in child.parameters())
    ]
    stacked = isinstance(module, nn.ModuleList | nn.Sequential) and len(children) > 1
    if stacked and len({type(child) for _, child in children}) == 1:
        return [name for name, _ in children]
    return [block for name, child in children for block in _blocks(child, name) or ([name] if stacked else [])]
