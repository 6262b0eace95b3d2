"""What lies beside a request file: the claim while it is carried out, and the answer. Nothing here imports torch.

NAME.json                 the request
.NAME.json.claim          somebody is at it; how far the ledger was when that began
NAME.json.answer.json     the answer
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssse.system import files
from ssse.system.environment import clock
from ssse.workspace.record.ledger import Entry

ANSWER = ".answer.json"
OUTCOMES = ("erased", "refused")
# One wording whichever samples the second request names: else it would tell who the first was about.
BEFORE = "This id was answered before; nothing was done."
REVERTED = (
    "It was erased and waited, and somebody went back to the model from before: its samples are in the model again. To "
    "ask once more put the request into a new file."
)
NOTHING_LEFT = "All of its samples were erased before."  # and not by whom
LARGEST = 1 << 20  # bytes of what we wrote ourselves


@dataclass(frozen=True)
class Answer:
    """What became of a request file.

    Attributes:
        file, file_digest: its name, and the SHA-256 of what was read.
        outcome: "erased", "refused", "repeated" (its id was answered before; nothing was done), "unreadable"; or
            "reverted": it was erased and waited, and somebody went back to the model from before.
        reason: why it is not erased. verdict, samples, held: of the erasure; held: it waits for `ssse confirm` or
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


def outcome_of(history: Sequence[Entry], ids: str, after: int = 0, time: str | None = None) -> Entry | None:
    """What became of a request since an entry, or at a time; None: nothing yet.

    `ids`: their digest. An outcome under the same id is of another request where that named other samples.
    """
    for place, entry in reversed(list(enumerate(history))):
        if entry.kind in OUTCOMES and entry.seq > after and time in (None, entry.time):
            received = next((one for one in reversed(history[:place]) if one.kind == "received"), None)
            if received is not None and received.details.get("ids") == ids:
                return entry
    return None


def digest_of_ids(ids: Iterable[str], salt: bytes) -> str:
    """Of samples, in any order; nobody can compute it without the salt."""
    return hmac.new(salt, json.dumps(sorted(map(str, ids))).encode(), "sha256").hexdigest()


def blinding(request: str, ids: Iterable[str], salt: bytes) -> str:
    """What hides the ids in `named_by`: a secret of its own for each request, which a receipt may tell with them."""
    body = ["named", request, sorted(map(str, ids))]
    return hmac.new(salt, json.dumps(body).encode(), "sha256").hexdigest()


def named_by(ids: Iterable[str], secret: str) -> str:
    """By which who knows ids and secret sees that a request named these, and who does not learns nothing."""
    return hmac.new(bytes.fromhex(secret), json.dumps(sorted(map(str, ids))).encode(), "sha256").hexdigest()


def vouched(path: Path, file_digest: str, seq: int, salt: bytes) -> str:
    """By which a claim on a request file is known to be ours: whoever may write into the folder has no salt."""
    return hmac.new(salt, json.dumps([path.name, file_digest, seq]).encode(), "sha256").hexdigest()


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
