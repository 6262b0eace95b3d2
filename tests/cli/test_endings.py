"""How commands begin and end: help without delay, one object or a few words, exit codes that a script can rely on."""

from __future__ import annotations

import errno
import json
import math
import re
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from ssse.cli.app import app
from ssse.errors import InvalidSetting
from ssse.system.lock import locked
from ssse.workspace.engines import torch as torch_engine
from tests.support import workspaces
from tests.support.commands import call, call_error, call_json, init
from tests.support.workspaces import Made, copy, make, snapshot

COMMANDS = ("init", "fit", "calibrate", "erase", "evaluate", "report", "log", "verify")


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> Made:
    """A fitted workspace that no test changes."""
    return make(tmp_path_factory.mktemp("ready") / "home")


@pytest.fixture
def made(ready, tmp_path) -> Made:
    return copy(ready, tmp_path / "home")


# Before there is work to do


@pytest.mark.parametrize("words", [["--help"], *([command, "--help"] for command in COMMANDS)], ids=" ".join)
def test_help_imports_nothing_heavy(words):
    alone = ", 'pydantic', 'tomllib'" if words == ["--help"] else ""  # typer itself may read options by pydantic
    code = (
        "import sys\nfrom ssse.cli.app import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        f"heavy = ('torch', 'numpy', 'sqlite3', 'matplotlib', 'rich', 'jinja2', 'ssse.workspace'{alone})\n"
        "sys.exit(', '.join(name for name in heavy if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout


@pytest.mark.parametrize("command", ["log", "verify"])
def test_reading_needs_no_torch(ready, command):
    code = (
        "import sys\nfrom ssse.cli.app import app\n"
        f"app([{command!r}, {str(ready.path)!r}, '--json'], standalone_mode=False)\n"
        "sys.exit(', '.join(name for name in ('torch', 'matplotlib', 'sklearn') if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["head"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_quiet_and_verbose(command):
    text, _ = call(command, "--help")
    assert re.search(r"--json .*\n", text)
    assert re.search(r"-q, --quiet .*\n *-v, --verbose", text)


# How commands end


def test_each_step_prints_one_object(tmp_path):
    workspaces.files(tmp_path)
    seen = json.loads(init(tmp_path, "--test", tmp_path / "test.npz", "--json"))
    assert seen == {
        "workspace": str(tmp_path / "ws"),
        "parameters": 15,
        "in_theta": 15,
        "samples": 40,
        "has_ids": True,
        "outputs": 3,
        "linear": True,
        "first_loss": pytest.approx(seen["first_loss"]),
        "first": 40,
        "guessing": pytest.approx(math.log(3)),
    }
    ws = tmp_path / "ws"
    assert call_json("fit", ws)["fitted"]
    assert not call_json("fit", ws)["fitted"]
    assert call_json("calibrate", ws, "--ids", "s1,s2", "--method", "line_search")["entry"]["kind"] == "calibrated"
    assert call_json("erase", ws, "--request", "a", "--ids", "s1", "--dry-run")["outcome"] == "tried"
    wait = ("--set", "erase.confirm=always")
    assert call_json("erase", ws, "--request", "a", "--ids", "s1", *wait)["held"] == ["a"]
    assert call_json("erase", ws, "--request", "a", "--ids", "s1", code=0)["outcome"] == "repeated"
    assert call_json("confirm", ws)["requests"] == ["a"]
    assert call_json("revert", ws) == {"requests": [], "entry": None}
    assert call_json("erase", ws, "--request", "b", "--ids", "s1", code=3)["outcome"] == "refused"
    assert call_json("evaluate", ws)["entry"]["kind"] == "evaluated"
    listed = call_json("log", ws)
    assert [entry["kind"] for entry in listed["entries"]] == [
        *("created", "fitted", "calibrated"),
        *("received", "erased", "confirmed", "sealed", "received", "refused", "evaluated"),
    ]
    assert (listed["head"], listed["pending"], listed["held"]) == (listed["entries"][-1]["hash"], [], [])
    assert call_json("verify", ws, "--head", listed["entries"][3]["hash"])["ok"]


def test_words_for_people(made):
    """The one line of --quiet is the first of what is printed without it."""
    ws, forget = made.path, made.forget_file([3, 4])
    text, aside = call("fit", ws, "--again")
    assert text.startswith("Fitted 40 samples, 15 parameters in ")
    assert aside.startswith("Chosen: ")
    quiet, aside = call("erase", ws, "--request", "a", "--forget", forget, "-q", "--dry-run")
    text, _ = call("erase", ws, "--request", "a", "--forget", forget, "--dry-run")
    assert (quiet, aside) == ("Would erase 2 of 40 samples (request 'a'). Verdict: ok.\n", "")
    assert text.startswith(quiet)
    assert text.endswith("Nothing was written.\n")
    text, _ = call("erase", ws, "--request", "a", "--forget", forget, "-v")
    assert "Erased 2 of 40 samples (request 'a'). Verdict: ok.\n" in text
    assert f"The erased model: {ws}/current/weights.safetensors\n" in text
    assert "shredded" in text
    text, _ = call("erase", ws, "--request", "a", "--forget", forget)
    assert re.fullmatch(r"Request 'a' was answered on \S+: 2 samples\. Nothing was done\.\n", text)
    text, _ = call("erase", ws, "--request", "b", "--forget", forget, code=3)
    assert text == (
        "Refused: All of its samples are erased already, by 'a'.\n"
        "The model is as it was. The refusal is in the ledger.\n"
    )
    assert call("verify", ws, "-q")[0] == "All is as it was written: 8 entries, 7 files.\n"


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_terminals_narrow_and_wide(made, monkeypatch, columns):
    """Words stay whole, and so does a hash that is to be copied."""
    monkeypatch.setenv("COLUMNS", str(columns))
    call("erase", made.path, "--request", "2026-001", "--ids", "s3", "--set", "erase.policy=joint")
    text, _ = call("log", made.path)
    assert "2026-001" in text
    assert "torch.nn:Linear:" in text
    assert "shredded" in text
    head = call_json("log", made.path)["head"]
    assert f"head  {head}\n" in call("verify", made.path)[0]
    assert head in text


def test_ids_that_are_not_rich_markup(made):
    text, _ = call("erase", made.path, "--request", "[red]a[/x] :smile:", "--ids", "s3")
    assert "(request '[red]a[/x] :smile:')" in text
    assert "[red]a[/x] :smile:" in call("log", made.path, "--request", "[red]a[/x] :smile:")[0]


def test_an_old_terminal_and_a_reader_that_leaves(made):
    """Output that cannot hold ε, and `| head`."""
    log = [sys.executable, "-m", "ssse", "log", str(made.path)]
    done = subprocess.run(log, capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii"})
    assert rb"\u03bb = 0.01" in done.stdout
    done = subprocess.run([*log, "--json"], capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii"})
    assert json.loads(done.stdout)["entries"]
    done = subprocess.run(
        f"'{sys.executable}' -m ssse log '{made.path}' --json | true", shell=True, capture_output=True
    )
    assert done.stderr == b""


@pytest.mark.parametrize("command", [*COMMANDS, "reproduce"])
def test_wrong_words_are_one_line_too(command):
    said = call_error(command, "--nonsense")
    assert said.endswith(f"{command} --help` says more.")


def test_no_words_are_a_wish_for_help():
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 2
    assert "Commands:" in done.output


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "init"])
def test_no_workspace(tmp_path, command):
    words = [command, tmp_path / "ws", *(["--request", "a", "--ids", "b"] if command == "erase" else [])]
    assert "There is no workspace" in call_error(*words)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "mine").touch()
    assert "is not a workspace" in call_error(*words)
    assert [path.name for path in (tmp_path / "ws").iterdir()] == ["mine"]


def test_a_workspace_is_never_made_over_another_thing(made):
    before = snapshot(made.home)
    init(made.home, code=2)
    assert snapshot(made.home) == before


def test_busy(made):
    words = [["fit", "--again"], ["erase", "--request", "a", "--ids", "s1"], ["evaluate"], ["verify"], ["report"]]
    before = snapshot(made.path)
    with locked(made.path):
        for command, *rest in words:
            assert "at work" in call_error(command, made.path, *rest, "--no-wait", code=5)
        assert call_json("log", made.path)["entries"]  # only reads
    assert snapshot(made.path) == before


@pytest.mark.parametrize("name", ["weights.safetensors", "curvature/manifest.json"])
def test_damage_ends_with_its_own_code(made, name):
    path = made.path / "current" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "was altered" in call_error("erase", made.path, "--request", "a", "--ids", "s1", code=4)
    assert not call_json("verify", made.path, code=4)["ok"]
    path.write_bytes(whole)
    ledger = made.path / "ledger.sqlite"
    intact = ledger.read_bytes()
    ledger.write_bytes(b"no ledger any more" * 100)
    assert "damaged" in call_error("log", made.path, code=4)
    ledger.write_bytes(intact)
    (made.path / "ssse.toml").unlink()
    assert "is missing" in call_error("erase", made.path, "--request", "a", "--ids", "s1", code=4)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (OSError(errno.ENOSPC, "No space left", "states"), 1, "Error: [Errno 28] No space left: 'states'\n"),
        (MemoryError(), 1, "Error: out of memory\n"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "Error: out of memory: "),
        (InvalidSetting("odd \x1b[31m\u202e\x00 \ud800"), 2, "Error: odd \\x1b[31m\\u202e\\x00 \\ud800\n"),
        (KeyboardInterrupt(), 130, "Stopped; the workspace is whole."),
    ],
    ids=["disk", "memory", "torch", "odd", "stopped"],
)
def test_a_request_that_could_not_be_finished_waits(made, monkeypatch, error, code, says):
    """It is received; the same command finishes it, and other samples under its id do not."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(torch_engine, "erase_from", fail)
        text, complaint = call("erase", made.path, "--request", "a", "--ids", "s1,s2", "--json", code=code)
    assert complaint.startswith(says)
    assert complaint.count("\n") == 1
    assert json.loads(text)["exit"] == code
    listed = call_json("log", made.path)
    assert (listed["entries"][-1]["kind"], listed["pending"]) == ("received", ["a"])
    assert "received and not answered" in " ".join(call("log", made.path)[0].split())
    assert call_json("verify", made.path)["ok"]
    assert "not finished" in call_error("erase", made.path, "--request", "a", "--ids", "s1,s3")
    call("erase", made.path, "--request", "b", "--ids", "s9")
    call("erase", made.path, "--request", "a", "--ids", "s2,s1")
    entries = call_json("log", made.path, "--request", "a")["entries"]
    assert [entry["kind"] for entry in entries] == ["received", "erased", "sealed"]
    assert call_json("log", made.path)["pending"] == []
