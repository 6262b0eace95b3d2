"""The page of a workspace: from its ledger, checked first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ssse.errors import Damaged, InvalidSetting
from ssse.system.files import write_atomically
from ssse.workspace import settings as toml
from ssse.workspace.commands.verify import Verification, verify
from ssse.workspace.page.page import render
from ssse.workspace.record.folder import Folder
from ssse.workspace.record.ledger import Ledger
from ssse.workspace.record.transaction import holding


def write_page(
    folder: Folder,
    output: Path | None = None,
    *,
    wait: bool = True,
    waiting: Callable[[], None] = lambda: None,
) -> Path:
    """To report.html in the workspace, or elsewhere, which leaves the workspace as it is. A damaged one has no page.

    Raises:
        Damaged: names the files.
    """
    folder.check()
    if output is not None and output.resolve().is_relative_to(folder.path.resolve()):
        raise InvalidSetting("--output is for a page elsewhere; without it the page goes into the workspace.")
    found = verify(folder, wait=wait, waiting=waiting)
    damages = "; ".join(f"{name} {what}" for name, what in found.damages if name != toml.FILE)  # edited: see begin()
    if damages:
        raise Damaged(f"There is no page of a damaged workspace: {damages}.")
    if output is not None:
        with folder.read() as ledger:
            write_atomically(output, _render(folder, ledger, found))
        return output
    with holding(folder, "report", wait=wait, waiting=waiting) as hold:
        hold.begin()  # first, for it may write an entry that belongs on the page
        return hold.write_page(_render(folder, hold.ledger, found))


def _render(folder: Folder, ledger: Ledger, found: Verification) -> str:
    entries = [entry.plain() for entry in ledger.entries()]
    checked = f"Ledger, weights and curvature were checked for this page: all {found.files} files are as recorded."
    return render(entries, name=folder.path.absolute().name, head=entries[-1]["hash"], checked=checked)
