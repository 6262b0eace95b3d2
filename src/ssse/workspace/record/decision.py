"""May a request be closed? The one place where that is decided; page, `log`, receipt and --json all say the same.

It is decided from what may be shown of the ledger alone, so that it tells no more than that does. Why is a field and
data, never a sentence; `decision_words` says it to people. Nothing here imports torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from ssse.workspace.record.sight import Sight, failed_audits, lacking, sights
from ssse.workspace.record.story import Entry, Request, Story

Action = Literal["close", "nothing", "measure", "look", "confirm", "finish", "ask", "retrain"]
Because = Literal[
    "vouched",  # the verdict is ok
    "measured",  # by measures that have something to see, it is where a retrained model is
    "erased_before",  # by other requests, which may be closed
    "not_measured",
    "repaired",  # the model was, since it was measured or erased
    "nothing_to_see",  # original and retrained model do alike, or one of the two was not there
    "too_few",  # measured on so few samples that nothing of it is shown
    "audit_failed",
    "still_different",
    "held",
    "pending",
    "unsealed",
    "not_found",  # samples that are not those of the training data
    "refused",
    "reverted",
    "undone_with",  # refused because of a request that was reverted since
    "depends",  # on other requests, which erased some of its samples and may not be closed
]
CLOSED: tuple[Action, ...] = ("close", "nothing")
GRAVITY: tuple[Action, ...] = ("close", "nothing", "look", "measure", "confirm", "finish", "ask", "retrain")
WORKSPACE = "WORKSPACE"  # in commands: whoever reads them knows where it is


@dataclass(frozen=True)
class Decision:
    """What to do about one request.

    Attributes:
        action: "close"; "nothing" (was there to do; close it); "measure", "look" (at what was measured), "confirm",
            "finish" (what was interrupted), "ask" (once more) or "retrain" first.
        because: why, and `facts` the data of it. commands: what to type.
        received, answered: when; answered is None while nothing was done. seconds: between the two.
        who: answered it, as far as a name was given. due: the day by which it was to be answered.
        settled: since when it may be closed, where it may. overdue: whether that, or now, is after the day it was due.
    """

    request: str
    action: Action
    because: Because
    facts: dict[str, Any] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    received: str = ""
    answered: str | None = None
    seconds: int | None = None
    who: str | None = None
    due: str | None = None
    settled: str | None = None
    overdue: bool = False

    @property
    def closes(self) -> bool:
        return self.action in CLOSED

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "commands": list(self.commands)}


def decisions(story: Story, now: str) -> list[Decision]:
    """Of every request, in the order in which they came. `now`: against which those that are open are overdue."""
    return _Judge(story, now).all()


@dataclass
class _Judge:
    story: Story
    now: str
    _known: dict[str, Decision | None] = field(default_factory=dict)

    def all(self) -> list[Decision]:
        return [self.of(request) for request in self.story.requests]

    def of(self, request: Request) -> Decision:
        found = self._known.get(request.id)
        if found is None:
            self._known[request.id] = None  # being judged: ids that name each other end here
            found = self._known[request.id] = self._timed(request, self._depending(request, self._by_itself(request)))
        return found

    # ── what became of it ─────────────────────────────────────────────────────────────────────────────────────────

    def _by_itself(self, request: Request) -> Decision:
        state, received = request.state, request.details("received")
        already = received.get("already") or {}
        unknown = (received.get("asked") or 0) - (received.get("k") or 0) - sum(already.values())
        if state == "pending":
            return _decision(request, "finish", "pending")
        if state == "unsealed":
            return _decision(request, "finish", "unsealed", commands=(f"ssse report {WORKSPACE}",))
        if state == "reverted":
            return _decision(request, "retrain", "reverted", {"undone": request.entries["reverted"]["time"]})
        if state in ("refused", "nothing"):
            if unknown > 0:
                return _decision(request, "ask", "not_found", {"unknown": unknown, "asked": received.get("asked")})
            if already and not received.get("k"):
                return self._erased_before(request, list(already))
            broken = list(request.diagnostics.get("broken") or ())
            facts = {"broken": broken, "reason": request.details("refused").get("reason", "")}
            return _decision(request, "retrain", "refused", facts)
        return self._erased(request)

    def _erased_before(self, request: Request, by: list[str]) -> Decision:
        place = max((entry["seq"] for entry in request.entries.values()), default=0)
        undone = (entry["details"] for entry in self.story.all("reverted") if entry["seq"] > place)
        if any(request.id in (details.get("refused") or ()) for details in undone):
            return _decision(request, "ask", "undone_with", {"by": by})
        return _decision(request, "nothing", "erased_before", {"by": by})

    def _erased(self, request: Request) -> Decision:
        ok = request.verdict == "ok" and not request.overridden
        facts: dict[str, Any] = {"verdict": request.verdict, "overridden": request.overridden}
        measured, stale = self._measured(request)
        found = None if measured is None else self._by_measurement(request, measured, ok)
        if request.state == "held":
            why = {"why_held": list(request.details("erased").get("why_held") or ())}
            back, on = f"ssse revert {WORKSPACE}", f"ssse confirm {WORKSPACE}"
            if found is not None and found.action == "retrain":
                return replace(found, facts={**facts, **found.facts}, commands=(back,))
            first = () if measured is not None else (self._evaluate(request),)
            seen = {} if found is None else {"measured": found.because, **found.facts}
            return _decision(request, "confirm", "held", {**facts, **why, **seen}, (*first, on, back))
        if found is not None:
            return replace(found, facts={**facts, **found.facts})
        if stale:
            return _decision(request, "measure", "repaired", facts, (self._evaluate(request),))
        if ok:
            return _decision(request, "close", "vouched", facts)
        return _decision(request, "measure", "not_measured", facts, (self._evaluate(request),))

    # ── what was measured ─────────────────────────────────────────────────────────────────────────────────────────

    def _measured(self, request: Request) -> tuple[Entry | None, bool]:
        """The last measurement on its samples that is of the model as it is; whether a repair made it another one."""
        erased, entry = request.entries["erased"]["seq"], self._last_measured.get(request.id)
        if entry is None or entry["seq"] < max(erased, self._repair):
            return None, self._repair > erased
        return entry, False

    @cached_property
    def _repair(self) -> int:
        found = self.story.last("repaired")
        return 0 if found is None else found["seq"]

    @cached_property
    def _last_measured(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for entry in self.story.all("evaluated"):
            if not self.story.within_undone(entry["seq"]):
                found |= dict.fromkeys(entry["details"].get("of") or (), entry)
        return found

    def _by_measurement(self, request: Request, entry: Entry, ok: bool) -> Decision:
        table = entry["details"].get("table") or {}
        facts: dict[str, Any] = {"measured_at": entry["time"], "entry": entry["seq"]}
        facts |= {"measured_on": len(entry["details"].get("of") or ())}
        if not table.get("measures"):
            facts |= {"too_few": True}
            if ok:
                return _decision(request, "close", "vouched", facts)
            return _decision(request, "look", "too_few", facts, (f"ssse log {WORKSPACE} --exact",))
        if failed := failed_audits(table):
            return _decision(request, "retrain", "audit_failed", {**facts, "audits": failed})
        judged = [one for one in sights(table) if one.reached is not None]
        seeing = [one for one in judged if one.sees]
        missed = [one for one in seeing if not one.reached]
        if missed:
            different: Action = "look" if ok else "retrain"
            commands = (f"ssse log {WORKSPACE}",) if ok else ()
            return _decision(request, different, "still_different", {**facts, "by": _titles(missed)}, commands)
        if seeing:
            return _decision(request, "close", "vouched" if ok else "measured", {**facts, "by": _titles(seeing)})
        if ok:
            return _decision(request, "close", "vouched", facts)
        return self._nothing_to_see(request, table, facts)

    def _nothing_to_see(self, request: Request, table: Mapping[str, Any], facts: dict[str, Any]) -> Decision:
        """Which measure has something to see, if it is taken."""
        missing, network = lacking(table), not self.story.of_sklearn
        measured = {m["key"] for m in table.get("measures") or ()}
        facts = {**facts, "lacking": missing, "blind": _titles(s for s in sights(table) if not s.sees)}
        if missing:
            facts |= {"would_see": ["kl_forgotten", "distance"]}
            return _decision(request, "measure", "nothing_to_see", facts, (self._evaluate(request),))
        if network and "resurfacing_rise" not in measured:
            facts |= {"would_see": ["resurfacing"]}
            again = f"{self._evaluate(request)} --resurfacing"
            return _decision(request, "measure", "nothing_to_see", facts, (again,))
        facts |= {"would_see": ["distance"] if "distance" in measured else []}
        return _decision(request, "look", "nothing_to_see", facts, (f"ssse log {WORKSPACE} --exact",))

    def _evaluate(self, request: Request) -> str:
        """With the files that it needs and the workspace has not got."""
        kept = request.state == "held" or (request.details("erased").get("old") or {}).get("weights") == "keep"
        words = ["ssse", "evaluate", WORKSPACE, "--request", shlex.quote(request.id)]
        words += [] if self._has_test else ["--test", "TEST"]
        words += [] if kept else ["--original", "OLD"]
        return " ".join([*words, "--retrained", "NEW"])

    @cached_property
    def _has_test(self) -> bool:
        return bool(((self.story.known("settings") or {}).get("data") or {}).get("test"))

    # ── what it hangs on, and when ────────────────────────────────────────────────────────────────────────────────

    def _depending(self, request: Request, found: Decision) -> Decision:
        """Samples that others erased are as sure to be gone as those requests are."""
        if not found.closes:
            return found
        already = request.details("received").get("already") or {}
        earlier = [r for r in self.story.requests if r.id in already and r is not request] if already else []
        open_ones = [one for one in map(self._judged, earlier) if one is not None and not one.closes]
        if not open_ones:
            return found
        gravest = max(open_ones, key=lambda one: GRAVITY.index(one.action))
        facts = {**found.facts, "on": [one.request for one in open_ones]}
        return replace(found, action=gravest.action, because="depends", facts=facts, commands=gravest.commands)

    def _judged(self, request: Request) -> Decision | None:
        """None of one that is being judged."""
        return self._known[request.id] if request.id in self._known else self.of(request)

    def _timed(self, request: Request, found: Decision) -> Decision:
        received = request.details("received")
        kinds = {"erased": "sealed", "held": "erased", "unsealed": "erased", "refused": "refused"}
        kinds |= {"reverted": "reverted", "nothing": "received"}
        kind = kinds.get(request.state)
        answered = None if kind is None else request.entries[kind]["time"]
        settled = found.facts["measured_at"] if found.because == "measured" else answered
        settled = settled if found.closes else None
        due = received.get("due")
        last = max((e for e in request.entries.values() if e["details"].get("who")), key=_seq, default=None)
        return replace(
            found,
            received=request.received,
            answered=answered,
            seconds=_between(request.received, answered),
            who=None if last is None else last["details"]["who"],
            due=due,
            settled=settled,
            overdue=due is not None and (settled or self.now)[:10] > due,
        )


def _decision(
    request: Request,
    action: Action,
    because: Because,
    facts: Mapping[str, Any] | None = None,
    commands: tuple[str, ...] = (),
) -> Decision:
    return Decision(request.id, action, because, dict(facts or {}), commands)


def _titles(seen: Iterable[Sight]) -> list[str]:
    return [one.title for one in seen]


def _seq(entry: Entry) -> int:
    return entry["seq"]


def _between(start: str, end: str | None) -> int | None:
    """Seconds; None where a clock was set back, or a time cannot be read."""
    try:
        passed = None if end is None else (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (ValueError, TypeError):
        return None
    return int(passed) if passed is not None and passed >= 0 else None
