"""What a key and an anchor say of a ledger that is whole in itself; and what an old one lacks. Reads only, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ssse.errors import InvalidSetting
from ssse.workspace.proof.checkpoint import Checkpoint
from ssse.workspace.proof.keys import PublicKey, signer_of
from ssse.workspace.record.anchors import contradicts, read_heads
from ssse.workspace.record.entry import Entry
from ssse.workspace.record.heads import Heads

NO_LEAVES = (
    "It was made by an earlier version and has no leaves: nothing can be proved of single entries, nothing signed or "
    "anchored. `ssse upgrade` makes them."
)
OWN_KEY = (
    "The signatures are those of the key that the ledger itself names, which proves nothing against somebody who can "
    "write the ledger. `ssse verify --key PUB` checks them with your own copy of the public key."
)


@dataclass
class Vouching:
    """`keys`: the public ones that signatures must be of, from behind the entry `unsigned_until` on. `anchor`: the name
    of a file; `published`: its heads.
    """

    keys: Sequence[PublicKey] = ()
    unsigned_until: int = 0
    anchor: str | None = None
    published: list[Checkpoint] = field(default_factory=list)
    torn: bool = False

    @classmethod
    def read(cls, keys: Sequence[Path], anchor: Path | None, unsigned_until: int = 0) -> Vouching:
        """Before the workspace is looked at.

        Raises:
            InvalidSetting, InvalidData: a file is not what it should be.
        """
        if unsigned_until < 0 or (unsigned_until and not keys):
            raise InvalidSetting("Up to which entry none is signed is a number, and goes with the key of the others.")
        read = [PublicKey.read(path) for path in keys]
        if anchor is None:
            return cls(read, unsigned_until)
        if not anchor.exists():
            raise InvalidSetting(f"There is no file of heads '{anchor}'.")
        found = read_heads(anchor)
        if not found.heads:
            raise InvalidSetting(f"'{anchor}' holds no head.")
        return cls(read, unsigned_until, str(anchor), found.heads, bool(found.rest))

    @property
    def wanted(self) -> bool:
        return bool(self.keys) or self.anchor is not None

    def damages(self, heads: Heads | None) -> list[str]:
        """What the keys and the anchor say against the ledger; without a key, what it says against itself."""
        if heads is None:
            return ["has no leaves, so that no key and no anchor can vouch for it"] if self.wanted else []
        return [*self._signatures(heads), *self._anchor(heads)]

    def _signatures(self, heads: Heads) -> list[str]:
        bad = next(heads.badly_signed(), None)
        if not self.keys:
            return [] if bad is None else [f"entry {bad} is not signed by the key that the ledger names"]
        if not any(heads.signatures):
            return ["has no signature at all"]
        if (unsigned := heads.unsigned) > self.unsigned_until:
            return [
                f"entry {self.unsigned_until + 1} is not signed; {unsigned} come before the first that is. If you know "
                "that signing began later, say after which entry: --unsigned-until N"
            ]
        # An old key that somebody has by now signs nothing that comes after it: the one in force does, of those given.
        in_force = {size: key for size, key in enumerate(heads.keys, start=1) if size > unsigned}
        strange = next((size for size, key in in_force.items() if key not in self.keys), None)
        if wrong := [size for size in (bad, strange) if size is not None]:
            return [f"entry {min(wrong)} is not signed by the key that was given"]
        idle = next((key for key in self.keys if key not in in_force.values()), None)
        if idle is not None:
            return [
                f"the key {idle.fingerprint[:12]}…, which was given, signed nothing in it: it was written anew, or the "
                "key is not of this workspace"
            ]
        return []

    def _anchor(self, heads: Heads) -> list[str]:
        if self.anchor is None:
            return []
        if contradiction := contradicts(heads, self.published):
            return [f"is not what was published: '{self.anchor}' {contradiction.rstrip('.')}"]
        if self.keys:
            due = [head for head in self.published if head.size > self.unsigned_until]
            unsigned = next((head for head in due if signer_of(head, [heads.keys[head.size - 1]]) is None), None)
            if unsigned is not None:
                return [f"'{self.anchor}' has a head of {unsigned.size} entries without a signature of the key given"]
        return []

    def notes(self, heads: Heads | None) -> list[str]:
        found = []
        if heads is None:
            found.append(NO_LEAVES)
        elif not self.keys and any(heads.signatures):
            found.append(OWN_KEY)
        elif self.keys and (first := heads.unsigned):
            found.append(
                f"The first {first:,} entries were not signed when they were made: the key vouches for them only as "
                f"they were when entry {first + 1:,} came."
            )
        if heads is not None and self.published and (missing := heads.size - self.published[-1].size):
            what = "newest entry is" if missing == 1 else f"{missing:,} newest entries are"
            found.append(
                f"The {what} not in '{self.anchor}': nobody there knows of {'it' if missing == 1 else 'them'}."
            )
        if self.torn:
            found.append(f"The last head in '{self.anchor}' was not written to its end; the next command completes it.")
        return found


def times_that_run_backwards(entries: Sequence[Entry]) -> list[str]:
    """A clock may have been set; so it is noted, and no damage."""
    back = [after for before, after in pairwise(entries) if after.time < before.time]
    if not back:
        return []
    more = f" ({len(back) - 1} more such.)" if len(back) > 1 else ""
    return [f"Times run backwards: entry {back[0].seq} is of {back[0].time}, earlier than the one before it.{more}"]
