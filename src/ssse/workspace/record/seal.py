"""The seal: digests of the files that change in place, so that one altered byte anywhere in them is seen.

It is opened before the first change and closed after the last. An open seal therefore means that a command was
interrupted; the next one finishes its work first. Nothing here imports torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from ssse.errors import BrokenArtefact
from ssse.system.digests import digest_file, digest_json
from ssse.system.files import behind_link, write_atomically
from ssse.workspace.record import database, pages

FILE = "seal.json"


@dataclass(frozen=True)
class Seal:
    """What the files are like at rest.

    Attributes:
        files: digests by name. command: what is under way; None when closed.
        stamp: size and time of change of the ledger's file. While they are the same a command trusts it; `ssse verify`
            never does.
    """

    files: dict[str, str]
    command: str | None = None
    stamp: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Seal:
        path = folder / FILE
        if not path.is_file():
            raise BrokenArtefact(f"'{path}' is missing; is '{folder}' a workspace that `ssse init` made?")
        if path.is_symlink():
            raise BrokenArtefact(f"'{path}' is a symbolic link, which no command of ssse made.")
        try:
            found = json.loads(path.read_bytes())
            seal = cls(dict(found["files"]), found["command"], list(found["stamp"]))
            if path.read_bytes() != seal._body():
                raise BrokenArtefact(f"'{path}' was altered: it does not match its own digest.")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise BrokenArtefact(f"'{path}' was altered: it is not a seal any more.") from None
        return seal

    def write(self, folder: Path) -> None:
        write_atomically(folder / FILE, self._body())

    def with_files(self, other: Seal) -> Seal:
        return replace(self, files={**self.files, **other.files})

    def stamped(self, folder: Path) -> Seal:
        return replace(self, stamp=stamp(folder / database.FILE))

    def opened(self, command: str) -> Seal:
        return replace(self, command=command)

    def altered(self, folder: Path) -> list[str]:
        """Files that are not as they were sealed, are gone, or lie elsewhere."""
        return [
            name
            for name, digest in self.files.items()
            if not (folder / name).is_file() or behind_link(folder, name) or digest_of(folder / name) != digest
        ]

    def _body(self) -> bytes:
        plain = {"files": self.files, "command": self.command, "stamp": self.stamp}
        digest = digest_json(plain)
        whole = {**plain, "digest": digest}
        return json.dumps(whole, sort_keys=True, ensure_ascii=False, indent=1).encode() + b"\n"


def seal_files(folder: Path, names: tuple[str, ...]) -> Seal:
    """A closed seal over those of the files that are there."""
    found = Seal({name: digest_of(folder / name) for name in names if (folder / name).is_file()})
    return found.stamped(folder) if database.FILE in found.files else found


def digest_of(path: Path) -> str:
    return pages.sum_of(path) if path.name == database.FILE else digest_file(path)


def stamp(path: Path) -> list[int]:
    """[] where there is no such file, which no seal holds."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return []
    return [found.st_size, found.st_mtime_ns]
