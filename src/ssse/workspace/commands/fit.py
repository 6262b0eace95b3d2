"""`ssse fit`: the curvature of the current weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ssse.errors import InvalidSetting
from ssse.system import files
from ssse.system.digests import digest_file
from ssse.system.environment import versions
from ssse.workspace import settings as toml
from ssse.workspace.commands.refit import is_worthwhile, requests_since_fit, scale_of_dropped, was_dropped
from ssse.workspace.engines.choice import engine_for
from ssse.workspace.engines.data import UserData
from ssse.workspace.engines.engine import Engine, Say
from ssse.workspace.engines.processes import Order, Others, wait_for_order
from ssse.workspace.record.folder import CURVATURE, FITTING, SAMPLES
from ssse.workspace.record.ledger import Entry
from ssse.workspace.record.membership import Membership, places_that_stay
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.results import Fitted
from ssse.workspace.settings import Settings


@dataclass(frozen=True)
class Fresh:
    """A curvature that nobody has written yet. `details`: of its entry. `digests`: of all samples of the data."""

    engine: Engine
    curvature: Any
    details: dict[str, Any]
    digests: np.ndarray


def fit(
    transaction: Transaction,
    settings: Settings,
    say: Say,
    *,
    again: bool,
    progress: bool,
    when_needed: bool = False,
    others: Others | None = None,
) -> Fitted:
    """Over the data that remains; where there is a curvature already, only `again`, or only if that is needed."""
    if when_needed and not again:
        raise InvalidSetting("--when-needed says when to fit --again: give both.")
    last = transaction.ledger.last_in_force("fitted")
    if last is not None and not was_dropped(transaction) and not again:
        return Fitted(last, now=False)
    if last is not None and when_needed and not is_worthwhile(transaction, settings):
        return Fitted(last, now=False)
    measured, why = None, {}
    if last is not None and when_needed:
        measured = _measured_scale(transaction, settings)
        why = {"because": "worthwhile", "after_requests": requests_since_fit(transaction)}
    checkpoint = transaction.folder.path / FITTING
    fresh = take_curvature(transaction, settings, say, progress, measured, checkpoint, others)
    fresh.details.update(why)
    return Fitted(enter(transaction, fresh), now=True)


def take_part(home: Path) -> None:
    """What a process does beside the first one: it reads its share, and writes its part of the curvature."""
    order = wait_for_order()
    if order is None:
        return
    user_data = UserData(order.settings, home)
    engine = engine_for(user_data)
    model = engine.read_state(order.state, order.files)
    batches = user_data.batches(user_data.train, order.places)
    curvature, _ = engine.fit(model, batches, lambda needed: None, lambda text: None, order.checkpoint)
    curvature.save(home / CURVATURE)  # where the first process says


def take_curvature(
    transaction: Transaction,
    settings: Settings,
    say: Say,
    progress: bool,
    measured: Any = None,
    checkpoint: Path | None = None,
    others: Others | None = None,
) -> Fresh:
    """Of the current model on what stays. `measured`: an ε of the curvature before, which the new one keeps.

    `checkpoint`: a folder for what an interrupted fit has done. `others`: processes that take part.
    """
    ledger, current = transaction.ledger, transaction.current
    user_data = UserData(settings, transaction.folder.path, progress)
    engine = engine_for(user_data)
    engine.check_fit()
    state = transaction.folder.state(current)
    model = engine.read_state(state, current.details["files"])
    digests = user_data.digests(user_data.train, ledger.salt, text="digests")
    places = None
    if ledger.first("fitted") is not None:
        places = places_that_stay(transaction.folder.path / SAMPLES, ledger, digests)
        places = None if len(places) == len(digests) else places
    size = files.size_of(state)
    if others is not None:
        others.ask(Order(settings, state.resolve(), current.details["files"], places, checkpoint))
    curvature, described = engine.fit(
        model,
        user_data.batches(user_data.train, places),
        lambda needed: transaction.folder.check_space(needed + size),
        say,
        checkpoint,
    )
    kept = None if measured is None else measured["scale"]
    if measured is not None:
        curvature = engine.with_measured_scale(curvature, measured)
        described["damping"] = measured["damping"]
    details = {
        "engine": engine.name,
        **described,
        "model": settings.model.identity(),
        "dropped": _calibrated_scale(transaction) if kept is None else None,
        "kept": kept,
        "options": toml.changes(transaction.settings, settings),
        "excluded": 0 if places is None else len(digests) - len(places),
        "versions": versions(),
    }
    return Fresh(engine, curvature, details, digests)


def enter(transaction: Transaction, fresh: Fresh) -> Entry:
    """Make it the current one."""
    state, samples = transaction.folder.state(transaction.current), transaction.folder.path / SAMPLES
    first = transaction.ledger.first("fitted")
    transaction.begin()
    if first is None:
        Membership.save(samples, fresh.digests)
    number = len(fresh.digests) if first is None else first.details["samples"]
    details = {**fresh.details, "samples": number, "samples_file": digest_file(samples)}

    def write(folder: Path) -> None:
        fresh.engine.write_same_model(folder, state, fresh.curvature)

    return transaction.advance("fitted", None, details, write)


def _calibrated_scale(transaction: Transaction) -> float | None:
    """ε in force until now: it was of the old curvature."""
    chosen, fitted = transaction.ledger.last_in_force("calibrated"), transaction.ledger.last_in_force("fitted")
    stands = chosen is not None and fitted is not None and chosen.seq > fitted.seq
    return chosen.details["scale"] if stands and chosen is not None else None


def _measured_scale(transaction: Transaction, settings: Settings) -> Any:
    """As the curvature has it that is about to be replaced."""
    if was_dropped(transaction):
        return scale_of_dropped(transaction)
    current = transaction.current
    engine = engine_for(UserData(settings, transaction.folder.path))
    state = transaction.folder.state(current)
    model = engine.read_state(state, current.details["files"])
    return engine.measured_scale(engine.load_state(state, current.details["files"], model))
