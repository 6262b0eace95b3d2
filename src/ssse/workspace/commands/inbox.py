"""`ssse inbox`: request files of a folder, answered one at a time, each with an answer beside it.

The ledger is the truth. Before a request is carried out a claim says how far the ledger was; the answer is read off
what the ledger has since then. So who is killed anywhere in between writes, when started again, the answer of the first
outcome: nothing is done twice, and nothing that was done is said to be a repetition. What the killed process left in
the workspace is finished before that answer: "erased" is not said while the old model is still there.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ssse.errors import InvalidRequest, InvalidSetting
from ssse.system.digests import digest_bytes
from ssse.system.lock import locked
from ssse.workspace.commands.request_files import LARGEST, Parsed, Unreadable, read_request
from ssse.workspace.record.answers import (
    ANSWER,
    BEFORE,
    NOTHING_LEFT,
    REVERTED,
    Answer,
    answer_to,
    claim_on,
    digest_of_ids,
    outcome_of,
    read_beside,
    vouched,
    write_beside,
)
from ssse.workspace.record.entry import Entry
from ssse.workspace.record.folder import Folder
from ssse.workspace.record.holdings import nothing_was_left, read_holdings
from ssse.workspace.record.published import published
from ssse.workspace.results import Erased

KINDS = (".json", ".csv")
SETTLED = 5.0  # seconds that a file is left alone before it is called unreadable: somebody may still be writing it
LONGEST_NAME = 200  # bytes: the answer's name is longer, and file systems end at 255
# What can be wrong with one file or with what lies beside it, and not with the machine.
OF_ONE_FILE = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ELOOP}

Say = Callable[[str], None]


class Stop(Protocol):
    """`threading.Event` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float, /) -> bool: ...


@dataclass
class Inbox:
    """A folder of request files.

    Attributes:
        folder: of the request files. workspace: whose ledger has what was done. erase: carries one request out: its
            id, those of its samples, and the day by which it is due.
        finish: what a killed command left in the workspace is finished.
        say: hears of files that cannot be answered. stop: ends the loop after the request at hand.
        settled: seconds, as `SETTLED`.
    """

    folder: Path
    workspace: Folder
    erase: Callable[[str, list[str], str | None], Erased]
    finish: Callable[[], None]
    say: Say
    stop: Stop
    settled: float = SETTLED
    _seen: dict[str, tuple[Any, float]] = field(default_factory=dict)  # when a file was first found as it is
    _said: set[str] = field(default_factory=set)

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
        for path in pending(self.folder, self._say_once):
            if self.stop.is_set():
                return False
            try:
                answer, waits = self._looked_at(path)
            except _LeftAlone as error:
                self._say_once(str(error))
                continue
            waiting |= waits
            if answer is not None:
                yield answer
        return waiting

    def _looked_at(self, path: Path) -> tuple[Answer | None, bool]:
        """The answer that was written, where there was one to write; and whether it may still be being written."""
        try:
            with self._touching(path):
                content, settled = self._read(path)
        except FileNotFoundError:
            return None, False  # somebody took it back
        digest, given = digest_bytes(content), read_beside(answer_to(path))
        try:
            asked = read_request(path.name, content)
        except Unreadable as error:
            asked = str(error)
        if given is not None and given.get("file_digest") == digest:
            waited = asked if given.get("held") and isinstance(asked, Parsed) else None
            answer = None if waited is None else self._settled(path, digest, waited, given)
        elif not settled and (isinstance(asked, str) or path.suffix.lower() == ".csv"):
            return None, True  # a part of a JSON text is none; a part of a table is one
        else:
            answer = self._answer(path, digest, asked, given)
        with self._touching(path):
            if answer is not None:
                write_beside(answer_to(path), answer.to_dict())
            claim_on(path).unlink(missing_ok=True)  # also where somebody was killed after the answer
        return answer, False

    @contextmanager
    def _touching(self, path: Path) -> Iterator[None]:
        """What is wrong with one file, or with what lies beside it, does not stop the others; a full disk does."""
        try:
            yield
        except OSError as error:
            if error.errno not in OF_ONE_FILE or not os.access(self.folder, os.R_OK | os.W_OK | os.X_OK):
                raise
            where = Path(os.fsdecode(error.filename2 or error.filename or path)).name
            raise _LeftAlone(
                f"{path.name!r} is left alone: {where!r} cannot be read or written ({error.strerror}). Remove what is "
                "in the way, or change its mode."
            ) from error

    def _say_once(self, text: str) -> None:
        """And not in every round."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

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
        told, before = self._told(asked, began)
        if told is None and not before:
            try:
                before = self.erase(asked.request, asked.ids, asked.due).outcome == "repeated"
            except InvalidRequest as error:  # all other errors are of the workspace or the machine, and end the inbox
                return Answer(path.name, digest, asked.request, "refused", error.answer, notes=asked.notes)
            told, _ = self._told(asked, began)
        elif told is not None:
            self.finish()
        if before or told is None:
            return Answer(path.name, digest, asked.request, "repeated", BEFORE, notes=asked.notes)
        return self._filled(path, digest, asked, told)

    def _claim(self, path: Path, digest: str, request: str) -> int:
        """How far the ledger was when this file was begun with: now, or before a kill."""
        with self.workspace.read() as ledger:
            salt, last = ledger.salt, ledger.last()
        found = read_beside(claim_on(path)) or {}
        seq = found.get("seq")
        if isinstance(seq, int) and found.get("by") == vouched(path, digest, seq, salt):
            return seq
        seq = 0 if last is None else last.seq
        body = {"file_digest": digest, "request": request, "seq": seq, "by": vouched(path, digest, seq, salt)}
        with self._touching(path):
            write_beside(claim_on(path), body)
        return seq

    def _told(self, asked: Parsed, after: int) -> tuple[Entry | None, bool]:
        """What the ledger has of the request since an entry; and whether its id is taken by what came before."""
        with self.workspace.read() as ledger:
            history = ledger.of_request(asked.request) if asked.request.isprintable() else []
            told = outcome_of(history, digest_of_ids(asked.ids, ledger.salt), after)
            taken = bool(history) and history[-1].kind == "sealed"
            return told, told is None and (taken or asked.request in read_holdings(ledger).requests)

    def _settled(self, path: Path, digest: str, asked: Parsed, given: dict[str, Any]) -> Answer | None:
        """The answer anew, where it said that the request waits and somebody has confirmed or reverted it since."""
        with self.workspace.read() as ledger:
            history = ledger.of_request(asked.request) if asked.request.isprintable() else []
            told = outcome_of(history, digest_of_ids(asked.ids, ledger.salt), time=str(given.get("time")))
            if told is None or told.seq in {entry.seq for entry in read_holdings(ledger).waiting}:
                return None
        return self._filled(path, digest, asked, told)

    def _filled(self, path: Path, digest: str, asked: Parsed, told: Entry) -> Answer:
        """With what the ledger has of the request."""
        with self.workspace.read() as ledger:
            last, undone = ledger.last(), told.seq in ledger.reverted()
            waits = told.seq in {entry.seq for entry in read_holdings(ledger).waiting}
            history = [entry for entry in ledger.of_request(asked.request) if entry.seq <= told.seq]
        head, details = last.hash if last else None, published(told)["details"]
        about: dict[str, Any] = {"head": head, "notes": asked.notes}
        if undone:
            return Answer(path.name, digest, asked.request, "reverted", REVERTED, **about)
        about |= {"verdict": details.get("verdict"), "time": told.time}
        if told.kind == "refused":
            reason = NOTHING_LEFT if nothing_was_left(history) else details.get("reason", "")
            return Answer(path.name, digest, asked.request, "refused", reason, **about)
        return Answer(path.name, digest, asked.request, "erased", samples=details.get("k"), held=waits, **about)


class _LeftAlone(Exception):
    """One file cannot be read, or nothing can be written beside it."""


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
                say(f"{name[:40]!r}… is left alone: its name is too long for an answer beside it. Rename it.")
                continue
            try:
                seen = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(seen.st_mode):
                found.append((seen.st_mtime_ns, os.fsencode(name), folder / name))
    return [path for *_, path in sorted(found)]
