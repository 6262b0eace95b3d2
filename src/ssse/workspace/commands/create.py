"""`ssse init`: from the user's files to a workspace."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssse.errors import InvalidSetting
from ssse.system import files
from ssse.system.environment import versions
from ssse.workspace import settings as toml
from ssse.workspace.engines.choice import engine_for
from ssse.workspace.engines.data import UserData
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record.anchors import Anchors
from ssse.workspace.record.folder import SKOPS, STATES, Folder
from ssse.workspace.record.ledger import Entry, Ledger
from ssse.workspace.record.seal import seal_files
from ssse.workspace.record.signing import Signing, read_key
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.settings import Settings


def create(path: Path, settings: Settings, weights: Path) -> tuple[Entry, dict[str, Any]]:
    """A new workspace, whole or not at all: its first entry, and what was seen while checking."""
    if os.path.lexists(path):
        raise InvalidSetting(f"'{path}' exists already; name a folder that does not.")
    if any("\ud800" <= sign <= "\udfff" for sign in str(path)):  # bytes of a name that are no UTF-8
        raise InvalidSetting(f"'{path}': safetensors cannot open files in such a folder; name one in UTF-8.")
    _check_factory(settings, weights)
    signing = Signing(key=read_key(path, settings))
    anchors = Anchors.of(path, settings, settings.record.anchor_command)
    anchors.check_new()
    user_data = UserData(settings, path)
    engine = engine_for(user_data)
    model = engine.read(weights)
    engine.take_over(model)
    seen = engine.look(model)
    settings = user_data.settings
    if user_data.train.columns and settings.data.inputs is None:  # other tables are read by these names, not by places
        settings = settings.with_options({"data.inputs": list(user_data.train.columns)})
    with files.new_folder(path, private=True) as unfinished:
        files.write_atomically(unfinished / toml.FILE, settings.to_toml(), private=True)
        files.make_private(unfinished / STATES)
        Ledger.create(unfinished / ledgers.FILE)
        details = {
            "engine": engine.name,
            "model": engine.about(model),
            "salt": secrets.token_hex(32),
            "settings": settings.to_dict(),
            "versions": versions(),
            **signing.named(),
        }
        with Ledger.open(unfinished / ledgers.FILE) as ledger:
            ledger.signer = signing.key
            transaction = Transaction(Folder(unfinished), ledger, settings, "init", seal_files(unfinished, ()))
            entry = transaction.advance("created", None, details, lambda state: engine.write_state(state, model, None))
        seal = seal_files(unfinished, (ledgers.FILE, toml.FILE))
        seal.write(unfinished)
    if anchors:  # a folder that never appeared has no heads
        replace(seal, published=anchors.publish(path / ledgers.FILE, {})).write(path)
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
