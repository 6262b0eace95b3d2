"""The command line: parses, calls, prints. Nothing here imports torch before there is work to do."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ssse.cli import answers, compare, demo, inbox, inspect, record, repair, reproduce, requests
from ssse.cli.console import EXIT_CODES, complain_of_usage, refuse_nul
from ssse.system.launcher import launched
from ssse.system.version import __version__

USAGE: Any = typer.BadParameter.__mro__[1]  # click's UsageError, which typer brings along under changing names


class Commands(TyperGroup):
    """Wrong options end as all other errors do: in one line, with --json as an object."""

    def main(self, args: Any = None, *rest: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        if not standalone_mode:
            return super().main(args, *rest, standalone_mode=False, **extra)
        words = sys.argv[1:] if args is None else list(args)
        try:
            refuse_nul(words)
            code = super().main(args, *rest, standalone_mode=False, **extra)
        except USAGE as error:
            code = complain_of_usage(error, words)
        except typer.Exit as done:
            code = done.exit_code
        sys.exit(code if isinstance(code, int) else 0)


app: typer.Typer = typer.Typer(
    cls=Commands,
    help="Erase samples from a trained model in one second-order step.",
    epilog=EXIT_CODES,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help takes longer to load than all the rest
)
for _command in (
    requests.init,
    requests.fit,
    requests.calibrate,
    requests.erase,
    repair.repair,
    answers.confirm,
    answers.revert,
    inbox.inbox,
    inspect.evaluate,
    inspect.report,
    record.receipt,
    inspect.log,
    inspect.verify,
    record.key,
    record.prove,
    record.check,
    record.upgrade,
    compare.compare,
    demo.demo,
    reproduce.reproduce,
):
    app.command()(_command)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an old terminal without ε says so, and is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="ssse")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ssse {__version__}")
        raise typer.Exit


@app.callback()
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Erase samples from a trained model in one second-order step."""
    if launched()[0] > 0 and context.invoked_subcommand != "fit":
        raise typer.Exit  # what one process does is done by the first
