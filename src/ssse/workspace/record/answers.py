"""What lies beside a request file: the claim while it is carried out, and the answer. Nothing here imports torch.

NAME.json                 the request
.NAME.json.claim          somebody is at it; how far the ledger was when that began
NAME.json.answer.json     the answer
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssse.system import files
from ssse.system.environment import clock
from ssse.workspace.record.ledger import Entry
from ssse.workspace.record.published import published

ANSWER = ".answer.json"
LARGEST = 1 << 20  # bytes of what we wrote ourselves


@dataclass(frozen=True)
class Answer:
    """What became of a request file.

    Attributes:
        file, file_digest: its name, and the SHA-256 of what was read.
        outcome: "erased", "refused", "repeated" (its id was answered before; nothing was done), "unreadable".
        reason: why it was not erased. verdict, samples, held: of the erasure; held: it waits for `ssse confirm` or
            `ssse revert`, and the model from before is kept. notes: what else is to be said of the file.
        time: of the ledger's entry, or of the answer where there is none. head: of the ledger after it.
        earlier: where the file was answered before, and changed since, that answer.
    """

    file: str
    file_digest: str
    request: str | None
    outcome: str
    reason: str = ""
    verdict: str | None = None
    samples: int | None = None
    held: bool = False
    time: str = ""
    head: str | None = None
    notes: tuple[str, ...] = ()
    earlier: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**asdict(self), "time": self.time or clock(), "notes": list(self.notes)}


def outcome_of(entries: Sequence[Entry], after: int) -> tuple[str, Mapping[str, Any]] | None:
    """What the ledger says of a request since an entry: the outcome and what may be shown of it; None: nothing yet."""
    for entry in reversed(entries):
        if entry.seq > after and entry.kind in ("erased", "refused"):
            return entry.kind, published(entry)
    return None


def read_beside(path: Path) -> dict[str, Any] | None:
    """A claim or an answer; None where there is none, or none that we wrote."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as opened:
            found = json.loads(opened.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_beside(path: Path, body: Mapping[str, Any]) -> None:
    """Whole or not at all, for the owner's eyes alone. A part that a kill left is written over."""
    temporary = path.with_name(f".{path.name.removeprefix('.')}.tmp")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as opened:
        opened.write(json.dumps(body, indent=1).encode() + b"\n")  # ASCII: names may hold bytes that are no UTF-8
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(temporary, path)
    files.sync(path.parent)


def answer_to(request_file: Path) -> Path:
    return request_file.with_name(request_file.name + ANSWER)


def claim_on(request_file: Path) -> Path:
    return request_file.with_name(f".{request_file.name}.claim")
