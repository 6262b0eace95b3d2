"""Request files of a folder: each answered once, whatever lies there and whoever is killed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from ssse.errors import BrokenArtefact, Busy, Damaged, InvalidSetting
from ssse.system.digests import digest_bytes
from ssse.system.lock import locked
from ssse.workspace.commands import inbox, request_files
from ssse.workspace.commands.inbox import Inbox, pending
from ssse.workspace.commands.request_files import Unreadable, read_request
from ssse.workspace.record.answers import NOTHING_LEFT
from ssse.workspace.results import Erased
from ssse.workspace.workspace import Workspace
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
        **dict.fromkeys("ei", "refused"),
        **dict.fromkeys("fg", "repeated"),
        "h": "unreadable",
    }
    assert erased(made) == ["2026-1", "b", "c", "d"]
    told = json.loads((box / f"a.json{ANSWER}").read_text())
    assert (told["request"], told["outcome"], told["samples"]) == ("2026-1", "erased", 2)
    assert told["verdict"] in ("ok", "caution")
    assert told["head"] in {entry.hash for entry in made.workspace.log().entries}
    assert not {"leverages", "loss_before", "diagnostics"} & set(told)
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
    box, stop, now = tmp_path / "box", Event(), []
    put(box, "a.json", '["s3"', old=False)
    put(box, "b.csv", "id\ns4\n", old=False)

    def erase(request: str, ids: list[str], due: str | None) -> Erased:
        raise AssertionError(f"{request} was asked for")

    asked = Inbox(box, made.workspace.folder, erase, lambda: None, now.append, stop, settled=60.0)
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


def test_an_answer_tells_nothing_of_others(made, tmp_path):
    """No id that is near, no path, not whose an answered request was, nor which request erased a sample."""
    box = tmp_path / "box"
    put(box, "a.json", {"request": "r-1", "ids": ["s3"]})
    answered(made, box)
    for name, sample in (("b", "s3"), ("c", "s4"), ("d", "nobody")):
        put(box, f"{name}.json", {"request": "r-1", "ids": [sample]})
    put(box, "e.json", ["s3x9"])
    put(box, "f.json", ["s3"])
    found = {name: answer.to_dict() for name, answer in answered(made, box).items()}
    same = [{**found[f"{name}.json"], "file": "", "file_digest": "", "time": ""} for name in "bcd"]
    assert same[0] == same[1] == same[2]
    assert (same[0]["outcome"], same[0]["samples"], same[0]["verdict"]) == ("repeated", None, None)
    assert found["e.json"]["reason"] == "The training data has no sample with the id 's3x9'."
    assert (found["f.json"]["outcome"], found["f.json"]["reason"]) == ("refused", NOTHING_LEFT)
    assert erased(made) == ["r-1"]


def test_a_claim_that_somebody_planted_is_none(made, tmp_path):
    """Else it would tell whether the samples of a request were these."""
    box = tmp_path / "box"
    made.workspace.erase("r-1", ids=["s3"])
    for name, sample in (("a.json", "s3"), ("b.json", "s4")):
        path = put(box, name, {"request": "r-1", "ids": [sample]})
        claim = {"file_digest": digest_bytes(path.read_bytes()), "request": "r-1", "seq": 0, "by": "0" * 64}
        put(box, f".{name}.claim", claim)
    assert {answer.outcome for answer in answered(made, box).values()} == {"repeated"}


def test_an_outcome_of_other_samples_is_not_its_answer(made, tmp_path, monkeypatch):
    """Killed with a claim; meanwhile somebody uses the same id for another sample."""
    box = tmp_path / "box"
    put(box, "a.json", {"request": "r-1", "ids": ["s3"]})
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "erase", stopped)
        with pytest.raises(KeyboardInterrupt):
            answered(made, box)
    assert list(box.glob(".*.claim"))
    made.workspace.erase("r-1", ids=["s4"])
    assert answered(made, box)["a.json"].outcome == "repeated"


def stopped(*_: Any, **__: Any) -> Erased:
    raise KeyboardInterrupt


def test_one_file_does_not_stop_the_others(made, tmp_path, monkeypatch):
    box, said = tmp_path / "box", []
    for number, name in enumerate("abcd"):
        put(box, f"{name}.json", [f"s{number}"])
    (box / f"a.json{ANSWER}").mkdir()
    (box / ".b.json.claim").mkdir()
    read = Inbox._read  # pyright: ignore[reportPrivateUsage]

    def unreadable(self: Inbox, path: Path) -> tuple[bytes, bool]:  # as of mode 0000, which root may read
        if path.name == "c.json":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(self, path)

    monkeypatch.setattr(Inbox, "_read", unreadable)
    asked = Inbox(
        box,
        made.workspace.folder,
        lambda r, ids, due: made.workspace.erase(r, ids=ids, due=due),
        lambda: None,
        said.append,
        Event(),
    )
    assert [answer.file for answer in asked.answers(None)] == ["d.json"]
    assert list(asked.answers(None)) == []
    assert erased(made) == ["a", "d"]  # without an answer, which it gets as soon as there is room
    assert [text.split()[0] for text in said] == ["'a.json'", "'b.json'", "'c.json'"]
    monkeypatch.undo()
    for path in (box / f"a.json{ANSWER}", box / ".b.json.claim"):
        path.rmdir()
    assert {answer.outcome for answer in answered(made, box).values()} == {"erased"}
    assert sorted(erased(made), key=str) == ["a", "b", "c", "d"]


def test_the_day_by_which_a_request_is_due_comes_with_it(made, tmp_path):
    box = tmp_path / "box"
    put(box, "a.json", '{"ids": ["s3"], "due": "2026-12-31"}')
    put(box, "b.json", '{"ids": ["s4"], "due": "soon"}')
    put(box, "c.json", '{"ids": ["s4"], "due": 20261231}')
    found = {answer.file: answer for answer in made.workspace.inbox(box, by="the inbox")}
    assert found["a.json"].outcome == "erased"
    assert (found["b.json"].outcome, found["c.json"].outcome) == ("unreadable", "unreadable")
    assert "YYYY-MM-DD, not 'soon'" in found["b.json"].reason
    received = made.workspace.log("a").entries[0]
    assert (received.details["due"], received.details["who"]) == ("2026-12-31", "the inbox")


def test_a_full_disk_stops_it(made, tmp_path, monkeypatch):
    box = tmp_path / "box"
    put(box, "a.json", ["s3"])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(inbox, "write_beside", full)
    with pytest.raises(OSError, match="No space"):
        answered(made, box)
    assert erased(made) == []


def test_an_answer_with_a_long_id_is_given_once(made, tmp_path):
    box = tmp_path / "box"
    put(box, "a.json", {"request": "a" * 2_000_000, "ids": ["s1"]})
    assert answered(made, box)["a.json"].outcome == "unreadable"
    assert answered(made, box) == {}


def test_an_answer_that_waits_is_given_anew_when_it_is_settled(tmp_path):
    box = tmp_path / "box"
    box.mkdir()
    made = make(tmp_path / "home", erase__confirm="always")
    for way, expected in (("confirm", ("erased", False)), ("revert", ("reverted", False))):
        put(box, f"{way}.json", ["s3" if way == "confirm" else "s4"])
        assert answered(made, box)[f"{way}.json"].held
        assert answered(made, box) == {}
        getattr(made.workspace, way)()
        found = answered(made, box)
        assert {name: (one.outcome, one.held) for name, one in found.items()} == {f"{way}.json": expected}
        told = json.loads((box / f"{way}.json{ANSWER}").read_text())
        assert (told["outcome"], told["held"]) == expected
        assert answered(made, box) == {}
    put(box, "again.json", {"request": "revert", "ids": ["s4"]})
    assert answered(made, box)["again.json"].outcome == "erased"


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
        try:
            assert running.wait(timeout=120) == code
        finally:
            running.kill()
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
    ("files", "way"),
    [sized((20, "4"), (1000, "100")), sized((4, "lines11"), (10, "lines")), (sized(4, 10), "entered")],
    ids=["random", "lines", "entered"],
)
def test_killed_at_any_moment_each_is_answered_once(files, way):
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ssse-inbox-", dir=place) as home:
        command = [sys.executable, "-m", "tests.support.inboxes", home, str(files), way]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=3600)
    assert done.returncode == 0, done.stderr[-4000:]
    least = 1 if way == "entered" else sized(2, 4) if way.startswith("lines") else int(way)
    assert json.loads(done.stdout)["killed"] >= least
