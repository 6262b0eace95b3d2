"""One request of a stream: erased by the curvature there is, or, where that has become too old, by a fresh one.

`received`, `fitted`, `erased` follow on each other, each a whole state: who is killed in between finds, with the same
command, the request received or the curvature fresh, and goes on from there. A request has one fit at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from ssse.workspace.commands.erase import erase
from ssse.workspace.commands.fit import enter, take_curvature
from ssse.workspace.commands.refit import Because, NeedsFit, requests_since_fit
from ssse.workspace.engines.engine import Say
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.results import Erased
from ssse.workspace.settings import Settings

WHY: dict[Because, str] = {
    "refused": "The step is refused by a curvature that earlier requests have moved away from.",
    "leverage": "The samples determine most of a direction, by a curvature that earlier requests have moved away from.",
    "dropped": "The last request has dropped the curvature.",
    "repaired": "The model was repaired since the curvature was fitted, which was of another one.",
    "schedule": "So many requests were answered since the last fit as erase.refit says.",
}


def answer(
    transaction: Transaction,
    settings: Settings,
    request: str,
    forget: str | None,
    ids: Sequence[str] | None,
    *,
    say: Say,
    dry_run: bool = False,
    progress: bool = False,
    **how: Any,
) -> Erased:
    """`erase`, with a curvature that is fitted anew first where one is needed and `erase.refit` allows it."""
    asked = {"dry_run": dry_run, "progress": progress, **how}
    if settings.erase.refit == "never":
        return erase(transaction, settings, request, forget, ids, **asked)
    try:
        return erase(transaction, settings, request, forget, ids, may_fit=True, **asked)
    except NeedsFit as need:
        wanted = need
    since = requests_since_fit(transaction)
    say(f"{WHY[wanted.because]} {_cost(transaction)}")
    try:
        fresh = take_curvature(transaction, _as_last_time(transaction, settings), say, progress, wanted.measured)
    except (InvalidData, InvalidModel, InvalidSetting) as error:  # of the data and settings now; not of disk and memory
        say(f"A new curvature cannot be fitted: {error}")
        if wanted.because in ("dropped", "repaired"):
            raise
        return erase(transaction, settings, request, forget, ids, **asked)
    fresh = replace(fresh, details={**fresh.details, "because": wanted.because, "after_requests": since})
    if dry_run:
        return erase(transaction, settings, request, forget, ids, fresh=fresh.curvature, **asked)
    enter(transaction, fresh)
    if since <= 1:
        say("Nearly every request needs a fit of its own here; `ssse log` has what they cost.")
    del fresh, wanted  # a curvature may be most of the memory there is
    return erase(transaction, settings, request, forget, ids, **asked)


def _cost(transaction: Transaction) -> str:
    fitted = transaction.ledger.last("fitted")
    assert fitted is not None
    samples, seconds = fitted.details.get("n"), fitted.details.get("seconds")
    took = "" if seconds is None else f"; the last fit took {seconds:.1f} s for {samples:,}"
    return f"Fitting anew over the samples that stay{took}."


def _as_last_time(transaction: Transaction, settings: Settings) -> Settings:
    """With the options that the last fit was given on the command line, where ssse.toml has not got them."""
    fitted = transaction.ledger.last("fitted")
    assert fitted is not None
    options = {key: pair[1] for key, pair in fitted.details.get("options", {}).items() if key.startswith("fit.")}
    return settings.with_options(options)
