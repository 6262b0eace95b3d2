"""The ledger: an append-only chain of entries in SQLite. Each carries the hash of the one before it.

Beside it stands each entry's leaf, what others may see of it, with the entry's hash in it. The leaves are a Merkle tree
(`proof/merkle.py`); with a key, every entry has a signature of the tree up to itself. Ledgers of earlier versions have
no leaves until `ssse upgrade` makes them.

No sample and no label is in it. What was erased is known by salted digests alone: enough to say whether a given sample
is among them, and nothing else. Nothing here imports torch.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssse.errors import BrokenArtefact
from ssse.system.digests import digest_bytes, digest_file
from ssse.system.environment import clock
from ssse.system.files import create_private
from ssse.workspace.proof.checkpoint import Checkpoint, encoded, origin_of
from ssse.workspace.proof.keys import PrivateKey
from ssse.workspace.proof.merkle import Frontier, leaf_hash
from ssse.workspace.record.database import FILE, connect, in_memory, in_place, in_words, settle, unsettled
from ssse.workspace.record.entry import FIRST, SHOWN, Entry, blind, canonical, digest_shown
from ssse.workspace.record.published import published
from ssse.workspace.record.schema import BEFORE, LEAVES, SCHEMA, expected_schema, schema_of, statements

AT_A_TIME = 500  # parameters of one SQL statement
OTHER_SCHEMA = "its tables or its append-only triggers are not the original ones"
ERASED = "SELECT digest, request, seq FROM samples JOIN entries ON seq = entry"


@dataclass(frozen=True)
class Tip:
    """Where a ledger ends: what the next entry follows, and the tree that its signature is about to vouch for.

    `entry`: None where there is none yet; `frontier`: None where there are no leaves.
    """

    entry: Entry | None
    frontier: Frontier | None


class Ledger:
    """Open for reading; `append` writes, and is for whoever holds the workspace's lock."""

    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection
        self.digest_before: str | None = None  # of the file, as it was until what was written came into it
        self.signer: PrivateKey | None = None  # of what is appended
        self.foreign: bool = False  # somebody else has written to it since it was opened
        self._first: Entry | None = None
        self._tips: tuple[Tip, ...] = ()  # the one that it ends with; two while it is open which of them was committed

    @classmethod
    def create(cls, path: Path) -> None:
        create_private(path)  # what SQLite writes beside it gets the same mode
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(SCHEMA)
            settle(connection)

    @classmethod
    @contextmanager
    def open(cls, path: Path, after: Ledger | None = None) -> Iterator[Ledger]:
        """For reading and appending. When it is closed all is in the one file: nothing is left to a log beside it.

        How it ends is kept from here on, and nothing is appended to another end. `after`: the one that was open before.
        """
        with in_words(path), closing(connect(path)) as connection, unsettled(path) as let_go:
            ledger = cls(connection)
            if schema_of(connection) not in (expected_schema(SCHEMA), expected_schema(BEFORE)):
                raise BrokenArtefact(f"'{path}' is damaged: {OTHER_SCHEMA}.")
            ledger._first = after._first if after else ledger._one("WHERE seq = 1")
            ledger._tips = after._tips if after else (ledger._read_tip(),)
            try:
                yield ledger
            except BaseException:
                with suppress(OSError, sqlite3.Error, ValueError):
                    ledger._settle(path, let_go)
                raise
            ledger._settle(path, let_go)

    def _settle(self, path: Path, let_go: Callable[[], None]) -> None:
        self.digest_before = digest_file(path)  # until here nothing of ours is in it: SQLite writes into its log first
        try:
            self._tip()
        finally:
            let_go()
            settle(self._connection)

    @classmethod
    @contextmanager
    def read(cls, path: Path) -> Iterator[Ledger]:
        """For reading alone, also while another process writes, and on a read-only disk."""
        # SQLite reads in place only where it can also write, if only a little.
        with in_words(path), closing(in_place(path) or in_memory(path)) as connection:
            connection.execute("PRAGMA query_only = ON")
            yield cls(connection)

    @classmethod
    @contextmanager
    def read_at_rest(cls, path: Path) -> Iterator[Ledger]:
        """For reading alone while nobody writes, without a byte being written anywhere."""
        with in_words(path), closing(in_memory(path)) as connection:
            connection.execute("PRAGMA query_only = ON")
            yield cls(connection)

    def append(self, kind: str, request: str | None, details: Mapping[str, Any], samples: Sequence[int] = ()) -> Entry:
        """One entry, its leaf and signature, the digests of the samples that it erases; in one transaction."""
        kept: dict[str, Any] = json.loads(canonical(details))  # as it will be read
        with self._transaction():
            before = self._tip()
            entry = self._insert(before, kind, request, kept, samples)
            self._end_with(before, Tip(entry, self._insert_leaf(entry, before.frontier)))
        self._tips = self._tips[-1:]
        return entry

    def upgrade(self, details: Mapping[str, Any]) -> Entry:
        """Leaves for all entries of a ledger that has none, and the entry that says so, in one transaction.

        Its details have the root of the tree of the leaves before it, which no hash of an entry covers.
        """
        with self._transaction():
            before = self._tip()
            for statement in statements(LEAVES):
                self._connection.execute(statement)
            grown = Frontier()
            for entry in list(self.entries()):
                grown = self._add_leaf(entry, grown, None)
            rooted = {**details, "leaves": grown.size, "root": encoded(grown.root())}
            entry = self._insert(before, "upgraded", None, json.loads(canonical(rooted)), ())
            # The key is named by an entry that comes after it.
            self._end_with(before, Tip(entry, self._add_leaf(entry, grown, None)))
        self._tips = self._tips[-1:]
        return entry

    def _tip(self) -> Tip:
        """How it ends, which is how this process has left it.

        Who signs the next tree grows it from what was checked, never from what another connection wrote meanwhile.
        """
        if not self._tips:
            return self._read_tip()  # who only reads follows what others write
        try:
            found = self._read_tip()
        except BrokenArtefact:
            found = None
        if found is None or found not in self._tips:
            self.foreign = True
            raise BrokenArtefact(
                f"'{FILE}' was altered while this command worked, and not by it: it does not end as it was left. "
                "Restore a backup; `ssse verify` says more."
            )
        self._tips = (found,)
        return found

    def _end_with(self, before: Tip, after: Tip) -> None:
        """About to be committed; who is interrupted there does not know whether it was."""
        self._tips = (before, after)
        if self._first is None:
            self._first = after.entry if before.entry is None else self.entry(1)

    def _read_tip(self) -> Tip:
        frontier = None
        if self.has_leaves:
            newest = self._connection.execute("SELECT max(seq) FROM leaves").fetchone()[0]
            frontier = self._read_frontier(newest or 0)
        return Tip(self._one("ORDER BY seq DESC LIMIT 1"), frontier)

    def _insert(
        self, before: Tip, kind: str, request: str | None, details: dict[str, Any], samples: Sequence[int]
    ) -> Entry:
        last = before.entry
        seq, previous = (last.seq + 1, last.hash) if last else (1, FIRST)
        entry = complete(Entry(seq, clock(), kind, request, details, previous, ""), self._salt_for(seq, details))
        row = (seq, entry.time, kind, request, canonical(entry.details), previous, entry.hash)
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        self._connection.executemany("INSERT INTO samples VALUES (?, ?)", ((seq, int(d)) for d in sorted(samples)))
        return entry

    def _insert_leaf(self, entry: Entry, before: Frontier | None) -> Frontier | None:
        if before is None:
            return None
        if before.size != entry.seq - 1:
            raise BrokenArtefact(f"'{FILE}' is damaged: it has {before.size} leaves before entry {entry.seq}.")
        return self._add_leaf(entry, before, self.signer)

    def _add_leaf(self, entry: Entry, before: Frontier, signer: PrivateKey | None) -> Frontier:
        leaf = leaf_of(entry)
        grown, signature = before.add(leaf_hash(leaf.encode())), None
        if signer is not None:
            head = Checkpoint(origin_of(self.entry(1).hash), entry.seq, grown.root(), entry.hash, entry.time)
            signature = encoded(signer.sign(head.text().encode()))
        row = (entry.seq, leaf, grown.to_text(), signature)
        self._connection.execute("INSERT INTO leaves VALUES (?, ?, ?, ?)", row)
        return grown

    def _salt_for(self, seq: int, details: Mapping[str, Any]) -> str:
        """As text; of the first entry, what it is about to say itself."""
        return str((details if seq == 1 else self.entry(1).details).get("salt", ""))

    @property
    def frontier(self) -> Frontier:
        """Of the tree of all leaves."""
        return self._known_tip().frontier or Frontier()

    def frontier_at(self, size: int) -> Frontier:
        """Of the tree of the first leaves, as the last of them has it: `damages` grows them all anew."""
        known = self._known_tip().frontier if self._tips else None
        return known if known is not None and known.size == size else self._read_frontier(size)

    def _known_tip(self) -> Tip:
        """As it was kept; what another connection writes does not change it."""
        return self._tips[0] if len(self._tips) == 1 else self._tip()

    def _read_frontier(self, size: int) -> Frontier:
        if not size:
            return Frontier()
        found = self._connection.execute("SELECT frontier FROM leaves WHERE seq = ?", (size,)).fetchone()
        try:
            return Frontier.from_text(size, found[0])
        except (TypeError, ValueError):
            raise BrokenArtefact(f"'{FILE}' is damaged: the leaf of entry {size} was altered.") from None

    def signature(self, seq: int) -> str | None:
        """Of an entry, in base64."""
        found = self._connection.execute("SELECT signature FROM leaves WHERE seq = ?", (seq,)).fetchone()
        return found[0] if found else None

    def entry(self, seq: int) -> Entry:
        kept = [self._first, *(tip.entry for tip in self._tips[:1])]
        found = next((e for e in kept if e is not None and e.seq == seq), None) or self._one("WHERE seq = ?", seq)
        if found is None:
            raise BrokenArtefact(f"'{FILE}' is damaged: there is no entry {seq}.")
        return found

    @property
    def created(self) -> Entry:
        """The first entry, by its place: its hash is the origin of every head, so no other can stand in for it."""
        found = self.entry(1)
        if found.kind != "created":
            raise BrokenArtefact(f"'{FILE}' is damaged: no entry made the workspace.")
        return found

    @property
    def has_leaves(self) -> bool:
        """Not in ledgers of earlier versions, until they are upgraded."""
        return self._connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'leaves'").fetchone() is not None

    def leaves(self) -> Iterator[tuple[str, str | None]]:
        """What others may see of each entry, and its signature in base64 where it has one."""
        if self.has_leaves:
            yield from self._connection.execute("SELECT leaf, signature FROM leaves ORDER BY seq")

    @property
    def salt(self) -> bytes:
        """Of the samples' digests, which nobody can compute without it."""
        return bytes.fromhex(self.created.details["salt"])

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

    def newest(self, *kinds: str) -> Iterator[Entry]:
        """Entries of some kinds, newest first; read one by one, so that who has seen enough may stop."""
        if len(kinds) == 1:
            yield from self._all("WHERE kind = ? ORDER BY seq DESC", *kinds)
            return
        marks = ", ".join("?" * len(kinds))  # the plus keeps SQLite from collecting and sorting all of them first
        yield from self._all(f"WHERE +kind IN ({marks}) ORDER BY seq DESC", *kinds)

    def last_in_force(self, *kinds: str) -> Entry | None:
        """The newest of some kinds that no entry "reverted" has undone."""
        found = self.last(*kinds)
        for undoing in self.newest("reverted"):
            back_to = undoing.details["back_to"]
            if found is not None and back_to < found.seq < undoing.seq:
                found = self.last_before(back_to + 1, *kinds)
        return found

    def reverted(self) -> set[int]:
        """The entries "erased" that were undone: their samples are in the model again."""
        return {seq for entry in self.newest("reverted") for seq in entry.details["entries"]}

    def count_after(self, seq: int, kind: str) -> int:
        query = "SELECT count(*) FROM entries WHERE kind = ? AND seq > ?"
        return self._connection.execute(query, (kind, seq)).fetchone()[0]

    def first(self, kind: str) -> Entry | None:
        return self._one("WHERE kind = ? ORDER BY seq LIMIT 1", kind)

    def of_request(self, request: str) -> list[Entry]:
        return list(self._all("WHERE request = ? ORDER BY seq", request))

    def requests(self, kind: str) -> list[str]:
        """Those that have an entry of a kind which was not undone, in order."""
        query, undone = "SELECT request, seq FROM entries WHERE kind = ? AND request IS NOT NULL", self.reverted()
        return [row[0] for row in self._connection.execute(f"{query} ORDER BY seq", (kind,)) if row[1] not in undone]

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
        wanted, undone = sorted({int(digest) for digest in digests}), self.reverted()
        for start in range(0, len(wanted), AT_A_TIME):
            part = wanted[start : start + AT_A_TIME]
            marks = ", ".join("?" * len(part))
            query = f"{ERASED} WHERE digest IN ({marks}) ORDER BY seq"
            for digest, request, seq in self._connection.execute(query, part):
                if seq not in undone:
                    requests.setdefault(digest, []).append(request)
        return requests

    def erased_samples(self, requests: Sequence[str] | None = None, before: int | None = None) -> Counter[int]:
        """How often each sample was erased: by all requests, or by these; or as it was before an entry."""
        times: Counter[int] = Counter()
        wanted = None if requests is None else set(requests)
        newest = self.newest("reverted")
        undone = {seq for e in newest if before is None or e.seq < before for seq in e.details["entries"]}
        for digest, request, seq in self._connection.execute(ERASED):
            there = seq not in undone and (before is None or seq < before)
            if there and (wanted is None or request in wanted):
                times[digest] += 1
        return times

    def samples_of(self, seq: int) -> list[int]:
        return [row[0] for row in self._connection.execute("SELECT digest FROM samples WHERE entry = ?", (seq,))]

    def damages(self) -> list[str]:
        """What does not hold: the file's structure, its triggers, the chain, the leaves, the digests of erased samples.

        Signatures are checked by `record/heads.py`, against the keys that the ledger names or others.
        """
        damages = [row[0] for row in self._connection.execute("PRAGMA integrity_check(3)") if row[0] != "ok"]
        if damages:
            return [f"SQLite finds it damaged ({damages[0]})"]
        if schema_of(self._connection) not in (expected_schema(SCHEMA), expected_schema(BEFORE)):
            return [OTHER_SCHEMA]
        previous = FIRST
        for place, entry in enumerate(self._rows("ORDER BY seq"), start=1):
            if entry.seq != place or entry.previous != previous:
                return [f"an entry is missing before entry {entry.seq}"]
            if entry.hash != _hash_of(entry):
                return [f"entry {entry.seq} ('{entry.kind}') was altered: it does not match its hash"]
            previous = entry.hash
        if previous == FIRST:
            return ["it is empty"]
        try:
            return self._damaged_leaves() or self._damaged_samples()
        except (KeyError, TypeError, AttributeError):  # the whole chain was written anew, and not by us
            return ["its entries are not as ssse writes them"]

    def _damaged_leaves(self) -> list[str]:
        """Each is of its entry; what it shows of it is what the entry's hash, or that of the upgrade, says."""
        if not self.has_leaves:
            first = self._one("WHERE seq = 1")
            had = self.first("upgraded") is not None or (first is not None and SHOWN in first.details)
            return ["its leaves are gone"] if had else []
        grown, checked = Frontier(), 0  # how many are covered by a hash in the chain
        leaves = self._connection.execute("SELECT leaf, frontier FROM leaves ORDER BY seq")
        for entry in self.entries():
            leaf, stored = next(leaves, (None, None))
            if leaf is None:
                return [f"entry {entry.seq} has no leaf"]
            if entry.kind == "upgraded":
                if (entry.details["leaves"], entry.details["root"]) != (grown.size, encoded(grown.root())):
                    return [f"a leaf before entry {entry.seq} was altered"]
                checked = grown.size
            if not isinstance(leaf, str) or not _is_leaf_of(leaf, entry):
                return [f"the leaf of entry {entry.seq} was altered"]
            grown = grown.add(leaf_hash(leaf.encode()))
            if stored != grown.to_text():
                return [f"the leaf of entry {entry.seq} was altered, or one before it"]
            checked += SHOWN in entry.details
        if next(leaves, None) is not None:
            return ["it has leaves of no entry"]
        return [] if checked == grown.size else ["it has leaves that no entry vouches for"]

    def _damaged_samples(self) -> list[str]:
        """The digests of erased samples are those that the entries say, and no more than were received."""
        counts = dict(self._connection.execute("SELECT entry, count(*) FROM samples GROUP BY entry"))
        asked: dict[str | None, int] = {}
        held: set[int] = set()  # what may be reverted
        for entry in self.entries():
            if entry.kind == "reverted" and not set(entry.details["entries"]) <= held:
                return [f"entry {entry.seq} reverts what was not waiting"]
            if entry.kind == "erased" and entry.details.get("held"):
                held.add(entry.seq)
            elif entry.kind in ("erased", "confirmed", "reverted"):
                held.clear()
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
        """Nothing is relied on that does not match its own hash: neither code nor a key is named by it."""
        for entry in self._rows(rest, *values):
            if entry.hash != _hash_of(entry):
                raise BrokenArtefact(f"'{FILE}' was altered: entry {entry.seq} does not match its hash.")
            yield entry

    def _rows(self, rest: str, *values: Any) -> Iterator[Entry]:
        query = f"SELECT seq, time, kind, request, details, previous, hash FROM entries {rest}"
        for seq, time, kind, request, details, previous, hashed in self._connection.execute(query, values):
            try:
                yield Entry(seq, time, kind, request, json.loads(details), previous, hashed)
            except (json.JSONDecodeError, TypeError, RecursionError) as error:
                raise BrokenArtefact(f"'{FILE}' was altered: entry {seq} is not readable.") from error


def _hash_of(entry: Entry) -> str | None:
    """None of what no ledger can hold, such as NaN."""
    try:
        return entry.expected_hash()
    except (ValueError, TypeError, RecursionError):
        return None


def digest_of_samples(digests: Iterable[int]) -> str:
    """One digest for a set of samples in any order."""
    return digest_bytes(",".join(map(str, sorted(int(d) for d in digests))))


def complete(entry: Entry, salt: str) -> Entry:
    """With what `append` adds to the details, and with its hash. `salt`: in hex, of the samples' digests."""
    hidden = replace(entry, details={**entry.details, **blind(salt, entry.previous)})
    return replace(hidden, details={**hidden.details, SHOWN: digest_shown(published(hidden))}).hashed()


def leaf_of(entry: Entry) -> str:
    return canonical(published(entry))


def _is_leaf_of(leaf: str, entry: Entry) -> bool:
    """Of whatever version, which may have shown more or less of it."""
    try:
        body = json.loads(leaf)
        mine = (body["seq"], body["hash"]) == (entry.seq, entry.hash) and leaf == canonical(body)
        return mine and entry.details.get(SHOWN) in (None, digest_shown(body))
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
