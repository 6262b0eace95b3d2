"""The heads of a ledger: its tree at any length, signed where it was signed, and what they prove. Without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ssse.errors import BrokenArtefact, InvalidData, InvalidSetting
from ssse.workspace.proof import merkle
from ssse.workspace.proof.checkpoint import SIGNED, Checkpoint, decoded, origin_of
from ssse.workspace.proof.keys import PublicKey
from ssse.workspace.record.entry import Entry
from ssse.workspace.record.ledger import Ledger

NAMES_KEY = ("created", "configured")  # entries that say which key is in force from themselves on


@dataclass(frozen=True)
class Heads:
    """Of a ledger as it was read."""

    entries: Sequence[Entry]
    leaves: Sequence[str]
    signatures: Sequence[str | None]

    @classmethod
    def of(cls, ledger: Ledger) -> Heads:
        """For who has the workspace locked: entries and leaves are read one after the other."""
        pairs = list(ledger.leaves())
        entries = list(ledger.entries())
        if not pairs:
            raise InvalidSetting(
                "This workspace was made by an earlier version and has no leaves to prove anything by; `ssse upgrade` "
                "makes them."
            )
        return cls(entries, [leaf for leaf, _ in pairs], [signature for _, signature in pairs])

    @property
    def size(self) -> int:
        return len(self.leaves)

    @property
    def origin(self) -> str:
        return origin_of(self.entries[0].hash)

    @cached_property
    def hashes(self) -> list[bytes]:
        """Of the leaves."""
        return [merkle.leaf_hash(leaf.encode()) for leaf in self.leaves]

    @cached_property
    def roots(self) -> list[bytes]:
        """Of the first 1, 2, … leaves."""
        found, grown = [], merkle.Frontier()
        for leaf in self.hashes:
            grown = grown.add(leaf)
            found.append(grown.root())
        return found

    @cached_property
    def keys(self) -> list[PublicKey | None]:
        """Which one the ledger itself names, entry by entry."""
        found, now = [], None
        for entry in self.entries:
            now = key_named(entry) if entry.kind in NAMES_KEY else now
            found.append(now)
        return found

    def at(self, size: int) -> Checkpoint:
        """The head when there were so many entries, with its signature."""
        last = self.entries[size - 1]
        head = Checkpoint(self.origin, size, self.roots[size - 1], last.hash, last.time)
        return _signed(head, self.keys[size - 1], self.signature(size))

    def signature(self, size: int) -> bytes | None:
        return _signature(self.signatures[size - 1])

    def newest(self) -> Checkpoint:
        return self.at(self.size)

    def continues(self, older: Checkpoint) -> bool:
        """Whether the ledger begins with what that head is of."""
        return older.size <= self.size and self.at(older.size).same_tree(older)

    def badly_signed(self) -> Iterator[int]:
        """Entries that are not signed as the ledger itself says: by the key in force, or not at all."""
        for size, key in enumerate(self.keys, start=1):
            signature = self.signature(size)
            if key is None:
                good = signature is None
            else:
                good = signature is not None and key.signed(self.at(size).text().encode(), signature)
            if not good:
                yield size

    @property
    def unsigned(self) -> int:
        """How many entries came before the first signature."""
        return next((place for place, one in enumerate(self.signatures) if one is not None), self.size)


def head_at(ledger: Ledger, size: int) -> Checkpoint:
    """One head alone, without reading every entry."""
    last, named = ledger.entry(size), ledger.last_before(size + 1, *NAMES_KEY)
    head = Checkpoint(origin_of(ledger.entry(1).hash), size, ledger.frontier_at(size).root(), last.hash, last.time)
    return _signed(head, None if named is None else key_named(named), _signature(ledger.signature(size)))


def key_named(entry: Entry) -> PublicKey | None:
    """The key that an entry says is in force from itself on; those of earlier versions name none."""
    text = entry.details.get("public_key")
    try:
        return None if text is None else PublicKey.from_text(text)
    except (InvalidData, AttributeError, TypeError) as error:
        raise BrokenArtefact(f"The ledger is damaged: entry {entry.seq} names no key ({error}).") from None


def _signed(head: Checkpoint, key: PublicKey | None, signature: bytes | None) -> Checkpoint:
    return head if key is None or signature is None else head.signed(key.signature(head.origin, signature))


def _signature(text: str | None) -> bytes | None:
    try:
        return None if text is None else decoded(text, SIGNED, "A signature")
    except (InvalidData, AttributeError, TypeError):
        return b""  # which no key made
