"""`ssse inbox`: request files of a folder, answered one at a time, each with an answer beside it.

The ledger is the truth. Before a request is carried out a claim says how far the ledger was; the answer is read off
what the ledger has since then. So who is killed anywhere in between writes, when started again, the answer of the first
outcome: nothing is done twice, and nothing that was done is said to be a repetition.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssse.errors import InvalidRequest, InvalidSetting
from ssse.system.digests import digest_bytes
from ssse.workspace.commands.request_files import LARGEST, Parsed, Unreadable, read_request
from ssse.workspace.record.answers import ANSWER, Answer, answer_to, claim_on, outcome_of, read_beside, write_beside
from ssse.workspace.record.folder import Folder
from ssse.workspace.record.lock import locked
from ssse.workspace.results import Erased

KINDS = (".json", ".csv")
SETTLED = 5.0  # seconds that a file is left alone before it is called unreadable: somebody may still be writing it
LONGEST_NAME = 200  # bytes: the answer's name is longer, and file systems end at 255

Say = Callable[[str], None]


@dataclass
class Inbox:
    """A folder of request files.

    Attributes:
        folder: of the request files. workspace: whose ledger has what was done. erase: carries one request out.
        say: hears of files that cannot be answered. stop: ends the loop after the request at hand.
        settled: seconds, as `SETTLED`.
    """

    folder: Path
    workspace: Folder
    erase: Callable[[str, list[str]], Erased]
    say: Say
    stop: threading.Event
    settled: float = SETTLED
    _seen: dict[str, tuple[Any, float]] = field(default_factory=dict)  # when a file was first found as it is

    def answers(self, every: float | None) -> Iterator[Answer]:
        """One after the other, as they are written. `every`: seconds between two looks; None: what is there, once.

        Raises:
            Busy: another process answers the requests of this folder.
        """
        if not self.folder.is_dir():
            raise InvalidSetting(f"There is no folder '{self.folder}' for request files; make it first.")
        self.workspace.check()
        if self.folder.resolve().is_relative_to(self.workspace.path.resolve()):
            raise InvalidSetting("The request files must lie outside the workspace, whose files are its own.")
        with locked(self.folder, wait=False):
            while not self.stop.is_set():
                waiting = yield from self._round()
                if every is None and not waiting:
                    return
                self.stop.wait(min(0.5, self.settled) if every is None else every)

    def _round(self) -> Iterator[Answer]:
        """All files that are there, oldest first. Returns whether one of them may still be being written."""
        waiting = False
        for path in pending(self.folder, self.say):
            if self.stop.is_set():
                return False
            try:
                content, settled = self._read(path)
            except FileNotFoundError:
                continue  # somebody took it back
            digest, given = digest_bytes(content), read_beside(answer_to(path))
            if given is not None and given.get("file_digest") == digest:
                claim_on(path).unlink(missing_ok=True)  # killed after the answer
                continue
            try:
                asked = read_request(path.name, content)
            except Unreadable as error:
                asked = str(error)
            # A part of a JSON text is none; a part of a table is one.
            if not settled and (isinstance(asked, str) or path.suffix.lower() == ".csv"):
                waiting = True
                continue
            answer = self._answer(path, digest, asked, given)
            write_beside(answer_to(path), answer.to_dict())
            claim_on(path).unlink(missing_ok=True)
            yield answer
        return waiting

    def _read(self, path: Path) -> tuple[bytes, bool]:
        """Its content, at most one byte more than is allowed; and whether it has been as it is for long enough.

        Never through a link, and never waiting for a pipe.
        """
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as opened:
            content, found = opened.read(LARGEST + 1), os.fstat(handle)
        stamp, now = (found.st_ino, found.st_size, found.st_mtime_ns), time.monotonic()
        first = self._seen.get(path.name)
        if first is None or first[0] != stamp:
            first = self._seen[path.name] = stamp, now
        return content, time.time() - found.st_mtime >= self.settled or now - first[1] >= self.settled

    def _answer(self, path: Path, digest: str, asked: Parsed | str, given: dict[str, Any] | None) -> Answer:
        """Of one file; `given`: what was said of another content under the same name."""
        if given is not None and given.get("outcome") != "unreadable":
            earlier = {name: given.get(name) for name in ("request", "outcome", "time", "file_digest")}
            reason = (
                f"This file was answered on {given.get('time')} and has changed since then. Nothing was done now: put "
                "a new request into a new file."
            )
            return Answer(path.name, digest, given.get("request"), "refused", reason, earlier=earlier)
        if isinstance(asked, str):
            return Answer(path.name, digest, None, "unreadable", asked)
        began = self._claim(path, digest, asked.request)
        reason = ""
        if self._told(asked.request, began) is None:
            try:
                erased = self.erase(asked.request, asked.ids)
            except InvalidRequest as error:  # all other errors are of the workspace or the machine, and end the inbox
                return Answer(path.name, digest, asked.request, "refused", str(error), notes=asked.notes)
            if erased.outcome == "repeated":
                return self._filled(path, digest, asked, "repeated", erased.reason, 0)
            reason = erased.reason
        return self._filled(path, digest, asked, "", reason, began)

    def _claim(self, path: Path, digest: str, request: str) -> int:
        """How far the ledger was when this file was begun with: now, or before a kill."""
        found = read_beside(claim_on(path))
        if found is not None and found.get("file_digest") == digest and isinstance(found.get("seq"), int):
            return found["seq"]
        with self.workspace.read() as ledger:
            last = ledger.last()
        seq = 0 if last is None else last.seq
        write_beside(claim_on(path), {"file_digest": digest, "request": request, "seq": seq})
        return seq

    def _told(self, request: str, after: int) -> Any:
        with self.workspace.read() as ledger:
            return outcome_of(ledger.of_request(request) if request.isprintable() else [], after)

    def _filled(self, path: Path, digest: str, asked: Parsed, outcome: str, reason: str, after: int) -> Answer:
        """With what the ledger has of the request."""
        with self.workspace.read() as ledger:
            told, last = outcome_of(ledger.of_request(asked.request), after), ledger.last()
        assert told is not None
        kind, entry = told
        details = entry["details"]
        return Answer(
            path.name,
            digest,
            asked.request,
            outcome or kind,
            details.get("reason", "") if kind == "refused" and not outcome else reason,
            details.get("verdict"),
            details.get("k") if kind == "erased" else None,
            kind == "erased" and bool(details.get("held")),
            entry["time"],
            last.hash if last else None,
            asked.notes,
        )


def pending(folder: Path, say: Say = lambda text: None) -> list[Path]:
    """Request files, the oldest first by the time of their last change, then by name.

    Links, folders, pipes, hidden and temporary names, and answers are none.
    """
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith((".", "~")) or name.endswith(ANSWER) or Path(name).suffix.lower() not in KINDS:
                continue
            if len(os.fsencode(name)) > LONGEST_NAME:
                say(f"'{name[:40]}…' is left alone: its name is too long for an answer beside it. Rename it.")
                continue
            try:
                seen = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(seen.st_mode):
                found.append((seen.st_mtime_ns, os.fsencode(name), folder / name))
    return [path for *_, path in sorted(found)]
