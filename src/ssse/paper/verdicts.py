"""Words for verdicts and numbers, as findings use them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ssse.paper.result import Verdict


def of_all(holds: np.ndarray | Iterable[bool]) -> Verdict:
    """ "yes" where it holds everywhere, "partly" where somewhere."""
    values = [bool(v) for v in holds]
    return "yes" if all(values) else "partly" if any(values) else "no"


def listed(values: Iterable[float]) -> str:
    return " / ".join(f"{v:.2f}" for v in values)


def percent(rates: Sequence[float]) -> str:
    return " / ".join(f"{100 * rate:.0f}" for rate in rates) + " %"
