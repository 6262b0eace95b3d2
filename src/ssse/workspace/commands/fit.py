"""`ssse init` and `ssse fit`: from the user's files to a workspace, and to its curvature."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from ssse.errors import InvalidSetting
from ssse.system import files
from ssse.system.digests import digest_file
from ssse.system.environment import versions
from ssse.workspace import settings as toml
from ssse.workspace.engines.choice import engine_for
from ssse.workspace.engines.data import Bench
from ssse.workspace.engines.engine import Say
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record.folder import (
    CURVATURE,
    SAMPLES,
    SKOPS,
    Folder,
    model_file,
)
from ssse.workspace.record.ledger import Entry, Ledger
from ssse.workspace.record.membership import Membership
from ssse.workspace.record.seal import seal_files
from ssse.workspace.record.transaction import Hold
from ssse.workspace.settings import Settings


def create(path: Path, settings: Settings, weights: Path) -> tuple[Entry, dict[str, Any]]:
    """A new workspace, whole or not at all; and what was seen while checking."""
    if os.path.lexists(path):
        raise InvalidSetting(f"'{path}' exists already; name a folder that does not.")
    if any("\ud800" <= sign <= "\udfff" for sign in str(path)):  # bytes of a name that are no UTF-8
        raise InvalidSetting(f"'{path}': safetensors cannot open files in such a folder; name one in UTF-8.")
    _check_factory(settings, weights)
    bench = Bench(settings, path)
    engine = engine_for(bench)
    model = engine.read(weights)
    engine.take_over(model)
    seen = engine.look(model)
    settings = bench.settings
    if bench.train.columns and settings.data.inputs is None:  # other tables are read by these names, not by places
        settings = settings.with_options({"data.inputs": list(bench.train.columns)})
    with files.new_folder(path) as unfinished:
        (unfinished / toml.FILE).write_text(settings.to_toml(), encoding="utf-8")
        (unfinished / "states").mkdir()
        Ledger.create(unfinished / ledgers.FILE)
        details = {
            "model": engine.about(model),
            "salt": secrets.token_hex(32),
            "settings": settings.plain(),
            "versions": versions(),
        }
        with Ledger.open(unfinished / ledgers.FILE) as ledger:
            hold = Hold(Folder(unfinished), ledger, settings, "init", seal_files(unfinished, ()))
            entry = hold.advance("created", None, details, lambda state: engine.write_state(state, model, None))
        seal_files(unfinished, (ledgers.FILE, toml.FILE)).write(unfinished)
    return entry, seen


def _check_factory(settings: Settings, weights: Path) -> None:
    """A skops file says by itself what it holds; any other file does not."""
    itself = weights.suffix.lower() == Path(SKOPS).suffix
    if itself and settings.model.factory is not None:
        raise InvalidSetting(f"'{weights}' says by itself which model it is: leave --model and --argument out.")
    if settings.model.factory is None and weights.suffix.lower() in (".npz", ".safetensors", ".pt", ".pth"):
        raise InvalidSetting(
            f"Name the model with --model: '{weights}' holds numbers alone; only a .skops file says which model it is."
        )


def fit(hold: Hold, settings: Settings, say: Say, progress: bool) -> Entry:
    """The curvature of the current weights over the data that remains."""
    bench = Bench(settings, hold.folder.path, progress)
    engine = engine_for(bench)
    engine.check_fit()
    state = hold.folder.state(hold.current)
    model = engine.read_state(state, hold.current.details["files"])
    digests = bench.digests(bench.train, salt_of(hold.ledger), text="digests")
    first = hold.ledger.first("fitted")
    places = None
    if first is not None:
        places = places_that_stay(hold, digests)
        places = None if len(places) == len(digests) else places
    size = files.size_of(state)
    curvature, found = engine.fit(
        model, bench.batches(bench.train, places), lambda needed: hold.folder.check_space(needed + size), say
    )
    details = {
        **found,
        "model": of_model(settings),
        "dropped": _calibrated_scale(hold),
        "options": toml.changes(hold.settings, settings),
        "excluded": 0 if places is None else len(digests) - len(places),
        "versions": versions(),
    }
    hold.begin()
    if first is None:
        Membership.save(hold.folder.path / SAMPLES, digests)
    details |= {"samples": len(digests) if first is None else first.details["samples"]}
    details |= {"samples_file": digest_file(hold.folder.path / SAMPLES)}
    return hold.advance("fitted", None, details, lambda folder: write_same_weights(folder, state, curvature))


def write_same_weights(folder: Path, old: Path, curvature: Any) -> None:
    """The file itself under another name, not a copy: a later request has one place to erase them from."""
    name = model_file({path.name: "" for path in old.iterdir()})
    try:
        os.link(old / name, folder / name)
    except OSError:  # not on every disk
        shutil.copyfile(old / name, folder / name)
    curvature.save(folder / CURVATURE)


def salt_of(ledger: Ledger) -> bytes:
    created = ledger.first("created")
    assert created is not None
    return bytes.fromhex(created.details["salt"])


def _calibrated_scale(hold: Hold) -> float | None:
    """ε in force until now: it was of the old curvature."""
    chosen, fitted = hold.ledger.last("calibrated"), hold.ledger.last("fitted")
    stands = chosen is not None and fitted is not None and chosen.seq > fitted.seq
    return chosen.details["scale"] if stands and chosen is not None else None


def of_model(settings: Settings) -> dict[str, Any]:
    """What makes the function that the weights are of."""
    return settings.model.model_dump(mode="json", include={"factory", "arguments", "loss"})


def places_that_stay(hold: Hold, digests: np.ndarray) -> np.ndarray:
    return Membership.load(hold.folder.path / SAMPLES).remaining(digests, hold.ledger.erased_samples())
