"""The words for what is missing, misspelt or damaged in the user's files."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ssse.errors import InvalidData, SSSEError

SHOWN = 12  # names in one message
LONGEST = 240  # characters of another library's message
COMPARED = 10_000  # looking for the nearest of more names would take longer than reading the message


def listing(names: Iterable[object], shown: int = SHOWN) -> str:
    """'a', 'b' and 3 more; every name printable, as a damaged file may call its arrays anything."""
    words = [repr(str(name)) for name in names]
    more = len(words) - shown
    return ", ".join(words[:shown]) + (f" and {more} more" if more > 0 else "") if words else "nothing"


def did_you_mean(name: str, known: Iterable[object]) -> str:
    """A sentence with a blank before it, or nothing."""
    names = [str(one) for one in known]
    near = difflib.get_close_matches(name, names, 1) if len(names) <= COMPARED else []
    return f" Did you mean {near[0]!r}?" if near else ""


def cause(error: BaseException) -> str:
    """Type and message of somebody else's error, in one line that can be printed."""
    text = " ".join(str(error).encode("utf-8", "backslashreplace").decode().split())
    text = text if len(text) <= LONGEST else text[:LONGEST] + " …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def require_file(path: Path) -> None:
    if not path.is_file():
        raise InvalidData(f"'{path}' is not a file.{nearest_file(path)}")


def nearest_file(path: Path) -> str:
    """What else lies in the folder, where the file that was asked for does not."""
    if not path.parent.is_dir():
        return f" There is no folder '{path.parent}' either."
    return did_you_mean(path.name, sorted(entry.name for entry in path.parent.iterdir()))


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Whatever a damaged file makes its reader raise or warn of becomes InvalidData; nothing is unpickled.

    Args:
        kind: what the file should have been, for instance "an npz file".
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy parses headers as Python, and Python warns of odd source
            yield
    except (SSSEError, PermissionError):
        raise
    except Exception as error:  # zipfile, zlib, ast, struct, numpy and pyarrow raise nearly anything
        raise unreadable(path, kind, cause(error)) from error


def unreadable(path: Path, kind: str, why: str) -> InvalidData:
    return InvalidData(
        f"'{path}' cannot be read as {kind} ({why}). It is truncated, damaged or of another format: copy it or write "
        "it again."
    )
