"""Request files of a folder: each answered once, whatever lies there and whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from ssse.errors import BrokenArtefact, Busy, Damaged, InvalidSetting
from ssse.workspace.commands import request_files
from ssse.workspace.commands.inbox import Inbox, pending
from ssse.workspace.commands.request_files import Unreadable, read_request
from ssse.workspace.record.lock import locked
from ssse.workspace.results import Erased
from tests.support.commands import call, call_error
from tests.support.inboxes import ANSWER
from tests.support.sizes import sized
from tests.support.workspaces import Made, make

MEMORY = Path("/dev/shm")
LONG_AGO = (1_750_000_000, 1_750_000_000)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    (tmp_path / "box").mkdir()
    return make(tmp_path / "home")


def put(box: Path, name: str, body: Any, old: bool = True) -> Path:
    path = box / name
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    if old:
        os.utime(path, LONG_AGO)
    return path


def answered(made: Made, box: Path) -> dict[str, Any]:
    return {answer.file: answer for answer in made.workspace.inbox(box)}


def erased(made: Made) -> list[str | None]:
    return [entry.request for entry in made.workspace.log().entries if entry.kind == "erased"]


def test_each_file_has_its_answer(made, tmp_path):
    box = tmp_path / "box"
    put(box, "a.json", {"request": "2026-1", "ids": ["s3", "s4"]})
    put(box, "b.json", ["s5"])
    put(box, "c.csv", "who,id\nx,s6\ny,s7\n")
    put(box, "d.csv", "s8\n")
    put(box, "e.json", ["nobody"])
    put(box, "f.json", {"request": "2026-1", "ids": ["s3", "s4"]})
    put(box, "g.json", {"request": "2026-1", "ids": ["s9"]})
    put(box, "h.json", "{")
    put(box, "i.json", ["s3"])
    found = answered(made, box)
    outcomes = {name[0]: answer.outcome for name, answer in found.items()}
    assert outcomes == {
        **dict.fromkeys("abcd", "erased"),
        **dict.fromkeys("egi", "refused"),
        "f": "repeated",
        "h": "unreadable",
    }
    assert erased(made) == ["2026-1", "b", "c", "d"]
    told = json.loads((box / f"a.json{ANSWER}").read_text())
    assert (told["request"], told["outcome"], told["samples"]) == ("2026-1", "erased", 2)
    assert told["verdict"] in ("ok", "caution")
    assert told["head"] in {entry.hash for entry in made.workspace.log().entries}
    assert not {"leverages", "loss_before", "diagnostics"} & set(told)
    assert "other samples" in found["g.json"].reason
    assert found["c.csv"].notes == ("1 other columns were not looked at.",)
    assert (box / f"a.json{ANSWER}").stat().st_mode & 0o777 == 0o600
    before = {path.name: path.read_bytes() for path in box.iterdir()}
    assert answered(made, box) == {}
    assert {path.name: path.read_bytes() for path in box.iterdir()} == before
    assert made.workspace.verify().ok


def test_what_is_no_request_file_is_left_alone(made, tmp_path):
    box = tmp_path / "box"
    for name in (".a.json", "b.json.tmp", "c.json.part", "d.json~", "~e.json", "f.txt", f"g.json{ANSWER}"):
        put(box, name, ["s3"])
    (box / "h.json").mkdir()
    os.mkfifo(box / "i.json")
    (box / "j.json").symlink_to(put(tmp_path, "elsewhere.json", ["s3"]))
    said: list[str] = []
    put(box, "k" * 230 + ".json", ["s3"])
    assert pending(box, said.append) == []
    assert "too long" in said[0]
    assert answered(made, box) == {}


def test_hostile_names(made, tmp_path):
    box = tmp_path / "box"
    for name in ("\x1b[2J.json", "a\nb.json", " x.json"):
        put(box, name, ["s3"])
    os.close(os.open(os.fsencode(box) + b"/\xff.json", os.O_CREAT | os.O_WRONLY))
    os.utime(os.fsencode(box) + b"/\xff.json", LONG_AGO)
    outcomes = {answer.outcome for answer in answered(made, box).values()}
    assert outcomes == {"refused", "unreadable"}
    assert erased(made) == []


def test_the_oldest_comes_first(tmp_path):
    for name, when in (("b.json", 1), ("a.json", 2), ("d.json", 3), ("c.json", 3)):
        os.utime(put(tmp_path, name, ["s1"]), (when, when))
    assert [path.name for path in pending(tmp_path)] == ["b.json", "a.json", "c.json", "d.json"]


def test_a_file_that_changed_after_its_answer_is_told_and_not_carried_out(made, tmp_path):
    box = tmp_path / "box"
    put(box, "a.json", ["s3"])
    put(box, "b.json", "{")
    answered(made, box)
    put(box, "a.json", ["s3", "s4"])
    put(box, "b.json", ["s5"])  # was unreadable: nothing was done for it yet
    found = answered(made, box)
    assert found["a.json"].outcome == "refused"
    assert found["a.json"].earlier is not None
    assert found["a.json"].earlier["outcome"] == "erased"
    assert found["b.json"].outcome == "erased"
    assert erased(made) == ["a", "b"]


def test_a_file_that_is_being_written_is_waited_for(made, tmp_path):
    box, stop, now = tmp_path / "box", threading.Event(), []
    put(box, "a.json", '["s3"', old=False)
    put(box, "b.csv", "id\ns4\n", old=False)

    def erase(request: str, ids: list[str]) -> Erased:
        raise AssertionError(f"{request} was asked for")

    asked = Inbox(box, made.workspace.folder, erase, now.append, stop, settled=60.0)
    assert list(asked._round()) == []  # pyright: ignore[reportPrivateUsage]
    assert now == []
    put(box, "a.json", '["s3"]', old=False)
    os.utime(box / "b.csv", LONG_AGO)
    assert {answer.outcome for answer in made.workspace.inbox(box)} == {"erased"}


def test_one_inbox_at_a_time_and_never_inside_the_workspace(made, tmp_path):
    box = tmp_path / "box"
    with locked(box), pytest.raises(Busy):
        answered(made, box)
    with pytest.raises(InvalidSetting, match="outside"):
        answered(made, made.path / "states")
    with pytest.raises(InvalidSetting, match="no folder"):
        answered(made, tmp_path / "none")


def test_a_damaged_workspace_stops_it_without_an_answer(made, tmp_path):
    box = tmp_path / "box"
    put(box, "a.json", ["s3"])
    with (made.path / "ledger.sqlite").open("r+b") as opened:
        opened.seek(5000)
        opened.write(b"\xff" * 8)
    with pytest.raises((Damaged, BrokenArtefact)):
        answered(made, box)
    assert not list(box.glob(f"*{ANSWER}"))
    call_error("inbox", made.path, box, "--once", code=4)


def test_a_workspace_that_is_not_fitted_stops_it(tmp_path):
    box = tmp_path / "box"
    box.mkdir()
    unfitted = make(tmp_path / "home", fit=False)
    put(box, "a.json", ["s3"])
    with pytest.raises(InvalidSetting, match="no curvature"):
        answered(unfitted, box)
    assert not list(box.glob(f"*{ANSWER}"))


def test_killed_between_the_erasure_and_the_answer(made, tmp_path, monkeypatch):
    """The answer is of the first outcome; also of a refusal."""
    box = tmp_path / "box"
    put(box, "a.json", ["s3"])
    made.workspace.erase("b", ids=["s4"])
    put(box, "c.json", {"request": "again", "ids": ["s4"]})  # refused: nothing is left of it

    class Killed(BaseException):
        pass

    from ssse.workspace.commands import inbox

    written = inbox.write_beside

    def dies(path: Path, body: Any) -> None:
        if path.name.endswith(ANSWER):
            raise Killed
        written(path, body)

    for name, outcome in (("a.json", "erased"), ("c.json", "refused")):
        with monkeypatch.context() as patch:
            patch.setattr(inbox, "write_beside", dies)
            with pytest.raises(Killed):
                answered(made, box)
        entries = len(made.workspace.log().entries)
        found = next(made.workspace.inbox(box))
        assert (found.file, found.outcome) == (name, outcome)
        assert len(made.workspace.log().entries) == entries
    assert not list(box.glob(".*"))


def test_the_command(made, tmp_path):
    box = tmp_path / "box"
    put(box, "a.json", ["s3"])
    put(box, "b.json", ["s4"])
    lines = call("inbox", made.path, box, "--once", "--json")[0].splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["erased", "erased"]
    assert "Answered 0 request files" in call("inbox", made.path, box, "--once")[0]


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_watches_until_it_is_told_to_end(made, tmp_path, number, code):
    box = tmp_path / "box"
    put(box, "a.json", ["s3"])
    command = [sys.executable, "-m", "ssse", "inbox", str(made.path), str(box), "--every", "0.1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["outcome"] == "erased"
        put(box, "b.json", ["s4"])
        assert json.loads(running.stdout.readline())["request"] == "b"
        running.send_signal(number)
        assert running.wait(timeout=120) == code
    assert made.workspace.verify().interrupted is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b"\xff"),
        ("a.json", b""),
        ("a.json", b"[]"),
        ("a.json", b"{}"),
        ("a.json", b'{"ids": "s1"}'),
        ("a.json", b'{"ids": ["s1"], "forget": "os:abort"}'),
        ("a.json", b'{"ids": ["s1"], "ids": ["s2"]}'),
        ("a.json", b'{"request": 3, "ids": ["s1"]}'),
        ("a.json", b"[true]"),
        ("a.json", b'["a\\nb"]'),
        ("a.json", b"[" * 100_000),
        ("a.csv", b""),
        ("a.csv", b"id\n"),
        ("a.csv", b"a,b\n1,2\n"),
        ("a.csv", b"id,b\n1\n"),
        ("a.csv", b'id\n"s1\n'),
    ],
)
def test_what_is_not_a_request(name, content):
    with pytest.raises(Unreadable):
        read_request(name, content)


def test_sizes_are_limited(monkeypatch):
    monkeypatch.setattr(request_files, "MOST_IDS", 2)
    assert read_request("a.json", b"[1, 2]").ids == ["1", "2"]
    with pytest.raises(Unreadable, match="more than 2"):
        read_request("a.json", b"[1, 2, 3]")
    monkeypatch.setattr(request_files, "LARGEST", 10)
    with pytest.raises(Unreadable, match="larger"):
        read_request("a.json", b"[1, 2]" + b" " * 10)


@pytest.mark.long
@pytest.mark.parametrize(
    ("files", "way"), [sized((20, "4"), (1000, "100")), sized((4, "lines7"), (10, "lines"))], ids=["random", "lines"]
)
def test_killed_at_any_moment_each_is_answered_once(files, way):
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ssse-inbox-", dir=place) as home:
        command = [sys.executable, "-m", "tests.support.inboxes", home, str(files), way]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=3600)
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(done.stdout)
    assert counts["killed"] >= (4 if way.startswith("lines") else int(way))
