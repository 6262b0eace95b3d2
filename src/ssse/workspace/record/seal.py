"""The seal: digests of the files that change in place, so that one altered byte anywhere in them is seen.

It is opened before the first change and closed after the last. An open seal therefore means that a command was
interrupted; the next one finishes its work first. Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ssse.errors import BrokenArtefact
from ssse.system.digests import digest_file, digest_json
from ssse.system.files import behind_link, write_atomically
from ssse.workspace.record import database
from ssse.workspace.record.page_sum import sum_of_pages

FILE = "seal.json"
# Every digest is the SHA-256 of the whole file. In form 1 the ledger's was a sum over its pages; form 2 did not say
# which heads were published.
FORM = 3
FIELDS = {
    1: {"files", "command", "stamp"},
    2: {"files", "command", "form"},
    FORM: {"files", "command", "form", "published"},
}


@dataclass(frozen=True)
class Seal:
    """What the files are like at rest.

    Attributes:
        files: digests by name. command: what is under way; None when closed.
        form: how the digests are computed. Seals of earlier forms are read, and never written.
        published: where heads go (`record/anchors.py`), and of how many entries the last one was that went there.
    """

    files: dict[str, str]
    command: str | None = None
    form: int = FORM
    published: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Seal:
        path = folder / FILE
        if not path.is_file():
            raise BrokenArtefact(f"'{path}' is missing; is '{folder}' a workspace that `ssse init` made?")
        if path.is_symlink():
            raise BrokenArtefact(f"'{path}' is a symbolic link, which no command of ssse made.")
        content = path.read_bytes()
        try:
            body = json.loads(content)
            del body["digest"]
            whole = content == _with_digest(body)
            form = body.get("form", 1)
            seal = cls(dict(body["files"]), body["command"], form, dict(body.get("published", {})))
            known = FIELDS.get(form)
            numbers = all(isinstance(size, int) for size in seal.published.values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise BrokenArtefact(f"'{path}' was altered: it is not a seal any more.") from None
        if not whole:
            raise BrokenArtefact(f"'{path}' was altered: it does not match its own digest.")
        if known is None:
            raise BrokenArtefact(
                f"'{path}' has the form {str(form)[:20]}, and this version of ssse knows forms up to {FORM}: use the "
                "version that wrote it."
            )
        if set(body) != known or not numbers:
            raise BrokenArtefact(f"'{path}' was altered: it is not a seal any more.")
        return seal

    def write(self, folder: Path) -> None:
        assert self.form == FORM
        body = {"files": self.files, "command": self.command, "form": self.form, "published": self.published}
        write_atomically(folder / FILE, _with_digest(body), private=True)

    def with_files(self, other: Seal) -> Seal:
        return replace(self, files={**self.files, **other.files})

    def opened(self, command: str) -> Seal:
        return replace(self, command=command)

    def in_todays_form(self, folder: Path) -> Seal:
        """For who has checked the ledger by the seal as it is, or has read it whole after a kill."""
        if self.form == FORM:
            return self
        sealed = self.form == 1 and database.FILE in self.files
        ledger = {database.FILE: digest_file(folder / database.FILE)} if sealed else {}
        return replace(self, files={**self.files, **ledger}, form=FORM)

    def fits(self, folder: Path, name: str) -> bool:
        """Whether the file is there, in its own place, and as it was sealed."""
        path = folder / name
        return (
            name in self.files
            and path.is_file()
            and not behind_link(folder, name)
            and self._digest(path) == self.files[name]
        )

    def altered(self, folder: Path) -> list[str]:
        """Files that are not as they were sealed, are gone, or lie elsewhere."""
        return [name for name in self.files if not self.fits(folder, name)]

    def _digest(self, path: Path) -> str:
        return sum_of_pages(path) if self.form == 1 and path.name == database.FILE else digest_file(path)


def seal_files(folder: Path, names: tuple[str, ...]) -> Seal:
    """A closed seal over those of the files that are there."""
    return Seal({name: digest_file(folder / name) for name in names if (folder / name).is_file()})


def _with_digest(body: Mapping[str, Any]) -> bytes:
    whole = {**body, "digest": digest_json(body)}
    return json.dumps(whole, sort_keys=True, ensure_ascii=False, indent=1).encode() + b"\n"
