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
        """Only as far as there are leaves: another process may be appending."""
        pairs = list(ledger.leaves())
        entries = list(ledger.entries())[: len(pairs)]
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
            if entry.kind in NAMES_KEY and "public_key" in entry.details:
                text = entry.details["public_key"]
                try:
                    now = None if text is None else PublicKey.from_text(text)
                except (InvalidData, AttributeError, TypeError) as error:
                    raise BrokenArtefact(f"The ledger is damaged: entry {entry.seq} names no key ({error}).") from None
            found.append(now)
        return found

    def at(self, size: int) -> Checkpoint:
        """The head when there were so many entries, with its signature."""
        last, key = self.entries[size - 1], self.keys[size - 1]
        head = Checkpoint(self.origin, size, self.roots[size - 1], last.hash, last.time)
        signature = self.signature(size)
        return head if key is None or signature is None else head.signed(key.signature(self.origin, signature))

    def signature(self, size: int) -> bytes | None:
        text = self.signatures[size - 1]
        try:
            return None if text is None else decoded(text, SIGNED, "A signature")
        except (InvalidData, AttributeError, TypeError):
            return b""  # which no key made

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

    def not_signed_by(self, keys: Sequence[PublicKey]) -> Iterator[int]:
        """From the first signed entry on, those without a signature of these keys; where none is signed, the newest."""
        first = next((size for size in range(1, self.size + 1) if self.signatures[size - 1] is not None), self.size)
        for size in range(first, self.size + 1):
            signature, text = self.signature(size), self.at(size).text().encode()
            if signature is None or not any(key.signed(text, signature) for key in keys):
                yield size
