"""`ssse upgrade`: a workspace of an earlier version gets what it lacks; key and anchor change. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssse.errors import InvalidSetting
from ssse.system.environment import versions
from ssse.workspace import settings as toml
from ssse.workspace.record.configuration import write_settings
from ssse.workspace.record.folder import open_to_others, restrict
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.results import Upgraded


def changed_record(
    workspace: Path, key: str | None, anchor: str | None, without: Sequence[str] = ()
) -> dict[str, str | None]:
    """What of the section [record] is to be another; None takes it out."""
    named = {"key": key, "anchor": anchor}
    given = {name: toml.elsewhere(path, workspace) for name, path in named.items() if path is not None}
    for name in without:
        if name not in toml.Record.model_fields or name in given:
            raise InvalidSetting(
                f"'{name}' cannot be given up: there are {', '.join(toml.Record.model_fields)}, and not what is named "
                "at the same time."
            )
    return given | dict.fromkeys(without)


def upgrade(transaction: Transaction) -> Upgraded:
    """Leaves for all entries, in one step, modes for the owner alone, and what was asked for; the rest stays."""
    gained, entry = [], None
    path = transaction.folder.path
    if open_to_others(path):
        restrict(path)
        gained.append("modes by which nobody else may read it, but for the model that is served")
    if not transaction.ledger.has_leaves:
        transaction.open_seal()
        entry = transaction.ledger.upgrade({"version": versions()["ssse"]})
        gained.insert(0, f"leaves for its {entry.details['leaves']} entries: `ssse prove` can show each by itself")
    changed = _changed(transaction)
    if entry is not None or changed:
        transaction.begin()
    if changed:
        write_settings(path, transaction.settings)  # after the ledger, by which the next command completes it
    return Upgraded(entry, gained + changed)


def _changed(transaction: Transaction) -> list[str]:
    """What of the section [record] is not as the ledger has it, or not as the file has it, in words."""
    old, new, signing = transaction.recorded.record, transaction.settings.record, transaction.signing
    found = []
    if signing.changed or old.key != new.key:
        by = None if signing.public is None else signing.public.fingerprint[:12]
        found.append("no signatures from now on" if by is None else f"signatures from now on, by the key {by}…")
    if old.anchor != new.anchor:
        found.append("no anchor from now on" if new.anchor is None else f"its heads in '{new.anchor}' from now on")
    if old.anchor_command != new.anchor_command:
        found.append("no command for its heads from now on")
    if not found and toml.read(transaction.folder.path / toml.FILE).record != new:
        found.append(f"the settings of its ledger in {toml.FILE}")
    return found
