"""The workspace from Python: each method is one command of the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssse.errors import InvalidSetting
from ssse.workspace import settings as toml
from ssse.workspace.commands.verify import Verification, verify
from ssse.workspace.record.folder import Folder
from ssse.workspace.record.ledger import Entry
from ssse.workspace.record.transaction import Hold, holding
from ssse.workspace.settings import Settings

if TYPE_CHECKING:
    from ssse.evaluation.table import Evaluation
    from ssse.workspace.commands.erase import Answer

Options = Mapping[str, Any]
PathLike = str | os.PathLike[str]


def _silent(_: str) -> None:
    """Nobody is listening."""


class Workspace:
    """A folder with a model, its curvature, and a ledger of every deletion request.

        workspace, seen = Workspace.init("ws", {"model.factory": ..., "data.train": ...}, "w.safetensors")
        workspace.fit()
        workspace.erase("2026-001", forget="forget.npz")

    `options` are settings for this one call, by "section.key"; all others come from `ssse.toml`.
    """

    def __init__(
        self, path: PathLike, *, wait: bool = True, progress: bool = False, say: Callable[[str], None] = _silent
    ):
        """`wait`: for another process that is at work here, instead of raising Busy. `say`: hears what is going on."""
        self.folder = Folder(Path(path))
        self.wait, self.progress, self.say = wait, progress, say

    @classmethod
    def init(cls, path: PathLike, settings: Settings | Options, weights: PathLike) -> tuple[Workspace, dict[str, Any]]:
        """Check model, weights, loss and data; write the folder, whole or not at all. Also returns what was seen.

        `settings`: by "section.key"; their paths are relative to the workspace.
        """
        from ssse.workspace.commands.fit import create

        chosen = settings if isinstance(settings, Settings) else toml.from_options(settings)
        _, seen = create(Path(path), chosen, Path(weights))
        return cls(path), seen

    def fit(self, options: Options | None = None, *, again: bool = False) -> tuple[Entry, bool]:
        """The curvature; and whether it was fitted now: it is there already unless `again`."""
        from ssse.workspace.commands.fit import fit

        with self._hold("fit") as hold:
            chosen = hold.settings.with_options(options or {})
            if hold.current.details["after"]["curvature"] and not again:
                fitted = hold.ledger.last("fitted")
                assert fitted is not None
                return fitted, False
            return fit(hold, chosen, self.say, self.progress), True

    def calibrate(
        self,
        *,
        forget: PathLike | None = None,
        ids: Sequence[str] | None = None,
        retrained: PathLike | None = None,
        held_out: PathLike | None = None,
        options: Options | None = None,
    ) -> Entry:
        from ssse.workspace.commands.calibrate import choose_scale

        with self._hold("calibrate") as hold:
            return choose_scale(
                hold,
                hold.settings.with_options(options or {}),
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
    ) -> Answer:
        from ssse.workspace.commands.erase import answer

        with self._hold("erase") as hold:
            settings = hold.settings.with_options(options or {})
            return answer(hold, settings, request, _text(forget), ids, dry_run=dry_run, progress=self.progress)

    def evaluate(
        self,
        *,
        test: PathLike | None = None,
        retrained: Sequence[PathLike] = (),
        original: PathLike | None = None,
        forget: PathLike | None = None,
        requests: Sequence[str] = (),
        options: Options | None = None,
    ) -> tuple[Entry, Evaluation]:
        from ssse.workspace.commands.evaluate import measure

        for name, given in (("requests", requests), ("retrained", retrained)):
            if isinstance(given, str):
                raise InvalidSetting(f"{name} is a list, not the text {given!r}.")
        with self._hold("evaluate") as hold:
            return measure(
                hold,
                hold.settings.with_options(options or {}),
                test=_text(test),
                retrained=[Path(path) for path in retrained],
                original=None if original is None else Path(original),
                forget=_text(forget),
                requests=requests,
                progress=self.progress,
            )

    def entries(self) -> list[Entry]:
        """The whole ledger; also while another command is at work."""
        with self.folder.read() as ledger:
            return list(ledger.entries())

    def verify(self, head: str | None = None) -> Verification:
        return verify(self.folder, head=head, wait=self.wait, waiting=self._waiting)

    def settings(self) -> Settings:
        self.folder.check()
        return toml.read(self.folder.path / toml.FILE)

    @contextmanager
    def _hold(self, command: str) -> Iterator[Hold]:
        with holding(self.folder, command, wait=self.wait, waiting=self._waiting) as hold:
            yield hold

    def _waiting(self) -> None:
        self.say(f"Another ssse command is at work in '{self.folder.path}'; waiting for it.")


def _text(path: PathLike | None) -> str | None:
    return None if path is None else os.fspath(path)
