"""A workspace is its owner's alone, from its first moment and whatever the umask; the model is for who serves it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ssse.curvature import Curvature
from ssse.system import files
from ssse.workspace.record.folder import MODELS, open_to_others, restrict
from tests.support import workspaces
from tests.support.kills import traced
from tests.support.sizes import sized

UMASKS = [0o000, 0o022, 0o077, 0o777]
ROOT = Path(__file__).parents[2]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    found = {path.relative_to(folder).as_posix(): path for path in [folder, *folder.rglob("*")]}
    return {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items() if not path.is_symlink()}


def check(workspace: Path, mask: int) -> None:
    for name, mode in modes(workspace).items():
        path = workspace / name
        if path.is_file() and path.name in MODELS:
            assert mode == 0o666 & ~mask | 0o600, name
        else:
            assert mode == (0o700 if path.is_dir() else 0o600), (name, oct(mode))


@pytest.mark.parametrize("mask", UMASKS, ids=oct)
@pytest.mark.parametrize("make", [workspaces.make, workspaces.make_estimator])
def test_whatever_the_umask(make, mask, tmp_path):
    home = tmp_path / "home"
    workspaces.files(home, n=24, p=3)
    with umask(mask):
        made = make(home, n=24, p=3)
        check(made.path, mask)
        made.workspace.erase("r-0", ids=["s3"])
        made.workspace.report()
        check(made.path, mask)
        assert made.workspace.verify().notes == []


AS_NOBODY = """
import os, sys
from pathlib import Path
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.workspace.test_modes import check

def work(home, make, weights):
    settings = make(home, fit=False, n=24, p=3).workspace.settings()  # the user's own files as usual
    os.umask(0o777)
    workspace = Workspace.init(home / "another", settings, home / weights).workspace
    workspace.fit()
    workspace.erase("r-0", ids=["s3"])
    workspace.report()
    found = workspace.verify()
    assert found.ok and found.notes == [], found
    assert len(workspace.log().entries) == 5
    os.umask(0o022)
    check(workspace.folder.path, 0o777)

MAKERS = [(workspaces.make, "w.safetensors"), (workspaces.make_estimator, "model.skops")]
for place, make in enumerate(MAKERS):
    work(Path(sys.argv[1]) / str(place), *make)  # what is imported later may not be nobody's to read
os.setgid(65534)
os.setuid(65534)
for place, make in enumerate(MAKERS):
    work(Path(sys.argv[2]) / str(place), *make)
print("done")
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests above are that")
def test_for_somebody_whom_modes_stop(tmp_path):
    """Root may read everything, whatever its mode."""
    outside = Path("/tmp") / f"ssse-modes-{os.getpid()}"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    try:
        command = [sys.executable, "-c", AS_NOBODY, tmp_path, outside]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert done.stdout == "done\n", done.stderr[-3000:]
    finally:
        files.remove(outside)


def readable(home: Path) -> list[str]:
    """Files below a workspace, also one that is being made, that others could reach by their modes and read."""
    found = []
    for top in [path for path in home.iterdir() if path.name.lstrip(".").startswith("ws")]:
        for path in [top, *top.rglob("*")]:
            steps = [parent for parent in path.parents if parent.is_relative_to(top)]
            try:
                reached = all(parent.stat().st_mode & 0o011 for parent in steps)
                if reached and not path.is_symlink() and path.stat().st_mode & 0o077:
                    found.append(path.relative_to(home).as_posix())
            except FileNotFoundError:
                continue
    return found


@pytest.mark.parametrize("make", [workspaces.make, workspaces.make_estimator])
def test_there_is_no_moment_in_which_others_may_read(make, tmp_path):
    """At the lines of what writes, with an umask that forbids nothing."""
    home = tmp_path / "home"
    workspaces.files(home, n=24, p=3)

    def look(line: int) -> None:
        if line % sized(9, 1) == 0:
            assert readable(home) == []

    def work() -> None:
        workspace = make(home, n=24, p=3).workspace
        workspace.erase("r-0", ids=["s3"])
        workspace.report()

    with umask(0):
        assert traced(look, work) > 500


def widen(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_workspace_of_wider_modes_works_and_verify_says_so(tmp_path):
    made = workspaces.make(tmp_path / "home", n=24, p=3)
    widen(made.path)
    (note,) = made.workspace.verify().notes
    assert note.startswith("Others may read the folder itself, ledger.sqlite")
    assert "ssse upgrade" in note
    with umask(0o022):
        made.workspace.erase("r-0", ids=["s3"])
    wide = open_to_others(made.path)
    assert {"ssse.toml", "ledger.sqlite", "samples.safetensors"} <= {*wide}
    assert not any(name.startswith("states/") for name in wide)  # what is new is closed
    assert not made.workspace.verify().damages
    restrict(made.path)
    check(made.path, 0o022)
    found = made.workspace.verify()
    assert found.ok
    assert found.notes == []


def test_restricting_follows_no_link(tmp_path):
    made = workspaces.make(tmp_path / "home", fit=False, n=24, p=3)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").write_text("")
    (outside / "file").chmod(0o644)
    (made.path / "link").symlink_to(outside)
    (made.path / "another").symlink_to(outside / "file")
    before = modes(outside)
    restrict(made.path)
    assert modes(outside) == before


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_what_is_written_elsewhere_has_what_the_umask_allows(mask, tmp_path):
    made = workspaces.make(tmp_path / "home", n=24, p=3)
    with umask(mask):
        made.workspace.report(tmp_path / "page.html")
        Curvature.load(made.path / "current" / "curvature").save(tmp_path / "out" / "curvature")
    assert modes(tmp_path / "page.html") == {".": 0o666 & ~mask}
    found = modes(tmp_path / "out")
    assert len(found) >= 4
    for name, mode in found.items():
        assert mode == (0o777 if (tmp_path / "out" / name).is_dir() else 0o666) & ~mask


def test_the_umask_is_never_touched(tmp_path):
    """Another thread would make its files with the one that is there for a moment."""
    strange: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        place, number = tmp_path / "other", 0
        place.mkdir()
        while not stop.is_set():
            number += 1
            (place / str(number)).touch()
            if (mode := stat.S_IMODE((place / str(number)).stat().st_mode)) != 0o640:
                strange.append(mode)

    with umask(0o027):
        thread = threading.Thread(target=watch)
        thread.start()
        for number in range(100):
            files.write_atomically(tmp_path / "file", str(number))
        stop.set()
        thread.join()
    assert strange == []
    assert modes(tmp_path / "file") == {".": 0o640}
