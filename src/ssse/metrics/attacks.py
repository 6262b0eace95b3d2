"""Membership inference: can anybody tell that the forgotten samples were ever there?

Every attack reads one number a sample, the confidence in the true label φ = log p_y − log(1 − p_y)
(`scores.confidences`), which training raises on the samples it saw. In order of what they need:

    threshold_attack    the erased model                            forgotten samples against held-out ones
    reference_attack    and a few models that saw neither            the same, each sample's difficulty taken off
    u_lira              and many erased and many retrained models    erased against retrained, sample by sample

Each comes with its own uncertainty: a finite audit never shows 0.5 exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit, logit

from ssse.errors import InvalidData
from ssse.metrics.margins import as_models, as_vector, check_level
from ssse.metrics.scores import Flagged

PERMUTATIONS = 9_999  # up to which a test with ties goes through all of them
EXACT_PAIRS = 10_000  # up to which a test without ties is exact: 25 ms, and no digit to gain beyond


@dataclass(frozen=True)
class Attack:
    """How well a threshold on one score tells forgotten from held-out samples.

    Attributes:
        auc: P(forgotten > held-out) + ½ P(equal). 0.5: cannot tell. Below 0.5 the forgotten samples are believed
            *less* than unseen ones, over-forgetting, which gives them away as well.
        low, high: interval that covers the true AUC with probability 1 − level.
        p_value: two-sided Mann–Whitney test of "forgotten and held-out samples are alike".
        advantage: max_τ TPR(τ) − FPR(τ). Optimistic: τ is chosen on the very samples it is judged on, so it is
            above 0 also for a model that saw none of them; compare it with a retrained model's, never with 0.
        level: the chance of failing that a model which never saw the samples is granted.
        flags: what to know before believing the numbers.
    """

    auc: float
    low: float
    high: float
    p_value: float
    advantage: float
    level: float
    flags: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """A model that never saw the samples passes with probability 1 − level (or more: few samples, few p-values)."""
        return self.p_value >= self.level

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "failed"
        return f"AUC {self.auc:.2f} [{self.low:.2f}, {self.high:.2f}], p = {self.p_value:.2g}: {verdict}"


def threshold_attack(forgotten: Any, held_out: Any, level: float = 0.05) -> Attack:
    """Can a threshold on the confidence tell forgotten from held-out samples? (Yeom et al. 2018.)

    To a model that saw neither, samples of one kind (the same classes, in the same shares) are exchangeable, so the
    test holds its level whatever the model. Held-out samples of another kind make it fail for that reason alone.

    The interval is DeLong et al.'s (1988) variance on the logit scale, with Welch–Satterthwaite degrees of freedom;
    simulated coverage at 95 %: 93–99 % from ten samples a side on, 89 % at AUC 0.96 with ten against 200. Where that
    variance is not defined (one sample on a side) or 0 (all apart, AUC 0 or 1), Hanley and McNeil's (1982) as a
    function of the AUC is solved for it instead (Newcombe 2006, method 5).

    Args:
        forgotten: φ of the samples to forget, shape (k,).
        held_out: φ of samples never trained on, shape (h,).
    """
    check_level(level)
    return _attack(as_vector(forgotten, "forgotten"), as_vector(held_out, "held_out"), level)


def reference_attack(
    forgotten: Any, held_out: Any, reference_forgotten: Any, reference_held_out: Any, level: float = 0.05
) -> Attack:
    """The threshold attack on φ − mean_r φ_r, the confidence beyond what m models that saw neither set have.

    Difficulty calibration (Watson et al. 2022, "On the importance of difficulty calibration in membership inference
    attacks"): an easy sample is believed by everybody, which is no sign of membership. It is offline LiRA (Carlini et
    al. 2022) with one variance for all samples, whose score Φ((φ − μ)/σ) orders samples as φ − μ does. m = 1 works
    already; the noise it adds falls as 1/m. A reference that saw one of the two sets spoils the level.

    Args:
        forgotten, held_out: φ of the audited model, shapes (k,) and (h,).
        reference_forgotten, reference_held_out: φ of the same m models, shapes (m, k) and (m, h).
    """
    check_level(level)
    calibrated: list[np.ndarray] = []
    models: list[int] = []
    for name, own, others in (
        ("forgotten", forgotten, reference_forgotten),
        ("held_out", held_out, reference_held_out),
    ):
        own, others = as_vector(own, name), as_models(others, f"reference_{name}")
        if others.shape[1] != len(own):
            raise InvalidData(
                f"reference_{name} must hold the same samples as {name}: {len(own)} of them, shape (models, "
                f"{len(own)}); it has {others.shape}."
            )
        calibrated.append(own - others.mean(0))
        models.append(len(others))
    if models[0] != models[1]:
        raise InvalidData(
            f"The same reference models must see both sets; reference_forgotten has {models[0]} and "
            f"reference_held_out {models[1]}."
        )
    return _attack(calibrated[0], calibrated[1], level)


def member_rate(forgotten: Any, members: Any, non_members: Any) -> Flagged:
    """The share of forgotten samples that look like members.

    A sample with φ > τ is called a member, one with φ = τ half a one; τ maximises the balanced accuracy ½ P(member > τ)
    + ½ P(non-member < τ) on retained training samples against test samples. τ lies midway between two neighbouring
    values, and of equally good places it is the middle one (of an even number, the lower). Read it against the same
    rate of held-out samples of the forgotten kind: that, not 0, is what an ideal erasure leaves.

    Args:
        forgotten, members, non_members: φ of the forgotten, retained training, and test samples; one dimension each.
    """
    forgotten = as_vector(forgotten, "forgotten")
    members, non_members = np.sort(as_vector(members, "members")), np.sort(as_vector(non_members, "non_members"))
    values = np.unique(np.concatenate([members, non_members]))
    cuts = values if len(values) == 1 else values[:-1] + np.diff(values) / 2
    below = np.searchsorted(non_members, cuts, side="left") / len(non_members)
    above = 1 - np.searchsorted(members, cuts, side="right") / len(members)
    balanced = (below + above) / 2
    best = np.flatnonzero(balanced >= balanced.max() - 1e-12)
    cut = cuts[best[(len(best) - 1) // 2]]
    rate = float(np.mean((forgotten > cut) + 0.5 * (forgotten == cut)))
    if balanced.max() > 0.5:
        return Flagged(rate)
    return Flagged(rate, "No threshold tells members from non-members, so being called a member means nothing.")


def rank_auc(forgotten: np.ndarray, held_out: np.ndarray) -> float:
    """P(forgotten > held-out) + ½ P(equal), by ranks: exactly 0 or 1 where all are apart, not rounded."""
    k, h = len(forgotten), len(held_out)
    ranks = stats.rankdata(np.concatenate([forgotten, held_out]))
    return float(ranks[:k].sum() - k * (k + 1) / 2) / (k * h)


def _attack(forgotten: np.ndarray, held_out: np.ndarray, level: float) -> Attack:
    k, h = len(forgotten), len(held_out)
    scores = np.concatenate([forgotten, held_out])
    flags: list[str] = []
    least = 2 / math.comb(k + h, k)
    if least > level:
        flags.append(
            f"{k} forgotten against {h} held-out samples cannot fail at level {level:g}: the smallest p-value is "
            f"{min(least, 1):.2g}. Use more samples."
        )
    if np.ptp(scores) == 0:
        flags.append("All scores are equal, so nothing can be told from them.")
        return Attack(0.5, *_score_interval(0.5, k, h, level), 1.0, 0.0, level, tuple(flags))
    auc = rank_auc(forgotten, held_out)
    p_value = _mann_whitney(forgotten, held_out)
    if p_value < level and auc < 0.5:
        flags.append(
            "Over-forgotten: the model believes the forgotten samples less than unseen ones, which gives them away as "
            "well. A smaller step may pass."
        )
    interval = _delong_interval(forgotten, held_out, level) or _score_interval(auc, k, h, level)
    return Attack(auc, *interval, p_value, _advantage(forgotten, held_out), level, tuple(flags))


def _advantage(forgotten: np.ndarray, held_out: np.ndarray) -> float:
    """max_τ P(forgotten ≥ τ) − P(held-out ≥ τ), over all τ that tell any two scores apart, and one above all."""
    cuts = np.unique(np.concatenate([forgotten, held_out]))
    true, false = (1 - np.searchsorted(np.sort(own), cuts, side="left") / len(own) for own in (forgotten, held_out))
    return max(0.0, float((true - false).max()))


def _mann_whitney(a: np.ndarray, b: np.ndarray) -> float:
    """Exact for few samples; otherwise the normal approximation with corrections for ties and continuity."""
    ranks = stats.rankdata(np.concatenate([a, b]))
    if min(len(a), len(b)) == 1:  # where that one stands among all; scipy goes through permutations from two on
        own = ranks[0] if len(a) == 1 else ranks[-1]
        return min(1.0, 2 * float(min((ranks <= own).mean(), (ranks >= own).mean())))
    ties = len(np.unique(ranks)) < len(ranks)
    if ties and math.comb(len(a) + len(b), len(a)) <= PERMUTATIONS:
        method: Any = stats.PermutationMethod(n_resamples=PERMUTATIONS)  # enough for all of them: nothing is drawn
    else:
        method = "exact" if not ties and len(a) * len(b) <= EXACT_PAIRS else "asymptotic"
    return float(stats.mannwhitneyu(a, b, alternative="two-sided", method=method).pvalue)


def _delong_interval(forgotten: np.ndarray, held_out: np.ndarray, level: float) -> tuple[float, float] | None:
    """DeLong's variance Var(V)/k + Var(W)/h on the logit scale; None where it says nothing.

    V_i = P(φ_i > held-out) + ½ P(=) for each forgotten sample, W_j = P(forgotten > φ_j) + ½ P(=) for each held-out
    one, both from ranks: rank among all less rank among one's own counts the others below.
    """
    k, h = len(forgotten), len(held_out)
    if min(k, h) < 2:
        return None
    ranks = stats.rankdata(np.concatenate([forgotten, held_out]))
    v = (ranks[:k] - stats.rankdata(forgotten)) / h
    w = 1 - (ranks[k:] - stats.rankdata(held_out)) / k
    auc, parts, degrees = float(v.mean()), np.array([v.var(ddof=1) / k, w.var(ddof=1) / h]), np.array([k - 1, h - 1])
    variance = float(parts.sum())
    if not (0 < auc < 1 and variance > 0):
        return None
    freedom = variance**2 / float((parts**2 / degrees).sum())
    margin = stats.t.ppf(1 - level / 2, freedom) * math.sqrt(variance) / (auc * (1 - auc))
    return float(expit(logit(auc) - margin)), float(expit(logit(auc) + margin))


def _score_interval(auc: float, k: int, h: int, level: float) -> tuple[float, float]:
    """All θ with |auc − θ| ≤ z √V(θ), V Hanley and McNeil's variance with both sizes their mean (Newcombe 2006)."""
    z, others = float(stats.norm.ppf(1 - level / 2)), (k + h) / 2 - 1

    def excess(theta: float) -> float:
        spread = 1 + others * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return abs(auc - theta) - z * math.sqrt(theta * (1 - theta) * spread / (k * h))

    def root(left: float, right: float) -> float:
        return float(brentq(excess, left, right))  # pyright: ignore[reportArgumentType]

    # V vanishes at 0 and 1, where an AUC of 0 or 1 itself would be a root
    inside = min(max(auc, 1e-12), 1 - 1e-12)
    low, high = 0.0 if auc == 0 else root(0.0, inside), 1.0 if auc == 1 else root(inside, 1.0)
    return low, high
