"""What was claimed of networks, and what the numbers say; every verdict is computed from them."""

from __future__ import annotations

import numpy as np

from ssse.paper.lasting.jobs import ASCENT, NOTHING, OURS, PUSHED, RETRAINED
from ssse.paper.lasting.plans import OPPONENTS
from ssse.paper.lasting.view import (
    SPLITS,
    Numbers,
    answers_of,
    floor,
    heard,
    judged,
    kinds,
    mean,
    pressed,
    requests_of,
    rises,
    unmeasured,
    values,
)
from ssse.paper.result import Finding, Target
from ssse.paper.verdicts import listed, of_all

WHERE = "Does the memory come back?"
REPAIRED = f"{OURS} repaired"
MEMORY = "Where S is known with more confidence it is still remembered in part, whatever it is taken for."
TRACE = (
    "Where it is known with less, the push has lowered margins that any network has, and the repair has not raised "
    "them all the way: a trace of what was forgotten."
)
SAME = 0.01  # of the attack's AUC, that is no difference
TOLD = 0.05  # of the attack's AUC, by which S may be told more or less than with the retrained network
STAYS = 2.0  # points that S may rise by in eight further epochs
# In points, by form and share: what was wanted of step and repair.
WANTED = {
    "full": {0.5: 2.0, 1.0: 0.3, 0.1: 1.0},
    "medium": {0.5: 2.5, 0.1: 2.5},
    "classes": {0.5: 2.5, 0.1: 2.5},
}


def findings(numbers: Numbers) -> list[Finding]:
    found = [_tuning(numbers), _ascent(numbers), _stays(numbers), _nearest(numbers), _opponents(numbers)]
    found += [_confidence(numbers), _pushes(numbers), _told_apart(numbers)]
    return [one for one in found if one is not None]


def targets(numbers: Numbers) -> list[Target]:
    found = []
    wanted = WANTED.get(numbers["name"])
    if wanted is None:
        return []
    for rate, words in kinds(numbers).items():
        gap = mean(numbers, OURS, "repaired", rate)
        if gap is not None and rate in wanted:
            most, further = wanted[rate], _further_gaps(numbers, rate)
            told = f"{gap:.2f}" + (f"; of {len(further)} further networks {np.mean(further):.2f}" if further else "")
            reason = "" if gap <= most else _by_split(numbers, rate)
            found.append(Target(f"step and repair, {words}", f"≤ {most:g} points", told, gap <= most, reason))
    rise = _rises_of_parts(numbers)
    if rise:
        reason = "" if max(rise) <= STAYS else _why_rising(numbers)
        most = f"{max(rise):.2f} at most, {np.mean(rise):.2f} on average"
        found.append(Target("rise of S in 8 further epochs", f"≤ {STAYS:g} points", most, max(rise) <= STAYS, reason))
    told = numbers["steps"].values()
    residual = max(one["residual"] for steps in told for one in steps["requests"].values())
    found.append(Target("residual of exact steps", "≤ 1e-6", f"{residual:.1e}", residual <= 1e-6))
    if numbers["name"] == "full":
        fit = max(steps["fit_seconds"] for steps in told)
        request = max(one["seconds"] for steps in told for one in steps["requests"].values())
        found.append(Target("fit: rows and kernel of 50,000 images", "≤ 60 s", f"{fit:.0f} s", fit <= 60))
        found.append(Target("each request", "≤ 5 s", f"{request:.1f} s", request <= 5))
    epochs = next(iter(numbers["repair"].values()))["epochs"] / numbers["training"]["epochs"]
    found.append(Target("epochs of the repair", "≤ a tenth of a retraining's", f"{epochs:.3g}", epochs <= 0.1))
    return found


def _by_split(numbers: Numbers, rate: float) -> str:
    """Where the gap lies, the most first."""
    found = []
    for name, label in SPLITS:
        ours, retrained = (
            values(numbers, OURS, "repaired", rate, name),
            values(numbers, RETRAINED, "alone", rate, name, OURS),
        )
        if np.isfinite(ours).any():
            off, shares = float(np.nanmean(abs(ours - retrained))), (np.nanmean(ours), np.nanmean(retrained))
            found.append((off, f"{label} by {off:.2f} ({shares[0]:.1f} % right, retrained {shares[1]:.1f} %)"))
    return "Off: " + ", ".join(text for _, text in sorted(found, reverse=True)) + "." + _by_the_judges(numbers, rate)


def _by_the_judges(numbers: Numbers, rate: float) -> str:
    """The held-out samples that chose the step are few: S may be harder than they are, or easier."""
    found = judged(numbers, rate)
    if not found:
        return ""
    own, alike, known, wanted = np.mean(found, axis=0)
    return (
        f" The held-out samples of its kind, by which the step was chosen: {alike:.1f} % right, and S {own:.1f} %; "
        f"retrained {wanted:.1f} % and {known:.1f} %."
    )


def _further_gaps(numbers: Numbers, rate: float) -> list[float]:
    """Of seeds that nothing was chosen on."""
    further = numbers.get("further") or {}
    return [gap for words in requests_of(numbers, rate) if words in further for gap in further[words][REPAIRED]["gaps"]]


def _why_rising(numbers: Numbers) -> str:
    """Whether S alone comes back is what the retrained networks and the attack against held-out samples tell."""
    heards = [one for rate in kinds(numbers) for one in heard(numbers, OURS, rate)]
    retrained = [one for rate in kinds(numbers) for one in rises(numbers, RETRAINED, rate)]
    first, last = np.mean(heards, axis=0)
    return (
        f"The retrained networks move by {min(retrained):.2f} to {max(retrained):.2f}. The attack "
        f"that tells S from held-out samples of its kind goes from an AUC of {first:.3f} to {last:.3f}."
    )


def _tuning(numbers: Numbers) -> Finding | None:
    gains = []
    for rate in kinds(numbers):
        before, after = mean(numbers, NOTHING, "alone", rate), mean(numbers, NOTHING, "repaired", rate)
        if rate < 1 and before is not None and after is not None:
            gains.append((before, after))
    if not gains:
        return None
    text = "; ".join(f"{before:.2f} → {after:.2f}" for before, after in gains)
    holds = of_all(after > 0.75 * before for before, after in gains)
    return Finding("Fine-tuning alone forgets nothing of a part of a class.", f"Gap: {text} points.", WHERE, holds)


def _ascent(numbers: Numbers) -> Finding | None:
    back = []
    for rate in kinds(numbers):
        for one in answers_of(numbers, ASCENT, rate):
            if rate < 1 and one.get("along"):
                back.append((one["along"][0], one["along"][-1]))
    if not back:
        return None
    text = "; ".join(f"{first:.0f} → {last:.0f} %" for first, last in back)
    return Finding(
        "Gradient ascent hides: the repair, which never sees S, brings it back.",
        f"Accuracy on S after the ascent and after the repair: {text}.",
        WHERE,
        of_all(last - first > 10 for first, last in back),
    )


def _stays(numbers: Numbers) -> Finding | None:
    found = _rises_of_parts(numbers)
    if not found:
        return None
    classes = rises(numbers, OURS, 1.0)
    whole = f" Of {len(classes)} whole classes by {max(classes):.2f} at most." if classes else ""
    ours, retrained = _pressed(numbers, OURS), _pressed(numbers, RETRAINED)
    networks = "1 network" if len(found) == 1 else f"{len(found)} networks"
    harder = f" At the rate of the repair itself {ours:.2f}, retrained {retrained:.2f}." if ours is not None else ""
    return Finding(
        "What step and repair have taken from S does not come back.",
        f"In 8 further epochs at half the rate of the repair S rises by {np.mean(found):.2f} points on average and "
        f"{max(found):.2f} at most, over {networks}.{whole}{harder}",
        WHERE,
        of_all(one <= STAYS for one in found),
    )


def _rises_of_parts(numbers: Numbers) -> list[float]:
    """Of a whole class nothing is left to train on that could bring it back."""
    return [one for rate in kinds(numbers) if rate < 1 for one in rises(numbers, OURS, rate)]


def _pressed(numbers: Numbers, method: str) -> float | None:
    known = [pressed(one) for rate in kinds(numbers) for one in answers_of(numbers, method, rate)]
    there = [one for one in known if one is not None]
    return float(np.mean(there)) if there else None


def _nearest(numbers: Numbers) -> Finding | None:
    pairs = []
    for rate in kinds(numbers):
        before, after = mean(numbers, NOTHING, "alone", rate), mean(numbers, OURS, "repaired", rate)
        if before is not None and after is not None:
            pairs.append((before, after))
    words = " / ".join(kinds(numbers).values())
    known = [(mean(numbers, OURS, "repaired", r, "kl"), floor(numbers, r, "floors_kl")) for r in kinds(numbers)]
    both = [(ours, least) for ours, least in known if ours is not None and least is not None]
    divergence = (
        f" KL on S {listed(ours for ours, _ in both)} nats, between two retrained seeds {listed(f for _, f in both)}."
        if both
        else ""
    )
    return Finding(
        "Step and repair bring a network near to one that was retrained, and nothing is retrained to choose the step.",
        f"Gap {listed(after for _, after in pairs)} points, before {listed(before for before, _ in pairs)} ({words})."
        f"{divergence}",
        "Tables",
        of_all(after < 0.5 * before for before, after in pairs),
    )


def _opponents(numbers: Numbers) -> Finding | None:
    better, texts = [], []
    for rate, words in kinds(numbers).items():
        known = [(gap, o) for o in OPPONENTS if (gap := mean(numbers, o.key, "repaired", rate)) is not None]
        if not known:
            continue
        least, best = min(known, key=lambda one: one[0])
        ours = mean(numbers, OURS, "repaired", rate, like=best.key)
        if ours is None:
            continue
        better.append(ours <= least)
        rise = rises(numbers, best.key, rate)
        came = f", S then rises by {np.mean(rise):.1f}" if rise else ""
        texts.append(f"{words}: ours {ours:.2f}, {best.label} {least:.2f}{came}")
    if not better:
        return None
    absent = unmeasured(numbers, [opponent.key for opponent in OPPONENTS])
    reasons = [f"Not measured: {absent}."] if absent else []
    if not all(better):
        reasons.append("The opponents' settings were chosen by that very gap, ours were not.")
    holds = of_all(better)
    return Finding(
        "With the same repair, no opponent comes nearer to the retrained network.",
        "; ".join(texts) + ", with the same seeds.",
        "Tables",
        "partly" if absent and holds == "yes" else holds,
        " ".join(reasons),
    )


def _confidence(numbers: Numbers) -> Finding | None:
    """Right as often is not all: S may be known with less confidence than what was never seen."""
    texts, near, under, over = [], [], False, False
    for rate, words in kinds(numbers).items():
        ours, retrained = mean(numbers, OURS, "repaired", rate, "auc"), mean(numbers, RETRAINED, "alone", rate, "auc")
        before = mean(numbers, NOTHING, "alone", rate, "auc")
        if ours is not None and retrained is not None and before is not None:
            texts.append(f"{words} {ours:.3f}, retrained {retrained:.3f}, nothing done {before:.3f}")
            near.append(abs(ours - retrained) <= TOLD)
            under, over = under or ours < retrained - TOLD, over or ours > retrained + TOLD
    if not texts:
        return None
    return Finding(
        "By its confidence S is told from test samples of its kind no more than after retraining.",
        "AUC of the attack: " + "; ".join(texts) + ".",
        "Tables",
        of_all(near),
        " ".join(text for wrong, text in ((over, MEMORY), (under, TRACE)) if wrong),
    )


def _pushes(numbers: Numbers) -> Finding | None:
    """What lies between all margins alike and the gradient: nearer in one measure, further in another."""
    texts, holds, other_kinds = [], [], []
    for rate, words in kinds(numbers).items():
        other = [mean(numbers, PUSHED, "repaired", rate, name) for name in ("gap", "kl", "auc")]
        alike = [mean(numbers, OURS, "repaired", rate, name, like=PUSHED) for name in ("gap", "kl", "auc")]
        known = [*other, *alike, mean(numbers, RETRAINED, "alone", rate, "auc", like=PUSHED)]
        if any(one is None for one in known):
            continue
        gap, kl, auc, own_gap, own_kl, own_auc, wanted = (float(one) for one in known if one is not None)
        texts.append(
            f"{words} AUC {auc:.3f} (alike {own_auc:.3f}, retrained {wanted:.3f}), KL {kl:.2f} ({own_kl:.2f}), "
            f"gap {gap:.2f} ({own_gap:.2f})"
        )
        holds.append(abs(auc - wanted) < abs(own_auc - wanted) - SAME and kl > own_kl and gap > own_gap)
        if not holds[-1]:
            other_kinds.append(words)
    if not texts:
        return None
    return Finding(
        "Margins pushed by √(1−p), not all alike: S is told less by its confidence, and accuracies and probabilities "
        "are further from those of the retrained network.",
        "; ".join(texts) + "; the same networks.",
        "Tables",
        of_all(holds),
        f"Not so of {' and '.join(other_kinds)}." if other_kinds else "",
    )


def _told_apart(numbers: Numbers) -> Finding | None:
    texts, least = [], []
    for words, by_method in (numbers["attacked"] or {}).items():
        ours = by_method[REPAIRED]
        others = [one["accuracy"] for name, one in by_method.items() if name != REPAIRED]
        least.append(ours["accuracy"] < min(others))
        texts.append(
            f"{words}: {ours['accuracy']:.2f} [{ours['low']:.2f}, {ours['high']:.2f}], the others {min(others):.2f} to "
            f"{max(others):.2f}"
        )
    if not texts:
        return None
    return Finding(
        "An attacker with networks of his own tells ours from a retrained one less often than those of the others.",
        "; ".join(texts) + "; 0.5 would be blind.",
        "Tables",
        of_all(least),
    )
