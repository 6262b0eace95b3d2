"""Nothing that is only data is ever run: pickles, objects in arrays, names, texts, modules that lie about."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import attempts, workspaces
from tests.support.sizes import sized
from tests.support.tally import Tally

CHOSEN = sized("pickles/12,arrays/6,skops/6,names/9,specifications/9,settings/3,modules/3,texts/9,own/4", "")


@pytest.mark.long
def test_no_attempt_runs_anything(tmp_path):
    """In a process of its own, for it forks."""
    command = [sys.executable, "-m", "tests.support.attempts", str(tmp_path), *([CHOSEN] if CHOSEN else [])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    found = Tally.from_dict(json.loads(done.stdout))
    assert found.unharmed, found.failures


def test_there_are_as_many_as_promised():
    assert sum(len(list(group())) for group in attempts.GROUPS.values()) >= 90


@pytest.mark.parametrize("bomb", ["Path.touch", "os.system", "exec", "eval"])
def test_each_bomb_would_leave_its_mark(bomb, tmp_path):
    """Else that there is none would say nothing."""
    made = workspaces.make(tmp_path / "home", n=12, fit=False)
    home = attempts.Home(made, tmp_path / "mark")
    pickle.loads(pickle.dumps(home.bombs()[bomb]))
    assert home.mark.exists()
