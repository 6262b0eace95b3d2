"""The workspace from Python: each method is one command of the command line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssse.errors import InvalidSetting
from ssse.workspace import settings as toml
from ssse.workspace.commands.log import read_log
from ssse.workspace.commands.verify import verify
from ssse.workspace.record.answers import Answer
from ssse.workspace.record.folder import Folder
from ssse.workspace.record.ledger import Entry
from ssse.workspace.record.transaction import Transaction, open_transaction
from ssse.workspace.results import Calibrated, CommandResult, Erased, Evaluated, Fitted, Log, Reported, Verification
from ssse.workspace.settings import Settings

Options = Mapping[str, Any]
PathLike = str | os.PathLike[str]


def _silent(_: str) -> None:
    """Nobody is listening."""


class Workspace:
    """A folder with a model, its curvature, and a ledger of every deletion request.

        workspace = Workspace.init("ws", {"model.factory": ..., "data.train": ...}, "w.safetensors").workspace
        workspace.fit()
        workspace.erase("2026-001", forget="forget.npz")

    Each command returns what it did as a `CommandResult`; its `to_dict()` is what the command line prints with --json.
    `options` are settings for this one call, by "section.key"; all others come from `ssse.toml`.
    """

    def __init__(
        self, path: PathLike, *, wait: bool = True, progress: bool = False, say: Callable[[str], None] = _silent
    ):
        """`wait`: for another process that is at work here, instead of raising Busy. `say`: hears what is going on."""
        self.folder: Folder = Folder(Path(path))
        self.wait: bool = wait
        self.progress: bool = progress
        self.say: Callable[[str], None] = say

    @classmethod
    def init(cls, path: PathLike, settings: Settings | Options, weights: PathLike) -> Created:
        """Check model, weights, loss and data; write the folder, whole or not at all.

        `settings`: by "section.key"; their paths are relative to the workspace.
        """
        from ssse.workspace.commands.create import create

        chosen = settings if isinstance(settings, Settings) else toml.from_options(settings)
        entry, seen = create(Path(path), chosen, Path(weights))
        return Created(cls(path), entry, seen)

    def fit(self, options: Options | None = None, *, again: bool = False, when_needed: bool = False) -> Fitted:
        """The curvature; where it is there already, only `again`; `when_needed`: if that spares requests one."""
        from ssse.workspace.commands.fit import fit

        with self._transaction("fit") as transaction:
            settings = transaction.settings.with_options(options or {})
            return fit(transaction, settings, self.say, again=again, progress=self.progress, when_needed=when_needed)

    def calibrate(
        self,
        *,
        forget: PathLike | None = None,
        ids: Sequence[str] | None = None,
        retrained: PathLike | None = None,
        held_out: PathLike | None = None,
        options: Options | None = None,
    ) -> Calibrated:
        """Choose ε, and λ beside it, on samples like those of the requests to come. Nothing is erased."""
        from ssse.workspace.commands.calibrate import calibrate

        with self._transaction("calibrate") as transaction:
            return calibrate(
                transaction,
                transaction.settings.with_options(options or {}),
                _text(forget),
                ids,
                retrained=None if retrained is None else Path(retrained),
                held_out=_text(held_out),
                progress=self.progress,
            )

    def erase(
        self,
        request: str,
        *,
        forget: PathLike | None = None,
        ids: Sequence[str] | None = None,
        options: Options | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> Erased:
        """Answer one deletion request: erase its samples, or refuse it with the reason.

        `force`: also by a step that cannot be right, which is refused otherwise; the entry says so.
        """
        from ssse.workspace.commands.stream import answer

        with self._transaction("erase") as transaction:
            settings = transaction.settings.with_options(options or {})
            return answer(
                transaction,
                settings,
                request,
                _text(forget),
                ids,
                dry_run=dry_run,
                force=force,
                progress=self.progress,
                say=self.say,
            )

    def inbox(
        self, folder: PathLike, *, every: float | None = None, stop: threading.Event | None = None
    ) -> Iterator[Answer]:
        """Answer the request files of a folder, one at a time, and write an answer beside each.

        `every`: look again after so many seconds, until `stop` is set; None: what is there, once.
        """
        from ssse.workspace.commands.inbox import Inbox

        def erase(request: str, ids: list[str]) -> Erased:
            return self.erase(request, ids=ids)

        box = Inbox(Path(folder), self.folder, erase, self.say, stop or threading.Event())
        yield from box.answers(every)

    def evaluate(
        self,
        *,
        test: PathLike | None = None,
        retrained: Sequence[PathLike] = (),
        original: PathLike | None = None,
        forget: PathLike | None = None,
        requests: Sequence[str] = (),
        options: Options | None = None,
    ) -> Evaluated:
        """Measure the current model against the original and retrained ones; the table goes into the ledger."""
        from ssse.workspace.commands.evaluate import evaluate

        for name, given in (("requests", requests), ("retrained", retrained)):
            if isinstance(given, str):
                raise InvalidSetting(f"{name} is a list, not the text {given!r}.")
        with self._transaction("evaluate") as transaction:
            return evaluate(
                transaction,
                transaction.settings.with_options(options or {}),
                test=_text(test),
                retrained=[Path(path) for path in retrained],
                original=None if original is None else Path(original),
                forget=_text(forget),
                requests=requests,
                progress=self.progress,
            )

    def report(self, output: PathLike | None = None) -> Reported:
        """Check the workspace and write one self-contained page about it: into it, or elsewhere."""
        from ssse.workspace.commands.report import report

        path = None if output is None else Path(output)
        return report(self.folder, path, wait=self.wait, waiting=self._waiting)

    def log(self, request: str | None = None) -> Log:
        """The ledger, or what belongs to one request; also while another command is at work."""
        return read_log(self.folder, request)

    def verify(self, head: str | None = None) -> Verification:
        """Check every byte of ledger, weights and curvature. `head`: a hash noted earlier that must still be there."""
        return verify(self.folder, head=head, wait=self.wait, waiting=self._waiting)

    def settings(self) -> Settings:
        self.folder.check()
        return toml.read(self.folder.path / toml.FILE)

    @contextmanager
    def _transaction(self, command: str) -> Iterator[Transaction]:
        with open_transaction(self.folder, command, wait=self.wait, waiting=self._waiting) as transaction:
            yield transaction

    def _waiting(self) -> None:
        self.say(f"Another ssse command is at work in '{self.folder.path}'; waiting for it.")


@dataclass(frozen=True)
class Created(CommandResult):
    """`seen`: what was learned of model and data while checking that they fit together."""

    workspace: Workspace
    entry: Entry
    seen: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"workspace": str(self.workspace.folder.path), **self.seen}


def _text(path: PathLike | None) -> str | None:
    return None if path is None else os.fspath(path)
