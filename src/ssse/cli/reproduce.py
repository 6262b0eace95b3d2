"""`ssse reproduce`: an experiment of the paper."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssse.cli.console import failures_in_one_line, show, table
from ssse.errors import InvalidSetting
from ssse.paper.experiments import EXPERIMENTS, Scale
from ssse.paper.reproduce import redraw as draw_again
from ssse.paper.reproduce import reproduce as run

if TYPE_CHECKING:
    from ssse.paper.result import Result

STOPPED = "Stopped; run the same command again to go on where it stopped."
STOPPED_FOR_GOOD = "Stopped; with --no-cache nothing was kept."


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help=f"One of: {', '.join(EXPERIMENTS)}.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the data set. Without it: a small form.")
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where to write; a folder for each experiment.")] = Path(
        "results"
    ),
    scale: Annotated[
        Scale, typer.Option(help="auto: full where --data is given, else small. classes, large: of lasting alone.")
    ] = "auto",
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="auto: a GPU where there is one.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn at random.")] = 0,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Of lasting alone: networks of so many seeds; else as its size has.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="M", help="Of lasting alone: begin no further method after M; run again to go on."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where what was computed is kept.", show_default="OUTPUT/.cache"),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep nothing, and begin anew.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="What each experiment needs in data, memory and time.")] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Draw a finished run again from its numbers; nothing is measured.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no tables: the page's path only.")] = False,
) -> None:
    """Run an experiment of the paper; write its figures, tables, and a page to put beside the paper."""
    with failures_in_one_line(STOPPED_FOR_GOOD if no_cache else STOPPED, as_json):
        if list_:
            _list(as_json)
            return
        if name is None:
            raise InvalidSetting(f"Which experiment? One of: {', '.join(EXPERIMENTS)}. --list says what each needs.")
        if cache is not None and no_cache:
            raise InvalidSetting("--cache and --no-cache contradict each other; give one of them.")
        if redraw:
            result = draw_again(name, output)
        else:
            result = run(
                name,
                data=data,
                output=output,
                scale=scale,
                device=device,
                seed=seed,
                seeds=seeds,
                minutes=minutes,
                cache=None if no_cache else cache or "auto",
                progress=not quiet,
            )
        page = result.page or output
        if as_json:
            body = result.to_dict()
            del body["numbers"]  # megabytes, and in results.json
            print(json.dumps(body, indent=1, ensure_ascii=False))
        elif quiet:
            print(page)
        else:
            _print(result, page)


def _list(as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(spec) for spec in EXPERIMENTS.values()], indent=1, ensure_ascii=False))
        return
    lines = table(experiment=12, of_the_paper=12, data=22, memory=11, time=15)
    for spec in EXPERIMENTS.values():
        lines.add_row(spec.name, spec.paper, spec.data, spec.memory, spec.time)
    show(lines)
    for spec in EXPERIMENTS.values():
        if spec.needs_data:
            show(f"{spec.name} without its data: {spec.small}")
        for scale, what in spec.sizes.items():
            show(f"{spec.name} with --scale {scale}: {what}")


def _print(result: Result, page: Path) -> None:
    from ssse.paper.pages import labels
    from ssse.rendering import numbers

    show(f"{result.title}\n{labels.form_label(result.form, result.stand_in)}; {numbers.duration(result.seconds)}\n")
    if result.findings:
        first = labels.claims(result.experiment).replace(" ", "_")
        lines = table(**{first: 26}, we_find=30, where=13, holds=10)
        for finding in result.findings:
            lines.add_row(finding.paper, labels.finding_text(finding), finding.where, labels.VERDICTS[finding.holds])
        show(lines)
    if result.targets:
        lines = table(target=30, wanted=18, measured=18, met=13)
        for target in result.targets:
            lines.add_row(target.what, target.wanted, target.measured, labels.MET[target.met])
        show(lines)
    print(f"The page: {page}")  # not by rich, which would break a long path
