"""Files altered with their size and time of change kept: named by `verify`, and refused by whatever relies on them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ssse.errors import Damaged
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.edits import COMMANDS, KINDS, Scene, attempt, check, links, put_in_silence
from tests.support.sizes import sized
from tests.support.tally import Tally


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Scene:
    return Scene.make(tmp_path_factory.mktemp("edits") / "home")


@pytest.fixture
def scene(made) -> Scene:
    made.restore()
    return made


def test_what_is_restored_is_whole(scene):
    found = Workspace(scene.path).verify()
    assert found.ok, found.damages


def test_an_edit_keeps_size_and_time(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"as it was")
    before = path.stat()
    put_in_silence(path, b"as it is.")
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert path.read_bytes() == b"as it is."


def test_alterations_of_every_kind(scene):
    """The same ones every time; in full as many as the benchmark."""
    found = attempt(scene, sized(40, 2000), seed=0)
    assert found.unharmed, found.failures
    assert found.tried == sized(40, 2000)


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_refuses(kind, scene):
    """One alteration of each kind, and all commands on it."""
    tally, chooser = Tally(), random.Random(5)
    for command in COMMANDS:
        way, name = next(KINDS[kind](scene, chooser))
        check(scene, way, name, command, tally)
        scene.restore()
    assert tally.unharmed, tally.failures


def test_a_link_to_another_state_stops_every_command(scene):
    """Else the next request would put it right without a word, and who served the wrong model would never know."""
    next(links(scene, random.Random(0)))
    before = workspaces.snapshot(scene.path)
    with pytest.raises(Damaged, match=r"points to .* Remove the link, make it again \(ln -s states/000007"):
        Workspace(scene.path).erase("r-9", ids=["s5"])
    assert workspaces.snapshot(scene.path) == before
    link = Path(scene.path / "current")
    link.unlink()
    link.symlink_to("states/000007")
    assert Workspace(scene.path).erase("r-9", ids=["s5"]).outcome == "erased"
