"""How requests follow on each other, by name, for PyTorch models and for scikit-learn's. Nothing here imports torch."""

from __future__ import annotations

from typing import Literal, get_args

from ssse.errors import InvalidSetting

Policy = Literal["rebase", "joint"]
POLICIES: tuple[str, ...] = get_args(Policy)


def check_policy(policy: str) -> None:
    """Raises: InvalidSetting: there is no such policy."""
    if policy not in POLICIES:
        raise InvalidSetting(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}.")
