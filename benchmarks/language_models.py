"""A small GPT that is trained here, and LoRA adapters for it at a minimum of their own objective."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from language_texts import LENGTH, PADDING, START, VOCABULARY, Batch, rows_of

WIDTH, LAYERS, HEADS, RANK = 64, 2, 4, 6
AT_ONCE = 200  # sequences of a full-batch gradient that are held at once


def gpt(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=LENGTH, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=PADDING, bos_token_id=START, eos_token_id=START,
            use_cache=False, activation_function="gelu", initializer_range=0.1,
        )
    )  # fmt: skip


def with_adapters(base: nn.Module, seed: int) -> nn.Module:
    """In all linear layers of the last block."""
    torch.manual_seed(seed)
    chosen = LoraConfig(
        r=RANK,
        lora_alpha=RANK,
        lora_dropout=0.0,
        target_modules=["c_attn", "c_fc", "c_proj"],
        fan_in_fan_out=True,
        layers_to_transform=[LAYERS - 1],
    )
    return get_peft_model(deepcopy(base), chosen).eval()  # type: ignore[arg-type]  # peft names its own models


def losses(model: nn.Module, batch: Batch) -> Tensor:
    """Of every sequence, summed over its labels."""
    scores = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"][:, 1:]
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), labels.flatten(), reduction="none").view_as(labels).sum(1)


def pretrain(data: Batch, epochs: int, seed: int = 0) -> nn.Module:
    model = gpt(seed)
    _by_adam(model, data, epochs, 3e-3, 0.0, seed, 64)
    return model.eval()


def tune(base: nn.Module, data: Batch, decay: float, seed: int, epochs: int, steps: int) -> nn.Module:
    """Adapters at a minimum of (1/n) Σ ℓ + (decay/2)‖θ‖²: Adam with a falling rate, then L-BFGS on all of the data."""
    model = with_adapters(base, seed)
    _by_adam(model, data, epochs, 2e-2, decay, seed, 20)
    optimiser = torch.optim.LBFGS(
        trainable(model), max_iter=steps, max_eval=2 * steps, history_size=30, tolerance_grad=0, tolerance_change=0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> float:
        optimiser.zero_grad()
        return objective_and_gradient(model, data, decay)

    optimiser.step(closure)
    return model


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def objective_and_gradient(model: nn.Module, data: Batch, decay: float) -> float:
    """The objective; its gradient is added to that of the parameters."""
    n, total = len(data["input_ids"]), 0.0
    for start in range(0, n, AT_ONCE):
        part = losses(model, rows_of(data, slice(start, start + AT_ONCE))).sum() / n
        part.backward()
        total += float(part.detach())
    penalty = decay / 2 * squared_norm(model)
    penalty.backward()
    return total + float(penalty.detach())


def gradient_norm(model: nn.Module, data: Batch, decay: float) -> float:
    model.zero_grad()
    objective_and_gradient(model, data, decay)
    return float(torch.cat([p.grad.flatten() for p in trainable(model) if p.grad is not None]).norm())


def squared_norm(model: nn.Module) -> Tensor:
    return torch.stack([p.square().sum() for p in trainable(model)]).sum()


def _by_adam(model: nn.Module, data: Batch, epochs: int, rate: float, decay: float, seed: int, size: int) -> None:
    n = len(data["input_ids"])
    total = epochs * (n // size)
    optimiser = torch.optim.Adam(trainable(model), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total, pct_start=0.1)
    for which in _orders(n, size, epochs, seed):
        optimiser.zero_grad()
        loss = losses(model, rows_of(data, which)).mean()
        (loss + decay / 2 * squared_norm(model) if decay else loss).backward()
        optimiser.step()
        schedule.step()


def _orders(n: int, size: int, epochs: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(n, generator=generator)
        yield from order[: n // size * size].split(size)
