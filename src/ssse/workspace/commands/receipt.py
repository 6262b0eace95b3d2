"""`ssse receipt`: one page about one request, which somebody else can check. Reads only, no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from ssse.errors import Damaged, InvalidSetting
from ssse.system import files
from ssse.system.lock import locked
from ssse.system.version import __version__
from ssse.workspace import settings as toml
from ssse.workspace.commands.prove import member
from ssse.workspace.commands.verify import verify
from ssse.workspace.page.receipt import render_receipt
from ssse.workspace.proof.proofs import Proof
from ssse.workspace.record.answers import blinding
from ssse.workspace.record.folder import Folder
from ssse.workspace.record.heads import Heads
from ssse.workspace.record.receipt import Named, Receipt, bearing
from ssse.workspace.record.story import Story
from ssse.workspace.results import Receipted

LONGEST_NAME = 200  # bytes of a file's name that is made of a request's id


def receipt(
    folder: Folder,
    request: str,
    output: Path | None = None,
    *,
    ids: Sequence[str] | None = None,
    wait: bool = True,
    waiting: Callable[[], None] = lambda: None,
) -> Receipted:
    """Check the workspace, and write page and data beside each other. A damaged workspace gives no receipt.

    `output`: of the page, FILE.html; the data is FILE.json. `ids`: of the samples, if they are to stand in it.

    Raises:
        Damaged: names the files.
    """
    folder.check()
    page = _page(folder, request, output)
    verification = verify(folder, wait=wait, waiting=waiting)
    damages = [f"{name} {what}" for name, what in verification.damages if name != toml.FILE]
    with locked(folder.path, shared=True, wait=wait, waiting=waiting), folder.read() as ledger:
        damages += ledger.damages()
        if damages:
            raise Damaged(f"There is no receipt from a damaged workspace: {'; '.join(damages)}.")
        heads, salt = Heads.of(ledger), ledger.salt
    if request not in {entry.request for entry in heads.entries}:
        raise InvalidSetting(f"There is no request '{request}' in the ledger.")
    places = [seq - 1 for seq in bearing(Story(heads.entries), request)]
    proof = Proof(heads.newest(), tuple(member(heads, place) for place in places))
    made = Receipt(request, __version__, proof, None if ids is None else _named(request, ids, salt))
    if not made.names_its_samples:
        raise InvalidSetting(_not_named(made, request))
    files.write_atomically(page, render_receipt(made))
    files.write_atomically(page.with_suffix(".json"), made.to_json())
    return Receipted(made, page, page.with_suffix(".json"))


def _page(folder: Folder, request: str, output: Path | None) -> Path:
    page = Path(f"receipt-{quote(request, safe='')}.html") if output is None else output
    if page.suffix != ".html":
        raise InvalidSetting(f"--output names the page, FILE.html, not '{page}'; its data is FILE.json.")
    if output is None and len(page.name.encode()) > LONGEST_NAME:
        raise InvalidSetting("The request's id is too long for the name of a file; --output FILE.html gives another.")
    if page.is_dir() or page.with_suffix(".json").is_dir():
        raise InvalidSetting(f"--output names a file, and '{page}' or its .json is a folder.")
    if page.resolve().is_relative_to(folder.path.resolve()):
        raise InvalidSetting("A receipt is for somebody else; write it outside of the workspace: --output FILE.html.")
    return page


def _named(request: str, ids: Sequence[str], salt: bytes) -> Named:
    return Named(tuple(sorted(ids)), blinding(request, ids, salt))


def _not_named(made: Receipt, request: str) -> str:
    received = [e["details"] for e in made.story.all("received") if e["request"] == request]
    if received and received[-1].get("by") == "file":
        return f"Request '{request}' came with its samples and named no ids, so none can be vouched for."
    if not received or received[-1].get("named") is None:
        return f"Request '{request}' was received by an earlier version, which left nothing to vouch for ids by."
    return f"These are not the ids that request '{request}' named."
