"""The head of a record as a signed note, which others can check by tools of theirs: C2SP tlog-checkpoint, signed-note.

    ssse/3f0c…                the origin: whose record
    12                        how many entries
    CsUYapGGPo4dkMgIA…=       the root of their Merkle tree
    head 6d1f…                the newest entry's hash in the chain
    time 2026-05-04T10:20:30+00:00

    — ssse/3f0c… az3grlgt…    four bytes of the key's id, and an Ed25519 signature of all above the empty line

What is read may come from anybody: nothing is taken that is not exactly of this form. Nothing here imports torch.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ssse.errors import InvalidData
from ssse.system.digests import digest_bytes
from ssse.workspace.proof.merkle import LENGTH

LARGEST_SIZE = 10**15 - 1
LONGEST_LINE, MOST_LINES = 1000, 32  # of one note
LONGEST_FILE = 1 << 28  # bytes of a file of heads: half a million of them
ORIGIN = re.compile(r"ssse/[0-9a-f]{32}")
HEAD = re.compile(r"head ([0-9a-f]{64})")
TIME = re.compile(r"time (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00)")
SIGNATURE = re.compile(r"— (\S+) ([A-Za-z0-9+/]+={0,2})")
KEY_ID, SIGNED = 4, 64  # bytes


def origin_of(first_hash: str) -> str:
    """Of the record whose first entry has this hash."""
    return f"ssse/{first_hash[:32]}"


@dataclass(frozen=True)
class Signature:
    """`name`: of the key. `key_id`: four bytes by which it is found among several."""

    name: str
    key_id: bytes
    value: bytes

    def line(self) -> str:
        return f"— {self.name} {encoded(self.key_id + self.value)}\n"


@dataclass(frozen=True)
class Checkpoint:
    """A head: how long a record is, and the one hash that follows from all of it. `head`, `time`: of its last entry."""

    origin: str
    size: int
    root: bytes
    head: str
    time: str
    signatures: tuple[Signature, ...] = ()

    def text(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{encoded(self.root)}\nhead {self.head}\ntime {self.time}\n"

    def note(self) -> str:
        return self.text() + "\n" + "".join(signature.line() for signature in self.signatures)

    def record(self) -> str:
        """As it stands in a file among others: an empty line ends it."""
        return self.note() + "\n"

    def signed(self, *signatures: Signature) -> Checkpoint:
        return replace(self, signatures=signatures)

    @property
    def digest(self) -> str:
        """One hash for all that is signed, short enough to be read aloud."""
        return digest_bytes(self.text())

    def same_tree(self, other: Checkpoint) -> bool:
        """Whoever signed it."""
        return self.text() == other.text()


def parse(note: str) -> Checkpoint:
    """One note.

    Raises:
        InvalidData: it is not exactly of the form that `note` writes.
    """
    found, rest = parse_all(note)
    if not found:  # by itself it needs no empty line at its end
        found, rest = parse_all(f"{note}\n")
    if len(found) != 1 or rest:
        raise InvalidData(f"One head was expected, and {len(found)} came{', with more behind it' if rest else ''}.")
    return found[0]


def parse_all(text: str) -> tuple[list[Checkpoint], str]:
    """The heads of a file, and what is behind the last whole one: what was being written when the power went."""
    if len(text) > LONGEST_FILE:
        raise InvalidData(f"A file of heads has at most {LONGEST_FILE:,} characters, not {len(text):,}.")
    found: list[Checkpoint] = []
    lines: list[str] = []
    empty = behind = place = 0
    while (end := text.find("\n", place)) >= 0:
        line, place = text[place:end], end + 1
        lines.append(line)
        if len(line) > LONGEST_LINE or len(lines) > MOST_LINES:
            raise InvalidData(f"{_which(found)} is not a head of a record: too long.")
        empty += not line
        if empty == 2:
            found.append(_parse(lines, _which(found)))
            lines, empty, behind = [], 0, place
    if len(text) - behind > LONGEST_LINE * MOST_LINES:
        raise InvalidData(f"{_which(found)} is not a head of a record: too long.")
    return found, text[behind:]


def _which(found: Sequence[Checkpoint]) -> str:
    return f"Head {len(found) + 1:,}"


def _parse(lines: list[str], which: str) -> Checkpoint:
    middle = lines.index("")
    body, signatures = lines[:middle], lines[middle + 1 : -1]
    if len(body) != 5:
        raise InvalidData(f"{which} is not a head of a record: five lines come before the empty one, not {len(body)}.")
    origin, size, root, head, time = body
    if not ORIGIN.fullmatch(origin):
        raise InvalidData(f"{which} is not of a record of ssse: its first line is {_short(origin)}.")
    if not re.fullmatch("[1-9][0-9]{0,14}", size):
        raise InvalidData(f"{which}: its size is {_short(size)}, and should be a number from 1 to {LARGEST_SIZE:,}.")
    hashed, when = HEAD.fullmatch(head), TIME.fullmatch(time)
    if hashed is None or when is None:
        raise InvalidData(f"{which}: its last entry is given by {_short(head)} and {_short(time)}.")
    return Checkpoint(
        origin,
        int(size),
        decoded(root, LENGTH, f"{which}: its root"),
        hashed[1],
        when[1],
        tuple(_signature(line, which) for line in signatures),
    )


def _signature(line: str, which: str) -> Signature:
    match = SIGNATURE.fullmatch(line)
    if match is None:
        raise InvalidData(f"{which}: {_short(line)} is not a signature.")
    value = decoded(match[2], KEY_ID + SIGNED, f"{which}: its signature")
    return Signature(match[1], value[:KEY_ID], value[KEY_ID:])


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def decoded(text: str, length: int, what: str) -> bytes:
    """Base64 in its one standard form, of so many bytes.

    Raises:
        InvalidData: it is something else.
    """
    try:
        value = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        value = b""
    if len(value) != length or encoded(value) != text:
        raise InvalidData(f"{what} should be {length} bytes in base64, and is {_short(text)}.")
    return value


def _short(text: str) -> str:
    return repr(text) if len(text) <= 60 else repr(text[:57]) + "…"
