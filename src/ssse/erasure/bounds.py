"""Which bounds of a step somebody overrides, by their names."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from ssse.errors import InvalidSetting
from ssse.verdict import BOUNDS, Bound


def check_override(names: Collection[str]) -> frozenset[Bound]:
    """The bounds that are not to refuse a step; an unknown name is an error that has the nearest."""
    if isinstance(names, str):
        raise InvalidSetting(f"override is a list of bounds, not the text {names!r}.")
    for name in names:
        if name not in BOUNDS:
            near = difflib.get_close_matches(str(name), BOUNDS, 1, 0.4)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(BOUNDS)}."
            raise InvalidSetting(f"There is no bound '{name}' to override; {hint}")
    return frozenset(bound for bound in BOUNDS if bound in names)
