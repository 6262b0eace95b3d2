"""What the commands of a workspace return: one family, each with `to_dict()`, which is also what --json prints.

Nothing here imports torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ssse.workspace.proof.proofs import Proof
from ssse.workspace.record.decision import Decision
from ssse.workspace.record.ledger import Entry
from ssse.workspace.record.published import exact, published, published_details, published_reason
from ssse.workspace.record.receipt import Receipt

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
        held: requests that wait for `confirm` or `revert`, this one perhaps among them; the model from before the first
            of them is kept.
    """

    request: str
    outcome: Outcome
    entries: list[Entry]
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    already: dict[str, int] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)
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
            "held": self.held,
            "details": self.shown_details,
            "entries": [published(entry) for entry in self.entries],
        }


@dataclass(frozen=True)
class Repaired(CommandResult):
    """`now`: False where the model was repaired already since the last request; then the entry is the one from then."""

    entry: Entry
    now: bool

    def to_dict(self) -> dict[str, Any]:
        return {"repaired": self.now, "entry": published(self.entry)}


@dataclass(frozen=True)
class Settled(CommandResult):
    """`entry`: "confirmed" or "reverted"; None where nothing waited. `requests`: those that did."""

    entry: Entry | None
    requests: list[str]

    def to_dict(self) -> dict[str, Any]:
        return {"requests": self.requests, "entry": None if self.entry is None else published(self.entry)}


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
    """`head`: the hash of the newest entry. `pending`: requests that were received and are not finished; `held`: those
    that were carried out and wait for `confirm` or `revert`. `decisions`: for each request that the entries are of,
    whether it may be closed, and what to do if not."""

    entries: list[Entry]
    head: str
    pending: list[str]
    held: list[str]
    decisions: list[Decision] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "entries": [published(entry) for entry in self.entries],
            "head": self.head,
            "pending": self.pending,
            "held": self.held,
            "decisions": [decision.to_dict() for decision in self.decisions],
        }

    def exact(self) -> dict[str, Any]:
        """With the ledger's own numbers, which are as secret as the data: some tell whose samples were erased."""
        return {**self.to_dict(), "entries": [exact(entry) for entry in self.entries]}


@dataclass(frozen=True)
class Proved(CommandResult):
    """`output`: the file that it was written to."""

    proof: Proof
    output: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        return self.proof.to_dict()


@dataclass(frozen=True)
class Receipted(CommandResult):
    """`page`, `data`: the files that were written."""

    receipt: Receipt
    page: Path
    data: Path

    def to_dict(self) -> dict[str, Any]:
        return {"page": str(self.page), "data": str(self.data), "receipt": self.receipt.body}


@dataclass(frozen=True)
class Upgraded(CommandResult):
    """`entry`: of the leaves; None where they were there. `gained`: what it has now and had not, in words."""

    entry: Entry | None
    gained: list[str]

    def to_dict(self) -> dict[str, Any]:
        return {"upgraded": bool(self.gained), "gained": self.gained}


@dataclass(frozen=True)
class Recomputed:
    """A request taken again from the state before it. `same`: bit for bit the weights that are there; `distance`: else
    how far from them it ended, as a share of the step's length."""

    request: str
    same: bool
    distance: float


@dataclass(frozen=True)
class Verification(CommandResult):
    """What a check of every byte brought to light.

    Attributes:
        damages: the file, and what is wrong with it. notes: what is worth knowing and no damage.
        head: the hash of the newest entry. entries: how many were checked. checked: the files, by name.
        interrupted: the command that was under way when a process died, which the next command finishes.
        signed: how many entries are signed. anchored: how many heads of an anchor the ledger continues.
        recomputed: what the replay of a request came to, where one was asked for.
        tree: one hash of the newest head as a whole, by which receipts and proofs may be checked; None without leaves.
    """

    damages: list[tuple[str, str]]
    notes: list[str]
    head: str | None
    entries: int
    checked: list[str]
    interrupted: str | None
    signed: int = 0
    anchored: int = 0
    recomputed: Recomputed | None = None
    tree: str | None = None

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
            "tree": self.tree,
            "entries": self.entries,
            "files": self.files,
            "interrupted": self.interrupted,
            "signed": self.signed,
            "anchored": self.anchored,
            "recomputed": self.recomputed and asdict(self.recomputed),
        }
