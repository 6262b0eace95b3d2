"""The page of a workspace: from its ledger, checked first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ssse.errors import Damaged, InvalidSetting
from ssse.system.environment import now
from ssse.system.files import write_atomically
from ssse.workspace import settings as toml
from ssse.workspace.commands.verify import verify
from ssse.workspace.page.page import render
from ssse.workspace.record.folder import Folder
from ssse.workspace.record.ledger import Ledger
from ssse.workspace.record.transaction import open_transaction
from ssse.workspace.results import Reported, Verification


def report(
    folder: Folder,
    output: Path | None = None,
    *,
    wait: bool = True,
    waiting: Callable[[], None] = lambda: None,
) -> Reported:
    """Write the page into the workspace, or elsewhere, which leaves the workspace as it is.

    A damaged workspace has no page.

    Raises:
        Damaged: names the files.
    """
    folder.check()
    if output is not None and output.resolve().is_relative_to(folder.path.resolve()):
        raise InvalidSetting("--output is for a page elsewhere; without it the page goes into the workspace.")
    if output is not None and output.is_dir():
        raise InvalidSetting(f"--output names a file for the page, and '{output}' is a folder.")
    verification = verify(folder, wait=wait, waiting=waiting)
    # Settings that were edited are no damage here: begin() writes them into the ledger.
    damages = "; ".join(f"{name} {what}" for name, what in verification.damages if name != toml.FILE)
    if damages:
        raise Damaged(f"There is no page of a damaged workspace: {damages}.")
    if output is not None:
        with folder.read() as ledger:
            write_atomically(output, _render(folder, ledger, verification))
        return Reported(output)
    with open_transaction(folder, "report", wait=wait, waiting=waiting) as transaction:
        transaction.begin()  # first, because it may write an entry that belongs on the page
        page = transaction.write_page(_render(folder, transaction.ledger, verification))
    return Reported(page)


def _render(folder: Folder, ledger: Ledger, verification: Verification) -> str:
    entries = list(ledger.entries())
    number = verification.files
    checked = f"Ledger, weights and curvature were checked for this page: all {number} files are as recorded."
    return render(entries, name=folder.path.absolute().name, head=entries[-1].hash, checked=checked, now=now())
