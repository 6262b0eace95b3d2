"""The tables of the ledger, and the triggers that keep them append-only. Nothing here imports torch."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from typing import Any

BEFORE = """\
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, request TEXT, details TEXT NOT NULL,
    previous TEXT NOT NULL, hash TEXT NOT NULL UNIQUE);
CREATE INDEX by_request ON entries (request, seq) WHERE request IS NOT NULL;
CREATE INDEX by_kind ON entries (kind, seq);
CREATE TABLE samples (entry INTEGER NOT NULL REFERENCES entries (seq), digest INTEGER NOT NULL);
CREATE INDEX by_digest ON samples (digest);
CREATE INDEX by_entry ON samples (entry);
CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER entries_are_kept BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER samples_stay BEFORE UPDATE ON samples BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER samples_are_kept BEFORE DELETE ON samples BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER entries_follow BEFORE INSERT ON entries
WHEN NEW.seq IS NOT 1 + (SELECT coalesce(max(seq), 0) FROM entries) BEGIN
    SELECT RAISE(ABORT, 'the ledger is append-only');
END;
"""


LEAVES = """\
CREATE TABLE leaves (
    seq INTEGER PRIMARY KEY REFERENCES entries (seq), leaf TEXT NOT NULL, frontier TEXT NOT NULL, signature TEXT);
CREATE TRIGGER leaves_stay BEFORE UPDATE ON leaves BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER leaves_are_kept BEFORE DELETE ON leaves BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER leaves_follow BEFORE INSERT ON leaves
WHEN NEW.seq IS NOT 1 + (SELECT coalesce(max(seq), 0) FROM leaves) BEGIN
    SELECT RAISE(ABORT, 'the ledger is append-only');
END;
"""
SCHEMA = BEFORE + LEAVES  # until version 0.2 there were no leaves


def statements(script: str) -> Iterator[str]:
    """One by one: executescript would commit what is under way."""
    part = ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            yield part
            part = ""


def schema_of(connection: sqlite3.Connection) -> list[Any]:
    return sorted(connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))


@cache
def expected_schema(script: str) -> list[Any]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(script)
        return schema_of(fresh)
