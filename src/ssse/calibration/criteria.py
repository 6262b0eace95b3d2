"""The rules by which a curve decides on ε, or says that it does not."""

from __future__ import annotations

import numpy as np

from ssse.errors import SSSEError
from ssse.evaluation.scan import Scan

PLATEAU = 0.01  # γ or δ within this of the best is as good as the best
FEW = 10  # samples that tell the retrained model from the original: below, δ has few values
SIGNAL = 1e-3  # the attack's p-value before erasing, above which its way down to ½ is mostly noise


class Undecided(SSSEError, ValueError):
    """The evidence does not decide on a scale ε. Nothing was chosen.

    Attributes:
        scan: the curve that was looked at; None for the searches along the step, which look at none.
    """

    def __init__(self, message: str, scan: Scan | None):
        self.scan = scan
        super().__init__(message)


def by_ratio(scan: Scan) -> tuple[float, str]:
    """argmax γ or argmin δ; the start of the plateau where the curve ends in one."""
    name = scan.ratio_name
    if scan.ratio is None:
        raise Undecided(
            f"{name} is not defined: each attribute is the same for all of the forgotten samples. "
            'criterion="divergence" works there.',
            scan,
        )
    loss = loss_of(scan)
    finite = np.flatnonzero(np.isfinite(loss))
    if not len(finite):
        raise Undecided(f"{name} is not finite at any ε on the grid: the outputs overflow. Use smaller scales.", scan)
    least, end = int(finite[loss[finite].argmin()]), int(finite[-1])
    if loss[least] >= 0.5:
        where = "at every ε" if np.ptp(loss[finite]) == 0 else f"at best, at ε = {scan.scales[least]:.3g}"
        why = "no ε on the grid brings the model nearer to the retrained one than to the original. Use larger scales"
        if loss[finite].max() == 0.5:
            why = (
                "on these samples the retrained model behaves as the original one. Choose others that make a difference"
            )
        raise Undecided(f"{name} is {scan.ratio[least]:.3g} {where}: {why}.", scan)
    good = (loss <= loss[least] + PLATEAU) & (loss < 0.5)
    at = _nearest(scan, good)
    start, (first, last) = _run(good, end)[0], _run(good, at)
    if good[end] and end - start >= max(1, last - first):  # elsewhere a single good ε may be luck
        chosen, why = start, f"where its plateau begins (best {scan.ratio[least]:.3f})"
    else:
        chosen, why = at, f"the best of {len(finite)} values of ε"
        _refuse_edge(scan, chosen, end, f"{name} is best")
    _refuse_edge(scan, chosen, len(loss), f"{name} is best")
    divergence, before = scan.divergence, scan.original_divergence
    if divergence is not None and before is not None and divergence[chosen] > before:
        raise Undecided(
            f"{name} is best at ε = {scan.scales[chosen]:.3g}, but there the predictions on the forgotten samples are "
            f"further from the retrained model's than before erasing (KL {divergence[chosen]:.3g}, before "
            f"{before:.3g}): too few of them tell the models apart. Choose a larger set to forget.",
            scan,
        )
    if scan.apart is not None and scan.apart < FEW:
        few = "1 sample of S tells" if scan.apart == 1 else f"{scan.apart} samples of S tell"
        why += f"; only {few} the two models apart"
    return float(scan.scales[chosen]), f"{name} = {scan.ratio[chosen]:.3f}, {why}"


def by_divergence(scan: Scan) -> tuple[float, str]:
    """The ε at which the predictions on S diverge least from the retrained model's."""
    divergence, before = scan.divergence, scan.original_divergence
    if divergence is None or before is None or not np.isfinite(divergence).any():
        raise Undecided("The divergence is not finite at any ε on the grid: the outputs overflow.", scan)
    at = int(np.nanargmin(divergence))
    if not divergence[at] < before:
        raise Undecided(
            f"No ε brings the predictions on the forgotten samples nearer to the retrained model's (KL "
            f"{divergence[at]:.3g} at best, {before:.3g} before): choose others that make a difference.",
            scan,
        )
    _refuse_edge(scan, at, int(np.flatnonzero(np.isfinite(divergence))[-1]), "The divergence is least")
    return float(scan.scales[at]), f"KL = {divergence[at]:.3g} on the forgotten samples, {before:.3g} before"


def by_parity(scan: Scan) -> tuple[float, str]:
    """The smallest ε at which the attack's AUC is at most ½, if it was clearly above before."""
    assert scan.attack is not None
    assert scan.original_attack is not None
    assert scan.original_p is not None
    before = f"AUC {scan.original_attack:.3f}, p = {scan.original_p:.2g}"
    if scan.original_attack <= 0.5 or scan.original_p > SIGNAL:
        raise Undecided(
            f"Confidence does not clearly tell the forgotten samples from the held-out ones even before erasing "
            f"({before}): there is no signal to choose ε by. Retrain once, or stay with ε = 1 and expected rows.",
            scan,
        )
    reached = np.flatnonzero(scan.attack <= 0.5)
    if not len(reached):
        raise Undecided(
            f"No ε up to {scan.scales[-1]:.3g} brings the attack to parity: its AUC is {_lowest(scan.attack)} at best "
            f"and {scan.original_attack:.3f} before. If the whole kind is forgotten, pass whole_class=True.",
            scan,
        )
    at = int(reached[0])
    _refuse_edge(scan, at, len(scan.scales), "Parity is reached")
    return float(scan.scales[at]), f"AUC {scan.attack[at]:.3f}; before erasing {before}"


def by_chance(scan: Scan) -> tuple[float, str]:
    """The smallest ε at which the forgotten samples are recognised no more often than by chance."""
    rate = scan.recognised
    if rate is None:
        raise Undecided(
            "There is no attribute that all of the forgotten samples have (label 1), so none can be gone as a whole. "
            "Leave whole_class out, or pass samples that share one.",
            scan,
        )
    reached = np.flatnonzero(rate <= scan.chance)
    if not len(reached):
        raise Undecided(
            f"No ε up to {scan.scales[-1]:.3g} makes the forgotten samples unrecognised: the smallest share that still "
            f"is recognised is {_lowest(rate)}, chance is {scan.chance:.3f}.",
            scan,
        )
    at = int(reached[0])
    _refuse_edge(scan, at, len(rate), "Chance is reached")
    reason = f"{rate[at]:.1%} of S recognised, chance is {scan.chance:.1%}, assuming that S is all of its class"
    return float(scan.scales[at]), reason


def loss_of(scan: Scan) -> np.ndarray:
    """Small is good: δ, or 1 − γ."""
    assert scan.ratio is not None
    return scan.ratio if scan.ratio_name == "δ" else 1 - scan.ratio


def _nearest(scan: Scan, good: np.ndarray) -> int:
    """Of the good ε, the one that the predictions favour: δ counts samples, so values tie or nearly so."""
    tied, divergence = np.flatnonzero(good), scan.divergence
    return int(tied[0] if divergence is None else tied[np.argmin(divergence[tied])])


def _run(good: np.ndarray, at: int) -> tuple[int, int]:
    """First and last of the consecutive good entries around `at`."""
    bad = np.flatnonzero(~good)
    before, after = bad[bad < at], bad[bad > at]
    return (int(before[-1]) + 1 if len(before) else 0), (int(after[0]) - 1 if len(after) else len(good) - 1)


def _refuse_edge(scan: Scan, at: int, end: int, what: str) -> None:
    """At the edge of the grid the condition may be met better, or already, beyond it."""
    if at not in (0, end):
        return
    repair = "smaller ones, down to where nothing changes yet" if at == 0 else "larger ones"
    raise Undecided(f"{what} at ε = {scan.scales[at]:.3g}, at the edge of the scales: pass {repair} as well.", scan)


def _lowest(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    return f"{finite.min():.3f}" if len(finite) else "not finite"
