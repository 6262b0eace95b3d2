"""U-LiRA: telling erased models from retrained ones by the likelihood of their confidence, sample by sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from ssse.errors import InvalidData
from ssse.metrics.margins import as_models, check_level

OWN_VARIANCE = 16  # shadows of a sample on each side, from which on it gets a variance of its own


@dataclass(frozen=True)
class ULira:
    """How often a likelihood-ratio attacker tells an erased model from a retrained one.

    Attributes:
        accuracy: balanced share of right decisions; 0.5: cannot tell, 1: always.
        low, high: its t interval over pairs of target models.
        shadows: how many models the Gaussians were fitted to (erased, retrained).
        targets: how many pairs of an erased and a retrained model were judged.
        flags: what to know before believing the numbers.
    """

    accuracy: float
    low: float
    high: float
    shadows: tuple[int, int]
    targets: int
    flags: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.low <= 0.5 <= self.high

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "failed"
        return f"accuracy {self.accuracy:.3f} [{self.low:.3f}, {self.high:.3f}]: {verdict}"


def u_lira(erased: Any, retrained: Any, seed: int = 0, level: float = 0.05) -> ULira:
    """U-LiRA: is a model's confidence in a sample that of an erased or of a retrained model?

    Hayes et al. 2024, "Inexact unlearning needs more careful evaluations to avoid a false sense of privacy", after
    Carlini et al. 2022. For each sample, N(μ_e, σ_e²) is fitted to the confidences of erased shadow models and
    N(μ_r, σ_r²) to those of retrained ones; a target model's φ is called erased where the first is likelier, and a tie
    counts half. The score is ½ P(right | erased) + ½ P(right | retrained).

    *Split.* The smaller side is halved by the seed; one half are its targets, and as many of the other side's models
    are theirs; all the rest are shadows. Given the shadows the targets are independent, so a t interval over them is
    honest, as the tests simulate; taking turns would share the fits between targets, and such 95 % intervals cover less
    than 90 %. A target's samples are averaged first: they move together, and an erased and a retrained target make
    a pair, whose errors balance. With equally many models on both sides, row j of both stays together throughout: it
    may be one model, with some samples erased and others never seen.

    *Variance.* From few shadows it is mostly noise: a sample with fewer than 16 on a side uses each side's variance
    pooled over the samples. Where all pairs score alike the interval is as wide as if one target had decided otherwise.

    Args:
        erased: φ of m models that were trained with the k samples and then had them erased, shape (m, k). NaN where a
            model does not have that status for that sample, as when each has its own random forget set.
        retrained: φ of m' models that never saw them, shape (m', k), with NaN in the same sense.
    """
    check_level(level)
    sides = [as_models(erased, "erased", gaps=True), as_models(retrained, "retrained", gaps=True)]
    if sides[0].shape[1] != sides[1].shape[1]:
        raise InvalidData(
            f"Both sides must hold the same samples, as columns; erased has {sides[0].shape[1]} and retrained "
            f"{sides[1].shape[1]}."
        )
    for name, side in zip(("erased", "retrained"), sides, strict=True):
        count = int(np.isfinite(side).any(1).sum())
        if count < 4:
            raise InvalidData(
                f"u_lira needs at least four {name} models, two to fit a variance and two to judge with an interval; "
                f"there are {count}. Train more, or use reference_attack, which needs one erased model."
            )
    pairs = (min(len(side) for side in sides) + 1) // 2
    generator = np.random.default_rng(seed)
    orders = [generator.permutation(len(side)) for side in sides]
    if len(sides[0]) == len(sides[1]):
        orders[1] = orders[0]
    targets = [side[order[:pairs]] for side, order in zip(sides, orders, strict=True)]
    shadows = [side[order[pairs:]] for side, order in zip(sides, orders, strict=True)]
    means, variances, usable, flags = _fit_gaussians(shadows[0], shadows[1])
    called = [_called_erased(side[:, usable], means[:, usable], variances[:, usable]) for side in targets]
    scores = (_mean_over_samples(called[0]) + 1 - _mean_over_samples(called[1])) / 2
    scores = scores[np.isfinite(scores)]
    if len(scores) < 2:
        raise InvalidData(
            f"Only {len(scores)} of {pairs} pairs of targets have, on both sides, a sample that the shadows cover: too "
            "many NaN. Train more models, let their forget sets overlap more, or leave rows out that are all NaN."
        )
    everybody = np.concatenate(sides)[:, usable]
    if (np.nanmax(everybody, 0) == np.nanmin(everybody, 0)).all():
        flags += ("All models agree on every sample: erased and retrained are the same here.",)
    accuracy, error = float(scores.mean()), float(scores.std(ddof=1)) / math.sqrt(len(scores))
    if error < 1e-12:
        # a t interval of width 0 would claim certainty from a handful of models
        error = 0.5 / len(scores)
        flags += ("All pairs score alike: the interval is as wide as if one target had decided otherwise.",)
    margin = float(stats.t.ppf(1 - level / 2, len(scores) - 1)) * error
    return ULira(
        accuracy=accuracy,
        low=max(0.0, accuracy - margin),
        high=min(1.0, accuracy + margin),
        shadows=(len(shadows[0]), len(shadows[1])),
        targets=len(scores),
        flags=flags,
    )


def _fit_gaussians(
    erased: np.ndarray, retrained: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
    """Means and variances, shape (2, k), and which samples have a shadow on both sides, shape (k,); and flags."""
    counts = np.stack([np.isfinite(erased).sum(0), np.isfinite(retrained).sum(0)])
    usable = counts.min(0) > 0
    sums = np.stack([np.nansum(erased, 0), np.nansum(retrained, 0)])
    means = sums / np.maximum(counts, 1)
    squares = np.stack(
        [np.nansum((side - mean) ** 2, 0) for side, mean in zip((erased, retrained), means, strict=True)]
    )
    spare = np.maximum(counts - 1, 0)
    if not usable.any() or spare.sum(1).min() == 0:
        raise InvalidData(
            "Some sample must have a shadow model on both sides, and some sample two on each, to fit a mean and a "
            "variance: too many NaN. Train more models, or let their forget sets overlap more."
        )
    own = counts.min(0) >= OWN_VARIANCE
    pooled = squares.sum(1, keepdims=True) / spare.sum(1, keepdims=True)
    variances = np.where(own, squares / np.maximum(spare, 1), pooled)
    flags = []
    if not usable.all():
        flags.append(f"{int((~usable).sum())} of {len(usable)} samples have no shadow on one side and are left out.")
    if not own[usable].all():
        flags.append(
            f"Variance pooled over samples for {int((usable & ~own).sum())} of {int(usable.sum())}, which have fewer "
            f"than {OWN_VARIANCE} shadows on a side."
        )
    # below what single precision resolves, a spread is not one
    floor = (1e-6 * max(1.0, float(np.abs(means).max()))) ** 2
    if (variances[:, usable] < floor).any():
        flags.append(
            "Shadow models agree to six digits (deterministic training?): their variance was raised to a floor."
        )
    return means, np.maximum(variances, floor), usable, tuple(flags)


def _called_erased(phi: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """1 where N(μ_e, σ_e²) is likelier, 0 where N(μ_r, σ_r²) is, ½ for a tie, NaN where there is no value."""
    fits = [-0.5 * (np.log(v) + (phi - mean) ** 2 / v) for mean, v in zip(means, variances, strict=True)]
    ratio = fits[0] - fits[1]
    called = np.where(np.abs(ratio) <= 1e-9, 0.5, ratio > 0)  # rounding of the means is no evidence
    return np.where(np.isnan(phi), np.nan, called)


def _mean_over_samples(called: np.ndarray) -> np.ndarray:
    """Each model's share, shape (targets,); NaN for one without any sample."""
    counts = np.isfinite(called).sum(1)
    return np.where(counts > 0, np.nansum(called, 1) / np.maximum(counts, 1), np.nan)
