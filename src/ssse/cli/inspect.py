"""`ssse evaluate`, `report`, `log`, `verify`: what was done, and how good it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssse.cli.console import (
    DAMAGED,
    Screen,
    counted,
    failures_in_one_line,
    in_one_line,
)
from ssse.cli.messages import distance
from ssse.cli.options import (
    STOPPED,
    Forget,
    Json,
    NoWait,
    Quiet,
    Set,
    Verbose,
    Where,
    given,
    only,
)
from ssse.errors import InvalidSetting

if TYPE_CHECKING:
    from ssse.workspace.record.ledger import Entry

NARROW = 96  # columns of a terminal, below which the ledger is no table


def evaluate(
    workspace: Where,
    test: Annotated[str | None, typer.Option(metavar="DATA", help="Test data; data.test if not given.")] = None,
    retrained: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Weights retrained without S; several seeds give the noise floor."),
    ] = None,
    original: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights from before; those kept in the workspace if not given.")
    ] = None,
    forget: Forget = None,
    request: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="S is what it erased; all requests if not given.")
    ] = None,
    same: Annotated[
        str | None, typer.Option(metavar="auto|none|CLASS", help="The kind of S: its class, or an attribute's place.")
    ] = None,
    settings: Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Measure the current model against the original and retrained ones; the table goes into the ledger."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json), screen.alone():
        from ssse.workspace.workspace import Workspace

        entry, found = Workspace(workspace, wait=not no_wait, progress=screen.progress, say=screen.aside).evaluate(
            test=test,
            retrained=retrained or [],
            original=original,
            forget=only(forget),
            requests=request or [],
            options=given(settings, evaluate__same=same),
        )
        screen.result({"entry": entry.plain()})
        gap = found["erased", "mean_gap"] if retrained else None
        near = "" if gap is None else f" Mean accuracy gap to the retrained: {gap:.2f} points."
        screen.headline(f"Measured on {counted(found.counts['forgotten'], 'erased sample')}.{near}")
        screen.tell(found, markup=True)
        for note in entry.details["notes"]:
            screen.tell(f"  note: {note}")


def report(
    workspace: Where,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write; report.html in the workspace if not given.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Check the workspace and write one self-contained page about it."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json), screen.alone():
        from ssse.workspace.commands.report import write_page
        from ssse.workspace.record.folder import Folder

        page = write_page(Folder(workspace), output, wait=not no_wait)
        screen.result({"page": str(page)})
        screen.detail(f"Ledger, weights and curvature are as they were written; {page.stat().st_size:,} bytes.")
        if not as_json:
            print(page if quiet else f"The page: {page}")  # not by rich, which would break a long path


def log(
    workspace: Where,
    request: Annotated[str | None, typer.Option(metavar="ID", help="Only what belongs to this one, in full.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """The ledger, entry by entry."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json), screen.alone():
        from ssse.workspace.record.folder import Folder

        with Folder(workspace).read() as ledger:
            if request is None:
                entries = list(ledger.entries())
            else:  # an id that could never have been given is not even looked for
                entries = ledger.of_request(request) if request.isprintable() else []
            pending, last = ledger.pending(), ledger.last()
        if request is not None and not entries:
            raise InvalidSetting(f"There is no request '{request}' in the ledger.")
        head = last.hash if last else ""
        screen.result({"entries": [_shown(entry.plain()) for entry in entries], "head": head, "pending": pending})
        if not (quiet or as_json):
            screen.tell(_log_table(entries))
        if request is not None or verbose:
            for entry in entries:
                screen.tell(f"Entry {entry.seq}, {entry.kind}, {entry.time}, {entry.hash}")
                screen.tell(json.dumps(_shown(entry.plain())["details"], indent=1, ensure_ascii=False))
        for waiting in pending:
            screen.tell(f"Request '{waiting}' was received and is not finished; the same command finishes it.")
        number = f"{len(entries):,} {'entry' if len(entries) == 1 else 'entries'}"
        screen.headline(f"{number}; head {head}")


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    """Without the salt: who has it and a sample could find out whether that was erased."""
    return {**entry, "details": {key: value for key, value in entry["details"].items() if key != "salt"}}


def _log_table(entries: list[Entry]) -> Any:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if Console().width < NARROW:
        return _log_lines(entries)
    lines = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("entry", "time, UTC", "what", "request", "about", "hash"):
        lines.add_column(title, no_wrap=title not in ("request", "about"), overflow="fold")
    for entry in entries:
        cells = (entry.time[:16].replace("T", " "), entry.kind, entry.request or "", about(entry), entry.hash[:8])
        lines.add_row(str(entry.seq), *cells)
    return lines


def _log_lines(entries: list[Entry]) -> Any:
    """Where a table would break every word."""
    from rich.table import Table

    lines = Table.grid(padding=(0, 2))
    lines.add_column(justify="right", no_wrap=True)
    lines.add_column(overflow="fold")
    for entry in entries:
        whose = f", request '{entry.request}'" if entry.request else ""
        lines.add_row(str(entry.seq), f"{entry.time[:16].replace('T', ' ')} {entry.kind}{whose}")
        lines.add_row("", about(entry))
    return lines


def about(entry: Entry) -> str:
    """An entry in a few words."""
    found = entry.details
    match entry.kind:
        case "created":
            return f"{found['model']['factory']}, {found['model']['parameters']:,} parameters"
        case "configured":
            return ", ".join(f"{key}: {old} → {new}" for key, (old, new) in found["changes"].items())
        case "fitted":
            if "correction" in found:
                return f"n = {found['n']:,}, sums over the samples, loss {found['loss']}"
            return f"n = {found['n']:,}, {found['structure']}, {found['rows']} rows, λ = {found['damping']:.3g}"
        case "calibrated":
            return f"ε = {found['scale']:.4g}, λ = {found['damping']:.3g}, by {found['method']}"
        case "received":
            already = sum(found["already"].values())
            return counted(found["asked"], "sample") + (f", {already} of them erased already" if already else "")
        case "erased":
            if "epsilon" in found:
                return f"k = {found['k']}, distance from a refit: {distance(found)}; verdict {found['verdict']}"
            return f"k = {found['k']}, ε = {found['scale']:.4g}; verdict {found['verdict']}"
        case "sealed":
            same = found["old_weights"] == found["old_curvature"]
            return (
                f"old weights and curvature {found['old_weights']}"
                if same
                else f"old weights {found['old_weights']}, old curvature {found['old_curvature']}"
            )
        case "refused":
            return found["reason"]
        case "evaluated":
            return f"S of {counted(len(found['of']), 'request')}"
    return ""


def verify(
    workspace: Where,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A hash that was noted earlier and must still be in the ledger.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Check every byte of ledger, weights and curvature. Reads only."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line("Stopped.", as_json):
        from ssse.workspace.commands.verify import verify as check
        from ssse.workspace.record.folder import Folder

        found = check(
            Folder(workspace),
            head=head,
            wait=not no_wait,
            waiting=lambda: screen.aside(f"Another ssse command is at work in '{workspace}'; waiting for it."),
        )
        screen.result(found.plain())
        for name, what in found.damages:
            screen.headline(in_one_line(f"{name}: {what}"))
        for note in found.notes:
            screen.tell(in_one_line(f"note: {note}"))
        if not found.ok:
            number = counted(len(found.damages), "damage")
            screen.headline(f"Damaged: {number} in {counted(found.files, 'file')} that were checked.")
            raise typer.Exit(DAMAGED)
        entries = f"{found.entries:,} {'entry' if found.entries == 1 else 'entries'}"
        screen.headline(f"All is as it was written: {entries}, {counted(found.files, 'file')}.")
        screen.detail("\n".join(found.checked))
        screen.tell(f"head  {found.head}")  # in one piece, whatever the terminal's width
        screen.tell("Keep the head elsewhere: verify --head HASH then finds out whether all was written anew.")
