"""Keys: made once, kept from others, used by every command; a wrong one is told before anything is written."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ssse.errors import InvalidSetting
from ssse.workspace.proof.keys import PASSPHRASE, PrivateKey, PublicKey, make_pair, public_path
from ssse.workspace.record.entry import BLIND, SHOWN
from ssse.workspace.workspace import Workspace
from tests.support import keyed, workspaces
from tests.support.commands import call, call_error, call_json, init
from tests.support.rewrites import forge, seal_anew
from tests.support.workspaces import snapshot


@pytest.fixture(autouse=True)
def no_passphrase(monkeypatch):
    monkeypatch.delenv(PASSPHRASE, raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> keyed.Keyed:
    return keyed.make(tmp_path_factory.mktemp("keys"), anchored=False)


@pytest.fixture
def kept(made, tmp_path) -> keyed.Keyed:
    """Of its own, to be changed."""
    home = tmp_path / "home"
    copied = workspaces.copy(made.made, home)
    return keyed.Keyed(copied, home / "key.pem.pub", home / "heads.txt")


# ------------------------------------------------------------------------------------------------ files


def test_a_pair_is_made_for_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        said = call_json("key", tmp_path / "deep" / "key.pem")
    finally:
        os.umask(before)
    private, public = tmp_path / "deep" / "key.pem", tmp_path / "deep" / "key.pem.pub"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644
    assert private.read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert public.read_text().startswith("-----BEGIN PUBLIC KEY-----")
    key = PrivateKey.read(private)
    assert PublicKey.read(public) == key.public == PublicKey.from_text(key.public.text)
    assert said == {"private": str(private), "public": str(public), "fingerprint": key.public.fingerprint}
    assert key.public.signed(b"x", key.sign(b"x"))
    assert not key.public.signed(b"y", key.sign(b"x"))
    assert not key.public.signed(b"x", b"")
    assert key.sign(b"x") == PrivateKey.read(private).sign(b"x")


@pytest.mark.parametrize("there", ["key.pem", "key.pem.pub"])
def test_a_key_is_never_overwritten(there, tmp_path):
    (tmp_path / there).write_text("mine")
    assert "exists already" in call_error("key", tmp_path / "key.pem")
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"
    (tmp_path / "link").symlink_to("nowhere")
    assert "exists already" in call_error("key", tmp_path / "link")


def test_a_key_is_not_put_into_a_workspace(kept):
    for place in (kept.path / "key.pem", kept.path / "states" / "key.pem", kept.path / "new" / "key.pem"):
        assert "lies in the workspace" in call_error("key", place)
        assert not place.exists()


def test_a_passphrase_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv(PASSPHRASE, "open sesame")
    call("key", tmp_path / "key.pem", "--encrypt")
    assert b"ENCRYPTED" in (tmp_path / "key.pem").read_bytes()
    assert PrivateKey.read(tmp_path / "key.pem").public == PublicKey.read(tmp_path / "key.pem.pub")
    monkeypatch.setenv(PASSPHRASE, "something else")
    with pytest.raises(InvalidSetting, match="is not its passphrase"):
        PrivateKey.read(tmp_path / "key.pem")
    monkeypatch.setenv(PASSPHRASE, "")
    with pytest.raises(InvalidSetting, match=f"put its passphrase into {PASSPHRASE}"):
        PrivateKey.read(tmp_path / "key.pem")
    assert "empty passphrase" in call_error("key", tmp_path / "other.pem", "--encrypt")
    monkeypatch.setenv(PASSPHRASE, "of another key")
    make_pair(tmp_path / "plain.pem")
    assert PrivateKey.read(tmp_path / "plain.pem")  # which has none, and needs none


def test_a_passphrase_from_the_terminal(tmp_path):
    from typer.testing import CliRunner

    from ssse.cli.app import app

    done = CliRunner().invoke(app, ["key", str(tmp_path / "key.pem"), "--encrypt", "--json"], input="secret\nsecret\n")
    assert done.exit_code == 0, done.output
    assert "secret" not in done.stdout
    assert b"ENCRYPTED" in (tmp_path / "key.pem").read_bytes()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_private_key_that_others_may_read_is_refused(mode, kept):
    (kept.made.home / "key.pem").chmod(mode)
    before = snapshot(kept.path)
    said = call_error("erase", kept.path, "--request", "r", "--ids", "s1")
    assert f"may be read or written by others (mode 0{mode:o})" in said
    assert "chmod 600" in said
    assert snapshot(kept.path) == before


def other_kind() -> bytes:
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())


NO_KEYS = {
    "nothing": (b"", "no private key in PEM"),
    "noise": (b"\xff\x00" * 50, "no private key in PEM"),
    "cut": (b"-----BEGIN PRIVATE KEY-----\nMC4CAQ", "it is damaged"),
    "huge": (b"x" * 100_000, "more than 65,536 bytes"),
    "another kind": (other_kind(), "a key of another kind"),
}


@pytest.mark.parametrize("name", NO_KEYS)
def test_what_is_no_private_key(name, tmp_path):
    content, says = NO_KEYS[name]
    (tmp_path / "key.pem").write_bytes(content)
    (tmp_path / "key.pem").chmod(0o600)
    with pytest.raises(InvalidSetting, match=says):
        PrivateKey.read(tmp_path / "key.pem")


def test_what_is_no_public_key(tmp_path):
    make_pair(tmp_path / "key.pem")
    with pytest.raises(InvalidSetting, match="is a private key; checking takes the public one"):
        PublicKey.read(tmp_path / "key.pem")
    for content in (b"", b"\xff" * 99, b"-----BEGIN PUBLIC KEY-----\nMC4CAQ", b"x" * 100_000):
        (tmp_path / "bad.pub").write_bytes(content)
        with pytest.raises(InvalidSetting, match="no public key"):
            PublicKey.read(tmp_path / "bad.pub")
    for missing in (tmp_path / "nothing", tmp_path):
        with pytest.raises(InvalidSetting, match="There is no public key"):
            PublicKey.read(missing)


# -------------------------------------------------------------------------------------- in a workspace


def test_every_entry_is_signed_from_the_first_on(kept):
    workspace = kept.made.workspace
    assert workspace.erase("r-1", ids=["s3"]).outcome == "erased"
    found = workspace.verify(keys=[kept.public])
    assert (found.ok, found.notes, found.signed) == (True, [], found.entries)
    assert workspace.log().entries[0].details["public_key"] == PublicKey.read(kept.public).text
    own = workspace.verify()
    assert own.ok
    assert "proves nothing against somebody who can write the ledger" in own.notes[0]
    make_pair(kept.made.home / "other.pem")
    other = workspace.verify(keys=[public_path(kept.made.home / "other.pem")])
    assert other.damages == [("ledger.sqlite", "entry 1 is not signed by the key that was given")]
    assert "A key does not see a folder that was put back" in call("verify", kept.path, "--key", kept.public)[0]


def test_no_private_key_is_needed_to_read(kept):
    (kept.made.home / "key.pem").unlink()
    assert kept.made.workspace.verify(keys=[kept.public]).ok
    assert kept.made.workspace.log().entries
    assert kept.made.workspace.prove(entry=1)


def test_a_workspace_without_a_key_fails_with_one(tmp_path):
    made = workspaces.make(tmp_path, fit=False)
    make_pair(tmp_path / "key.pem")
    assert made.workspace.verify().ok
    found = made.workspace.verify(keys=[tmp_path / "key.pem.pub"])
    assert found.damages == [("ledger.sqlite", "has no signature at all")]


def missing(home: Path) -> None:
    (home / "key.pem").unlink()


def replaced(home: Path) -> None:
    (home / "key.pem").unlink()
    (home / "key.pem.pub").unlink()
    make_pair(home / "key.pem")


def folder_instead(home: Path) -> None:
    (home / "key.pem").unlink()
    (home / "key.pem").mkdir()


@pytest.mark.parametrize(
    ("way", "says"),
    [
        (missing, "There is no private key"),
        (folder_instead, "There is no private key"),
        (replaced, "is not the key that the ledger names"),
    ],
)
def test_a_wrong_key_is_told_before_anything_is_written(way, says, kept):
    way(kept.made.home)
    before = snapshot(kept.path)
    for words in (["erase", "--request", "r", "--ids", "s1"], ["fit", "--again"], ["report"], ["evaluate"]):
        assert says in call_error(words[0], kept.path, *words[1:])
    assert snapshot(kept.path) == before


def test_a_key_in_the_workspace_is_refused(kept, tmp_path):
    shutil.copyfile(kept.made.home / "key.pem", kept.path / "key.pem")
    assert "in the workspace itself" in call_error("upgrade", kept.path, "--key", kept.path / "key.pem")
    workspaces.files(tmp_path)
    init(tmp_path, "--key", tmp_path / "ws" / "key.pem", code=2)
    assert not (tmp_path / "ws").exists()


def test_init_takes_a_key_and_leaves_nothing_where_it_cannot(tmp_path):
    workspaces.files(tmp_path)
    init(tmp_path, "--key", tmp_path / "nothing.pem", code=2)
    assert not (tmp_path / "ws").exists()
    make_pair(tmp_path / "key.pem")
    init(tmp_path, "--key", tmp_path / "key.pem")
    found = call_json("verify", tmp_path / "ws", "--key", tmp_path / "key.pem.pub")
    assert (found["ok"], found["signed"]) == (True, 1)


def test_a_change_of_key_is_recorded_and_both_are_needed(kept):
    home, workspace = kept.made.home, kept.made.workspace
    make_pair(home / "new.pem")
    old, new = PublicKey.read(kept.public), PublicKey.read(public_path(home / "new.pem"))
    said = call_json("upgrade", kept.path, "--key", home / "new.pem")
    assert said["gained"] == [f"signatures from now on, by the key {new.fingerprint[:12]}…"]
    assert workspace.settings().record.key == str(home / "new.pem")
    assert call_json("upgrade", kept.path, "--key", home / "new.pem") == {"upgraded": False, "gained": []}
    assert workspace.erase("r-1", ids=["s3"]).outcome == "erased"
    configured = next(entry for entry in workspace.log().entries if entry.kind == "configured")
    assert configured.details["changes"] == {"record.key": ["../key.pem", str(home / "new.pem")]}
    assert configured.details["public_key"] == new.text
    assert configured.details["keys"] == [old.fingerprint, new.fingerprint]
    assert f"signing key {old.fingerprint[:12]} → {new.fingerprint[:12]}" in " ".join(call("log", kept.path)[0].split())
    both = [kept.public, public_path(home / "new.pem")]
    assert workspace.verify(keys=both).ok
    assert workspace.verify().ok
    assert not workspace.verify(keys=both[:1]).ok
    assert not workspace.verify(keys=both[1:]).ok
    said = call_json("verify", kept.path, "--key", both[0], "--key", both[1])
    assert said["ok"]


def test_a_key_that_is_given_up_leaves_the_newest_entry_without_a_signature(kept):
    assert call_json("upgrade", kept.path, "--without", "key")["gained"] == ["no signatures from now on"]
    assert kept.made.workspace.erase("r-1", ids=["s3"]).outcome == "erased"
    assert kept.made.workspace.verify().ok
    assert not kept.made.workspace.verify(keys=[kept.public]).ok


def test_a_key_comes_later(tmp_path):
    made = workspaces.make(tmp_path, n=24, p=3)
    make_pair(tmp_path / "key.pem")
    made.workspace.upgrade(key=tmp_path / "key.pem")
    assert made.workspace.erase("r-1", ids=["s3"]).outcome == "erased"
    plain = made.workspace.verify(keys=[tmp_path / "key.pem.pub"])
    assert "entry 1 is not signed; 2 come before the first that is" in plain.damages[0][1]
    assert (
        "entry 2 is not signed"
        in made.workspace.verify(keys=[tmp_path / "key.pem.pub"], unsigned_until=1).damages[0][1]
    )
    assert call_json("verify", made.path, "--key", tmp_path / "key.pem.pub", "--unsigned-until", "2")["ok"]
    assert "goes with the key" in call_error("verify", made.path, "--unsigned-until", "2")
    found = made.workspace.verify(keys=[tmp_path / "key.pem.pub"], unsigned_until=2)
    assert (found.ok, found.signed) == (True, 4)
    assert "The first 2 entries were not signed when they were made" in found.notes[0]


def test_a_new_key_signs_what_a_killed_command_left_only_after_it_was_named(kept, monkeypatch):
    """Erased and killed; then another key is named. The entry `sealed` is still to come."""
    from tests.workspace.test_integrity import interrupted

    interrupted(kept.path, "_retire", monkeypatch)
    make_pair(kept.made.home / "new.pem")
    kept.made.workspace.upgrade(key=kept.made.home / "new.pem")
    assert kept.made.workspace.erase("r-2", ids=["s5"]).outcome == "repeated"
    kinds = [entry.kind for entry in kept.made.workspace.log().entries]
    assert kinds[-3:] == ["erased", "configured", "sealed"]
    found = kept.made.workspace.verify(keys=[kept.public, public_path(kept.made.home / "new.pem")])
    assert found.ok, found.damages


@pytest.mark.parametrize("edited", [None, "../new.pem", "../nothing.pem"])
def test_a_key_that_the_ledger_does_not_know_is_refused(edited, kept):
    """Else who can edit a text file ends the signatures, without a word."""
    make_pair(kept.made.home / "new.pem")
    keyed.set_record(kept.path, key=edited)
    before = snapshot(kept.path)
    for words in (["erase", "--request", "r", "--ids", "s1"], ["fit", "--again"], ["report"], ["upgrade"]):
        said = call_error(words[0], kept.path, *words[1:])
        assert f"'record.key' is {edited!r}, and in the ledger '../key.pem'. Put it back" in said
        assert "`ssse upgrade` with --key FILE names one" in said
    assert snapshot(kept.path) == before
    seal_anew(kept.path)
    found = kept.made.workspace.verify(keys=[kept.public])
    assert [name for name, _ in found.damages] == ["ssse.toml"]
    assert "names another key or anchor than the ledger" in found.damages[0][1]
    kept.made.workspace.upgrade(key=kept.made.home / "key.pem")  # the repair, here by the key that it had
    assert kept.made.workspace.settings().record.key == str(kept.made.home / "key.pem")
    assert kept.made.workspace.verify(keys=[kept.public]).ok


def test_a_ledger_that_its_key_has_not_signed_gets_no_other_one(kept):
    make_pair(kept.made.home / "new.pem")
    forge(kept.path, f"UPDATE leaves SET signature = '{'A' * 86}=='")
    seal_anew(kept.path)
    before = snapshot(kept.path)
    for change in (["--key", kept.made.home / "new.pem"], ["--without", "key"]):
        assert "not as the key signed it" in call("upgrade", kept.path, *change, code=4)[1]
    assert snapshot(kept.path) == before


def test_what_cannot_be_given_up(kept):
    assert "cannot be given up" in call_error("upgrade", kept.path, "--without", "model")
    both = ["--key", kept.made.home / "key.pem", "--without", "key"]
    assert "cannot be given up" in call_error("upgrade", kept.path, *both)


def test_one_command_cannot_have_a_key_of_its_own(kept):
    said = call_error("erase", kept.path, "--request", "r", "--ids", "s1", "--set", "record.key=../other.pem")
    assert "record.key is not for one command" in said


def test_what_is_secret_is_not_in_the_leaf(kept):
    with kept.made.workspace.folder.read() as ledger:
        leaves, entries = list(ledger.leaves()), list(ledger.entries())
    for (leaf, _), entry in zip(leaves, entries, strict=True):
        assert entry.details[BLIND] not in leaf
        assert entry.details[SHOWN] not in leaf
        assert entry.hash in leaf
    assert entries[0].details["salt"] not in leaves[0][0]
    assert len({entry.details[BLIND] for entry in entries}) == len(entries)


def test_without_a_key_cryptography_is_not_imported(tmp_path):
    """It takes as long to import as the rest of `ssse log`."""
    made = workspaces.make(tmp_path, fit=False)
    code = (
        "import sys; from ssse.workspace.workspace import Workspace; "
        f"w = Workspace({str(made.path)!r}); w.log(); assert w.verify().ok; w.prove(entry=1); "
        "sys.exit(any(name in sys.modules for name in ('cryptography', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_same_from_python(kept):
    assert Workspace(kept.path).verify(keys=[str(kept.public)]).signed == 2
