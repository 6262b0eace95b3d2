"""Nothing irreversible before the whole ledger's digest was checked: an edit that keeps size and times is seen, made
before a command or while it works."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ssse.workspace.commands import calibrate as calibrating
from ssse.workspace.engines.torch import TorchEngine
from ssse.workspace.record.seal import Seal
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.commands import call
from tests.support.workspaces import snapshot

COMMANDS = {
    "erase": ("erase", "--request", "r-9", "--ids", "s7,s8"),
    "fit": ("fit", "--again", "--quiet"),
    "calibrate": ("calibrate", "--ids", "s20,s21", "--scales", "0.5,1,2"),
    "confirm": ("confirm",),
    "revert": ("revert",),
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    made = workspaces.make(tmp_path_factory.mktemp("ledger"), erase__probe="none")
    assert made.workspace.erase("r-1", ids=["s3"], options={"erase.scale": 1.5}).details["held"]
    return made


@pytest.fixture
def made(pristine, tmp_path):
    return workspaces.copy(pristine, tmp_path / "home")


def edit(ledger: Path) -> None:
    """One byte of an entry's details, with size and times kept."""
    stat, content = ledger.stat(), ledger.read_bytes()
    place = content.index(b'"verdict":"caution"') + len(b'"verdict":"')
    ledger.write_bytes(content[:place] + b"C" + content[place + 1 :])
    os.utime(ledger, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (ledger.stat().st_size, ledger.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)


def states(path: Path) -> dict[str, bytes | str]:
    return {name: body for name, body in snapshot(path).items() if name.startswith("states/")}


@pytest.mark.parametrize("name", COMMANDS)
def test_made_before_the_command(made, name):
    before = states(made.path)
    assert {name.split("/")[1] for name in before} == {"000002", "000004"}
    edit(made.workspace.folder.ledger)
    altered = snapshot(made.path)
    command, *rest = COMMANDS[name]
    _, complaint = call(command, made.path, *rest, code=4)
    assert "ledger.sqlite' is not as it was written" in complaint
    assert snapshot(made.path) == altered


def during(name: str, monkeypatch, act: Callable[[], None]) -> None:
    """`act` once, as the command has everything and is about to write it."""
    done = []

    def first(function):
        def call(*arguments, **options):
            if not done:
                done.append(True)
                act()
            return function(*arguments, **options)

        return call

    target = {
        "erase": (TorchEngine, "erase"),
        "fit": (TorchEngine, "fit"),
        "calibrate": (calibrating, "calibrate_model"),
        "confirm": (Seal, "opened"),
        "revert": (Seal, "opened"),
    }[name]
    monkeypatch.setattr(*target, first(getattr(*target)))


@pytest.mark.parametrize("name", COMMANDS)
def test_made_while_the_command_works(made, monkeypatch, name):
    before = states(made.path)
    with monkeypatch.context() as patched:
        during(name, patched, lambda: edit(made.workspace.folder.ledger))
        command, *rest = COMMANDS[name]
        _, complaint = call(command, made.path, *rest, code=4)
    assert "was altered while this command worked" in complaint
    after = states(made.path)
    assert {name: after.get(name) for name in before} == before  # nothing was shredded
    # And it stays seen: by verify, and by every command that comes.
    assert any(file == "ledger.sqlite" for file, _ in Workspace(made.path).verify().damages)
    for command, *rest in COMMANDS.values():
        call(command, made.path, *rest, code=4)
    after = states(made.path)
    assert {name: after.get(name) for name in before} == before


@pytest.mark.parametrize("name", COMMANDS)
def test_without_an_edit_each_is_done(made, name):
    command, *rest = COMMANDS[name]
    call(command, made.path, *rest)
    assert made.workspace.verify().ok
