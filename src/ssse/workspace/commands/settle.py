"""`ssse confirm` and `ssse revert`: what becomes of requests that wait. Without torch."""

from __future__ import annotations

import shutil
from pathlib import Path

from ssse.errors import BrokenArtefact, InvalidSetting
from ssse.system import files
from ssse.system.digests import digest_folder
from ssse.workspace.commands.request_files import check_who
from ssse.workspace.record.folder import state_name
from ssse.workspace.record.holdings import Holdings, nothing_was_left, read_holdings
from ssse.workspace.record.seal import Seal
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.results import Settled


def confirm(transaction: Transaction, request: str | None = None, who: str | None = None) -> Settled:
    """The current model is the one to go on with: what was kept from before the requests that wait is shredded.

    `request`: one of them, to say what is meant; all that wait are confirmed, since the current model is after all.
    `who`: the name of who does it, if it is to be recorded.
    """
    named = _named(who)
    held = _waiting(transaction, request)
    if not held.waiting:
        return Settled(None, [])
    _refuse_damaged(transaction, held)
    transaction.begin()
    details = {"requests": held.requests, "entries": [entry.seq for entry in held.waiting], **named}
    return Settled(transaction.settle(details), held.requests)


def revert(transaction: Transaction, request: str | None = None, who: str | None = None) -> Settled:
    """Back to the last state that was known to be sound: the samples of the requests since then are in the model again.

    It becomes a new state, and the one that was not sound is shredded.
    """
    named = _named(who)
    held = _waiting(transaction, request)
    if not held.waiting or held.sound is None:
        return Settled(None, [])
    sound = held.sound
    old, made = transaction.folder.state(sound), sound.details["files"]

    def write(folder: Path) -> None:
        for name in made:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(old / name, folder / name)

    def check(folder: Path) -> None:
        if digest_folder(folder) != made:
            raise BrokenArtefact(f"'{old}' is not as it was written; `ssse verify` says more. Nothing was reverted.")

    _refuse_damaged(transaction, held)
    transaction.folder.check_space(files.size_of(old))
    transaction.begin()
    details = {
        "requests": held.requests,
        "entries": [entry.seq for entry in held.waiting],
        "back_to": sound.seq,
        "refused": _refused_meanwhile(transaction, held),
        **named,
    }
    return Settled(transaction.advance("reverted", None, details, write, check=check), held.requests)


def _named(who: str | None) -> dict[str, str]:
    return {} if check_who(who) is None else {"who": str(who)}


def _refused_meanwhile(transaction: Transaction, held: Holdings) -> list[str]:
    """Requests of which nothing was left because of those that wait: going back, their samples are in the model again.

    Only who asked can ask once more; the entry and the command name them.
    """
    found: list[str] = []
    for entry in transaction.ledger.newest("refused"):
        if entry.seq < held.waiting[0].seq:
            break
        history = transaction.ledger.of_request(entry.request or "")
        received = next((one for one in reversed(history) if one.kind == "received"), None)
        if history[-1].seq == entry.seq and received is not None and nothing_was_left(history):
            found += [entry.request or ""] if set(held.requests).intersection(received.details["already"]) else []
    return found[::-1]


def _waiting(transaction: Transaction, request: str | None) -> Holdings:
    held = read_holdings(transaction.ledger)
    if request is not None and request not in held.requests:
        others = ", ".join(f"'{name}'" for name in held.requests[:5])
        others += " does" if len(held.requests) == 1 else " do"
        raise InvalidSetting(
            f"Request '{request}' does not wait for confirmation; {others if held.requests else 'none does'}."
        )
    return held


def _refuse_damaged(transaction: Transaction, held: Holdings) -> None:
    """Before one of the two states goes, both are as they were written."""
    for entry in (held.current, held.sound):
        if entry is None:
            continue
        expected = {f"states/{state_name(entry)}/{name}": d for name, d in entry.details["files"].items()}
        for name in Seal(expected).altered(transaction.folder.path):
            raise BrokenArtefact(
                f"'{transaction.folder.path / name}' is not as it was written; `ssse verify` says more. Restore a "
                "backup first."
            )
