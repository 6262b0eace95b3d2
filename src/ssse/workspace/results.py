"""What the commands of a workspace return: one family, each with `to_dict()`, which is also what --json prints.

Nothing here imports torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ssse.workspace.record.ledger import Entry
from ssse.workspace.record.published import exact, published, published_details, published_reason

if TYPE_CHECKING:
    from ssse.evaluation.table import Evaluation

Outcome = Literal["erased", "refused", "repeated", "tried"]


class CommandResult(ABC):
    """What one command did."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, and as it may be shown: no number that tells whose samples a request erased."""


@dataclass(frozen=True)
class Fitted(CommandResult):
    """`now`: False where the curvature was there already; then the entry is the one from then."""

    entry: Entry
    now: bool

    def to_dict(self) -> dict[str, Any]:
        return {"fitted": self.now, "entry": published(self.entry)}


@dataclass(frozen=True)
class Calibrated(CommandResult):
    entry: Entry

    def to_dict(self) -> dict[str, Any]:
        return {"entry": published(self.entry)}


@dataclass(frozen=True)
class Erased(CommandResult):
    """What became of a request.

    Attributes:
        outcome: "erased", "refused", "repeated" (the id was answered before; nothing was done) or "tried" (a dry run).
        entries: those of the ledger that belong to it; of a repeated one, those from then.
        reason: of a refusal or a repetition. measured: whether the reason comes from a step on the samples, and so may
            hold numbers that are not shown.
        details: what the entry "erased" says, or would say: exact, and as secret as the data.
        already: how many of its samples were erased before, by the request that did it.
    """

    request: str
    outcome: Outcome
    entries: list[Entry]
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    already: dict[str, int] = field(default_factory=dict)
    measured: bool = False

    @property
    def shown_reason(self) -> str:
        return published_reason(self.reason, self.measured)

    @property
    def shown_details(self) -> dict[str, Any]:
        """Of `details` what may be shown."""
        return published_details("erased", self.details) if self.details else {}

    def to_dict(self) -> dict[str, Any]:
        return {
            "request": self.request,
            "outcome": self.outcome,
            "reason": self.shown_reason,
            "already": self.already,
            "details": self.shown_details,
            "entries": [published(entry) for entry in self.entries],
        }


@dataclass(frozen=True)
class Evaluated(CommandResult):
    entry: Entry
    table: Evaluation

    def to_dict(self) -> dict[str, Any]:
        """The entry has the table."""
        return {"entry": published(self.entry)}


@dataclass(frozen=True)
class Reported(CommandResult):
    page: Path

    def to_dict(self) -> dict[str, Any]:
        return {"page": str(self.page)}


@dataclass(frozen=True)
class Log(CommandResult):
    """`head`: the hash of the newest entry. `pending`: requests that were received and are not finished."""

    entries: list[Entry]
    head: str
    pending: list[str]

    def to_dict(self) -> dict[str, Any]:
        return {
            "entries": [published(entry) for entry in self.entries],
            "head": self.head,
            "pending": self.pending,
        }

    def exact(self) -> dict[str, Any]:
        """With the ledger's own numbers, which are as secret as the data: some tell whose samples were erased."""
        return {**self.to_dict(), "entries": [exact(entry) for entry in self.entries]}


@dataclass(frozen=True)
class Verification(CommandResult):
    """What a check of every byte brought to light.

    Attributes:
        damages: the file, and what is wrong with it. notes: what is worth knowing and no damage.
        head: the hash of the newest entry. entries: how many were checked. checked: the files, by name.
        interrupted: the command that was under way when a process died, which the next command finishes.
    """

    damages: list[tuple[str, str]]
    notes: list[str]
    head: str | None
    entries: int
    checked: list[str]
    interrupted: str | None

    @property
    def files(self) -> int:
        return len(self.checked)

    @property
    def ok(self) -> bool:
        return not self.damages

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "damages": [{"file": name, "what": what} for name, what in self.damages],
            "notes": self.notes,
            "head": self.head,
            "entries": self.entries,
            "files": self.files,
            "interrupted": self.interrupted,
        }
