"""The ledger read from memory: what SQLite itself would see, and not a byte written anywhere."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ssse.errors import BrokenArtefact, InvalidSetting
from ssse.workspace.record import database
from ssse.workspace.record.image import FRAME, HEADER, image
from ssse.workspace.record.ledger import Ledger
from tests.support import workspaces
from tests.support.sizes import sized

PAGE = 512
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[bytes, bytes]:
    """A file with pages of its own, and a log of many commits that grow it, change it and cut it."""
    home = tmp_path_factory.mktemp("written")
    path = home / "ledger.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE}")
        connection.execute("PRAGMA auto_vacuum = FULL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE entries (seq INTEGER PRIMARY KEY, text TEXT)")
        insert(connection, 4, 300)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        for size in (40, 700, 3):
            insert(connection, 1, size)
        connection.execute("UPDATE entries SET text = 'other' WHERE seq = 2")
        connection.execute("DELETE FROM entries WHERE seq = 6")
        insert(connection, 1, 90)
        log = path.with_name("ledger.sqlite-wal").read_bytes()
        return path.read_bytes(), log


def insert(connection: sqlite3.Connection, rows: int, size: int) -> None:
    for _ in range(rows):
        connection.execute("INSERT INTO entries (text) VALUES (?)", ("x" * size,))


def as_sqlite_sees_it(home: Path, body: bytes, log: bytes) -> bytes:
    """In a copy: SQLite brings the log into it, and all of it is compared but for who may write and read."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    path = home / "copy.sqlite"
    path.write_bytes(body)
    path.with_name("copy.sqlite-wal").write_bytes(log)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    found = path.read_bytes()
    return found[:18] + b"\1\1" + found[20:]


def as_we_see_it(home: Path, body: bytes, log: bytes) -> bytes:
    file, beside = home / "ours.sqlite", home / "ours.sqlite-wal"
    file.write_bytes(body)
    beside.write_bytes(log)
    found = image(file, beside)
    assert (file.read_bytes(), beside.read_bytes()) == (body, log)
    return found


def test_a_log_of_many_commits(written, tmp_path):
    body, log = written
    commits = [int.from_bytes(log[start + 4 : start + 8], "big") for start in range(HEADER, len(log), FRAME + PAGE)]
    sizes = [count for count in commits if count]
    assert len(sizes) >= 6
    assert max(sizes) > sizes[-1]  # it was cut
    assert len(commits) > len(sizes)  # some commits have several pages
    found = as_we_see_it(tmp_path, body, log)
    assert found == as_sqlite_sees_it(tmp_path / "copy", body, log)
    assert found != as_we_see_it(tmp_path, body, b"")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(found)
        assert connection.execute("SELECT seq, length(text) FROM entries").fetchall() == [
            *((1, 300), (2, 5), (3, 300), (4, 300), (5, 40), (7, 3), (8, 90))
        ]


def test_a_log_cut_at_any_length(written, tmp_path):
    body, log = written
    ends = {start + near for start in range(HEADER, len(log) + 1, FRAME + PAGE) for near in (-1, 0, 1, FRAME)}
    lengths = sized(sorted({*ends, 0, 1, 31, *range(0, len(log), 97)}), range(len(log) + 1))
    for length in lengths:
        torn = log[: max(0, length)]
        assert as_we_see_it(tmp_path, body, torn) == as_sqlite_sees_it(tmp_path / "copy", body, torn), length


def test_a_log_with_flipped_bits(written, tmp_path):
    body, log = written
    chooser = random.Random(1)
    places = [*range(HEADER + FRAME), *(chooser.randrange(len(log)) for _ in range(sized(150, 3000)))]
    for place in places:
        torn = bytearray(log)
        torn[place] ^= 1 << chooser.randrange(8)
        assert as_we_see_it(tmp_path, body, bytes(torn)) == as_sqlite_sees_it(tmp_path / "copy", body, bytes(torn))


def test_frames_of_an_older_log_do_not_count(written, tmp_path):
    """SQLite begins a log anew over the old one, whose last frames then stay behind the new ones."""
    body, log = written
    for cut in range(HEADER + FRAME + PAGE, len(log), FRAME + PAGE):
        other = bytearray(log)
        other[cut + 8 : cut + 16] = b"\1" * 8
        assert as_we_see_it(tmp_path, body, bytes(other)) == as_sqlite_sees_it(tmp_path / "copy", body, bytes(other))


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"x" * 5000, bytes(4096)])
def test_what_is_no_ledger_is_said_to_be_damaged(content, tmp_path):
    path = tmp_path / database.FILE
    path.write_bytes(content)
    with pytest.raises(BrokenArtefact, match="damaged"), Ledger.read_at_rest(path) as ledger:
        raise BrokenArtefact(f"damaged: {ledger.damages()[0]}")
    assert [one.name for one in tmp_path.iterdir()] == [database.FILE]


def test_a_log_of_other_pages_is_damage(written, tmp_path):
    body, log = written
    (tmp_path / "a").write_bytes(body[:16] + (4096).to_bytes(2, "big") + body[18:])
    (tmp_path / "b").write_bytes(log)
    with pytest.raises(BrokenArtefact, match="another size"):
        image(tmp_path / "a", tmp_path / "b")


def test_without_deserialize_there_is_no_copy_but_an_error(tmp_path, monkeypatch):
    made = workspaces.make(tmp_path / "home", fit=False, n=24, p=3)

    class Older:
        pass

    monkeypatch.setattr(sqlite3, "Connection", Older)
    with pytest.raises(InvalidSetting, match=r"without deserialize.*Use another Python"):
        made.workspace.verify()


# ------------------------------------------------------------------------------------------- nothing is left

KILLED = """
import json, os, random, signal, sys, tempfile, time
from pathlib import Path
from ssse.workspace.commands import verify as verification
from ssse.workspace.record import database, image, ledger
from ssse.workspace.workspace import Workspace
path, way = sys.argv[1], sys.argv[2]
WATCHED = {module.__file__ for module in (database, image, ledger, verification)}

def dies_at(last):
    lines = 0
    def watch(frame, event, _):
        nonlocal lines
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            lines += 1
            if lines == last:
                os.kill(os.getpid(), signal.SIGKILL)
        return watch
    sys.settrace(watch)
    Workspace(path).verify()
    sys.settrace(None)
    return lines

def child(work):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return pid

lines, killed, left = dies_at(0), 0, 0
moments = [*range(1, lines + 1, max(1, lines // int(way)))]
for moment in moments:
    killed += os.waitpid(child(lambda: dies_at(moment)), 0)[1] == signal.SIGKILL
    left += len(os.listdir(tempfile.gettempdir()))
started = time.perf_counter()
Workspace(path).verify()
longest, chooser = time.perf_counter() - started, random.Random(2)
for _ in range(int(way) // 3):
    pid = child(lambda: Workspace(path).verify())
    time.sleep(chooser.uniform(0, longest))
    os.kill(pid, signal.SIGKILL)
    killed += os.waitpid(pid, 0)[1] == signal.SIGKILL
    left += len(os.listdir(tempfile.gettempdir()))
print(json.dumps({"killed": killed, "left": left, "moments": len(moments), "place": tempfile.gettempdir()}))
"""


def test_a_killed_verify_leaves_nothing_anywhere(tmp_path):
    made = workspaces.make(tmp_path / "home", n=24, p=3)
    made.workspace.erase("r-0", ids=["s9"])
    empty = tmp_path / "empty"
    empty.mkdir()
    before = workspaces.snapshot(made.home)
    command = [sys.executable, "-c", KILLED, made.path, str(sized(40, 2000))]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "TMPDIR": str(empty)}, check=True
    )
    found = json.loads(done.stdout)
    assert found["place"] == str(empty)
    assert found["killed"] >= found["moments"] >= sized(40, 200)
    assert found["left"] == 0
    assert list(empty.iterdir()) == []
    assert workspaces.snapshot(made.home) == before


def test_entries_in_the_log_alone_are_read_and_nothing_is_written(tmp_path):
    made = workspaces.make(tmp_path / "home", fit=False, n=24, p=3)
    path = made.path / database.FILE
    with closing(database.connect(path)) as connection:
        for number in range(5):
            Ledger(connection).append("evaluated", None, {"number": number})
        before = workspaces.snapshot(made.home)
        with Ledger.read_at_rest(path) as ledger:
            assert ledger.damages() == []
            assert [entry.details.get("number") for entry in ledger.entries()] == [None, 0, 1, 2, 3, 4]
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                ledger.append("evaluated", None, {})
        assert workspaces.snapshot(made.home) == before
