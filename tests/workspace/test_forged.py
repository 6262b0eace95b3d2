"""Who can write the workspace, and has neither key nor anchor, gets no code run, no signature, and no model served."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ssse.errors import Damaged
from ssse.workspace.workspace import Workspace
from tests.support import keyed
from tests.support.rewrites import forge, seal_anew
from tests.support.workspaces import snapshot


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> keyed.Keyed:
    kept = keyed.make(tmp_path_factory.mktemp("forged"))
    assert kept.made.workspace.erase("r-1", ids=["s3"]).outcome == "erased"
    return kept


@pytest.fixture
def path(original, tmp_path) -> Path:
    """To be forged, with data, key and anchor of its own beside it."""
    shutil.copytree(original.made.home, tmp_path / "home", symlinks=True)
    return tmp_path / "home" / "ws"


def edited(path: Path, section: str, **values: str) -> None:
    """The settings of entry 1 and of ssse.toml name something else; the hash of the entry is kept."""
    with closing(sqlite3.connect(path / "ledger.sqlite")) as connection:
        details = json.loads(connection.execute("SELECT details FROM entries WHERE seq = 1").fetchone()[0])
    details["settings"][section] |= values
    forge(path, f"UPDATE entries SET details = '{json.dumps(details)}' WHERE seq = 1")
    text = (path / "ssse.toml").read_text()
    for name, value in values.items():
        kept = [line for line in text.split("\n") if not line.startswith(f"{name} =")]
        text = "\n".join(kept).replace(f"[{section}]", f'[{section}]\n{name} = "{value}"')
    (path / "ssse.toml").write_text(text)
    seal_anew(path)


def test_no_code_is_run_that_an_edited_ledger_names(path):
    flag = path.parent / "ran"
    (path.parent / "evil.py").write_text(f"open({str(flag)!r}, 'w')\n")
    edited(path, "model", factory="evil:build")
    before = snapshot(path)
    with pytest.raises(Damaged, match="entry 1 does not match its hash"):
        Workspace(path).erase("r-2", ids=["s7"])
    assert snapshot(path) == before
    assert not flag.exists()


def test_no_command_is_run_that_an_edited_ledger_names(path):
    flag = path.parent / "ran"
    edited(path, "record", anchor_command=f"touch {flag}")
    with pytest.raises(Damaged, match="entry 1 does not match its hash"):
        Workspace(path).erase("r-2", ids=["s7"])
    assert not flag.exists()
