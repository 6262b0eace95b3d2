"""Disks that are full, read-only or failing: an error in words, and a workspace as it was or that can be finished."""

from __future__ import annotations

import errno
import linecache
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

from ssse.cli.app import app
from ssse.errors import SSSEError
from ssse.workspace.record import folder as folders
from ssse.workspace.record import transaction as transactions
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.kills import OPERATIONS, WATCHED, Rehearsal, erase
from tests.support.sizes import sized

KIB = 1024
WRITING = ["fit", "fit again", "erase", "erase and keep", "calibrate", "report"]


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A disk of 8 MiB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", place], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing can be mounted here: {getattr(error, 'stderr', None) or error}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="all of it runs without that")
def test_all_of_this_in_a_namespace_where_one_may_mount():
    inside = ["unshare", "-Urm", sys.executable]
    if not shutil.which("unshare") or subprocess.run([*inside, "-c", ""], capture_output=True).returncode:
        pytest.skip("no namespaces for users here")
    command = [*inside, "-m", "pytest", "-p", "no:cacheprovider", __file__, "-k", "not grow and not every_line"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout


@contextmanager
def filled(disk: Path, leave: int) -> Iterator[None]:
    filler = disk / "filler"
    with filler.open("wb") as opened:
        opened.write(bytes(max(0, shutil.disk_usage(disk).free - leave)))
    yield
    filler.unlink()


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


def commands(path: Path) -> list[list[str]]:
    """Those that write, each with what makes it do so."""
    at, home = str(path), path.parent
    data = ["--model", "torch.nn:Linear", "--argument", "in_features=3", "--argument", "out_features=3"]
    data += ["--weights", f"{home}/w.safetensors", "--data", f"{home}/train.npz", "--weight-decay", "0.01"]
    return [
        ["fit", at, "--again"],
        ["calibrate", at, "--ids", "s0,s1", "--method", "loss_search"],
        ["erase", at, "--request", "r-1", "--ids", "s3"],
        ["report", at],
        ["evaluate", at],
        ["init", f"{home}/another", *data],
    ]


def fails_in_one_line(command: list[str]) -> str:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1, (command, done.output)
    lines = [line for line in done.stderr.splitlines() if line.startswith("Error")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.output
    return lines[0]


def attempt(rehearsal: Rehearsal) -> bool:
    """Whether it went through. What goes wrong is an OSError in words, and leaves all whole."""
    found: OSError | None = None
    try:
        rehearsal.operation.run(Workspace(rehearsal.trial))
    except OSError as error:
        found = error
    assert not isinstance(found, SSSEError), found  # a full disk is no damage
    assert found is None or str(found)
    look_at_what_is_left(rehearsal)
    return found is None


def look_at_what_is_left(rehearsal: Rehearsal) -> None:
    """Who lives after an error tidies up, as far as the disk allows; the rest is for the next command."""
    rehearsal.check_killed()
    found = Workspace(rehearsal.trial).verify()
    assert found.interrupted is not None or found.notes == []


# --------------------------------------------------------------------------------------------------- full


@pytest.mark.parametrize("name", WRITING)
def test_a_full_disk_is_refused_before_anything_is_written(name, disk):
    rehearsal = Rehearsal(disk / "home", OPERATIONS[name])
    for leave in (0, 4 * KIB, 64 * KIB, 512 * KIB):
        rehearsal.start()
        with filled(disk, leave):
            assert not attempt(rehearsal)
            assert workspaces.snapshot(rehearsal.trial) == rehearsal.before
        rehearsal.finish()


@pytest.mark.parametrize("name", WRITING)
def test_a_disk_that_fills_up_at_any_moment(name, disk, monkeypatch):
    """With the check for space gone; from room for nothing to room for all, a page of memory at a time."""
    monkeypatch.setattr(folders.Folder, "check_space", lambda self, needed: None)
    rehearsal = Rehearsal(disk / "home", OPERATIONS[name])
    went: list[bool] = []
    for leave in [*range(0, 120 * KIB, 12 * KIB), 1024 * KIB]:
        rehearsal.start()
        with filled(disk, leave):
            went.append(attempt(rehearsal))
            assert len(rehearsal.entries()) >= rehearsal.size  # `ssse log` needs no room
        rehearsal.finish()
    assert not went[0]
    assert went[-1]


def test_every_command_says_so_in_one_line(disk):
    made = workspaces.make(disk / "home", n=24, p=3)
    made.workspace.erase("r-0", ids=["s9", "s10"])
    before = workspaces.snapshot(made.home)
    with filled(disk, 0):
        for command in commands(made.path):
            line = fails_in_one_line(command)
            assert re.search("free|full|space", line), line
            assert workspaces.snapshot(made.home) == before, command
        assert CliRunner().invoke(app, ["verify", str(made.path)]).exit_code == 0
        assert CliRunner().invoke(app, ["log", str(made.path)]).exit_code == 0
        assert workspaces.snapshot(made.home) == before


def test_a_full_temporary_folder_is_not_needed(disk, tmp_path, monkeypatch):
    made = workspaces.make(tmp_path / "home", n=24, p=3)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    with filled(disk, 0):
        assert made.workspace.verify().ok


# ---------------------------------------------------------------------------------------------- read-only


def test_a_read_only_disk(disk, tmp_path):
    made = workspaces.make(disk / "home", n=24, p=3)
    made.workspace.erase("r-0", ids=["s9", "s10"])
    before, entries = workspaces.snapshot(made.home), made.workspace.log().entries
    with read_only(disk):
        found = made.workspace.verify()
        assert found.ok
        assert found.notes == []
        assert made.workspace.log().entries == entries
        for command in commands(made.path):
            line = fails_in_one_line(command)
            assert re.search("[Rr]ead-?only|readonly", line), line
        for command in (["verify"], ["log"], ["report", "--output", str(tmp_path / "page.html")]):
            done = CliRunner().invoke(app, [command[0], str(made.path), *command[1:]])
            assert done.exit_code == 0, done.output
        assert (tmp_path / "page.html").stat().st_size > 1000
        assert workspaces.snapshot(made.home) == before
    assert made.workspace.erase("r-1", ids=["s3"]).outcome == "erased"


@pytest.mark.parametrize("index", [True, False])
def test_what_a_kill_left_can_be_read_on_a_read_only_disk(index, disk):
    """The newest entries are in SQLite's log alone, and its index may be gone."""
    rehearsal = Rehearsal(disk / "home", OPERATIONS["erase"])
    rehearsal.start()
    assert killed_before(rehearsal, "_retire")
    assert (rehearsal.trial / "ledger.sqlite-wal").stat().st_size
    if not index:
        (rehearsal.trial / "ledger.sqlite-shm").unlink()
    with read_only(disk):
        found = Workspace(rehearsal.trial).verify()
        assert found.ok
        assert found.interrupted == "erase"
        kinds = [entry.kind for entry in Workspace(rehearsal.trial).log().entries]
        assert kinds[-2:] == ["received", "erased"]
        with pytest.raises(OSError, match=r"[Rr]ead-?only"):
            erase(Workspace(rehearsal.trial))
    rehearsal.finish()


KILLED = """
import os, signal, sys
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.workspace import Workspace
from tests.support.kills import erase
setattr(Transaction, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
erase(Workspace(sys.argv[1]))
"""


def killed_before(rehearsal: Rehearsal, moment: str) -> bool:
    """In a process of its own, for only a kill leaves SQLite's files where they are."""
    command = [sys.executable, "-c", KILLED, rehearsal.trial, moment]
    return subprocess.run(command, cwd=Path(__file__).parents[2]).returncode == -9


def test_what_cannot_be_overwritten_is_not_called_shredded(disk, monkeypatch):
    """The states turn read-only, as a failing disk does, the moment before the old weights go."""
    rehearsal = Rehearsal(disk / "home", OPERATIONS["erase"])
    rehearsal.start()
    old = rehearsal.trial / "states" / "000002" / "weights.safetensors"
    retire = transactions.Transaction._retire

    states, turned = rehearsal.trial / "states", []

    def turn(self: transactions.Transaction, *arguments: Any) -> None:
        if not turned:
            turned.append(True)
            subprocess.run(["mount", "--bind", states, states], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", states], check=True)
        retire(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(transactions.Transaction, "_retire", turn)
        with pytest.raises(OSError, match="Read-only"):
            erase(Workspace(rehearsal.trial))
        with pytest.raises(OSError, match="Read-only"):
            erase(Workspace(rehearsal.trial))  # is not answered, and cannot be
    assert old.read_bytes() == rehearsal.old
    found = Workspace(rehearsal.trial).verify()
    assert found.ok
    assert found.interrupted == "erase"
    assert [entry.kind for entry in Workspace(rehearsal.trial).log().entries][-1] == "erased"
    subprocess.run(["umount", states], check=True)
    rehearsal.finish()
    assert not old.exists()


# ------------------------------------------------------------------------- failing, without being root


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Python ignores SIGXFSZ, so writing beyond it is an error like any other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", WRITING)
def test_files_that_cannot_grow(name, tmp_path):
    rehearsal = Rehearsal(tmp_path / "home", OPERATIONS[name])
    went: list[bool] = []
    for size in (0, 100, 300, 600, 1500, 4 * KIB, 16 * KIB, 30 * KIB, 34 * KIB, 44 * KIB, 50 * KIB, 1024 * KIB):
        rehearsal.start()
        with largest_file(size):
            went.append(attempt(rehearsal))
        rehearsal.finish()
    assert not went[0]
    assert went[-1]


PRIMITIVES = re.compile(
    r"os\.(replace|rename|fsync|open|fchmod|fdopen)|execute|\.write\(|write_text|mkdir|symlink_to|unlink|rmdir|rmtree"
    r"|save_file|mkstemp|mkdtemp|\.flush|\.open\("
)
ERRORS = [errno.ENOSPC, errno.EIO, errno.EROFS]


def failing_at(place: tuple[str, int], call: int, number: int) -> Any:
    """Raise when that line is reached for the n-th time; afterwards the disk is well again."""
    seen = 0

    def watch(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line" and (frame.f_code.co_filename, frame.f_lineno) == place:
            seen += 1
            if seen == call:
                raise OSError(number, os.strerror(number))
        return watch

    return watch


def primitives(rehearsal: Rehearsal) -> dict[tuple[str, int], int]:
    """The lines that touch the disk, and how often the operation comes there."""
    found: dict[tuple[str, int], int] = {}

    def watch(frame: FrameType, event: str, _: Any) -> Any:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place[0] not in WATCHED:
            return None
        if event == "line" and PRIMITIVES.search(linecache.getline(*place)):
            found[place] = found.get(place, 0) + 1
        return watch

    rehearsal.start()
    sys.settrace(watch)
    try:
        rehearsal.operation.run(Workspace(rehearsal.trial))
    finally:
        sys.settrace(None)
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", ["fit", "erase", "report"])
def test_an_error_at_every_line_that_touches_the_disk(name, tmp_path):
    """Each line at its first call or its last (in full: both, and one between), with the errors of a disk by turns."""
    rehearsal = Rehearsal(tmp_path / "home", OPERATIONS[name])
    found = primitives(rehearsal)
    assert len(found) >= 15
    # `with` comes twice, the second time to close what must be closed
    lasts = {place: 1 if linecache.getline(*place).lstrip().startswith("with ") else n for place, n in found.items()}
    ends = {place: {(1, last)[i % 2]} for i, (place, last) in enumerate(sorted(lasts.items()))}
    calls = sized(ends, {place: {1, (last + 1) // 2, last} for place, last in lasts.items()})
    moments = sorted((place, call) for place in calls for call in calls[place])
    failed = 0
    for i, (place, call) in enumerate(moments):
        number = ERRORS[i % len(ERRORS)]
        rehearsal.start()
        sys.settrace(failing_at(place, call, number))
        raised: OSError | None = None
        try:
            rehearsal.operation.run(Workspace(rehearsal.trial))
        except OSError as error:
            raised = error
        finally:
            sys.settrace(None)
        failed += raised is not None
        assert raised is None or number in numbers_of(raised), place
        del raised  # and what its traceback holds
        look_at_what_is_left(rehearsal)
        rehearsal.finish()
    assert failed >= 0.8 * len(moments)  # what only tidies up may fail once without harm


def numbers_of(error: BaseException | None) -> list[int | None]:
    """Also of the errors that it followed."""
    found = []
    while error is not None:
        found.append(getattr(error, "errno", None))
        error = error.__cause__ or error.__context__
    return found
