"""The ledger: an append-only chain of entries in SQLite. Each carries the hash of the one before it.

No sample and no label is in it. What was erased is known by salted digests alone: enough to say whether a given sample
is among them, and nothing else. Nothing here imports torch.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssse.errors import BrokenArtefact
from ssse.system.digests import digest_bytes, digest_file
from ssse.system.environment import clock
from ssse.workspace.record.database import FILE, connect, copied, in_place, in_words, settle

FIRST = "0" * 64  # the hash before the first entry
AT_A_TIME = 500  # parameters of one SQL statement
ERASED = "SELECT digest, request FROM samples JOIN entries ON seq = entry"
SCHEMA = """\
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


@dataclass(frozen=True)
class Entry:
    seq: int
    time: str
    kind: str
    request: str | None
    details: dict[str, Any]
    previous: str
    hash: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def expected_hash(self) -> str:
        return _hash(self.seq, self.time, self.kind, self.request, self.details, self.previous)


class Ledger:
    """Open for reading; `append` writes, and is for whoever holds the workspace's lock."""

    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection
        self.digest_before: str | None = None  # of the file, as it was until what was written came into it

    @classmethod
    def create(cls, path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(SCHEMA)
            settle(connection)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Ledger]:
        """For reading and appending. When it is closed all is in the one file: nothing is left to a log beside it."""
        with in_words(path), closing(connect(path)) as connection:
            ledger = cls(connection)
            try:
                yield ledger
            except BaseException:
                with suppress(OSError, sqlite3.Error, ValueError):
                    ledger._settle(path)
                raise
            ledger._settle(path)

    def _settle(self, path: Path) -> None:
        self.digest_before = digest_file(path)  # until here nothing of ours is in it: SQLite writes into its log first
        settle(self._connection)

    @classmethod
    @contextmanager
    def read(cls, path: Path) -> Iterator[Ledger]:
        """For reading alone, also while another process writes, and on a read-only disk."""
        with in_words(path), ExitStack() as stack:
            connection = in_place(path)
            if connection is None:  # SQLite reads only where it can also write, if only a little
                connection = connect(stack.enter_context(copied(path)))
            stack.enter_context(closing(connection))
            connection.execute("PRAGMA query_only = ON")
            yield cls(connection)

    def append(self, kind: str, request: str | None, details: Mapping[str, Any], samples: Sequence[int] = ()) -> Entry:
        """One entry, and the digests of the samples that it erases, in one transaction: both or neither."""
        kept: dict[str, Any] = json.loads(_canonical(details))  # as it will be read
        with self._transaction():
            last = self.last()
            seq, previous = (last.seq + 1, last.hash) if last else (1, FIRST)
            time = clock()
            entry = Entry(seq, time, kind, request, kept, previous, _hash(seq, time, kind, request, kept, previous))
            row = (seq, time, kind, request, _canonical(kept), previous, entry.hash)
            self._connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            self._connection.executemany("INSERT INTO samples VALUES (?, ?)", ((seq, int(d)) for d in sorted(samples)))
        return entry

    @property
    def salt(self) -> bytes:
        """Of the samples' digests, which nobody can compute without it."""
        created = self.first("created")
        if created is None:
            raise BrokenArtefact(f"'{FILE}' is damaged: no entry made the workspace.")
        return bytes.fromhex(created.details["salt"])

    def last(self, *kinds: str) -> Entry | None:
        """The newest entry, or the newest of some kinds."""
        if not kinds:
            return self._one("ORDER BY seq DESC LIMIT 1")
        newest = [self._one("WHERE kind = ? ORDER BY seq DESC LIMIT 1", kind) for kind in kinds]
        return max((entry for entry in newest if entry), key=lambda entry: entry.seq, default=None)

    def last_before(self, seq: int, *kinds: str) -> Entry | None:
        newest = [self._one("WHERE kind = ? AND seq < ? ORDER BY seq DESC LIMIT 1", kind, seq) for kind in kinds]
        return max((entry for entry in newest if entry), key=lambda entry: entry.seq, default=None)

    def last_of_request(self, request: str) -> Entry | None:
        return self._one("WHERE request = ? ORDER BY seq DESC LIMIT 1", request)

    def count_after(self, seq: int, kind: str) -> int:
        query = "SELECT count(*) FROM entries WHERE kind = ? AND seq > ?"
        return self._connection.execute(query, (kind, seq)).fetchone()[0]

    def first(self, kind: str) -> Entry | None:
        return self._one("WHERE kind = ? ORDER BY seq LIMIT 1", kind)

    def of_request(self, request: str) -> list[Entry]:
        return list(self._all("WHERE request = ? ORDER BY seq", request))

    def requests(self, kind: str) -> list[str]:
        """Those that have an entry of a kind, in order."""
        query = "SELECT request FROM entries WHERE kind = ? AND request IS NOT NULL ORDER BY seq"
        return [row[0] for row in self._connection.execute(query, (kind,))]

    def entries(self) -> Iterator[Entry]:
        yield from self._all("ORDER BY seq")

    def pending(self) -> list[str]:
        """Requests that were received and neither answered nor refused yet."""
        query = (
            "SELECT request FROM entries AS e WHERE kind = 'received' AND NOT EXISTS (SELECT 1 FROM entries AS later "
            "WHERE later.request = e.request AND later.seq > e.seq) ORDER BY seq"
        )
        return [row[0] for row in self._connection.execute(query)]

    def erased(self, digests: Iterable[int]) -> dict[int, list[str]]:
        """Of the given digests those that are erased: by which requests, once for each time."""
        requests: dict[int, list[str]] = {}
        wanted = sorted({int(digest) for digest in digests})
        for start in range(0, len(wanted), AT_A_TIME):
            part = wanted[start : start + AT_A_TIME]
            marks = ", ".join("?" * len(part))
            for digest, request in self._connection.execute(f"{ERASED} WHERE digest IN ({marks}) ORDER BY seq", part):
                requests.setdefault(digest, []).append(request)
        return requests

    def erased_samples(self, requests: Sequence[str] | None = None) -> Counter[int]:
        """How often each sample was erased: by all requests, or by these."""
        times: Counter[int] = Counter()
        wanted = None if requests is None else set(requests)
        for digest, request in self._connection.execute(ERASED):
            if wanted is None or request in wanted:
                times[digest] += 1
        return times

    def samples_of(self, seq: int) -> list[int]:
        return [row[0] for row in self._connection.execute("SELECT digest FROM samples WHERE entry = ?", (seq,))]

    def damages(self) -> list[str]:
        """What does not hold: the file's structure, its triggers, the chain, the digests of erased samples."""
        damages = [row[0] for row in self._connection.execute("PRAGMA integrity_check(3)") if row[0] != "ok"]
        if damages:
            return [f"SQLite finds it damaged ({damages[0]})"]
        if _schema_of(self._connection) != _expected_schema():
            return ["its tables or its append-only triggers are not the original ones"]
        previous = FIRST
        for place, entry in enumerate(self.entries(), start=1):
            if entry.seq != place or entry.previous != previous:
                return [f"an entry is missing before entry {entry.seq}"]
            if entry.hash != entry.expected_hash():
                return [f"entry {entry.seq} ('{entry.kind}') was altered: it does not match its hash"]
            previous = entry.hash
        if previous == FIRST:
            return ["it is empty"]
        try:
            return self._damaged_samples()
        except (KeyError, TypeError):  # the whole chain was written anew, and not by us
            return ["its entries are not as ssse writes them"]

    def _damaged_samples(self) -> list[str]:
        """The digests of erased samples are those that the entries say, and no more than were received."""
        counts = dict(self._connection.execute("SELECT entry, count(*) FROM samples GROUP BY entry"))
        asked: dict[str | None, int] = {}
        for entry in self.entries():
            if entry.kind == "received":
                asked[entry.request] = entry.details["k"]
            if counts.pop(entry.seq, 0) != (entry.details["k"] if entry.kind == "erased" else 0):
                return [f"the digests of the samples of entry {entry.seq} are not those that it erased"]
            if entry.kind != "erased":
                continue
            if digest_of_samples(self.samples_of(entry.seq)) != entry.details["erased_samples"]:
                return [f"the digests of the samples of entry {entry.seq} were altered"]
            # fewer where another request erased some of them between a kill and its end
            if not entry.details["k"] <= asked.get(entry.request, 0):
                return [f"entry {entry.seq} erased other samples than were received"]
        return ["it has digests of samples that no entry erased"] if counts else []

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # on a full disk SQLite has rolled back by itself
                self._connection.execute("ROLLBACK")
            raise

    def _one(self, rest: str, *values: Any) -> Entry | None:
        return next(self._all(rest, *values), None)

    def _all(self, rest: str, *values: Any) -> Iterator[Entry]:
        query = f"SELECT seq, time, kind, request, details, previous, hash FROM entries {rest}"
        for seq, time, kind, request, details, previous, hashed in self._connection.execute(query, values):
            try:
                yield Entry(seq, time, kind, request, json.loads(details), previous, hashed)
            except (json.JSONDecodeError, TypeError, RecursionError) as error:
                raise BrokenArtefact(f"'{FILE}' was altered: entry {seq} is not readable.") from error


def digest_of_samples(digests: Iterable[int]) -> str:
    """One digest for a set of samples in any order."""
    return digest_bytes(",".join(map(str, sorted(int(d) for d in digests))))


def _hash(seq: int, time: str, kind: str, request: str | None, details: Mapping[str, Any], previous: str) -> str:
    return digest_bytes(_canonical([seq, time, kind, request, details, previous]))


def _canonical(value: Any) -> str:
    """The same text for the same content. NaN has no place in it: JSON does not know it."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _schema_of(connection: sqlite3.Connection) -> list[Any]:
    return sorted(connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))


def _expected_schema() -> list[Any]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(SCHEMA)
        return _schema_of(fresh)
