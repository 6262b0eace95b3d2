"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssse.cli.console import Screen
from ssse.errors import InvalidSetting

if TYPE_CHECKING:
    from ssse.workspace.workspace import Workspace

LONGEST_LIST = 1 << 26  # bytes of a file of ids: millions of them
STOPPED = "Stopped; the workspace is whole. The same command does it again, or finishes it."

Where = Annotated[Path, typer.Argument(metavar="WORKSPACE", help="The folder that `ssse init` made.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting of ssse.toml, for this command. Repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; the result in one line.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Fail (exit 5) instead of waiting where another command is at work here.")
]
# Lists, so that what is given twice is seen: a part of a request that got lost would pass for forgotten.
Forget = Annotated[
    list[str] | None, typer.Option("--forget", metavar="FILE", help="The samples, as they were in the training data.")
]
Ids = Annotated[
    list[str] | None, typer.Option("--ids", metavar="ID,ID,...", help="Their ids; @FILE: one a line in a file.")
]

By = Annotated[
    str | None,
    typer.Option("--by", metavar="NAME", help="Who answers, for page and receipt; no name is recorded if not given."),
]

Keys = Annotated[
    list[Path] | None,
    typer.Option(
        "--key", metavar="PUB", help="The public key that must have signed; repeatable, for keys that changed."
    ),
]


def open_workspace(path: Path, screen: Screen, no_wait: bool = False) -> Workspace:
    from ssse.workspace.workspace import Workspace

    return Workspace(path, wait=not no_wait, progress=screen.progress, say=screen.aside)


def given(settings: list[str] | None, **options: Any) -> dict[str, Any]:
    """Options by "section.key"; a double underscore stands for the point. --set comes first, so an option wins."""
    named = {name.replace("__", "."): value for name, value in options.items() if value is not None}
    return dict(map(assignment, settings or [])) | named


def only(forget: list[str] | None) -> str | None:
    if forget is not None and len(forget) > 1:
        raise InvalidSetting(f"--forget takes one file, and {len(forget)} were given: put the samples into one.")
    return forget[0] if forget else None


def listed(ids: list[str] | None) -> list[str] | None:
    """Ids may hold commas and blanks in a file, where each has its line."""
    if ids is None:
        return None
    return [name for part in ids for name in (_lines_of(part[1:]) if part.startswith("@") else words(part) or [])]


def _lines_of(file: str) -> list[str]:
    try:
        with Path(file).open("rb") as opened:  # also of a pipe, as `@<(…)` is one; of a device it would never end
            content = opened.read(LONGEST_LIST + 1)
        text = content.decode("utf-8-sig").replace("\r", "\n")
    except UnicodeDecodeError:
        raise InvalidSetting(f"'{file}' is not UTF-8 text with one id a line.") from None
    except OSError as error:
        raise InvalidSetting(f"--ids @{file}: the file cannot be read ({error.strerror or error}).") from None
    if len(content) > LONGEST_LIST:
        raise InvalidSetting(f"'{file}' is longer than {LONGEST_LIST >> 20} MiB, which no list of ids is.")
    return [line.strip() for line in text.split("\n") if line.strip()]


def words(text: str | None) -> list[str] | None:
    """A list on the command line: separated by commas."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def one_or_several(text: str | None) -> str | list[str] | None:
    several = words(text)
    return several[0] if several is not None and len(several) == 1 else several


def numbers(text: str | None, name: str) -> list[float] | None:
    try:
        return None if text is None else [float(part) for part in words(text) or []]
    except ValueError:
        raise InvalidSetting(f"{name} takes numbers separated by commas, not {text!r}.") from None


def assignment(text: str) -> tuple[str, Any]:
    """One `--set section.key=value`."""
    key, equals, value = text.partition("=")
    if not equals or key.count(".") < 1:
        raise InvalidSetting(f"--set takes SECTION.KEY=VALUE, for instance fit.rank=100, not {_quoted(text)}.")
    return key.strip(), _value(value)


def factory_argument(text: str) -> tuple[str, Any]:
    """One `--argument name=value` of the model's factory."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise InvalidSetting(f"--argument takes NAME=VALUE, for instance hidden=100, not {_quoted(text)}.")
    return f"model.arguments.{name.strip()}", _value(value)


def _value(text: str) -> Any:
    """As TOML would read it, or the plain text that it is."""
    import tomllib

    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return read["value"] if len(read) == 1 else text  # several lines are several settings, and none of ours


def _quoted(text: str) -> str:
    return repr(text) if len(repr(text)) <= 60 else repr(text)[:57] + "…"
