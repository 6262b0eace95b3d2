"""One request file: who is to be forgotten, as JSON or CSV. Data, never a specification. Nothing here imports torch."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from datetime import date
from pathlib import PurePath
from typing import Any

from ssse.errors import InvalidSetting

LARGEST = 64 << 20  # bytes of a file
MOST_IDS = 1_000_000
LONGEST_ID = 1000  # characters of a sample's id
LONGEST_REQUEST = 200  # and of a request's
COLUMN = "id"
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Unreadable(Exception):
    """The file is no request; the message says why."""


@dataclass(frozen=True)
class Parsed:
    """`request`: its own, or the file's name without the ending. `notes`: what was left aside. `due`: YYYY-MM-DD."""

    request: str
    ids: list[str]
    notes: tuple[str, ...] = ()
    due: str | None = None


def check_due(due: str) -> str:
    """Raises: InvalidSetting: it is no day of the calendar."""
    try:
        if not DAY.fullmatch(due):
            raise ValueError
        date.fromisoformat(due)
    except ValueError:
        raise InvalidSetting(f"The day by which a request is due is written YYYY-MM-DD, not {due[:40]!r}.") from None
    return due


def check_who(who: str | None) -> str | None:
    """The name of who answers, if one is given."""
    if who is None:
        return None
    if not who or who != who.strip() or len(who) > LONGEST_REQUEST or not who.isprintable():
        raise InvalidSetting(f"--by takes a name, printable, up to {LONGEST_REQUEST} characters; not {who[:40]!r}.")
    return who


def read_request(name: str, content: bytes) -> Parsed:
    """Raises: Unreadable: it is not as a request file is."""
    if len(content) > LARGEST:
        raise Unreadable(f"The file is larger than {LARGEST >> 20} MiB.")
    path = PurePath(name)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable("The file is not UTF-8 text.") from None
    due = None
    if path.suffix.lower() == ".json":
        request, ids, due = _of_json(text)
        notes: tuple[str, ...] = ()
    else:
        request = None
        ids, notes = _of_table(text)
    if not ids:
        raise Unreadable("The file names no sample.")
    if len(ids) > MOST_IDS:
        raise Unreadable(f"The file names more than {MOST_IDS:,} samples.")
    if any(not one or len(one) > LONGEST_ID or not one.isprintable() for one in ids):
        raise Unreadable(f"An id is a printable text of up to {LONGEST_ID} characters.")
    return Parsed(path.stem if request is None else request, ids, notes, due)


def _of_json(text: str) -> tuple[str | None, list[str], str | None]:
    try:
        found: Any = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"The file is not JSON ({str(error)[:100]}).") from None
    request = due = None
    if isinstance(found, dict):
        unknown = sorted(set(found) - {"request", "ids", "due"})
        if unknown or "ids" not in found:
            raise Unreadable(
                'A request is {"request": "…", "ids": […], "due": "YYYY-MM-DD"}, of which only the ids must be there, '
                "and nothing else, or a list of ids."
            )
        due = _due(found.get("due"))
        request, found = found.get("request"), found["ids"]
        if request is not None and not isinstance(request, str):
            raise Unreadable("The request's id must be a text.")
        if request is not None and len(request) > LONGEST_REQUEST:
            raise Unreadable(f"The request's id has more than {LONGEST_REQUEST} characters.")
    if not isinstance(found, list):
        raise Unreadable("The ids must be a list.")
    if not all(isinstance(one, str) or (isinstance(one, int) and not isinstance(one, bool)) for one in found):
        raise Unreadable("The ids must be texts or whole numbers.")
    return request, [str(one) for one in found], due


def _due(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise Unreadable("The day by which it is due must be a text, YYYY-MM-DD.")
    try:
        return check_due(value)
    except InvalidSetting as error:
        raise Unreadable(str(error)) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that comes twice, one would be lost."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _of_table(text: str) -> tuple[list[str], tuple[str, ...]]:
    """A column `id` among others; or one column, with or without that header."""
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error as error:
        raise Unreadable(f"The file is not CSV ({error}).") from None
    if not rows:
        return [], ()
    header = [cell.strip() for cell in rows[0]]
    if COLUMN not in header:
        if any(len(row) != 1 for row in rows):
            raise Unreadable(f"The table has several columns and none is called '{COLUMN}'.")
        return [row[0].strip() for row in rows], ()
    if header.count(COLUMN) > 1 or any(len(row) != len(header) for row in rows):
        raise Unreadable(f"The table has lines of different lengths, or '{COLUMN}' twice.")
    place, others = header.index(COLUMN), [name for name in header if name != COLUMN]
    notes = (f"{len(others)} other columns were not looked at.",) if others else ()
    return [row[place].strip() for row in rows[1:]], notes
