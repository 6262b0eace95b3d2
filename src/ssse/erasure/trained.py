"""What a training function of the user's gives back."""

from __future__ import annotations

from typing import Any

from torch import nn

from ssse.errors import InvalidModel, ModelMismatch


def check_trained(model: nn.Module, trained: Any, call: str = "train(batches)") -> None:
    """`call`: how the function was called, in words.

    Raises:
        InvalidModel: no module, or the model that is to stay as it is. ModelMismatch: another architecture.
    """
    if not isinstance(trained, nn.Module):
        raise InvalidModel(f"{call} must return the trained nn.Module; it returned a {type(trained).__name__}.")
    if trained is model:
        raise InvalidModel(
            f"{call} returned the very model that was passed in, which is to stay as it is. Build a new module "
            "inside train()."
        )
    wanted = {name: tuple(p.shape) for name, p in model.named_parameters()}
    have = {name: tuple(p.shape) for name, p in trained.named_parameters()}
    for name in [*wanted, *have]:
        if wanted.get(name) != have.get(name):
            raise ModelMismatch(
                f"{call} must return a model of the same architecture; parameter '{name}' is "
                f"{wanted.get(name, 'absent')} in the model and {have.get(name, 'absent')} in the retrained one."
            )
