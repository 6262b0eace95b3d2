"""`ssse erase`: one deletion request, from the samples it names to a sealed entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ssse.errors import (
    InvalidData,
    InvalidSetting,
    NotPositiveDefinite,
    PrecisionLost,
    Refused,
)
from ssse.intake.sources import Source
from ssse.system import files
from ssse.system.environment import versions
from ssse.verdict import Assessment
from ssse.workspace import settings as toml
from ssse.workspace.commands.checks import check_places, check_same_model
from ssse.workspace.commands.fit import places_that_stay, salt_of
from ssse.workspace.engines.choice import engine_for
from ssse.workspace.engines.data import Bench
from ssse.workspace.engines.engine import Engine, Erased
from ssse.workspace.record.folder import SAMPLES
from ssse.workspace.record.ledger import Entry, digest_of_samples
from ssse.workspace.record.membership import Membership, Standing, shown
from ssse.workspace.record.transaction import Hold
from ssse.workspace.settings import Settings

LONGEST_ID = 200
LEVERAGES = 200  # of one request, in the ledger


@dataclass(frozen=True)
class Answer:
    """What became of a request.

    Attributes:
        outcome: "erased", "refused", "repeated" (the id was answered before; nothing was done) or "tried" (a dry run).
        entries: those of the ledger that belong to it; of a repeated one, those from then.
        reason: of a refusal or a repetition. details: what the entry "erased" says, or would say.
    """

    request: str
    outcome: str
    entries: list[Entry]
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    already: dict[str, int] = field(default_factory=dict)


def check_id(request: str) -> str:
    if not request or request != request.strip() or len(request) > LONGEST_ID or not request.isprintable():
        raise InvalidSetting(
            f"A request's id is a word or a few, printable, up to {LONGEST_ID} characters; not {request[:40]!r}."
        )
    return request


def answer(
    hold: Hold,
    settings: Settings,
    request: str,
    forget: str | None,
    ids: Sequence[str] | None,
    *,
    dry_run: bool = False,
    progress: bool = False,
) -> Answer:
    """Erase the samples of one request, or say why not. Until the entry "received" nothing is written."""
    bench = Bench(settings, hold.folder.path, progress)
    engine = engine_for(bench)
    history = hold.ledger.of_request(check_id(request))
    last = history[-1] if history else None
    current = hold.current
    model = engine.read_state(hold.folder.state(current), current.details["files"])
    if last is not None and last.kind == "sealed":
        return _repeated(bench, hold, request, history, forget, ids)
    check_same_model(hold, settings)
    curvature = engine.load_state(hold.folder.state(current), current.details["files"], model)
    engine.check_request(model, curvature)
    source, places = bench.asked(forget, ids)
    if ids is None:
        engine.try_out(model, source)
    else:
        check_places(hold, bench)
    digests = bench.digests(source, salt_of(hold.ledger), places)
    received = _received(last, digests)
    standing = Membership.load(hold.folder.path / SAMPLES).standing(digests, hold.ledger)
    data = engine.training_data(curvature, lambda: _places_that_stay(hold, bench))
    task = _Task(hold, engine, settings, request, model, curvature, source, places, digests, standing, data)
    if dry_run:
        return task.try_out()
    hold.folder.check_space(files.size_of(hold.folder.state(current)))
    hold.begin()
    if not received:
        asked = {"asked": len(digests), "k": len(standing.fresh), "already": standing.already}
        asked |= {"samples": digest_of_samples(digests.tolist()), "by": "file" if ids is None else "ids"}
        asked |= {"options": toml.changes(hold.settings, settings)}
        hold.ledger.append("received", request, asked)
    return task.carry_out()


def _repeated(
    bench: Bench, hold: Hold, request: str, history: list[Entry], forget: str | None, ids: Sequence[str] | None
) -> Answer:
    """The id was answered. Other samples under the same id are a mistake that must not pass for an answer."""
    then = next(entry for entry in reversed(history) if entry.kind == "received")
    compared, gone = "", [] if ids is None else bench.unknown(ids)
    if gone and ids is not None:  # left the data since: what is still there must have been named then
        there = [name for name in ids if name not in set(gone)]
        digests = bench.digests(bench.train, salt_of(hold.ledger), bench.train.places_of(there)) if there else ()
        erased = next(entry.seq for entry in reversed(history) if entry.kind == "erased")
        same = len(ids) == then.details["asked"] and set(digests) <= set(hold.ledger.samples_of(erased))
        compared = f" {len(gone)} of the ids are no longer in the data, so those could not be compared."
    else:
        source, places = bench.asked(forget, ids)
        digests = bench.digests(source, salt_of(hold.ledger), places)
        same = digest_of_samples(digests.tolist()) == then.details["samples"]
    if not same:
        raise InvalidSetting(
            f"Request '{request}' was answered on {history[-1].time}, for other samples. Give this one its own id."
        )
    k = next(entry.details["k"] for entry in reversed(history) if entry.kind == "erased")
    reason = f"Request '{request}' was answered on {history[-1].time}: {k} samples. Nothing was done.{compared}"
    return Answer(request, "repeated", history, reason)


def _received(last: Entry | None, digests: np.ndarray) -> bool:
    """Whether it was received before and interrupted; then only the same samples may finish it."""
    if last is None or last.kind != "received":
        return False
    if last.details["samples"] != digest_of_samples(digests.tolist()):
        raise InvalidSetting(
            f"Request '{last.request}' was received on {last.time} for other samples and is not finished. Finish it "
            "with those, or give this one its own id."
        )
    return True


@dataclass(frozen=True)
class _Task:
    hold: Hold
    engine: Engine
    settings: Settings
    request: str
    model: Any
    curvature: Any
    source: Source
    places: np.ndarray | None
    digests: np.ndarray
    standing: Standing
    data: Any

    def try_out(self) -> Answer:
        """What would be said, and nothing done."""
        if refusal := self._refusal():
            return Answer(self.request, "refused", [], refusal, already=self.standing.already)
        try:
            erased = self._erase()
        except (Refused, *FAULTS) as error:
            return Answer(self.request, "refused", [], str(error), already=self.standing.already)
        return Answer(self.request, "tried", [], details=self._details(erased), already=self.standing.already)

    def carry_out(self) -> Answer:
        if refusal := self._refusal():
            return self._refuse(refusal)
        try:
            erased = self._erase()
        except Refused as error:
            return self._refuse(" ".join(error.diagnostics.reasons), plain(error.diagnostics))
        except FAULTS as error:
            return self._refuse(str(error))
        found = erased.found
        if found.verdict != "ok" and self.settings.erase.accept == "ok":
            reason = f"The verdict is '{found.verdict}' and only 'ok' is accepted here: {' '.join(found.reasons)}"
            return self._refuse(reason, plain(found))
        samples = self.digests[self.standing.fresh].tolist()
        details = self._details(erased)
        details |= {"curvature_dropped": erased.curvature is None, "erased_samples": digest_of_samples(samples)}

        def write(folder: Path) -> None:
            self.engine.write_state(folder, erased.model, erased.curvature)

        entry = self.hold.advance("erased", self.request, details, write, samples)
        entries = self.hold.ledger.of_request(self.request)
        return Answer(self.request, "erased", entries, details=entry.details, already=self.standing.already)

    def _refusal(self) -> str:
        """Reasons that need no step."""
        standing = self.standing
        if standing.strangers:
            count = f"{len(standing.strangers)} of its {len(self.digests)} samples"
            some = "Its only sample was" if len(self.digests) == 1 else f"{count} ({shown(standing.strangers)}) were"
            return (
                f"{some} never in the training data, or not bit for bit in this form (other preprocessing, dtype or "
                "labels), or not that often."
            )
        if not len(standing.fresh):
            by = ", ".join(f"'{request}'" for request in standing.already)
            return f"All of its samples are erased already, by {by}."
        return ""

    def _refuse(self, reason: str, diagnostics: dict[str, Any] | None = None) -> Answer:
        details = {"k": len(self.digests), "reason": reason, "diagnostics": diagnostics, "verdict": "refused"}
        self.hold.ledger.append("refused", self.request, details)
        entries = self.hold.ledger.of_request(self.request)
        return Answer(self.request, "refused", entries, reason, already=self.standing.already)

    def _erase(self) -> Erased:
        places = self.standing.fresh if self.places is None else self.places[self.standing.fresh]
        return self.engine.erase(self.model, self.curvature, self.source, places, self.data)

    def _details(self, erased: Erased) -> dict[str, Any]:
        chosen = self.settings.erase
        return {
            **erased.details,
            "leave_out": chosen.leave_out,
            "residual": chosen.residual,
            "policy": chosen.policy,
            "old": {"weights": chosen.old_weights, "curvature": chosen.old_curvature},
            "versions": versions(),
            "diagnostics": plain(erased.found),
            "verdict": erased.found.verdict,
        }


def _places_that_stay(hold: Hold, bench: Bench) -> np.ndarray:
    return places_that_stay(hold, bench.digests(bench.train, salt_of(hold.ledger), text="digests"))


def plain(found: Assessment) -> dict[str, Any]:
    """With the largest leverages only: a request of thousands has as many."""
    body = found.to_dict()
    return {**body, "leverages": body.get("leverages", [])[:LEVERAGES]}


FAULTS = (InvalidData, PrecisionLost, NotPositiveDefinite)  # of the samples; other errors are of settings and machines
