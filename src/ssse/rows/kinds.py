"""Which rows a sample gives: expected, margin, sampled or empirical."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidSetting
from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import Batch
from ssse.problem.cores import Cores, DenseCores, cores_of_parts
from ssse.problem.labels import Labels, WeightedLabels
from ssse.problem.loss import Loss
from ssse.problem.problem import Problem
from ssse.problem.sample_digests import digest_inputs, digest_samples
from ssse.problem.token_losses import IGNORED, TOKEN_LOSSES, TokenLoss
from ssse.problem.weighted_loss import unweighted
from ssse.rows.autodiff import NetworkRows, gradient_rows, held, margin_rows
from ssse.rows.held import ExplicitRows, HeldRows, LinearRows, Rows
from ssse.rows.margin import MarginRows
from ssse.rows.score_sums import ScoreSums

RowName = Literal["empirical", "expected", "margin", "sampled"]
RowChoice = Literal["auto", "empirical", "expected", "margin", "sampled"]
KINDS: tuple[str, ...] = get_args(RowName)


@dataclass(frozen=True)
class RowKind:
    """`rows=` of `Curvature.fit`, read and checked.

    Attributes:
        name: empirical (true label), expected (all labels, weighted by the model), margin (the true label against
            all others, weighted by the model), sampled (a label drawn from the model, of sequences one a token).
        per_batch: b > 1 makes one row of each b consecutive samples, √b times their mean gradient, so
            that the sum of squares over n equals the paper's mini-batch FIM (n/b mean gradients,
            divided by n/b).
        seed: of the labels that "sampled" draws.
    """

    name: RowName
    per_batch: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in KINDS:
            raise InvalidSetting(f"rows must be 'auto' or one of {', '.join(KINDS)}, not {self.name!r}.")
        if self.per_batch < 1 or (self.per_batch > 1 and self.name != "empirical"):
            raise InvalidSetting("rows_per_batch must be 1 or more, and above 1 only with rows='empirical'.")

    def natural(self, loss: str) -> bool:
        """Whether the step at ε = 1 is that of a second-order model of the loss; with other rows ε must be measured.

        One label that is drawn for a sample says too little of it. Of sequences there is one for every token.
        """
        return self.name in ("expected", "margin") or (self.name == "sampled" and loss in TOKEN_LOSSES)

    def rows_per_sample(self, loss: Loss, outputs: int) -> int:
        """r; of expected rows one for each output, of margin rows one for each margin."""
        if self.name == "margin":
            return loss.margins(outputs)
        if self.name == "sampled":
            return loss.drawn(outputs)
        return loss.expected(outputs) if self.name == "expected" else 1

    def core_numbers(self, loss: Loss, outputs: int) -> int:
        """That the cores of one sample are kept in."""
        return loss.core_numbers(outputs) if self.name == "expected" else outputs  # of several margins each has a part

    def cores(self, loss: Loss, z: Tensor, y: Labels, x: Inputs) -> Cores:
        """Output-space vectors, r of them a sample."""
        if self.name == "expected":
            return loss.cores(z, y)
        if self.name == "empirical":
            return DenseCores(loss.gradient(z, y).unsqueeze(1))
        if self.name == "margin":
            margins = loss.margin(z, y)
            return cores_of_parts(margins.row_weights.unsqueeze(2) * margins.direction)
        uniform = torch.from_numpy(uniforms_of_samples(x, loss.draws(z.shape[1]), self.seed)).to(z)
        drawn = loss.sampled(z, y, uniform)
        return cores_of_parts(drawn.view(len(z), loss.drawn(z.shape[1]), -1))


@dataclass
class Measured:
    """One batch, seen at θ*: its rows, the sums of its losses and gradients, and of a linear model its `ScoreSums`.

    `rows_of_samples`: how many rows each has, where they differ.
    """

    rows: Rows
    loss: float
    gradient: Tensor
    count: int
    scores: ScoreSums | None = None
    rows_of_samples: Tensor | None = None


def rows_of(problem: Problem, kind: RowKind, batch: Batch) -> Rows:
    """The rows of one batch alone, as they come: for products with them, again and again."""
    x, y = batch
    z, features = problem.forward(x)
    return _make_rows(problem, x, features, kind.cores(problem.loss, z, y, x))


def measure(problem: Problem, kind: RowKind, batch: Batch) -> Measured:
    """One batch with its rows as they come: for models that are not linear in θ, not formed."""
    x, y = batch
    problem.check_labels(y)
    with problem.reading(x):
        z, features = problem.forward(x)
        total = problem.total_loss(z, y)
        cores = kind.cores(problem.loss, z, y, x)
    rows = _make_rows(problem, x, features, cores)
    if kind.name == "empirical":
        slope = rows
    else:
        slope = _make_rows(problem, x, features, DenseCores(problem.loss.gradient(z, y).unsqueeze(1)))
    gradient = slope.transposed_times(z.new_ones(len(y)))
    scores = None
    if isinstance(rows, LinearRows):
        energy = rows.times(problem.theta()).square().sum(dtype=torch.float64)
        scores = ScoreSums(cores.mass, float(energy))
    return Measured(rows, total, gradient, len(y), scores)


def margin_slope(problem: Problem, batch: Batch, power: float = 0.0) -> Tensor:
    """Σ v(1−p)^power ∇φ over all margins of one batch, v how often each counts, p = σ(φ): one backward pass."""
    x, y = batch
    problem.loss.margins(problem.outputs)  # raises where it has none
    z, features = problem.forward(x)
    margins = problem.loss.margin(z, y)
    rows = _make_rows(problem, x, features, cores_of_parts(margins.direction))
    counts = torch.ones_like(margins.phi) if margins.weight is None else margins.weight
    pushes = counts * (-margins.phi).sigmoid() ** power
    return rows.transposed_times(torch.where(torch.isfinite(margins.phi), pushes, 0.0).reshape(-1))


def measure_held(problem: Problem, kind: RowKind, batch: Batch, salt: bytes | None = None) -> tuple[HeldRows, Measured]:
    """One batch with its rows in memory, as a structure takes them in.

    The empirical rows of a network are its per-sample gradients, and its margin rows are multiples of ∇φ, as are
    the gradients: one vectorised forward and backward pass gives the rows, the outputs, and by summing the batch's
    gradient. Consecutive samples are joined where the kind asks for mini-batches. With a salt, each row carries a
    digest of its sample.
    """
    if problem.linear is not None or kind.name not in ("empirical", "margin"):
        measured = measure(problem, kind, batch)
        rows = held(measured.rows)
        if kind.name == "sampled" and isinstance(unweighted(problem.loss), TokenLoss):
            known = _known_labels(problem.loss, batch[1])
            rows, measured.rows_of_samples = ExplicitRows(rows.matrix()[known.reshape(-1)]), known.sum(1)
    else:
        x, y = batch
        problem.check_labels(y)
        with problem.reading(x):
            rows, measured = _gradients(problem, x, y) if kind.name == "empirical" else _margins(problem, x, y)
    if kind.per_batch > 1:
        return _join(rows, kind.per_batch), measured
    if salt is not None:
        digests = torch.from_numpy(digest_samples(batch, salt).view(np.int64))
        each = rows.count // len(digests) if measured.rows_of_samples is None else measured.rows_of_samples.cpu()
        rows.digests = digests.repeat_interleave(each)
    return rows, measured


def _gradients(problem: Problem, x: Inputs, y: Labels) -> tuple[ExplicitRows, Measured]:
    rows, z = gradient_rows(problem, x, y)
    return rows, Measured(rows, problem.total_loss(z, y), rows.values.sum(0), len(y))


def _margins(problem: Problem, x: Inputs, y: Labels) -> tuple[MarginRows, Measured]:
    """∇φ of every margin with its weight beside it, and Σ∇ℓ = −Σ (1−p) ∇φ from the same ∇φ."""
    slopes, z = margin_rows(problem, x, y)
    margins = problem.loss.margin(z, y)
    gradient = slopes.transposed_times(margins.slopes.reshape(-1))
    counts = None if margins.weight is None else margins.weight.reshape(-1)
    rows, each = MarginRows(slopes.values, margins.phi.reshape(-1), counts), None
    if isinstance(unweighted(problem.loss), TokenLoss):
        known = _known_labels(problem.loss, y)
        rows, each = rows.select(known.reshape(-1).nonzero()[:, 0]), known.sum(1)
    return rows, Measured(rows, problem.total_loss(z, y), gradient, len(y), rows_of_samples=each)


def _known_labels(loss: Loss, y: Labels) -> Tensor:
    """Which tokens have a label, shape (n, T): of rows that are one a token only theirs are kept.

    So a sequence has the same rows with any padding.
    """
    tokens, labels = unweighted(loss), y.values if isinstance(y, WeightedLabels) else y
    assert isinstance(tokens, TokenLoss)
    return tokens.targets(labels) != IGNORED


def _make_rows(problem: Problem, x: Inputs, features: Tensor | None, cores: Cores) -> LinearRows | NetworkRows:
    if problem.linear is None or features is None:
        return NetworkRows(problem, x, cores)
    if problem.linear.bias:
        features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    return LinearRows(features, cores, problem.linear)


def _join(rows: HeldRows, per_batch: int) -> ExplicitRows:
    groups = rows.matrix().split(per_batch)
    return ExplicitRows(torch.stack([group.sum(0) / len(group) ** 0.5 for group in groups]))


def uniforms_of_samples(x: Inputs, count: int, seed: int) -> np.ndarray:
    """`count` uniform numbers a sample, drawn from a hash of the sample's own bytes and the seed.

    So the same sample draws the same label when the curvature is fitted and when it is erased, in
    whatever batch and with whatever padding it comes, and its row can be subtracted again.
    """
    digests = digest_inputs(x, seed.to_bytes(8, "little", signed=True))
    # splitmix64 stretches one 64-bit digest to as many numbers as there are outputs
    state = digests[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
