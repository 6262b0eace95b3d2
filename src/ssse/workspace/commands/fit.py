"""`ssse fit`: the curvature of the current weights."""

from __future__ import annotations

from ssse.system import files
from ssse.system.digests import digest_file
from ssse.system.environment import versions
from ssse.workspace import settings as toml
from ssse.workspace.engines.choice import engine_for
from ssse.workspace.engines.data import UserData
from ssse.workspace.engines.engine import Say
from ssse.workspace.record.folder import SAMPLES
from ssse.workspace.record.membership import Membership, places_that_stay
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.results import Fitted
from ssse.workspace.settings import Settings


def fit(transaction: Transaction, settings: Settings, say: Say, *, again: bool, progress: bool) -> Fitted:
    """Over the data that remains; where there is a curvature already, only `again`."""
    ledger, current = transaction.ledger, transaction.current
    last = ledger.last_in_force("fitted")
    if current.details["after"]["curvature"] and last is not None and not again:
        return Fitted(last, now=False)
    user_data = UserData(settings, transaction.folder.path, progress)
    engine = engine_for(user_data)
    engine.check_fit()
    state = transaction.folder.state(current)
    model = engine.read_state(state, current.details["files"])
    digests = user_data.digests(user_data.train, ledger.salt, text="digests")
    first = ledger.first("fitted")
    samples = transaction.folder.path / SAMPLES
    places = None
    if first is not None:
        places = places_that_stay(samples, ledger, digests)
        places = None if len(places) == len(digests) else places
    size = files.size_of(state)
    curvature, described = engine.fit(
        model,
        user_data.batches(user_data.train, places),
        lambda needed: transaction.folder.check_space(needed + size),
        say,
    )
    details = {
        "engine": engine.name,
        **described,
        "model": settings.model.identity(),
        "dropped": _calibrated_scale(transaction),
        "options": toml.changes(transaction.settings, settings),
        "excluded": 0 if places is None else len(digests) - len(places),
        "versions": versions(),
    }
    transaction.begin()
    if first is None:
        Membership.save(samples, digests)
    details |= {"samples": len(digests) if first is None else first.details["samples"]}
    details |= {"samples_file": digest_file(samples)}
    entry = transaction.advance(
        "fitted", None, details, lambda folder: engine.write_same_model(folder, state, curvature)
    )
    return Fitted(entry, now=True)


def _calibrated_scale(transaction: Transaction) -> float | None:
    """ε in force until now: it was of the old curvature."""
    chosen, fitted = transaction.ledger.last_in_force("calibrated"), transaction.ledger.last_in_force("fitted")
    stands = chosen is not None and fitted is not None and chosen.seq > fitted.seq
    return chosen.details["scale"] if stands and chosen is not None else None
