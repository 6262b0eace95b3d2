"""Which states are there, and why: the current one, what the settings keep of older ones, and the last one that was
known to be sound, while requests wait for somebody to confirm them. The ledger alone says so; nothing imports torch.

An erasure that nothing vouches for is *held*: its entry says so, no entry "sealed" follows, and the state from before
it stays. Requests that come meanwhile are held too; of the states between, none is sound, and none stays. All that
wait are settled at once: by an entry "confirmed", by an erasure whose settings wait for nobody, or by "reverted", which
brings the kept state back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ssse.errors import BrokenArtefact
from ssse.workspace.record.folder import MAKERS, MODELS, state_name
from ssse.workspace.record.ledger import Entry, Ledger

SETTLING = (*MAKERS, "confirmed", "sealed")  # kinds that say what is there
SETTLEMENTS = ("confirmed", "reverted")  # of several requests at once, and under the id of none
PARTS = ("weights", "curvature")


@dataclass(frozen=True)
class Holdings:
    """What the ledger says of the states.

    Attributes:
        current: the entry that made the current one.
        sound: the one that made the last state known to be sound, kept while requests wait; None where none does.
        waiting: the entries "erased" that nobody has confirmed yet. unsealed: those that are settled, and whose entry
            "sealed" is still to be written.
        files: all that should be in states/, as "states/000005/…": digest.
    """

    current: Entry
    sound: Entry | None
    waiting: tuple[Entry, ...]
    unsealed: tuple[Entry, ...]
    files: dict[str, str]

    @property
    def requests(self) -> list[str]:
        """Those that wait."""
        return [entry.request or "" for entry in self.waiting]


def read_holdings(ledger: Ledger) -> Holdings:
    """From the newest entries, as far back as they matter: to an erasure that kept nothing of what was before it."""
    found: list[Entry] = []
    sealed: set[str | None] = set()
    try:
        for entry in ledger.newest(*SETTLING):
            found.append(entry)
            if entry.kind == "sealed":
                sealed.add(entry.request)
            elif entry.kind == "erased" and entry.request in sealed and _leaves_nothing(entry):
                break
        return holdings(reversed(found))
    except (KeyError, TypeError, AttributeError) as error:  # the whole chain was written anew, and not by us
        raise BrokenArtefact("The ledger is damaged: its entries are not as ssse writes them.") from error


def with_settlements(own: Iterable[Entry], settlements: Iterable[Entry]) -> list[Entry]:
    """All that is said of a request: its own entries, and those that confirmed or reverted one of them."""
    mine = list(own)
    places = {entry.seq for entry in mine}
    all_of_them = (one for one in settlements if one.kind in SETTLEMENTS)
    about = (one for one in all_of_them if places.intersection(one.details.get("entries") or ()))
    return sorted([*mine, *about], key=lambda entry: entry.seq)


def nothing_was_left(history: Iterable[Entry]) -> bool:
    """Of a request's entries: whether all of its samples were erased already when it was last received."""
    received = [entry.details for entry in history if entry.kind == "received"]
    return bool(received) and 0 < received[-1]["asked"] == sum(received[-1]["already"].values())


def holdings(entries: Iterable[Entry]) -> Holdings:
    """From entries in their order, the first of which began with nothing older. Other kinds are passed over."""
    kept: dict[str, dict[str, str]] = {part: {} for part in PARTS}
    current: Entry | None = None
    sound: Entry | None = None
    waiting: list[tuple[Entry, Entry | None]] = []  # with what was current before each
    unsealed: dict[str | None, Entry] = {}

    def settle(pairs: list[tuple[Entry, Entry | None]]) -> None:
        """As the settings of each say: its old state is kept, or all that is older goes."""
        for entry, before in pairs:
            for part, files in kept.items():
                if entry.details["old"][part] == "keep":
                    files |= {} if before is None else _files(before, part)
                else:
                    files.clear()
            unsealed[entry.request] = entry

    for entry in entries:
        before = current
        current = entry if entry.kind in MAKERS else current
        if entry.kind == "sealed":
            unsealed.pop(entry.request, None)
        elif entry.kind == "confirmed":
            settle(waiting)
            waiting, sound = [], None
        elif entry.kind == "reverted":
            kept = {part: _older(files, entry.details["back_to"]) for part, files in kept.items()}
            waiting, sound = [], None
        elif entry.kind == "repaired" and before is not None:
            for part, files in kept.items():  # nothing of what is older goes for it: it contains nothing less
                files |= _files(before, part) if entry.details["old"][part] == "keep" else {}
        elif entry.kind == "erased" and entry.details.get("held"):
            if sound is None:
                sound = before
            elif before is not None:
                for part, files in kept.items():
                    files |= _files(before, part) if entry.details["old"][part] == "keep" else {}
            waiting.append((entry, before))
        elif entry.kind == "erased":
            settle([*waiting, (entry, before)])
            waiting, sound = [], None
    if current is None:
        raise BrokenArtefact("The ledger is damaged: no entry made a state.")
    there = {name: digest for files in kept.values() for name, digest in files.items()}
    for entry in (current, sound):
        there |= {} if entry is None else {name: d for part in PARTS for name, d in _files(entry, part).items()}
    return Holdings(current, sound, tuple(entry for entry, _ in waiting), tuple(unsealed.values()), there)


def _files(entry: Entry, part: str) -> dict[str, str]:
    """Of the state that an entry made."""
    made = entry.details["files"].items()
    return {
        f"states/{state_name(entry)}/{name}": digest for name, digest in made if (name in MODELS) == (part == "weights")
    }


def _older(files: dict[str, str], seq: int) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if int(name.split("/")[1]) < seq}


def _leaves_nothing(entry: Entry) -> bool:
    return not entry.details.get("held") and all(entry.details["old"][part] != "keep" for part in PARTS)
