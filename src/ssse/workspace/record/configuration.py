"""The settings that a command works by: of ssse.toml, where the ledger knows who vouches for it. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ssse.system import files
from ssse.workspace import settings as toml
from ssse.workspace.record.entry import Entry
from ssse.workspace.record.heads import NAMES_KEY
from ssse.workspace.record.ledger import Ledger
from ssse.workspace.settings import Settings

CHANGES = "upgrade"  # the one command that writes ssse.toml, after the ledger


def recorded_settings(entry: Entry) -> Settings:
    return toml.check(entry.details["settings"], "The ledger")


def read_settings(folder: Path, ledger: Ledger, killed: str | None, given: Mapping[str, str | None]) -> Settings:
    """`killed`: the command that was. `given`: of the section [record], by who asks for it to be changed.

    Raises:
        InvalidSetting: the file names other code than the ledger, or somebody else to vouch for it.
    """
    found, known = toml.read(folder / toml.FILE), ledger.last(*NAMES_KEY)
    if known is None:
        return found
    recorded = recorded_settings(known)
    toml.refuse_other_code(recorded_settings(ledger.created), found)
    if killed == CHANGES and found.record != recorded.record:
        before = ledger.last_before(known.seq, *NAMES_KEY)
        if before is not None and found.record == recorded_settings(before).record:
            found = found.model_copy(update={"record": recorded.record})
            write_settings(folder, found)  # to which the command did not come
    known_else = recorded.record.model_dump(include=set(given))
    toml.refuse_other_record(recorded, found.with_record(known_else))
    return found.with_record(given)


def write_settings(folder: Path, settings: Settings) -> None:
    files.write_atomically(folder / toml.FILE, settings.to_toml(), private=True)
