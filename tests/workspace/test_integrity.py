"""Whatever is not as it was written is named by `ssse verify`, and nothing is built on it."""

from __future__ import annotations

import hashlib
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ssse.cli.app import app
from ssse.errors import Damaged, InvalidSetting, SSSEError
from ssse.workspace.record import transaction as transactions
from ssse.workspace.record.entry import FIRST, canonical
from ssse.workspace.record.seal import Seal, seal_files
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.kills import KEPT, report
from tests.support.rewrites import forge, read, rebuild, seal_anew, shifted

STATE, OLD = "states/000004", "states/000002"  # fitted is entry 2, erased entry 4
PARTS = ("curvature/manifest.json", "curvature/part-00000.safetensors", "weights.safetensors")
FILES = [
    "ledger.sqlite",
    "report.html",
    "samples.safetensors",
    "seal.json",
    "ssse.toml",
    f"{OLD}/curvature/curvature.safetensors",
    *(f"{OLD}/{name}" for name in PARTS),
    *(f"{STATE}/{name}" for name in PARTS),  # its gradient is not known any more, so one file less
]
NEEDED = [name for name in FILES if not name.startswith(OLD) and name not in ("report.html", "ssse.toml")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """One request answered, the old state kept, a page written."""
    home = tmp_path_factory.mktemp("whole")
    made = workspaces.make(home, n=24, p=3, **KEPT)
    assert made.workspace.erase("r-1", ids=["s3", "s11"]).outcome == "erased"
    report(made.workspace)
    assert sorted(name for name, body in workspaces.snapshot(made.path).items() if isinstance(body, bytes)) == FILES
    return made.path


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """The same history on other data, so that no file of it is the same."""
    made = workspaces.make(tmp_path_factory.mktemp("other"), n=26, p=3, **KEPT)
    made.workspace.erase("r-1", ids=["s3", "s11"])
    report(made.workspace)
    return made.path


@pytest.fixture
def path(whole) -> Path:
    """To be damaged; beside the original, so that the data is found."""
    copy = whole.parent / "copy"
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(whole, copy, symlinks=True)
    return copy


def named(path: Path, **options: Any) -> set[str]:
    return {name for name, _ in Workspace(path).verify(**options).damages}


def erase(path: Path, request: str = "r-2") -> str:
    return Workspace(path).erase(request, ids=["s5"]).outcome


def refused_and_unchanged(path: Path, request: str = "r-2") -> None:
    before = workspaces.snapshot(path)
    with pytest.raises(Damaged):
        erase(path, request)
    assert workspaces.snapshot(path) == before


def test_what_is_whole_passes(path):
    before = workspaces.snapshot(path)
    found = Workspace(path).verify()
    assert found.ok
    assert found.notes == []
    assert found.interrupted is None
    assert found.entries == 5
    assert found.files == len(FILES)
    assert workspaces.snapshot(path) == before
    assert erase(path) == "erased"


# ------------------------------------------------------------------------------------------ single files


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_byte_anywhere_is_named(name, path):
    """Seed 0. Every byte of the seal, which nothing else vouches for; of the others all that is their header's."""
    chooser, content = random.Random(0), (path / name).read_bytes()
    length = len(content)
    few = {*range(min(24, length)), *range(length - 8, length), *(chooser.randrange(length) for _ in range(40))}
    places = {"seal.json": range(length), "ledger.sqlite": {*range(100), *few}}.get(name, few)
    for place in sorted(places):
        altered = bytearray(content)
        altered[place] ^= chooser.choice([0x01, 0x20, 0x80, 0xFF, chooser.randrange(1, 256)])
        (path / name).write_bytes(altered)
        assert name in named(path), place
    (path / name).write_bytes(content)
    assert Workspace(path).verify().ok


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def remove(path: Path) -> None:
    path.unlink()


def link(path: Path) -> None:
    """The very same bytes, where somebody else may change them."""
    elsewhere = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


WAYS = [cut, empty, lengthen, remove, link, make_folder]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FILES)
def test_other_damage_is_named(name, way, path):
    way(path / name)
    found = Workspace(path).verify()
    if name == "report.html" and way is remove:  # can be made again at any time
        assert found.ok
        assert any("report.html" in note for note in found.notes)
    else:
        assert name in {damaged for damaged, _ in found.damages}


@pytest.mark.parametrize("way", [cut, empty, remove])
@pytest.mark.parametrize("name", NEEDED)
def test_erase_refuses_what_is_damaged_and_changes_nothing(name, way, path):
    way(path / name)
    refused_and_unchanged(path)


@pytest.mark.parametrize("name", ["ledger.sqlite", "samples.safetensors", "seal.json"])
def test_erase_refuses_what_is_read_through_a_link(name, path):
    link(path / name)
    refused_and_unchanged(path)


def test_the_command_line_says_so_with_its_exit_code(path):
    weights = path / STATE / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    before = workspaces.snapshot(path)
    for command in (["verify"], ["erase", "--request", "r-2", "--ids", "s5"], ["report"], ["fit", "--again"]):
        done = CliRunner().invoke(app, [command[0], str(path), *command[1:]])
        assert done.exit_code == 4, command
        assert "weights.safetensors" in done.output
        assert "Traceback" not in done.output
    assert workspaces.snapshot(path) == before


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("ssse.toml", "seal.json")])
def test_files_of_another_workspace_are_not_taken_for_ours(name, path, other):
    assert (other / name).read_bytes() != (path / name).read_bytes()
    shutil.copyfile(other / name, path / name)
    assert name in named(path)


def test_the_current_state_is_the_one_that_the_ledger_says(path):
    for target in (OLD, "states/000009", "elsewhere"):
        (path / "current").unlink()
        (path / "current").symlink_to(target)
        assert named(path) == {"current"}
    (path / "current").unlink()
    shutil.copytree(path / STATE, path / "current")
    assert named(path) == {"current"}


def test_a_state_behind_a_link(path):
    (path / STATE).rename(path.parent / "moved")
    (path / STATE).symlink_to(path.parent / "moved")
    assert f"{STATE}/weights.safetensors" in named(path)
    shutil.rmtree(path.parent / "moved")


def test_files_that_are_not_ours_are_noted_and_left_alone(path):
    (path / "notes.txt").write_text("mine")
    (path / ".hidden").write_text("mine")
    (path / STATE / "extra").symlink_to("/etc/hostname")
    found = Workspace(path).verify()
    assert found.ok
    assert ".hidden" in found.notes[0]
    assert "notes.txt" in found.notes[0]
    assert f"{STATE}/extra" in found.notes[0]
    assert erase(path) == "erased"
    assert (path / "notes.txt").read_text() == (path / ".hidden").read_text() == "mine"


def test_edited_settings_are_named_until_a_command_takes_them_over(path):
    settings = path / "ssse.toml"
    settings.write_text(settings.read_text().replace("batch_size = 1024", "batch_size = 7"))
    assert named(path) == {"ssse.toml"}
    assert erase(path) == "erased"
    assert Workspace(path).verify().ok
    assert "configured" in [entry.kind for entry in Workspace(path).log().entries]


# ---------------------------------------------------------------------------------------------- the ledger


def rehash(path: Path, *, first: int, last: int | None = None) -> None:
    """New hashes for some entries, or for all from one on."""
    entries = read(path)
    statements, previous = [], FIRST
    for entry in entries:
        if first <= entry.seq <= (last or len(entries)):
            body = [entry.seq, entry.time, entry.kind, entry.request, entry.details, previous]
            fresh = hashlib.sha256(canonical(body).encode()).hexdigest()
            statements.append(f"UPDATE entries SET previous = '{previous}', hash = '{fresh}' WHERE seq = {entry.seq}")
            previous = fresh
        else:
            previous = entry.hash
    forge(path, *statements)


FORGERIES = {
    "an entry": ("UPDATE entries SET details = replace(details, '\"k\":2', '\"k\":3') WHERE kind = 'erased'",),
    "its request": ("UPDATE entries SET request = 'r-9' WHERE kind = 'erased'",),
    "its time": ("UPDATE entries SET time = '2020-01-01T00:00:00+00:00' WHERE seq = 3",),
    "the last one cut": ("DELETE FROM entries WHERE seq = 5",),
    "one cut in the middle": ("DELETE FROM entries WHERE seq = 3",),
    "all": ("DELETE FROM entries", "DELETE FROM samples"),
    "a digest": ("UPDATE samples SET digest = digest + 1 WHERE rowid = 1",),
    "a digest less": ("DELETE FROM samples WHERE rowid = 1",),
    "a digest more": ("INSERT INTO samples VALUES (4, 17)",),
    "a digest of no entry": ("INSERT INTO samples VALUES (99, 17)",),
    "not JSON": ("UPDATE entries SET details = '{' WHERE seq = 3",),
    "too deep": ("UPDATE entries SET details = '" + "[" * 100_000 + "' WHERE seq = 3",),
    "a table of its own": ("CREATE TABLE mine (x)",),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_ledger_is_named(forgery, path):
    forge(path, *FORGERIES[forgery])
    assert "ledger.sqlite" in named(path)
    refused_and_unchanged(path)


@pytest.mark.parametrize("forgery", [name for name in FORGERIES if name != "the last one cut"])
def test_a_forged_ledger_is_named_even_under_a_new_seal(forgery, path):
    """What the chain itself says. An end that was cut off needs --head; see below."""
    forge(path, *FORGERIES[forgery])
    seal_anew(path)
    assert "ledger.sqlite" in named(path)
    seal_anew(path, "erase")  # an open seal vouches for nothing, so the ledger is read through
    assert "ledger.sqlite" in named(path)
    refused_and_unchanged(path)


def test_triggers_that_are_gone_are_named(path):
    forge(path, triggers=False)
    seal_anew(path)
    assert named(path) == {"ledger.sqlite"}


def test_one_entry_with_a_new_hash_breaks_the_chain(path):
    forge(path, *FORGERIES["its time"])
    rehash(path, first=3, last=3)
    seal_anew(path)
    assert named(path) == {"ledger.sqlite"}


def test_a_chain_written_anew_is_found_out_by_the_seal_and_by_a_head_kept_elsewhere(path):
    head, seal = Workspace(path).verify().head, (path / "seal.json").read_bytes()
    rebuild(path, lambda entries: [shifted(entry, days=-1) for entry in entries])
    anew = (path / "seal.json").read_bytes()
    (path / "seal.json").write_bytes(seal)
    assert named(path) == {"ledger.sqlite"}
    (path / "seal.json").write_bytes(anew)
    assert Workspace(path).verify().ok  # nothing in the folder can tell
    assert named(path, head=head) == {"ledger.sqlite"}
    done = CliRunner().invoke(app, ["verify", str(path), "--head", str(head)])
    assert done.exit_code == 4
    assert "ledger.sqlite" in done.output


@pytest.mark.parametrize("kind", ["created", "fitted", "received", "erased", "sealed"])
def test_a_chain_of_nonsense_is_damage_and_no_crash(kind, path):
    forge(path, f"UPDATE entries SET details = '{{}}' WHERE kind = '{kind}'")
    rehash(path, first=1)
    seal_anew(path)
    if kind != "created":  # what it says of the model is of no state
        assert "ledger.sqlite" in named(path)
    forge(path, f"UPDATE entries SET details = '[1]' WHERE kind = '{kind}'")
    rehash(path, first=1)
    seal_anew(path)
    named(path)


def test_an_older_workspace_put_back(path):
    """The old ledger alone does not fit its seal; with the old seal and states only the head tells."""
    shutil.copytree(path, path.parent / "older", symlinks=True)
    assert erase(path) == "erased"
    head = Workspace(path).verify().head
    shutil.copyfile(path.parent / "older" / "ledger.sqlite", path / "ledger.sqlite")
    assert "ledger.sqlite" in named(path)
    refused_and_unchanged(path, "r-3")
    shutil.copyfile(path.parent / "older" / "seal.json", path / "seal.json")
    assert named(path) == {"current"}  # the states are kept here, so the link alone gives it away
    shutil.rmtree(path)
    (path.parent / "older").rename(path)
    assert Workspace(path).verify().ok
    assert named(path, head=head) == {"ledger.sqlite"}


def test_a_head_of_any_entry_will_do_and_of_none_will_not(path):
    entries = Workspace(path).log().entries
    for entry in entries:
        assert Workspace(path).verify(head=entry.hash).ok
    assert named(path, head="0" * 64) == {"ledger.sqlite"}
    for head in ("", "nonsense", entries[0].hash[:12], entries[0].hash.upper()):
        with pytest.raises(InvalidSetting, match="all 64 characters"):
            Workspace(path).verify(head=head)


@pytest.mark.parametrize("name", ["ledger.sqlite-wal", "ledger.sqlite-journal"])
def test_a_planted_log_is_named_and_never_replayed(name, path):
    (path / name).write_bytes(b"\0" * 512)
    assert name in named(path)
    refused_and_unchanged(path)
    if name.endswith("journal"):  # no command of ours ever leaves one
        seal_anew(path, "erase")
        assert name in named(path)
        refused_and_unchanged(path)
        with pytest.raises(SSSEError, match="should not be there"):
            Workspace(path).log()


def test_logs_without_content_are_what_a_killed_reader_leaves(path):
    for end in ("wal", "shm"):
        (path / f"ledger.sqlite-{end}").touch()
    assert Workspace(path).verify().ok
    assert erase(path) == "erased"
    assert Workspace(path).verify().ok
    assert not list(path.glob("ledger.sqlite-*"))


def test_a_seal_that_says_nothing_is_no_seal(path):
    for files in ({}, {"ledger.sqlite": seal_files(path, ("ledger.sqlite",)).files["ledger.sqlite"]}):
        Seal(files).write(path)
        assert named(path) == {"seal.json"}
        refused_and_unchanged(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'"x"', b"\xff", b"[" * 100_000, b'{"files": 3, "command": 1}'])
def test_a_seal_of_nonsense(content, path):
    (path / "seal.json").write_bytes(content)
    assert named(path) == {"seal.json"}
    refused_and_unchanged(path)


# --------------------------------------------------------------------------------- damage after a kill


def interrupted(path: Path, moment: str, monkeypatch) -> None:
    """As a kill at that method of Hold leaves it: no word is said afterwards."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(transactions.Transaction, moment, die)
        patched.setattr(transactions.Transaction, "give_up", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            erase(path)
    assert Workspace(path).verify().interrupted == "erase"


def test_the_old_state_is_not_shredded_for_a_new_one_that_is_damaged(whole, monkeypatch):
    path = whole.parent / "unfinished"
    made = workspaces.make(whole.parent / "shredding", n=24, p=3)
    made.path.rename(path)
    interrupted(path, "_retire", monkeypatch)
    kept = (path / OLD / "weights.safetensors").read_bytes()
    new = path / STATE / "weights.safetensors"
    content = new.read_bytes()
    new.write_bytes(content[:-1] + b"\xff")
    assert named(path) == {f"{STATE}/weights.safetensors"}
    refused_and_unchanged(path)
    assert (path / OLD / "weights.safetensors").read_bytes() == kept
    new.write_bytes(content)
    assert erase(path) == "repeated"  # it had been erased; now it is sealed
    assert Workspace(path).verify().ok
    assert not (path / OLD).exists()


def test_a_page_that_was_altered_after_a_kill_is_named(path, monkeypatch):
    interrupted(path, "tidy_up", monkeypatch)
    page = path / "report.html"
    page.write_text(page.read_text() + " ")
    assert named(path) == {"report.html"}
    assert erase(path) == "repeated"
    assert named(path) == {"report.html"}  # finishing vouches for nothing that it did not write


def test_a_request_that_another_one_overtakes(path, monkeypatch):
    """Received for two samples and killed; one of them is erased by another request meanwhile."""
    workspace = Workspace(path)
    with monkeypatch.context() as patched:
        patched.setattr(transactions.Transaction, "advance", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            workspace.erase("slow", ids=["s7", "s8"])
    assert workspace.verify().ok
    with workspace.folder.read() as ledger:
        assert ledger.pending() == ["slow"]
    assert workspace.erase("quick", ids=["s8"]).outcome == "erased"
    answer = workspace.erase("slow", ids=["s7", "s8"])
    assert answer.outcome == "erased"
    assert answer.already == {"quick": 1}
    assert answer.details["k"] == 1
    found = workspace.verify()
    assert found.ok, found.damages
