"""`ssse erase`: one deletion request, from the samples it names to a sealed entry."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ssse.erasure.bounds import check_override
from ssse.errors import InvalidData, InvalidRequest, NotPositiveDefinite, PrecisionLost, Refused
from ssse.intake.sources import Batches
from ssse.system import files
from ssse.system.environment import versions
from ssse.verdict import Assessment
from ssse.workspace import settings as toml
from ssse.workspace.commands.checks import check_places, check_same_model
from ssse.workspace.commands.refit import (
    NeedsFit,
    check_schedule,
    check_step,
    scale_of_dropped,
    was_dropped,
    was_repaired,
)
from ssse.workspace.commands.request_files import LONGEST_REQUEST, check_due, check_who
from ssse.workspace.engines.choice import engine_for
from ssse.workspace.engines.data import UserData
from ssse.workspace.engines.engine import Asked, Engine, ErasedModel
from ssse.workspace.record.answers import BEFORE, blinding, digest_of_ids, named_by
from ssse.workspace.record.folder import SAMPLES
from ssse.workspace.record.holdings import Holdings, read_holdings
from ssse.workspace.record.ledger import Entry, digest_of_samples
from ssse.workspace.record.membership import Membership, Standing, places_that_stay, shown
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.results import Erased
from ssse.workspace.settings import Settings

LEVERAGES = 200  # of one request, in the ledger
PROBED = 2000  # test samples: enough to see a point of accuracy go, and soon looked at
NOT_MENDED = {"share", "stationarity"}  # bounds that a new curvature does not bring nearer
CHECKED = 8  # samples on which a state that was written must answer as the model in memory does


def check_id(request: str) -> str:
    if not request or request != request.strip() or len(request) > LONGEST_REQUEST or not request.isprintable():
        raise InvalidRequest(
            f"A request's id is a word or a few, printable, up to {LONGEST_REQUEST} characters; not {request[:40]!r}."
        )
    return request


def erase(
    transaction: Transaction,
    settings: Settings,
    request: str,
    forget: str | None,
    ids: Sequence[str] | None,
    *,
    dry_run: bool = False,
    override: Collection[str] = (),
    due: str | None = None,
    who: str | None = None,
    progress: bool = False,
    may_fit: bool = False,
    fresh: Any = None,
) -> Erased:
    """Erase the samples of one request, or say why not. Until the entry "received" nothing is written.

    `due`: the day by which it is to be answered. `who`: the name of who answers it, if it is to be recorded.
    `may_fit`: raise NeedsFit where a new curvature may mend what would be refused. `fresh`: one that is not written.
    """
    check_override(override)
    given = {"due": None if due is None else check_due(due), "who": check_who(who)}
    user_data = UserData(settings, transaction.folder.path, progress)
    engine = engine_for(user_data)
    held = read_holdings(transaction.ledger)
    history = transaction.ledger.of_request(check_id(request))
    last = history[-1] if history else None
    current = transaction.current
    model = engine.read_state(transaction.folder.state(current), current.details["files"])
    if last is not None and (last.kind == "sealed" or request in held.requests):
        return replace(_repeated(user_data, transaction, request, history, forget, ids), held=held.requests)
    check_same_model(transaction, settings)
    if may_fit and was_dropped(transaction):
        because = "repaired" if was_repaired(transaction) else "dropped"
        raise NeedsFit(because, scale_of_dropped(transaction))
    curvature = fresh
    if curvature is None:
        curvature = engine.load_state(transaction.folder.state(current), current.details["files"], model)
    checked = engine.check_request(model, curvature)
    source, places = user_data.requested(forget, ids)
    if ids is None:
        engine.try_out(model, source)
    else:
        check_places(transaction, user_data)
    digests = user_data.digests(source, transaction.ledger.salt, places)
    standing = Membership.load(transaction.folder.path / SAMPLES).standing(digests, transaction.ledger)
    came = {"asked": len(digests), "k": len(standing.fresh), "already": standing.already}
    came |= {"samples": digest_of_samples(digests.tolist()), "by": "file" if ids is None else "ids"}
    came |= {"ids": None if ids is None else digest_of_ids(ids, transaction.ledger.salt)}
    came |= {name: value for name, value in given.items() if value is not None}
    received = _received(last, came)
    if ids is not None:
        came |= {"named": named_by(ids, blinding(request, ids, transaction.ledger.salt))}
    data = engine.training_data(curvature, lambda: _places_that_stay(transaction, user_data))
    to_erase = standing.fresh if places is None else places[standing.fresh]
    asked = Asked(source, to_erase, data, probe_of(engine, model), override)
    task = _Task(transaction, engine, settings, request, checked, curvature, asked, digests, standing, held, may_fit)
    if dry_run:
        return task.try_out()
    transaction.folder.check_space(files.size_of(transaction.folder.state(current)))
    transaction.begin()
    if not received:
        options = toml.changes(transaction.settings, settings)
        transaction.ledger.append("received", request, {**came, "options": options})
    return task.carry_out()


def _repeated(
    user_data: UserData,
    transaction: Transaction,
    request: str,
    history: list[Entry],
    forget: str | None,
    ids: Sequence[str] | None,
) -> Erased:
    """The id was answered. Other samples under the same id are a mistake that must not pass for an answer."""
    then = next(entry for entry in reversed(history) if entry.kind == "received")
    compared, gone = "", [] if ids is None else user_data.missing_ids(ids)
    if gone and ids is not None:  # left the data since: what is still there must have been named then
        there = [name for name in ids if name not in set(gone)]
        digests = (
            user_data.digests(user_data.train, transaction.ledger.salt, user_data.train.places_of(there))
            if there
            else ()
        )
        erased = next(entry.seq for entry in reversed(history) if entry.kind == "erased")
        same = len(ids) == then.details["asked"] and set(digests) <= set(transaction.ledger.samples_of(erased))
        compared = f" {len(gone)} of the ids are no longer in the data, so those could not be compared."
    else:
        source, places = user_data.requested(forget, ids)
        digests = user_data.digests(source, transaction.ledger.salt, places)
        same = digest_of_samples(digests.tolist()) == then.details["samples"]
    if not same:
        raise InvalidRequest(
            f"Request '{request}' was answered on {history[-1].time}, for other samples. Give this one its own id.",
            BEFORE,
        )
    k = next(entry.details["k"] for entry in reversed(history) if entry.kind == "erased")
    waits = "" if history[-1].kind == "sealed" else " It waits for confirmation."
    reason = f"Request '{request}' was answered on {history[-1].time}: {k} samples. Nothing was done.{compared}{waits}"
    return Erased(request, "repeated", history, reason)


def _received(last: Entry | None, came: Mapping[str, Any]) -> bool:
    """Whether it was received before and interrupted; then only the same samples may finish it.

    Other requests may have been carried out or reverted since: where not as many of its samples are to go as its entry
    says, or they are named in another way now, it is received anew. No erasure is of more than was received.
    """
    if last is None or last.kind != "received":
        return False
    if last.details["samples"] != came["samples"]:
        raise InvalidRequest(
            f"Request '{last.request}' was received on {last.time} for other samples and is not finished. Finish it "
            "with those, or give this one its own id."
        )
    return all(last.details.get(name) == value for name, value in came.items())


@dataclass(frozen=True)
class _Task:
    transaction: Transaction
    engine: Engine
    settings: Settings
    request: str
    checked: Any  # the model, as the engine takes it
    curvature: Any
    asked: Asked
    digests: np.ndarray
    standing: Standing
    held: Holdings  # before this request
    may_fit: bool  # where a new curvature may mend what would be refused

    def try_out(self) -> Erased:
        """What would be said, and nothing done."""
        if refusal := self._refusal():
            return Erased(self.request, "refused", [], refusal, already=self.standing.already)
        try:
            erased = self._erase()
        except Refused as error:
            return Erased(self.request, "refused", [], error.reason, already=self.standing.already, measured=True)
        except FAULTS as error:
            return Erased(self.request, "refused", [], str(error), already=self.standing.already, measured=True)
        return Erased(self.request, "tried", [], details=self._details(erased), already=self.standing.already)

    def carry_out(self) -> Erased:
        if refusal := self._refusal():
            return self._refuse(refusal, measured=False)
        try:
            erased = self._erase()
        except Refused as error:
            return self._refuse(error.reason, shortened(error.diagnostics))
        except FAULTS as error:
            return self._refuse(str(error))
        seen = erased.assessment
        if seen.verdict != "ok" and self.settings.erase.accept == "ok":
            reason = f"The verdict is '{seen.verdict}' and only 'ok' is accepted here: {' '.join(seen.reasons)}"
            return self._refuse(reason, shortened(seen))
        samples = self.digests[self.standing.fresh].tolist()
        details = self._details(erased)
        details |= {"curvature_dropped": erased.curvature is None, "erased_samples": digest_of_samples(samples)}

        def write(folder: Path) -> None:
            self.engine.write_state(folder, erased.model, erased.curvature)

        def check(folder: Path) -> None:
            first = self.asked.source.batches(self.asked.places[:CHECKED], CHECKED)
            self.engine.check_state(folder, erased, first)

        entry = self.transaction.advance("erased", self.request, details, write, samples, check)
        entries = self.transaction.ledger.of_request(self.request)
        waiting = [*self.held.requests, self.request] if details["held"] else []
        return Erased(self.request, "erased", entries, "", entry.details, self.standing.already, waiting)

    def _refusal(self) -> str:
        """Reasons that need no step."""
        standing = self.standing
        if standing.unknown:
            count = f"{len(standing.unknown)} of its {len(self.digests)} samples"
            some = "Its only sample was" if len(self.digests) == 1 else f"{count} ({shown(standing.unknown)}) were"
            return (
                f"{some} never in the training data, or not bit for bit in this form (other preprocessing, dtype or "
                "labels), or not that often."
            )
        if not len(standing.fresh):
            by = ", ".join(f"'{request}'" for request in standing.already)
            return f"All of its samples are erased already, by {by}."
        return ""

    def _refuse(self, reason: str, diagnostics: dict[str, Any] | None = None, measured: bool = True) -> Erased:
        """`measured`: the reason comes from a step on the samples; it is shown without its numbers."""
        details = {"k": len(self.digests), "reason": reason, "diagnostics": diagnostics, "verdict": "refused"}
        details |= {"measured": measured}
        self.transaction.ledger.append("refused", self.request, details)
        entries = self.transaction.ledger.of_request(self.request)
        return Erased(self.request, "refused", entries, reason, already=self.standing.already, measured=measured)

    def _erase(self) -> ErasedModel:
        """Raises: NeedsFit: a new curvature is due, or may mend what would be refused."""
        if not (self.may_fit and self.engine.has_moved(self.curvature)):
            return self.engine.erase(self.checked, self.curvature, self.asked)
        check_schedule(self.transaction, self.settings, self.engine, self.curvature)
        measured = self.engine.measured_scale(self.curvature)
        try:
            erased = self.engine.erase(self.checked, self.curvature, self.asked)
        except (Refused, NotPositiveDefinite, PrecisionLost) as error:
            if isinstance(error, Refused) and NOT_MENDED.intersection(error.diagnostics.broken):
                raise
            raise NeedsFit("refused", measured) from None
        check_step(erased.assessment, self.settings, measured)
        return erased

    def _details(self, erased: ErasedModel) -> dict[str, Any]:
        chosen, why = self.settings.erase, self._why_held(erased.assessment)
        return {
            "engine": self.engine.name,
            **erased.details,
            "leave_out": chosen.leave_out,
            "residual": chosen.residual,
            "policy": chosen.policy,
            "old": {"weights": chosen.old_weights, "curvature": chosen.old_curvature},
            "versions": versions(),
            "diagnostics": shortened(erased.assessment),
            "verdict": erased.assessment.verdict,
            "overridden": list(erased.assessment.overridden),
            "held": bool(why),
            "why_held": why,
        }

    def _why_held(self, seen: Assessment) -> list[str]:
        """Why the state from before is to be kept until somebody confirms; none where it goes at once."""
        chosen, waiting = self.settings.erase, self.held.requests
        if chosen.confirm == "never":
            return []
        if chosen.confirm == "always":
            return ['Every request waits for confirmation (erase.confirm = "always").']
        if waiting:  # verdict and probe are of this step alone, which begins with a model that nobody has confirmed
            earlier = ", ".join(f"'{request}'" for request in waiting)
            return [f"It goes on from {earlier}, which nobody has confirmed yet."]
        if seen.sound:
            return []
        if (chosen.old_weights, chosen.old_curvature) == ("keep", "keep"):
            return []  # nothing would go
        if seen.overridden:
            return [f"The step breaks bounds that were overridden: {', '.join(seen.overridden)}."]
        if seen.probe_worse:
            return ["The test data does worse after the step."]
        return [f"The verdict is '{seen.verdict}', and no test data says that the model keeps working."]


def probe_of(engine: Engine, model: Any) -> Batches | None:
    """The test data, from end to end but no more of it than says how the model does."""
    source = engine.user_data.probe
    if source is None:
        return None
    engine.try_out(model, source)
    places = np.unique(np.linspace(0, len(source) - 1, min(len(source), PROBED)).astype(np.int64))
    return engine.user_data.batches(source, places)


def _places_that_stay(transaction: Transaction, user_data: UserData) -> np.ndarray:
    digests = user_data.digests(user_data.train, transaction.ledger.salt, text="digests")
    return places_that_stay(transaction.folder.path / SAMPLES, transaction.ledger, digests)


def shortened(assessment: Assessment) -> dict[str, Any]:
    """With the largest leverages only: a request of thousands has as many."""
    body = assessment.to_dict()
    return {**body, "leverages": body.get("leverages", [])[:LEVERAGES]}


FAULTS = (InvalidData, PrecisionLost, NotPositiveDefinite)  # of the samples; other errors are of settings and machines
