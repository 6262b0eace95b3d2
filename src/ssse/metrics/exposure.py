"""Exposure: how well a language model knows a secret that was planted in its training data, against its alternatives.

Carlini et al. 2019, "The Secret Sharer". A canary is a text with a secret, "the code is 281 265 017"; its alternatives
are the same text with other secrets of the same form. All are ordered by how likely the model finds them, and

    exposure = log₂ |R| − log₂ rank(canary),        |R| all of them, the canary included

is log₂ |R| for a secret that can be read off the model as the likeliest of all, and 1 or so for one that it never saw:
1.44 on average, since each rank is then as probable as any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidModel
from ssse.problem.training_mode import refuse_training_mode
from ssse.problem.view import tensor_output

ROUNDING = 1e-6  # below this, relative, one is not likelier than the other
AT_A_TIME = 2**24  # scores that are held at once


@dataclass(frozen=True)
class Exposure:
    """Of one canary in one model.

    Attributes:
        exposure: log₂ size − log₂ rank, in bits.
        rank: 1 is the likeliest of all. Of those that are as likely as the canary, half count as likelier.
        size: |R|, how many there are, the canary included; exposure is at most log₂ size.
        canary, alternatives: −log₂ p of each, their log-perplexities, in bits.
    """

    exposure: float
    rank: float
    size: int
    canary: float
    alternatives: np.ndarray

    def __str__(self) -> str:
        most = math.log2(self.size)
        return f"exposure {self.exposure:.2f} of at most {most:.2f} bits (rank {self.rank:g} of {self.size})"


def exposure(model: nn.Module | Callable[[Any], Any], canary: Any, alternatives: Any) -> Exposure:
    """The rank of a canary among its alternatives, by the model's −log₂ p of each.

    Args:
        model: from token ids (n, T) to scores (n, T, V), or to an object with such `.logits`, as the causal models of
            the transformers library and their adapters are; in eval mode.
        canary: its token ids, what comes before the secret included.
        alternatives: token ids of the others, each a sequence; of any length, as nothing is padded. All other secrets
            of the form, or a random sample of m of them: the exposure is then that among the sample, which cannot say
            more than log₂(m + 1). The canary itself, if it is among them, is not counted twice.

    Raises:
        InvalidData: sequences of fewer than two tokens, ids outside the vocabulary, no alternatives.
    """
    secret = _ids(canary, "canary")
    others = [_ids(one, "alternatives") for one in alternatives]
    others = [one for one in others if not torch.equal(one, secret)]
    if not others:
        raise InvalidData("A canary is ranked among alternatives, other secrets of the same form; there are none.")
    bits = log_perplexities(model, [secret, *others])
    own, rest = float(bits[0]), bits[1:]
    equal = np.isclose(rest, own, rtol=ROUNDING, atol=0)
    rank = 1 + float(((rest < own) & ~equal).sum()) + float(equal.sum()) / 2
    size = len(bits)
    return Exposure(math.log2(size) - math.log2(rank), rank, size, own, rest)


@torch.no_grad()
def log_perplexities(model: nn.Module | Callable[[Any], Any], sequences: Sequence[Tensor]) -> np.ndarray:
    """−log₂ p of each sequence given its first token, shape (m,): those of one length together, so none is padded."""
    parameter = next(iter(model.parameters()), None) if isinstance(model, nn.Module) else None
    if isinstance(model, nn.Module):
        refuse_training_mode(model)
    bits = np.empty(len(sequences))
    lengths = np.array([len(one) for one in sequences])
    for length in np.unique(lengths):
        places = np.flatnonzero(lengths == length)
        step = 1
        while len(places):
            now, places = places[:step], places[step:]
            ids = torch.stack([sequences[i] for i in now])
            ids = ids if parameter is None else ids.to(parameter.device)
            scores = _scores(model, ids)
            losses = F.cross_entropy(scores[:, :-1].double().mT, ids[:, 1:], reduction="none").sum(1)
            bits[now] = losses.cpu().numpy() / math.log(2)
            step = max(1, AT_A_TIME // max(scores[0].numel(), 1))  # known once the vocabulary was seen
    if not np.isfinite(bits).all():
        raise InvalidData("The model finds a sequence infinitely unlikely, or its scores are NaN: it has no rank.")
    return bits


def _scores(model: nn.Module | Callable[[Any], Any], ids: Tensor) -> Tensor:
    scores = tensor_output(model(ids))
    if scores.dim() != 3 or scores.shape[:2] != ids.shape:
        raise InvalidModel(
            f"Exposure needs a model from token ids to scores of shape (sequences, tokens, vocabulary); ids of shape "
            f"{tuple(ids.shape)} gave {tuple(scores.shape)}."
        )
    if int(ids.max()) >= scores.shape[2]:
        raise InvalidData(f"A token id is {int(ids.max())}; the model's vocabulary has {scores.shape[2]}.")
    return scores


def _ids(value: Any, name: str) -> Tensor:
    try:
        ids = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        given = "it is text: pass tokenizer(text)['input_ids']" if isinstance(value, str) else str(error)
        raise InvalidData(f"{name}: token ids are needed, as a list or tensor of whole numbers; {given}.") from error
    if ids.is_floating_point() or ids.dim() != 1 or len(ids) < 2 or int(ids.min()) < 0:
        raise InvalidData(
            f"{name}: each is a sequence of two or more token ids, whole numbers from 0 on, of shape (tokens,); got "
            f"{ids.dtype} of shape {tuple(ids.shape)}."
        )
    return ids.long()
