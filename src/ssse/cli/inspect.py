"""`ssse evaluate`, `report`, `log`, `verify`: what was done, and how good it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssse.cli.console import DAMAGED, Screen, counted, failures_in_one_line, in_one_line
from ssse.cli.options import STOPPED, Forget, Json, NoWait, Quiet, Set, Verbose, Where, given, only, open_workspace

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
        evaluated = open_workspace(workspace, screen, no_wait).evaluate(
            test=test,
            retrained=retrained or [],
            original=original,
            forget=only(forget),
            requests=request or [],
            options=given(settings, evaluate__same=same),
        )
        screen.result(evaluated.to_dict())
        table = evaluated.table
        gap = table["erased", "mean_gap"] if retrained else None
        near = "" if gap is None else f" Mean accuracy gap to the retrained: {gap:.2f} points."
        screen.headline(f"Measured on {counted(table.counts['forgotten'], 'erased sample')}.{near}")
        screen.tell(table, markup=True)
        for note in evaluated.entry.details["notes"]:
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
        reported = open_workspace(workspace, screen, no_wait).report(output)
        page = reported.page
        screen.result(reported.to_dict())
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
        shown = open_workspace(workspace, screen).log(request)
        entries, plain = shown.entries, shown.to_dict()
        screen.result(plain)
        if not (quiet or as_json):
            screen.tell(_log_table(entries))
        if request is not None or verbose:
            for entry, body in zip(entries, plain["entries"], strict=True):
                screen.tell(f"Entry {entry.seq}, {entry.kind}, {entry.time}, {entry.hash}")
                screen.tell(json.dumps(body["details"], indent=1, ensure_ascii=False))
        for waiting in shown.pending:
            screen.tell(f"Request '{waiting}' was received and is not finished; the same command finishes it.")
        own = [entry.details.get("seconds") or 0.0 for entry in entries if entry.details.get("because")]
        if own:
            screen.tell(f"{counted(len(own), 'fit')} that nobody asked for (erase.refit), {sum(own):.1f} s in all.")
        number = f"{len(entries):,} {'entry' if len(entries) == 1 else 'entries'}"
        screen.headline(f"{number}; head {shown.head}")


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
        time, said = entry.time[:16].replace("T", " "), _line(entry)
        lines.add_row(str(entry.seq), time, entry.kind, entry.request or "", said, entry.hash[:8])
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
        lines.add_row("", _line(entry))
    return lines


def _line(entry: Entry) -> str:
    from ssse.workspace.record.describe import describe

    return describe(entry.kind, entry.details)


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
        verification = open_workspace(workspace, screen, no_wait).verify(head)
        screen.result(verification.to_dict())
        for name, what in verification.damages:
            screen.headline(in_one_line(f"{name}: {what}"))
        for note in verification.notes:
            screen.tell(in_one_line(f"note: {note}"))
        if not verification.ok:
            number = counted(len(verification.damages), "damage")
            screen.headline(f"Damaged: {number} in {counted(verification.files, 'file')} that were checked.")
            raise typer.Exit(DAMAGED)
        entries = f"{verification.entries:,} {'entry' if verification.entries == 1 else 'entries'}"
        screen.headline(f"All is as it was written: {entries}, {counted(verification.files, 'file')}.")
        screen.detail("\n".join(verification.checked))
        screen.tell(f"head  {verification.head}")  # in one piece, whatever the terminal's width
        screen.tell("Keep the head elsewhere: verify --head HASH then finds out whether all was written anew.")
