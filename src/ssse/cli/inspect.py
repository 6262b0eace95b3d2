"""`ssse evaluate`, `report`, `log`, `verify`: what was done, and how good it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ssse.cli.console import DAMAGED, Screen, counted, failures_in_one_line, in_one_line
from ssse.cli.messages import decided, numbers_in_the_ledger, open_requests
from ssse.cli.options import (
    STOPPED,
    Forget,
    Json,
    Keys,
    NoWait,
    Quiet,
    Set,
    Verbose,
    Where,
    given,
    only,
    open_workspace,
)

SECRET = "As secret as the data: with the model that is served, some of these numbers tell whose samples were erased."
NARROW = 96  # columns of a terminal, below which the ledger is no table


def evaluate(
    workspace: Where,
    test: Annotated[str | None, typer.Option(metavar="FILE", help="Test data; data.test if not given.")] = None,
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
    resurfacing: Annotated[
        bool,
        typer.Option("--resurfacing", help="Also train each model on what stays, and see whether S comes back."),
    ] = False,
    settings: Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Measure the current model against the original and retrained ones; the table goes into the ledger."""
    from ssse.evaluation.table import Evaluation

    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json), screen.alone():
        evaluated = open_workspace(workspace, screen, no_wait).evaluate(
            test=test,
            retrained=retrained or [],
            original=original,
            forget=only(forget),
            requests=request or [],
            resurfacing=resurfacing,
            options=given(settings, evaluate__same=same),
        )
        shown = evaluated.to_dict()
        screen.result(shown)
        details = shown["entry"]["details"]
        table = Evaluation.from_dict(details["table"])
        gap = table["erased", "mean_gap"] if "mean_gap" in table.cells else None
        near = "" if gap is None else f" Mean accuracy gap to the retrained: {gap:.2f} points."
        k = table.counts["forgotten"]
        screen.headline(f"Measured on {counted(k, 'erased sample')}.{near}")
        if table.measures:
            screen.tell(table, markup=True)
        numbers_in_the_ledger(screen, workspace, k)
        for note in details["notes"]:
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
    exact: Annotated[
        bool, typer.Option("--exact", help="With all numbers. As secret as the data: some tell whose samples they are.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """The ledger, entry by entry, as far as it may be shown; --exact: all of it."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json), screen.alone():
        shown = open_workspace(workspace, screen).log(request)
        plain = {"secret": SECRET, **shown.exact()} if exact else shown.to_dict()
        entries: list[dict[str, Any]] = plain["entries"]
        screen.result(plain)
        if not (quiet or as_json):
            screen.tell(_log_table(entries))
        if request is not None or verbose or exact:
            for entry in entries:
                screen.tell(f"Entry {entry['seq']}, {entry['kind']}, {entry['time']}, {entry['hash']}")
                screen.tell(json.dumps(entry["details"], indent=1, ensure_ascii=False))
        if exact:
            screen.tell(SECRET)
        for decision in shown.decisions if request is not None else ():
            decided(screen, workspace, decision)
        if request is None:
            open_requests(screen, workspace, shown.decisions)
        own = [entry["details"].get("seconds") or 0.0 for entry in entries if entry["details"].get("because")]
        if own:
            screen.tell(f"{counted(len(own), 'fit')} that nobody asked for (erase.refit), {sum(own):.1f} s in all.")
        number = f"{len(entries):,} {'entry' if len(entries) == 1 else 'entries'}"
        screen.headline(f"{number}; head {shown.head}")


def _log_table(entries: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from ssse.workspace.record.describe import describe

    if Console().width < NARROW:
        return _log_lines(entries)
    lines = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("entry", "time, UTC", "what", "request", "about", "hash"):
        lines.add_column(title, no_wrap=title not in ("request", "about"), overflow="fold")
    for entry in entries:
        time, said = entry["time"][:16].replace("T", " "), describe(entry["kind"], entry["details"])
        lines.add_row(str(entry["seq"]), time, entry["kind"], entry["request"] or "", said, entry["hash"][:8])
    return lines


def _log_lines(entries: list[dict[str, Any]]) -> Any:
    """Where a table would break every word."""
    from rich.table import Table

    from ssse.workspace.record.describe import describe

    lines = Table.grid(padding=(0, 2))
    lines.add_column(justify="right", no_wrap=True)
    lines.add_column(overflow="fold")
    for entry in entries:
        whose = f", request '{entry['request']}'" if entry["request"] else ""
        lines.add_row(str(entry["seq"]), f"{entry['time'][:16].replace('T', ' ')} {entry['kind']}{whose}")
        lines.add_row("", describe(entry["kind"], entry["details"]))
    return lines


def verify(
    workspace: Where,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A hash that was noted earlier and must still be in the ledger.")
    ] = None,
    key: Keys = None,
    anchor: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Heads that were published, all of which must be of this ledger."),
    ] = None,
    unsigned_until: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="With --key: the first N entries were made when there was no key.",
            show_default=False,
        ),
    ] = 0,
    recompute: Annotated[
        str | None,
        typer.Option(metavar="REQUEST", help="Carry it out again from the kept state before it, and compare."),
    ] = None,
    forget: Forget = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Check every byte of ledger, weights and curvature. Reads only."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line("Stopped.", as_json), screen.alone():
        opened = open_workspace(workspace, screen, no_wait)
        verification = opened.verify(
            head,
            keys=key or [],
            anchor=anchor,
            unsigned_until=unsigned_until,
            recompute=recompute,
            forget=only(forget),
        )
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
        if (replay := verification.recomputed) is not None:
            rounding = f"to rounding: the replay ends {replay.distance:.2g} of its step away"
            how = "bit for bit" if replay.same else rounding
            screen.headline(f"The weights are what erasing '{replay.request}' gives, {how}.")
        screen.detail("\n".join(verification.checked))
        screen.tell(f"head  {verification.head}")  # in one piece, whatever the terminal's width
        if verification.tree is not None:
            screen.tell(f"tree  {verification.tree}")
        if key:
            part = "All" if verification.signed == verification.entries else "Of its entries"
            screen.tell(f"{part} {verification.signed:,} are signed by the key.")
        if anchor is not None:
            screen.tell(f"It continues {counted(verification.anchored, 'head')} that were published.")
        elif key:
            screen.tell("A key does not see a folder that was put back as it once was: verify --anchor FILE does.")
        elif anchor is None and head is None:
            screen.tell("Keep the head elsewhere: verify --head HASH then finds out whether all was written anew.")
