"""Losses of sequences: cross-entropy of every token, of which a sample has many.

One sample is one sequence. The model gives (n, T, V), V scores at each of T positions, flat (n, T·V) in what follows;
labels are (n, T), with −100 where nothing is to be predicted: padding, or a prompt. T may differ from batch to batch.

    causal_lm             Σ_t −log p(y_{t+1} | x_1 … x_t): position t is held against the next label, as language
                          models of the transformers library do it
    token_cross_entropy   Σ_t −log p_t(y_t): position t has its own label, as in tagging
    …_mean                the same, over the number of labels of that sequence

A training that takes the mean over all tokens of a batch, as that library does, has the objective of "causal_lm" with a
weight decay of w·T̄, T̄ the mean number of labels a sequence. Where all sequences have as many, it is that of
"causal_lm_mean" with w itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.loss import Loss, Margins, Response
from ssse.problem.padding import padding_mask

IGNORED = -100


class TokenLoss(Loss):
    """Cross-entropy of every token of a sequence, summed or averaged over its labels.

    Attributes:
        shifted: whether position t predicts the label at t + 1. mean: over a sequence's labels, instead of their sum.
        vocabulary: V, once a model's output was seen.
    """

    response: Response = "softmax"

    def __init__(self, name: str, *, shifted: bool, mean: bool, vocabulary: int | None = None):
        self.name: str = name
        self.shifted: bool = shifted
        self.mean: bool = mean
        self.vocabulary: int | None = vocabulary

    def bound(self, output: tuple[int, ...], labels: Tensor) -> TokenLoss:
        """The loss of a model with outputs of that shape; raises where they are not V scores a label."""
        if len(output) != 3 or labels.dim() != 2:
            raise InvalidData(
                f"The loss '{self.name}' needs outputs of shape (sequences, tokens, vocabulary) and labels of shape "
                f"(sequences, tokens); the model returns {output}, the labels are {tuple(labels.shape)}. For one label "
                "a sequence use the loss 'cross_entropy'."
            )
        if output[1] != labels.shape[1]:
            raise InvalidData(
                f"The model has outputs at {output[1]} positions and the labels are of {labels.shape[1]}. Positions "
                f"that the model adds, such as a tuned prompt, need labels too: {IGNORED}."
            )
        return TokenLoss(self.name, shifted=self.shifted, mean=self.mean, vocabulary=output[2])

    def check(self, y: Tensor, shape: torch.Size) -> None:
        if y.is_floating_point() or y.dim() != 2:
            raise InvalidData(
                f"The loss '{self.name}' needs a whole number a token as labels, shape ({len(y)}, tokens), {IGNORED} "
                f"where nothing is to be predicted; got {y.dtype} of shape {tuple(y.shape)}."
            )
        target = self.targets(y)
        known = target != IGNORED
        empty = ~known.any(1)
        if bool(empty.any()):
            raise InvalidData(
                f"Sequence {int(empty.nonzero()[0])} of a batch of {len(y)} has no label to predict: all are {IGNORED}"
                f"{', or it has one token only' if self.shifted else ''}. Leave it out."
            )
        labels = target[known]
        vocabulary = shape[1] // max(y.shape[1], 1) if self.vocabulary is None else self.vocabulary
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= vocabulary:
            raise InvalidData(
                f"Labels must lie in 0 … {vocabulary - 1}, the model's vocabulary, or be {IGNORED}; found {low} … "
                f"{high}."
            )

    def targets(self, y: Tensor) -> Tensor:
        """The label that each position is held against, −100 for none, shape (n, T).

        A label after padding at the left is predicted from the padding, as the transformers library has it; −100 as the
        label of the first token leaves that out.
        """
        y = y.long()
        return torch.cat([y[:, 1:], torch.full_like(y[:, :1], IGNORED)], dim=1) if self.shifted else y

    def note_on_padding(self, x: Any, y: Tensor) -> tuple[str, ...]:
        """Labels where the mask says padding: they count, as they did in training, or else did not."""
        own = padding_mask(x)
        if own is None or own.shape != y.shape or not bool(((y != IGNORED) & ~own).any()):
            return ()
        return (
            "Some labels lie where the attention_mask is 0 and are not −100, so that predicting the padding counts in "
            "the loss. If training left it out, as the collators of the transformers library do, set them to −100.",
        )

    def counts(self, y: Tensor) -> Tensor:
        """How many labels each sequence has, shape (n,)."""
        return (self.targets(y) != IGNORED).sum(1)

    def class_weights(self, y: Tensor) -> Tensor | None:
        """As of classes, what a mean over all tokens of a batch divides by: the labels of each sequence."""
        return None if self.mean else self.counts(y)

    def token_values(self, z: Tensor, y: Tensor) -> Tensor:
        """−log p of every label, 0 where there is none, shape (n, T); neither weighed nor averaged."""
        target = self.targets(y)
        return F.cross_entropy(_scores(z, y).mT, target, ignore_index=IGNORED, reduction="none")

    def values(self, z: Tensor, y: Tensor) -> Tensor:
        total = self.token_values(z, y).sum(1)
        return total / self.counts(y) if self.mean else total

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        target = self.targets(y)
        return self._slope(_scores(z, y).softmax(2), target)

    def factor(self, z: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError  # `expected` has said so

    def expected(self, outputs: int) -> int:
        raise InvalidSetting(
            f"rows=\"expected\" of the loss '{self.name}' would be {outputs:,} a sequence, one for each score of each "
            'token. Use rows="sampled" or rows="margin", one a token.'
        )

    def draws(self, outputs: int) -> int:
        return self.margins(outputs)

    def drawn(self, outputs: int) -> int:
        return self.margins(outputs)

    def sampled(self, z: Tensor, y: Tensor, uniform: Tensor) -> Tensor:
        """p − e at a label drawn at every position that has one; each position is a row.

        The draws at two positions are independent, so that the sum of all rows, one a sequence, would have the same
        square on average; but not in each sequence, and there is no price to pay for what is known. Of a mean over m
        labels a row is 1/√m of the slope, not 1/m: its square is the curvature.
        """
        p, target = _scores(z, y).softmax(2), self.targets(y)
        known = target != IGNORED
        place = (known.cumsum(1) - 1).clamp_min(0)  # the k-th label has the k-th number, wherever the padding is
        drawn = (p.cumsum(2) < uniform.gather(1, place)[:, :, None]).sum(2).clamp(max=p.shape[2] - 1)
        row = self._slope(p, torch.where(known, drawn, IGNORED))
        return row * known.sum(1, keepdim=True).sqrt() if self.mean else row

    def margins(self, outputs: int) -> int:
        """One a position; those without a label weigh nothing."""
        assert self.vocabulary is not None  # bound when the model is looked at
        return outputs // self.vocabulary

    def margin(self, z: Tensor, y: Tensor) -> Margins:
        """As of one label, position by position: φ = z_y − log Σ_{j≠y} e^{z_j}; infinite where there is no label."""
        scores, target = _scores(z, y), self.targets(y)
        known = target != IGNORED
        label = torch.arange(scores.shape[2], device=z.device) == target[:, :, None]
        others = scores.masked_fill(label, -math.inf)
        phi = scores.masked_fill(~label, 0).sum(2) - others.logsumexp(2)
        direction = (label.to(z.dtype) - others.softmax(2)) * known[:, :, None]
        if scores.shape[2] == 1:  # one token alone is always right
            direction = torch.zeros_like(scores)
        weight = 1 / self.counts(y).to(z.dtype)[:, None].expand_as(phi) if self.mean else None
        return Margins(phi.masked_fill(~known, math.inf), direction, weight)

    def swing(self, change: Tensor, y: Tensor) -> Tensor:
        """Of the token whose scores move most, of those that have a label."""
        moved = _scores(change, y)
        ranges = moved.amax(2) - moved.amin(2)
        return ranges.masked_fill(self.targets(y) == IGNORED, 0).amax(1)

    def _slope(self, p: Tensor, target: Tensor) -> Tensor:
        """Σ_t (p_t − e_{y_t}) where there is a label, over their number for a mean; p is used up."""
        known = target != IGNORED
        weight = known.to(p.dtype)
        if self.mean:
            weight = weight / known.sum(1, keepdim=True)
        p.scatter_add_(2, target.clamp_min(0)[:, :, None], p.new_full((*target.shape, 1), -1.0))
        return p.mul_(weight[:, :, None]).flatten(1)


def _scores(z: Tensor, y: Tensor) -> Tensor:
    """(n, T·V) → (n, T, V)."""
    return z.view(*y.shape, -1)


TOKEN_LOSSES = {
    f"{name}{'_mean' if mean else ''}": TokenLoss(f"{name}{'_mean' if mean else ''}", shifted=shifted, mean=mean)
    for name, shifted in (("causal_lm", True), ("token_cross_entropy", False))
    for mean in (False, True)
}
