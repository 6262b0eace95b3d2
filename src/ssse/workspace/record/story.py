"""What the ledger says, put together: which requests came, what became of each, and what holds now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ssse.workspace.record import entry as record
from ssse.workspace.record.published import published

Entry = Mapping[str, Any]
OUTCOMES = ("received", "erased", "refused")  # what makes a request one
STATES = (
    "created",
    "fitted",
    "calibrated",
    "erased",
    "repaired",
    "reverted",
)  # what leaves a model behind
UNDONE = ("fitted", "calibrated", "erased", "repaired")  # what going back to an earlier state undoes
State = Literal["erased", "held", "unsealed", "reverted", "refused", "pending", "nothing"]


@dataclass
class Request:
    """One deletion request, and its latest entry of each kind.

    `state`: "held" is erased, and waits for somebody to confirm it; "reverted" was, and somebody went back; "unsealed"
    is erased, but no entry says what became of the old weights and curvature; "nothing" is a request whose samples had
    all been erased before.
    """

    id: str
    entries: dict[str, Entry] = field(default_factory=dict)
    first_received: str = ""  # it may have been refused and tried again

    @property
    def state(self) -> State:
        received, erased, refused = (self._place(kind) for kind in OUTCOMES)
        if received > max(erased, refused):
            if self.details("received").get("k") != 0:
                return "pending"
            if not erased:
                return "nothing"
        if self._place("reverted") > max(erased, refused):
            return "reverted"
        if erased > refused:
            if self._place("sealed") > erased:
                return "erased"
            waits = self.details("erased").get("held") and self._place("confirmed") < erased
            return "held" if waits else "unsealed"
        return "refused" if refused else "pending"

    @property
    def received(self) -> str:
        return self.first_received or min((entry["time"] for entry in self.entries.values()), default="")

    @property
    def answered(self) -> str | None:
        kind = {"erased": "erased", "held": "erased", "unsealed": "erased", "refused": "refused"}.get(self.state)
        return None if kind is None else self.entries[kind]["time"]

    @property
    def done(self) -> bool:
        return self.state in ("erased", "held", "unsealed")

    @property
    def verdict(self) -> str | None:
        if self.state == "refused":
            return "refused"
        return self.diagnostics.get("verdict") or self.details("erased").get("verdict") if self.done else None

    @property
    def diagnostics(self) -> Mapping[str, Any]:
        return self.details("refused" if self.state == "refused" else "erased").get("diagnostics") or {}

    @property
    def overridden(self) -> list[str]:
        """The bounds that it breaks, where it was carried out all the same."""
        return list(self.details("erased").get("overridden") or ()) if self.done else []

    @property
    def k(self) -> int | None:
        counts = (self.details(kind).get("k") for kind in ("erased", "received", "refused"))
        return next((k for k in counts if k is not None), None)

    def details(self, kind: str) -> Mapping[str, Any]:
        return self.entries[kind]["details"] if kind in self.entries else {}

    def _place(self, kind: str) -> int:
        return self.entries[kind]["seq"] if kind in self.entries else 0


class Story:
    """What may be shown of the ledger's entries, and nothing else of them: all that the page says comes from here."""

    def __init__(self, entries: Iterable[record.Entry]):
        self.entries: list[dict[str, Any]] = [published(entry) for entry in entries]

    @classmethod
    def of_shown(cls, entries: Iterable[Mapping[str, Any]]) -> Story:
        """From what a proof shows of them, which is published already."""
        story = cls(())
        story.entries = [dict(entry) for entry in entries]
        return story

    @cached_property
    def requests(self) -> list[Request]:
        """In the order in which they came."""
        by_id: dict[str, Request] = {}
        for entry in self.entries:
            name, kind = entry["request"], entry["kind"]
            if name is not None and kind in OUTCOMES:
                request = by_id.setdefault(name, Request(name))
                request.entries[kind] = entry
                request.first_received = request.first_received or entry["time"]
            elif name in by_id:
                by_id[name].entries[kind] = entry
            elif kind in ("confirmed", "reverted"):
                for one in entry["details"].get("requests") or ():
                    if one in by_id:
                        by_id[one].entries[kind] = entry
        return list(by_id.values())

    @cached_property
    def erasures(self) -> list[Request]:
        """Those that were carried out, in the order in which that was done."""
        return sorted((r for r in self.requests if r.done), key=lambda r: r.entries["erased"]["seq"])

    @property
    def of_sklearn(self) -> bool:
        """Whether the model is one of scikit-learn's, with a bound on how far it is from a refit."""
        return self.known("engine", "created") == "sklearn"

    @property
    def choice_dropped(self) -> Entry | None:
        """The fit since the last choice of ε, which has dropped it; None where the choice stands, or none was made."""
        chosen, fitted = self.last("calibrated"), self.last("fitted")
        later = chosen is not None and fitted is not None and fitted["seq"] > chosen["seq"]
        return fitted if later else None

    def of(self, *states: State) -> list[Request]:
        return [request for request in self.requests if request.state in states]

    def all(self, kind: str) -> list[Entry]:
        return [entry for entry in self.entries if entry["kind"] == kind]

    def last(self, *kinds: str, having: str | None = None) -> Entry | None:
        """The latest entry of these kinds (of all, if none is named) that says something about `having`."""
        for entry in reversed(self.entries):
            if entry["seq"] in self.undone:
                continue
            if (not kinds or entry["kind"] in kinds) and (having is None or entry["details"].get(having) is not None):
                return entry
        return None

    @cached_property
    def undone(self) -> set[int]:
        """Entries of what is not in force any more, because somebody went back to a state before them."""
        return {e["seq"] for e in self.entries if e["kind"] in UNDONE and self.within_undone(e["seq"])}

    def within_undone(self, seq: int) -> bool:
        """Whether an entry was made of a model that somebody went back from."""
        return any(start < seq < end for start, end in self._stretches)

    @cached_property
    def _stretches(self) -> list[tuple[int, int]]:
        return [(entry["details"]["back_to"], entry["seq"]) for entry in self.all("reverted")]

    def known(self, name: str, *kinds: str) -> Any:
        """The latest value of a detail; None where no entry has one."""
        entry = self.last(*kinds, having=name)
        return None if entry is None else entry["details"][name]

    @cached_property
    def erased_samples(self) -> int:
        return sum(request.details("erased").get("k") or 0 for request in self.erasures)

    @cached_property
    def samples(self) -> int | None:
        """Of the training data: those of the last fit, less those erased since, and all that were ever erased."""
        fitted = self.last("fitted", having="n")
        if fitted is None:
            first = next(iter(self.all("erased")), None)
            return None if first is None else first["details"].get("n")
        since = sum(e["details"].get("k") or 0 for e in self.all("erased") if self._counts(e, fitted))
        return fitted["details"]["n"] - since + self.erased_samples

    def _counts(self, erased: Entry, fitted: Entry) -> bool:
        return erased["seq"] > fitted["seq"] and erased["seq"] not in self.undone

    @property
    def weights(self) -> str | None:
        """The digest of those in force now; None where it is not recorded."""
        for entry in reversed(self.entries):
            if entry["kind"] in STATES:
                details = entry["details"]
                if "after" in details:
                    return (details["after"] or {}).get("weights")
                if details.get("weights"):
                    return details["weights"]
        return None
