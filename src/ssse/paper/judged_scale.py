"""The ε at which a method is judged, as an index into the scales of its curve."""

from __future__ import annotations

import numpy as np

from ssse.calibration.criteria import PLATEAU
from ssse.paper.study import Curve, numbers

START = 0.05  # δ this near to its least counts as the same plateau


def best_index(curve: Curve, whole: bool) -> int:
    """The best γ or δ of this very request.

    Values tie or nearly so: of those within `PLATEAU` of the best, the one whose predictions on S are nearest. Where a
    whole class goes, δ may stay small up to the largest ε; then the start of that plateau, as the paper says.
    """
    ratio = numbers(curve["ratio"])
    loss = ratio if curve["ratio_name"] == "δ" else 1 - ratio
    if not np.isfinite(loss).any():
        return 0
    last = loss[np.flatnonzero(np.isfinite(loss))[-1]]
    if whole and curve["ratio_name"] == "δ" and last <= np.nanmin(loss) + START:
        return int(np.flatnonzero(loss <= np.nanmin(loss) + START)[0])
    near = np.flatnonzero(loss <= np.nanmin(loss) + PLATEAU)
    divergence = numbers(curve["divergence"])[near]
    return int(near[np.nanargmin(divergence)]) if np.isfinite(divergence).any() else int(near[0])


def index_of(curve: Curve, chosen: str | float, whole: bool, chance: float = 0.0) -> int:
    """By "ratio", "gap" or "chance", by the name of a search, or at a number; see `study.Method`."""
    if chosen == "ratio":
        return best_index(curve, whole)
    if chosen == "gap":
        return int(np.nanargmin(numbers(curve["mean_gap"])))
    if chosen == "chance":
        gone = np.flatnonzero(numbers(curve["recognised"]) <= chance)
        return int(gone[0]) if len(gone) else len(curve["scales"]) - 1
    wanted = curve[chosen] if isinstance(chosen, str) else chosen
    return int(np.argmin(np.abs(np.log(numbers(curve["scales"])) - np.log(wanted))))
