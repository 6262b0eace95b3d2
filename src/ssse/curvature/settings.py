"""Settings of a curvature, checked; and what is said of a part of a model."""

from __future__ import annotations

from numbers import Real

from ssse.errors import InvalidSetting
from ssse.problem.parameters import Layout


def part_note(layout: Layout) -> str:
    return f"Only {', '.join(layout.names)} can change; the rest of the model stays as it is."


def check_damping(damping: float | None, weight_decay: float) -> float:
    for name, given in (("weight_decay", weight_decay), ("damping", damping)):
        if not (isinstance(given, Real) or (given is None and name == "damping")):
            raise InvalidSetting(f"{name} must be a number, not {given!r}.")
    if not 0 <= weight_decay < float("inf"):
        raise InvalidSetting(f"weight_decay must be zero or positive, not {weight_decay}.")
    value = weight_decay if damping is None else damping
    if not 0 < value < float("inf"):
        raise InvalidSetting(
            "damping (λ) must be positive: the curvature is singular without it; pass damping=1e-4 or the "
            f"weight_decay that the model was trained with. Got {damping if damping is not None else weight_decay}."
        )
    return float(value)


def check_scale(scale: float) -> float:
    if not 0 < scale < float("inf"):
        raise InvalidSetting(f"scale (ε) must be a positive number, not {scale}.")
    return float(scale)
