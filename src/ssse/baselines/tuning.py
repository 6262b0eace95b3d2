"""The best settings of a method, by a judge: comparisons are fair only where every method has had that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from torch import nn

from ssse.baselines.update import Updated
from ssse.errors import Diverged, InvalidSetting


@dataclass(frozen=True)
class Tuned:
    """What `tune` chose, and from what.

    Attributes:
        updated: the result of the method with the best settings. settings: those. value: the judge's, of that model.
        values: every setting that was tried, in order, with the judge's value; infinity where the training diverged.
    """

    updated: Updated
    settings: dict[str, Any]
    value: float
    values: tuple[tuple[dict[str, Any], float], ...]


def tune(
    method: Callable[..., Updated],
    settings: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    judge: Callable[[nn.Module], float],
) -> Tuned:
    """Run a method with each of some settings and keep the model that the judge gives the smallest value.

    Args:
        method: called with the settings by keyword, such as functools.partial(baselines.scrub, model, None, loss,
            forget, data=data).
        settings: {name: values} for all combinations of them, or a list of settings.
        judge: model → how far it is from what is wanted, by validation data: smaller is better. The first of equals is
            kept.

    Raises:
        InvalidSetting: there are no settings, the judge gave NaN, or the training diverged with all of them.
    """
    tried = _combinations(settings) if isinstance(settings, Mapping) else [dict(one) for one in settings]
    if not tried:
        raise InvalidSetting("There are no settings to try; pass at least one, for instance [{}] for the defaults.")
    best: tuple[Updated, dict[str, Any], float] | None = None
    values: list[tuple[dict[str, Any], float]] = []
    for one in tried:
        try:
            updated = method(**one)
        except Diverged:
            values.append((one, math.inf))
            continue
        value = float(judge(updated.model))
        if math.isnan(value):
            raise InvalidSetting(f"The judge gave NaN for the model with the settings {one}; it must give a number.")
        values.append((one, value))
        if best is None or value < best[2]:
            best = updated, one, value
    if best is None:
        raise InvalidSetting(f"The training diverged with all {len(tried)} settings. Try smaller learning rates.")
    return Tuned(*best, tuple(values))


def _combinations(settings: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(settings, values, strict=True)) for values in product(*settings.values())]
