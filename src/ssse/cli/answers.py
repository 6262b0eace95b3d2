"""`ssse confirm` and `ssse revert`: what somebody says to requests that were carried out and wait."""

from __future__ import annotations

from typing import Annotated

import typer

from ssse.cli.console import Screen, counted, failures_in_one_line
from ssse.cli.options import STOPPED, By, Json, NoWait, Quiet, Verbose, Where, open_workspace

One = Annotated[
    str | None, typer.Option("--request", metavar="ID", help="One that waits, to say what is meant; all of them go.")
]


def confirm(
    workspace: Where,
    request: One = None,
    by: By = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Go on with the current model: what was kept from before requests that wait is shredded."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json), screen.alone():
        settled = open_workspace(workspace, screen, no_wait).confirm(request, by=by)
        screen.result(settled.to_dict())
        if settled.entry is None:
            screen.headline("No request waits for confirmation; there is nothing to confirm.")
            return
        screen.headline(f"Confirmed {counted(len(settled.requests), 'request')}: {', '.join(settled.requests)}.")
        screen.tell(
            "They are sealed. The model from before them is shredded, unless erase.old_weights keeps it: `ssse log` "
            "has what was done."
        )


def revert(
    workspace: Where,
    request: One = None,
    by: By = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Go back to the model from before requests that wait: their samples are not erased any more."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json), screen.alone():
        settled = open_workspace(workspace, screen, no_wait).revert(request, by=by)
        screen.result(settled.to_dict())
        if settled.entry is None:
            screen.headline("No request waits for confirmation; there is nothing to revert.")
            return
        screen.headline(f"Reverted {counted(len(settled.requests), 'request')}: {', '.join(settled.requests)}.")
        now = settled.entry.details["after"]["weights"][:12]
        screen.tell(f"Their samples are in the model again: weights {now}. What they had made is shredded.")
        screen.tell("Replace copies of it that are served. The same ids may be used for the requests once more.")
        if refused := settled.entry.details["refused"]:
            names = ", ".join(f"'{name}'" for name in refused)
            screen.headline(f"Refused because of them, and to be asked for again: {names}.")
