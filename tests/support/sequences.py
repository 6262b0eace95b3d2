"""A small causal language model with tied weights, and sequences with padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ssse.problem.token_losses import IGNORED


class TiedLanguageModel(nn.Module):
    """Embedding, causal averages of what came before, and the embedding again as the output layer, as GPT-2 has it."""

    def __init__(self, vocabulary: int = 7, width: int = 5):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        weight = mask.to(self.mix.weight.dtype).unsqueeze(2)
        h = self.embedding(input_ids)
        before = (h * weight).cumsum(1) / weight.cumsum(1).clamp_min(1)
        return self.head(self.norm(h + torch.tanh(self.mix(before))))


def language_model(vocabulary: int = 7, seed: int = 0, dtype: torch.dtype = torch.float64) -> TiedLanguageModel:
    torch.manual_seed(seed)
    return TiedLanguageModel(vocabulary).to(dtype).eval()


def sequences(n: int = 12, length: int = 6, vocabulary: int = 7, seed: int = 0) -> dict[str, Tensor]:
    """As the transformers library has them: padding at the right, −100 there and on some prompts."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocabulary, (n, length), generator=generator)
    lengths = torch.randint(3, length + 1, (n, 1), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length) < lengths).long()
    ids = ids * mask  # 0 is the padding
    labels = ids.masked_fill(mask == 0, IGNORED)
    labels[::3, :1] = IGNORED  # a prompt of one token
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def padded(batch: dict[str, Tensor], by: int, *, left: bool = False) -> dict[str, Tensor]:
    """The same sequences with more padding."""
    fill = {"input_ids": 0, "attention_mask": 0, "labels": IGNORED}
    return {
        key: nn.functional.pad(value, (by, 0) if left else (0, by), value=fill[key]) for key, value in batch.items()
    }
