"""The workspace from Python: each method is one command of the command line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

from ssse.errors import InvalidSetting
from ssse.system.extras import needed_for
from ssse.workspace import settings as toml
from ssse.workspace.commands.log import read_log
from ssse.workspace.commands.verify import verify
from ssse.workspace.engines.processes import Others
from ssse.workspace.record.answers import Answer
from ssse.workspace.record.folder import Folder
from ssse.workspace.record.ledger import Entry
from ssse.workspace.record.leftovers import sweep
from ssse.workspace.record.transaction import Transaction, open_transaction
from ssse.workspace.results import (
    Calibrated,
    CommandResult,
    Erased,
    Evaluated,
    Fitted,
    Log,
    Proved,
    Receipted,
    Repaired,
    Reported,
    Settled,
    Upgraded,
    Verification,
)
from ssse.workspace.settings import Settings

if TYPE_CHECKING:
    from ssse.workspace.commands.inbox import Stop

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
        if found := sweep():
            say(
                f"Shredded {found} copies of ledgers that killed commands of an earlier version left in {gettempdir()}."
            )

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
        """The curvature; where it is there already, only `again`; `when_needed`: if that spares requests one.

        Under torchrun the first process calls it, and the others `take_part`.
        """
        from ssse.workspace.commands.fit import fit

        others, say, progress = Others(), self.say, self.progress
        try:
            with self._transaction("fit", options) as transaction:
                settings = transaction.settings.with_options(options or {})
                return fit(
                    transaction, settings, say, again=again, progress=progress, when_needed=when_needed, others=others
                )
        finally:
            others.ask(None)  # where there was nothing to do

    def take_part(self) -> None:
        """In the `fit` of the first process, which alone holds the workspace and writes its ledger."""
        from ssse.workspace.commands.fit import take_part

        take_part(self.folder.path)

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

        with self._transaction("calibrate", options) as transaction:
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
        override: Collection[str] = (),
        due: str | None = None,
        by: str | None = None,
    ) -> Erased:
        """Answer one deletion request: erase its samples, or refuse it with the reason.

        `override`: bounds (`ssse.BOUNDS`) that are not to refuse the step; the entry says which it broke. `due`: the
        day by which the request is to be answered, YYYY-MM-DD. `by`: the name of who answers it; page and receipt say
        it, and nobody's name is recorded unless it is given.
        """
        from ssse.workspace.commands.stream import answer

        with self._transaction("erase", options) as transaction:
            settings = transaction.settings.with_options(options or {})
            return answer(
                transaction,
                settings,
                request,
                _text(forget),
                ids,
                dry_run=dry_run,
                override=override,
                due=due,
                who=by,
                progress=self.progress,
                say=self.say,
            )

    def confirm(self, request: str | None = None, *, by: str | None = None) -> Settled:
        """Of requests that wait: go on with the current model, and shred what was kept from before them.

        `by`: the name of who confirms, if it is to be recorded.
        """
        from ssse.workspace.commands.settle import confirm

        with self._transaction("confirm") as transaction:
            return confirm(transaction, request, by)

    def revert(self, request: str | None = None, *, by: str | None = None) -> Settled:
        """Of requests that wait: back to the model from before them. Their samples are not erased any more."""
        from ssse.workspace.commands.settle import revert

        with self._transaction("revert") as transaction:
            return revert(transaction, request, by)

    def repair(
        self,
        *,
        data: PathLike | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        seed: int = 0,
        autocast: bool = False,
        again: bool = False,
        options: Options | None = None,
    ) -> Repaired:
        """Train the current model a little further on what stays (`ssse.repair`): what large steps on networks need.

        `data`: a file of samples that stay; the training data less what was erased, if not given. It costs the
        curvature, which was of the weights before: the next request, or `fit`, takes a new one. Where the model was
        repaired since the last request, only `again`.
        """
        from ssse.workspace.commands.repair import repair

        with self._transaction("repair", options) as transaction:
            return repair(
                transaction,
                transaction.settings.with_options(options or {}),
                data=_text(data),
                again=again,
                progress=self.progress,
                epochs=epochs,
                learning_rate=learning_rate,
                batch_size=batch_size,
                weight_decay=weight_decay,
                momentum=momentum,
                seed=seed,
                autocast=autocast,
            )

    def inbox(
        self, folder: PathLike, *, every: float | None = None, stop: Stop | None = None, by: str | None = None
    ) -> Iterator[Answer]:
        """Answer the request files of a folder, one at a time, and write an answer beside each.

        `every`: look again after so many seconds, until `stop` is set; None: what is there, once. `by`: as of `erase`.
        """
        from ssse.workspace.commands.inbox import Inbox

        def erase(request: str, ids: list[str], due: str | None) -> Erased:
            return self.erase(request, ids=ids, due=due, by=by)

        def finish() -> None:
            with self._transaction("inbox"):
                pass  # opening it does

        box = Inbox(Path(folder), self.folder, erase, finish, self.say, stop or threading.Event())
        yield from box.answers(every)

    def evaluate(
        self,
        *,
        test: PathLike | None = None,
        retrained: Sequence[PathLike] = (),
        original: PathLike | None = None,
        forget: PathLike | None = None,
        requests: Sequence[str] = (),
        resurfacing: bool = False,
        options: Options | None = None,
    ) -> Evaluated:
        """Measure the current model against the original and retrained ones; the table goes into the ledger.

        `resurfacing`: also whether the erased samples come back along a harmless training on the others, of eight
        epochs for each model (`ssse.metrics.resurfacing`).
        """
        from ssse.workspace.commands.evaluate import evaluate

        for name, given in (("requests", requests), ("retrained", retrained)):
            if isinstance(given, str):
                raise InvalidSetting(f"{name} is a list, not the text {given!r}.")
        with self._transaction("evaluate", options) as transaction:
            return evaluate(
                transaction,
                transaction.settings.with_options(options or {}),
                test=_text(test),
                retrained=[Path(path) for path in retrained],
                original=None if original is None else Path(original),
                forget=_text(forget),
                requests=requests,
                resurfacing=resurfacing,
                progress=self.progress,
            )

    def report(self, output: PathLike | None = None) -> Reported:
        """Check the workspace and write one self-contained page about it: into it, or elsewhere."""
        with needed_for("The page of a workspace"):
            from ssse.workspace.commands.report import report

        path = None if output is None else Path(output)
        return report(self.folder, path, wait=self.wait, waiting=self._waiting)

    def receipt(self, request: str, output: PathLike | None = None, *, ids: Sequence[str] | None = None) -> Receipted:
        """Check the workspace and write a receipt of one request: a page, and its data beside it.

        `output`: FILE.html, with FILE.json beside it; receipt-REQUEST.html here if not given. `ids`: those that the
        request named, if they are to stand in it.
        """
        from ssse.workspace.commands.receipt import receipt

        path = None if output is None else Path(output)
        return receipt(self.folder, request, path, ids=ids, wait=self.wait, waiting=self._waiting)

    def log(self, request: str | None = None) -> Log:
        """The ledger, or what belongs to one request; also while another command is at work."""
        return read_log(self.folder, request)

    def verify(
        self,
        head: str | None = None,
        *,
        keys: Sequence[PathLike] = (),
        anchor: PathLike | None = None,
        unsigned_until: int = 0,
        recompute: str | None = None,
        forget: PathLike | None = None,
    ) -> Verification:
        """Check every byte of ledger, weights and curvature.

        `head`: a hash noted earlier that must still be there. `keys`: public keys, by which the entries must be signed;
        `unsigned_until`: but for so many at the beginning, of which you know that there was no key yet. `anchor`: a
        file of heads that were published, all of which must be heads of this ledger. `recompute`: a request whose old
        state is kept, which is carried out again and compared; `forget`: its samples, where they have left the training
        data.
        """
        found = verify(
            self.folder,
            head=head,
            keys=[Path(key) for key in keys],
            anchor=None if anchor is None else Path(anchor),
            unsigned_until=unsigned_until,
            wait=self.wait,
            waiting=self._waiting,
        )
        if recompute is None:
            if forget is not None:
                raise InvalidSetting("The samples are for --recompute REQUEST; name the request that erased them.")
            return found
        from ssse.workspace.commands.recompute import recompute as replay

        lock: dict[str, Any] = {"wait": self.wait, "waiting": self._waiting}
        return replay(self.folder, self.settings(), found, recompute, _text(forget), **lock, progress=self.progress)

    def prove(
        self,
        *,
        request: str | None = None,
        entry: int | None = None,
        since: PathLike | None = None,
        output: PathLike | None = None,
    ) -> Proved:
        """That a request's entries, or one entry, belong to the newest head; or that it continues that of a file."""
        from ssse.workspace.commands.prove import prove

        paths = [None if path is None else Path(path) for path in (since, output)]
        return prove(
            self.folder,
            request=request,
            entry=entry,
            since=paths[0],
            output=paths[1],
            wait=self.wait,
            waiting=self._waiting,
        )

    def upgrade(
        self, *, key: PathLike | None = None, anchor: PathLike | None = None, without: Sequence[str] = ()
    ) -> Upgraded:
        """Give a workspace of an earlier version what it lacks; and change who vouches for the ledger.

        `key`: the private key that signs from now on. `anchor`: the file to which the heads go from now on. `without`:
        "key", "anchor" or "anchor_command", which is given up.
        """
        from ssse.workspace.commands.upgrade import changed_record, upgrade

        record = changed_record(self.folder.path, _text(key), _text(anchor), without)
        with self._transaction("upgrade", record=record) as transaction:
            return upgrade(transaction)

    def settings(self) -> Settings:
        self.folder.check()
        return toml.read(self.folder.path / toml.FILE)

    @contextmanager
    def _transaction(
        self, command: str, options: Options | None = None, *, record: Mapping[str, str | None] | None = None
    ) -> Iterator[Transaction]:
        if options and options.get("record.key") is not None:
            raise InvalidSetting("record.key is not for one command: `ssse upgrade --key FILE` names one from then on.")
        with open_transaction(
            self.folder, command, options=options, record=record, wait=self.wait, waiting=self._waiting
        ) as transaction:
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
