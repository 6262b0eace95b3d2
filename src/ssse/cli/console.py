"""What all commands share: errors in one line, exit codes, tables. Nothing here imports torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from ssse.cli.wording import as_settings
from ssse.errors import BrokenArtefact, Busy, Damaged, GroupBroken, NotPublished, SSSEError
from ssse.system.extras import needed_for

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# What a script can tell apart. 0 is done and vouched for, or there was nothing to do.
FAILED, IMPOSSIBLE, REFUSED, DAMAGED, BUSY, CAUTION, STOPPED = 1, 2, 3, 4, 5, 6, 130
EXIT_CODES = (
    "Exit codes: 0 done; 1 it failed; 2 what was asked for cannot be done; 3 the request is refused; 4 the workspace "
    "is damaged; 5 another command is at work (--no-wait); 6 carried out, or would be, with the verdict caution; 130 "
    "stopped."
)
LONGEST = 2000  # characters of a line that says what is wrong; it may quote what was typed


@contextmanager
def failures_in_one_line(stopped: str, as_json: bool = False) -> Iterator[None]:
    """Every error as one line on stderr, with --json also as an object on stdout. A traceback only on request."""
    try:
        with needed_for("This command"):
            yield
    except KeyboardInterrupt:
        complain(stopped, STOPPED, as_json)
    except (Damaged, BrokenArtefact) as error:
        complain(f"Error: {error}", DAMAGED, as_json)
    except Busy as error:
        complain(f"Error: {error}", BUSY, as_json)
    except NotPublished as error:
        complain(f"Error: {error}", FAILED, as_json)
    except GroupBroken as error:
        complain(f"Error: {error} The same command goes on.", FAILED, as_json)
    except SSSEError as error:
        complain(f"Error: {as_settings(str(error))}", IMPOSSIBLE, as_json)
    except BrokenPipeError:
        raise  # whoever read our output has gone: nobody is left to complain to
    except (OSError, MemoryError) as error:
        complain(f"Error: {str(error) or 'out of memory'}", FAILED, as_json)
    except typer.Exit:
        raise
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich's way to say it
            raise
        # Somebody's module that ends Python must not pass for a command that was done.
        complain(
            f"Error: The code of the model, the loss or the data ended Python (exit {error.code}).", FAILED, as_json
        )
    except Exception as error:
        # torch's allocator for the CPU raises a bare RuntimeError: its words only choose how the same failure is told.
        if "allocate memory" in str(error) or type(error).__name__ == "OutOfMemoryError":
            complain(f"Error: out of memory: {error}", FAILED, as_json)
        if os.environ.get("SSSE_TRACEBACK"):
            raise
        complain(f"Error: {type(error).__name__}: {error} {HINT}", FAILED, as_json)


@contextmanager
def failures_left_to_the_first() -> Iterator[None]:
    """Of a process that takes part in the work of another one, which says what is wrong."""
    try:
        yield
    except SSSEError:
        if os.environ.get("SSSE_TRACEBACK"):
            raise
        raise typer.Exit(FAILED) from None


HINT = "(SSSE_TRACEBACK=1 in the environment shows where.)"


def complain(message: str, code: int, as_json: bool = False) -> NoReturn:
    line = in_one_line(message)
    print(line, file=sys.stderr)
    if as_json:
        print_json({"error": line.removeprefix("Error: "), "exit": code}, indent=None)
    raise typer.Exit(code) from None


def refuse_nul(words: Sequence[str]) -> None:
    """No file and no name has it, and Python would say so in many ways."""
    if any("\0" in word for word in words):
        complain("Error: An argument cannot hold the character NUL.", IMPOSSIBLE, "--json" in words)


def complain_of_usage(error: Any, words: Sequence[str]) -> int:
    """click's UsageError; no words at all are a wish for help."""
    if not words:
        error.show()
        return IMPOSSIBLE
    what = error.format_message().rstrip(".")
    more = f" `{error.ctx.command_path} --help` says more." if error.ctx else ""
    try:
        complain(f"Error: {what}{'' if what.endswith('?') else '.'}{more}", IMPOSSIBLE, "--json" in words)
    except typer.Exit as done:
        return done.exit_code


def in_one_line(text: str) -> str:
    """Whatever it quotes: nothing that moves a terminal's cursor, and no pages of it."""
    line = " ".join(text.split())
    line = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in line)
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 4 :]}"


def print_json(plain: Mapping[str, Any], indent: int | None = 1, out: TextIO | None = None) -> None:
    """Signs beyond ASCII as they are where the output can hold them."""
    where = sys.stdout if out is None else out
    beyond = (where.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(plain, indent=indent, ensure_ascii=not beyond, allow_nan=False), file=where)


@dataclass(frozen=True)
class Screen:
    """Where a command's words go: stdout for people, or one JSON object there and nothing else."""

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """With --json, what the user's own code prints meanwhile goes to stderr: stdout is one object's."""
        with redirect_stdout(sys.stderr) if self.as_json else nullcontext():
            yield

    @property
    def progress(self) -> bool:
        return not (self.quiet or self.as_json)

    def aside(self, text: str) -> None:
        """While the work is going on; not part of the result."""
        if self.progress:
            show(text, stderr=True)

    def warn(self, text: str) -> None:
        """Also with --quiet and --json: a setting that what was measured speaks against."""
        show(in_one_line(f"Warning: {text}"), stderr=True)

    def result(self, plain: Mapping[str, Any]) -> None:
        if self.as_json:
            print_json(plain, out=self.out)

    def tell(self, what: RenderableType, markup: bool = False) -> None:
        if not (self.as_json or self.quiet):
            show(what, markup=markup)

    def detail(self, what: RenderableType) -> None:
        if self.verbose:
            self.tell(what)

    def headline(self, text: str) -> None:
        """The one line that is also said with --quiet."""
        if not self.as_json:
            show(text)


def counted(number: int, noun: str) -> str:
    """1 sample, 2 samples, 1,000 samples."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(**columns: int) -> Table:
    """Columns by their title, with the share of the terminal's width that each takes."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    for column, share in columns.items():
        made.add_column(column.replace("_", " "), ratio=share, overflow="fold")
    return made


def facts(**named: object) -> Table:
    """Names and what they are, one a line; None is left out."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in named.items():
        if value is not None:
            made.add_row(name.replace("_", " "), str(value))
    return made


def show(what: RenderableType, stderr: bool = False, markup: bool = False) -> None:
    """Brackets in somebody's words are not rich's markup. Long lines of text are left to the terminal to break."""
    from rich.console import Console

    Console(markup=markup, highlight=False, emoji=False, stderr=stderr, soft_wrap=isinstance(what, str)).print(what)
