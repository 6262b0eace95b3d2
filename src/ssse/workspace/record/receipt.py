"""A receipt of one request: what was asked and done, the evidence, what remains; and the proof that the ledger says so.

Everything in it follows from its proof, from the entries as others may see them: who checks one derives it anew and
compares every character. Only the ids of samples, where somebody asked for them, do not follow: they are shown with the
secret by which the entry "received" is seen to name exactly them. Nothing here imports torch.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ssse.errors import InvalidData
from ssse.workspace.proof.checkpoint import Checkpoint, encoded
from ssse.workspace.proof.proofs import LARGEST, Proof, parse_proof
from ssse.workspace.record import decision_words
from ssse.workspace.record.answers import named_by
from ssse.workspace.record.decision import Decision, decisions
from ssse.workspace.record.describe import describe
from ssse.workspace.record.details import read_details
from ssse.workspace.record.residues import REPLACED, what_remains
from ssse.workspace.record.sight import failed_audits, sights, void_audits
from ssse.workspace.record.story import Request, Story

WHAT, FORM = "ssse receipt", 1
FIELDS = {"what", "form", "version", "request", "decision", "asked", "done", "evidence", "remains", "head", "entries"}
FIELDS |= {"named", "proof"}


@dataclass(frozen=True)
class Named:
    """The samples' ids, and the secret by which they are seen to be those of the entry "received"."""

    ids: tuple[str, ...]
    secret: str


@dataclass(frozen=True)
class Receipt:
    """`version`: of ssse, whose words these are. `proof`: of the entries that bear on the request."""

    request: str
    version: str
    proof: Proof
    named: Named | None = None

    @cached_property
    def story(self) -> Story:
        return Story.of_shown(one.shown for one in self.proof.members)

    @cached_property
    def decision(self) -> Decision:
        """As of the head: what was still open then is overdue by its time."""
        found = [one for one in decisions(self.story, self.proof.head.time) if one.request == self.request]
        if len(found) != 1:
            raise InvalidData(f"Its entries are not of the request '{self.request}'.")
        return found[0]

    @cached_property
    def body(self) -> dict[str, Any]:
        asked = next(one for one in self.story.requests if one.id == self.request)
        return {
            "what": WHAT,
            "form": FORM,
            "version": self.version,
            "request": self.request,
            "decision": {
                **self.decision.to_dict(),
                "label": decision_words.label(self.decision)[0],
                "why": decision_words.why(self.decision),
                "when": decision_words.when(self.decision),
            },
            "asked": _asked(asked),
            "done": _done(asked),
            "evidence": _evidence(self.story, asked),
            "remains": _remains(self.story, asked),
            "head": _head(self.proof.head),
            "entries": [_line(entry) for entry in self.story.entries],
            "named": None if self.named is None else {"ids": list(self.named.ids), "secret": self.named.secret},
            "proof": self.proof.to_dict(),
        }

    def to_json(self) -> str:
        """ASCII alone, so that it stands in a page, a mail or a terminal as it is."""
        return json.dumps(self.body, ensure_ascii=True, allow_nan=False, indent=1) + "\n"

    @property
    def others(self) -> list[str]:
        """Other requests that its entries name."""
        names = {entry["request"] for entry in self.story.entries} - {None}
        for entry in self.story.entries:
            details = entry["details"]
            for key in ("of", "requests", "refused", "already"):
                names |= set(details.get(key) or ())
        return sorted(str(name) for name in names - {self.request})

    @property
    def names_its_samples(self) -> bool:
        """Whether the ids are those of the request, where it has any."""
        if self.named is None:
            return True
        received = [e for e in self.story.entries if (e["kind"], e["request"]) == ("received", self.request)]
        given = received[-1]["details"].get("named") if received else None
        return isinstance(given, str) and hmac.compare_digest(given, named_by(self.named.ids, self.named.secret))


def parse_receipt(text: str) -> Receipt:
    """What it says it is; whether that is so `page/receipt.py` checks.

    Raises:
        InvalidData: it is no receipt.
    """
    if len(text) > LARGEST:
        raise InvalidData(f"It has more than {LARGEST:,} characters.")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidData("Its data is not JSON.") from None
    if not isinstance(body, dict) or body.get("what") != WHAT:
        raise InvalidData("It is not a receipt.")
    if body.get("form") != FORM:
        raise InvalidData(f"It is not of form {FORM}, which this version of ssse reads.")
    if set(body) != FIELDS or not isinstance(body["request"], str) or not isinstance(body["version"], str):
        raise InvalidData("It has other fields than a receipt.")
    proof = _proof(body["proof"])
    places = [one.index for one in proof.members]
    if not places or places != sorted(set(places)):
        raise InvalidData("Its entries are not in their order.")
    return Receipt(body["request"], body["version"], proof, _named(body["named"]))


def bearing(story: Story, request: str) -> list[int]:
    """The entries, by their numbers, that decide what is said of a request."""
    return sorted(_bearing(story, request, set()))


def _bearing(story: Story, request: str, seen: set[str]) -> set[int]:
    if request in seen:
        return set()
    seen.add(request)
    configured = story.all("configured")[-1:]
    found = {entry["seq"] for entry in (*story.all("created")[:1], *configured)}
    found |= {entry["seq"] for entry in story.entries if entry["request"] == request}
    for entry in (*story.all("confirmed"), *story.all("reverted")):
        details = entry["details"]
        found |= {entry["seq"]} if request in [*details["requests"], *(details.get("refused") or ())] else set()
    measured = [
        entry["seq"]
        for entry in story.all("evaluated")
        if request in (entry["details"].get("of") or ()) and not story.within_undone(entry["seq"])
    ]
    repaired = story.last("repaired")
    found |= set(measured[-1:]) | ({repaired["seq"]} if repaired is not None else set())
    already = {
        name
        for entry in story.all("received")
        if entry["request"] == request
        for name in entry["details"].get("already") or ()
    }
    return found.union(*(_bearing(story, name, seen) for name in already))


def _asked(request: Request) -> dict[str, Any]:
    received = request.details("received")
    return {
        "received": request.received,
        "samples": received.get("asked"),
        "by": received.get("by"),
        "erased_before": received.get("already") or {},
        "due": received.get("due"),
    }


def _done(request: Request) -> dict[str, Any]:
    erased, refused = request.details("erased"), request.details("refused")
    diagnostics = request.diagnostics
    done = erased if request.state != "refused" else {}
    before, after = done.get("before") or {}, done.get("after") or {}
    return {
        "state": request.state,
        "samples": done.get("k"),
        "verdict": request.verdict,
        "reasons": list(diagnostics.get("reasons") or ()),
        "overridden": request.overridden,
        "refused_because": refused.get("reason") if request.state == "refused" else None,
        "how": describe("erased", erased) if done else None,
        "weights_before": before.get("weights"),
        "weights_after": after.get("weights"),
        "old_weights": request.details("sealed").get("old_weights"),
        "old_curvature": request.details("sealed").get("old_curvature"),
    }


def _evidence(story: Story, request: Request) -> dict[str, Any] | None:
    """The measurement that the decision goes by; None where there is none of the model as it is."""
    measured = [entry for entry in story.all("evaluated") if request.id in (entry["details"].get("of") or ())]
    if not request.done or not measured or measured[-1]["seq"] < request.entries["erased"]["seq"]:
        return None
    entry, table = measured[-1], measured[-1]["details"].get("table") or {}
    return {
        "entry": entry["seq"],
        "time": entry["time"],
        "requests": len(entry["details"]["of"]),
        "samples": (table.get("counts") or {}).get("forgotten"),
        "shown": bool(table.get("measures")),
        "measures": [one.to_dict() for one in sights(table)],
        "failed": failed_audits(table),
        "void": void_audits(table),
        "flags": list(table.get("flags") or ()),
    }


def _remains(story: Story, request: Request) -> list[dict[str, str]]:
    """As it was said when the request was sealed; a repair since has made some of it untrue."""
    if request.state not in ("held", "erased"):
        return []
    repaired = story.last("repaired")
    since = repaired is not None and repaired["seq"] > request.entries["erased"]["seq"]
    if request.state == "held":
        created = story.all("created")[0]["details"]
        return what_remains(read_details("erased", request.details("erased")), created, held=True, repaired=since)
    lines = list(request.details("sealed").get("remains") or ())
    return [line for line in lines if not since or line["what"] not in REPLACED]


def _head(head: Checkpoint) -> dict[str, Any]:
    return {
        "ledger": head.origin,
        "entries": head.size,
        "root": encoded(head.root),
        "newest": head.head,
        "time": head.time,
        "digest": head.digest,
        "signed": bool(head.signatures),
    }


def _line(entry: Mapping[str, Any]) -> dict[str, Any]:
    about = describe(entry["kind"], entry["details"])
    return {**{key: entry[key] for key in ("seq", "time", "kind", "request", "hash")}, "about": about}


def _proof(body: Any) -> Proof:
    try:
        return parse_proof(json.dumps(body).encode())
    except (ValueError, RecursionError):
        raise InvalidData("Its proof is none.") from None


def _named(body: Any) -> Named | None:
    if body is None:
        return None
    if not isinstance(body, dict) or set(body) != {"ids", "secret"}:
        raise InvalidData("It does not name samples as a receipt does.")
    ids, secret = body["ids"], body["secret"]
    if not _texts(ids) or not isinstance(secret, str) or len(secret) != 64 or set(secret) - set("0123456789abcdef"):
        raise InvalidData("It does not name samples as a receipt does.")
    if ids != sorted(ids):
        raise InvalidData("The ids in it are not in their order.")
    return Named(tuple(ids), secret)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
