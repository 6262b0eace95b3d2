"""What an attack came to: how often it was tried, and what should have stayed at nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# What must not happen. lost: a workspace that is not whole, or cannot be finished as if nothing had been; doubled: work
# done twice; unseen: an alteration that was not named, or was built on; run: code of a data file; tracebacks: errors
# that nobody thought of; not told: a command that failed and said nothing, or ended in a way that is not documented.
HARMS = ("lost", "doubled", "unseen", "run", "tracebacks", "not told")
SHOWN = 20  # texts of failures that are kept


@dataclass
class Tally:
    """`ways`: how often each kind was tried."""

    ways: Counter[str] = field(default_factory=Counter)
    harms: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return sum(self.ways.values())

    @property
    def unharmed(self) -> bool:
        return not any(self.harms.values())

    def note(self, harm: str, what: str) -> None:
        assert harm in HARMS, harm
        self.harms[harm] += 1
        if len(self.failures) < SHOWN:
            self.failures.append(f"{harm}: {what}"[:2000])

    def to_dict(self) -> dict[str, Any]:
        return {"ways": dict(self.ways), "harms": {name: self.harms[name] for name in HARMS}, "failures": self.failures}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Tally:
        return cls(Counter(plain["ways"]), Counter(plain["harms"]), list(plain["failures"]))

    @classmethod
    def sum(cls, parts: Iterable[Tally]) -> Tally:
        whole = cls()
        for part in parts:
            whole.ways.update(part.ways)
            whole.harms.update(part.harms)
            whole.failures += part.failures
        return whole
