"""`ssse repair`: a short training on what stays, after a request."""

from __future__ import annotations

from typing import Annotated

import typer

from ssse.cli.console import CAUTION, Screen, counted, failures_in_one_line
from ssse.cli.options import STOPPED, Json, NoWait, Quiet, Set, Verbose, Where, given, open_workspace


def repair(
    workspace: Where,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="FILE", help="Samples that stay; the training data less what was erased if not given."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Of the repair; 4 if not given.")] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="The largest of its cycle; if not given 0.1, up to 0.2 of few steps."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples a step; 512 if not given.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="That of the fit if not given.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Nesterov's; 0.9 if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Of the order of samples.")] = 0,
    autocast: Annotated[bool, typer.Option("--autocast", help="bfloat16 in the layers: faster on a GPU.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Once more, without a request since the last.")] = False,
    settings: Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Train the current network a little further on what stays: it heals, and what was erased stays erased."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json), screen.alone():
        repaired = open_workspace(workspace, screen, no_wait).repair(
            data=data,
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            weight_decay=weight_decay,
            momentum=momentum,
            seed=seed,
            autocast=autocast,
            again=again,
            options=given(settings),
        )
        shown = repaired.to_dict()
        details = shown["entry"]["details"]
        screen.result(shown)
        if not repaired.now:
            screen.headline(f"Repaired already, on {repaired.entry.time}; --again repairs once more.")
            return
        what = f"{counted(details['samples'], 'sample')} that stay, {counted(details['epochs'], 'epoch')}"
        screen.headline(f"Repaired on {what}, in {details['seconds']:.1f} s; verdict {details['verdict']}.")
        for reason in details["reasons"]:
            screen.tell(f"  because {reason}")
        before, after = (details.get(f"probe_accuracy_{moment}") for moment in ("before", "after"))
        if before is not None and after is not None:
            screen.tell(f"Test data: {before:.0%} right before, {after:.0%} after.")
        screen.tell(f"The repaired model: {workspace}/current/{next(iter(details['files']))}")
        screen.tell("The curvature was of the model before, and is gone.")
        screen.tell(f"The next request takes a new one, or: ssse fit {workspace}")
        if details["verdict"] != "ok":
            raise typer.Exit(CAUTION)
