"""Anchors: where the heads of the ledger go, so that not only the folder knows them. Nothing here imports torch.

A file elsewhere, to which each head is appended; a command, which gets it on its standard input. A head goes there
after the command that made it is done and sealed. What a kill prevented, the next command does; a head that was written
in part is completed, for the same head is always the same bytes.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssse.errors import Damaged, InvalidData, InvalidSetting, NotPublished
from ssse.system import files
from ssse.workspace import settings as toml
from ssse.workspace.proof.checkpoint import LONGEST_FILE, LONGEST_LINE, MOST_LINES, Checkpoint, parse_all
from ssse.workspace.proof.keys import PASSPHRASE
from ssse.workspace.record.heads import Heads, head_at
from ssse.workspace.record.ledger import Ledger
from ssse.workspace.record.signing import outside
from ssse.workspace.settings import Settings

LIMIT = 60.0  # seconds for a command
OPTIONS = ("record.anchor", "record.anchor_command")  # of which one call may have its own
REPEAT = (
    "What was asked for is done and in the ledger; any further command, also the same one again, publishes the head."
)


@dataclass(frozen=True)
class Anchors:
    """`file`: appended to; `name`: as the settings have it. `command`: run without a shell. Either may be missing."""

    file: Path | None = None
    name: str | None = None
    command: str | None = None

    @classmethod
    def of(
        cls, folder: Path, settings: Settings, recorded: str | None, options: Mapping[str, Any] | None = None
    ) -> Anchors:
        """`recorded`: the command that `init` was given. `options`: of this one call, by "section.key".

        Raises:
            InvalidSetting: the file lies in the workspace; or the command is neither from `init` nor of this call.
        """
        own = {key: value for key, value in (options or {}).items() if key in OPTIONS}
        chosen = settings.with_options(own).record
        if chosen.anchor_command is not None:
            _check_command(chosen.anchor_command, recorded, own.get("record.anchor_command"))
        file = None if chosen.anchor is None else outside(folder, chosen.anchor, "record.anchor")
        return cls(file, chosen.anchor, chosen.anchor_command)

    def __bool__(self) -> bool:
        return self.file is not None or self.command is not None

    @property
    def places(self) -> list[str]:
        """Their names in the seal; another file or command is another place, where nothing was published yet."""
        return [f"{kind}={what}" for kind, what in (("file", self.name), ("command", self.command)) if what is not None]

    def check_new(self) -> None:
        """Of a workspace that is about to be made.

        Raises:
            InvalidSetting: the file holds the heads of another one.
        """
        if self.file is not None and files.size(self.file):
            raise InvalidSetting(f"'{self.file}' is not empty: each workspace needs an anchor of its own.")

    def check(self, ledger: Ledger, published: Mapping[str, int]) -> None:
        """Before anything is changed: that the ledger continues every head that was published.

        Raises:
            Damaged: it does not: it was rolled back, or written anew. OSError: the file cannot be read.
            InvalidSetting: the ledger has no heads yet, and the file is not empty.
        """
        if not ledger.has_leaves:
            self.check_new()
        if not self or not ledger.has_leaves:
            return
        if self.file is not None:
            there = read_heads(self.file).heads if self.file.exists() else []
            if not there and (known := published.get(f"file={self.name}", 0)):
                raise OSError(
                    f"The anchor '{self.file}' held the heads up to entry {known}, and is gone. Bring it back; or name "
                    "another file with `ssse upgrade --anchor`."
                )
            if contradiction := _last_contradicts(ledger, there):
                raise Damaged(f"'{self.file}' {contradiction} Nothing was changed.")
        if self.command is not None and published.get(f"command={self.command}", 0) > ledger.frontier.size:
            raise Damaged("The ledger is shorter than the seal says that it was published: it was rolled back.")

    def publish(self, ledger: Path, published: Mapping[str, int]) -> dict[str, int]:
        """What is not there yet, and what the seal then says.

        Raises:
            NotPublished: it did not get there.
        """
        if not self:
            return {}
        with Ledger.read(ledger) as opened:
            size = opened.frontier.size
            if self.file is not None:
                try:
                    _append(self.file, opened)
                except (OSError, InvalidData) as error:
                    raise NotPublished(f"The head was not published in '{self.file}': {error}. {REPEAT}") from error
            note = head_at(opened, size).note()
        if self.command is not None and published.get(f"command={self.command}", 0) < size:
            _run(self.command, note)
        return dict.fromkeys(self.places, size)


@dataclass(frozen=True)
class HeadsFile:
    """`rest`: the beginning of one more, which was not written to its end."""

    heads: list[Checkpoint]
    rest: bytes


def read_heads(path: Path) -> HeadsFile:
    """The heads of a file, the oldest first.

    Raises:
        InvalidData: it holds something else.
    """
    if path.exists() and not path.is_file():
        raise InvalidData(f"'{path}' is not a file of heads.")
    with path.open("rb") as opened:
        content = opened.read(LONGEST_FILE + 1)
    try:
        return _parse(content)
    except InvalidData:  # which may quote a line, and the file may be anybody's
        raise InvalidData(f"'{path}' is not a file of heads as ssse writes them.") from None


def contradicts(heads: Heads, published: list[Checkpoint]) -> str:
    """What speaks against the ledger being the one whose heads were published; nothing if all is well."""
    found = (_contradicts(head, heads.at(min(head.size, heads.size)), heads.size) for head in published)
    return next((contradiction for contradiction in found if contradiction), "")


def _last_contradicts(ledger: Ledger, published: list[Checkpoint]) -> str:
    """The same of the last head, which follows from all before it."""
    if not published:
        return ""
    size, last = ledger.frontier.size, published[-1]
    return _contradicts(last, head_at(ledger, min(last.size, size)), size)


def _contradicts(published: Checkpoint, ours: Checkpoint, size: int) -> str:
    """`ours`: the ledger's head of the same size, or its newest; `size`: of the ledger."""
    if published.origin != ours.origin:
        return f"has heads of {published.origin}, and this ledger is {ours.origin}: another one, or written anew."
    if published.size > size:
        return f"has a head of {published.size} entries, and the ledger has {size}: it was rolled back or cut."
    if not published.same_tree(ours):
        return f"has another head of {published.size} entries ({published.time}) than the ledger: it was written anew."
    return ""


def _parse(content: bytes) -> HeadsFile:
    whole = content.rfind(b"\n") + 1
    if len(content) - whole > LONGEST_LINE * MOST_LINES:
        raise InvalidData("It has no lines.")
    try:
        found, rest = parse_all(content[:whole].decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidData("It is not UTF-8 text.") from None
    return HeadsFile(found, rest.encode() + content[whole:])


def _append(path: Path, ledger: Ledger) -> None:
    """Only ever at the end, in one write, so that the file may be one that its disk lets grow alone."""
    there = read_heads(path) if path.exists() else HeadsFile([], b"")
    if contradiction := _last_contradicts(ledger, there.heads):
        raise InvalidData(f"it {contradiction}")
    last = there.heads[-1].size if there.heads else 0
    due = _due(ledger, last, there.rest)
    if not due:
        return
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY, 0o644)
    try:
        if os.write(handle, due) != len(due):
            raise OSError(errno.ENOSPC, "The disk is full")
        os.fsync(handle)
    finally:
        os.close(handle)
    files.sync(path.parent)


def _due(ledger: Ledger, last: int, rest: bytes) -> bytes:
    """What is missing behind the last head: the end of one that was begun, and the newest."""
    due, newest = b"", ledger.frontier.size
    if rest:
        heads = Heads.of(ledger)
        begun = (heads.at(size) for size in range(newest, last, -1))
        begun = next((head for head in begun if head.record().encode().startswith(rest)), None)
        if begun is None:
            raise InvalidData("it ends in the middle of a head that this ledger does not have")
        due, last = begun.record().encode()[len(rest) :], begun.size
    return due + (head_at(ledger, newest).record().encode() if last < newest else b"")


def _check_command(command: str, recorded: str | None, given: Any) -> None:
    if command not in (recorded, given):
        raise InvalidSetting(
            f"record.anchor_command in {toml.FILE} is not the one that `ssse init` was given, and no other is run: "
            "`ssse upgrade --without anchor_command`, and give it with --set record.anchor_command=… to each command."
        )
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidSetting(f"record.anchor_command is no command line: {error}.") from None
    if not words or not words[0].strip() or ("/" in words[0] and not os.path.isabs(words[0])):
        raise InvalidSetting(
            f"record.anchor_command should begin with the name of a program or its absolute path, not {command[:60]!r}."
        )


def _run(command: str, note: str) -> None:
    """The operator's own program, with the head on its standard input. It has no need of the key's passphrase."""
    environment = {name: value for name, value in os.environ.items() if name != PASSPHRASE}
    with tempfile.TemporaryFile() as head, tempfile.TemporaryFile() as said:
        head.write(note.encode())
        head.seek(0)
        try:
            process = subprocess.Popen(
                shlex.split(command),
                stdin=head,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise NotPublished(f"The head was not published by `{command}`: {error}. {REPEAT}") from error
        try:
            code: int | None = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said.seek(0)
        words = said.read(1000).decode(errors="replace").strip()
    if code is None:
        raise NotPublished(f"The head was not published: `{command}` took more than {LIMIT:.0f} s. {REPEAT}")
    if code:
        raise NotPublished(
            f"The head was not published: `{command}` ended with {code} ({words or 'no word'}). {REPEAT}"
        )
