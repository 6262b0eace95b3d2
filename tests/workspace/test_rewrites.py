"""Histories that were written anew pass where only the folder is asked, and are found with a key and an anchor."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ssse.errors import Damaged
from ssse.workspace import settings as toml
from ssse.workspace.proof.checkpoint import encoded
from ssse.workspace.proof.keys import PrivateKey, make_pair, public_path
from ssse.workspace.record.heads import Heads
from ssse.workspace.record.ledger import Ledger
from ssse.workspace.workspace import Workspace
from tests.support import keyed
from tests.support.commands import call, call_json
from tests.support.rewrites import REWRITES, attackers_key, forge, rebuild, seal_anew, shifted
from tests.support.workspaces import snapshot

GENUINE = "the folder rolled back"  # every signature is the owner's


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> keyed.Keyed:
    """Two requests answered; `earlier` beside it is from before the second."""
    kept = keyed.make(tmp_path_factory.mktemp("rewrites"))
    assert kept.made.workspace.erase("r-1", ids=["s3", "s11"]).outcome == "erased"
    shutil.copytree(kept.path, kept.made.home / "earlier", symlinks=True)
    assert kept.made.workspace.erase("r-2", ids=["s7"]).outcome == "erased"
    return kept


@pytest.fixture
def path(original) -> Path:
    """To be rewritten; beside the original, so that data, key and anchor are found."""
    copy = original.made.home / "copy"
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(original.path, copy, symlinks=True)
    return copy


def test_what_was_not_rewritten_passes(path, original):
    found = Workspace(path).verify(keys=[original.public], anchor=original.anchor)
    assert (found.ok, found.notes) == (True, [])
    assert found.signed == found.entries
    assert found.anchored == 4  # one a command: init, fit, two requests


@pytest.mark.parametrize("rewrite", REWRITES)
def test_a_rewrite_is_found_with_key_and_anchor_and_by_nothing_inside_the_folder(rewrite, path, original):
    heads = original.anchor.read_bytes()
    REWRITES[rewrite](path, original.made.home / "earlier")
    plain = Workspace(path).verify()
    assert plain.ok, plain.damages  # else this tests nothing
    both = Workspace(path).verify(keys=[original.public], anchor=original.anchor)
    assert "ledger.sqlite" in {name for name, _ in both.damages}
    assert Workspace(path).verify(keys=[original.public]).ok == (rewrite == GENUINE)  # genuine, and old
    assert not Workspace(path).verify(anchor=original.anchor).ok
    said = call_json("verify", path, "--key", original.public, "--anchor", original.anchor, code=4)
    assert not said["ok"]
    assert original.anchor.read_bytes() == heads


@pytest.mark.parametrize("rewrite", [name for name in REWRITES if "reused" not in name])
def test_no_command_goes_on_from_a_rewritten_history(rewrite, path, original):
    """The anchor is looked at first, whoever signed; nothing is changed, nothing shredded."""
    REWRITES[rewrite](path, original.made.home / "earlier")
    before, heads = snapshot(path), original.anchor.read_bytes()
    for words in (["erase", "--request", "r-2", "--ids", "s9"], ["fit", "--again"], ["report"]):
        assert "heads.txt" in call(words[0], path, *words[1:], code=4)[1]
    assert snapshot(path) == before
    assert original.anchor.read_bytes() == heads


def test_a_name_is_not_reused_after_a_rollback(path, original):
    """By the operator with the right key, who does not know that the folder was put back."""
    REWRITES[GENUINE](path, original.made.home / "earlier")
    with pytest.raises(Damaged, match=r"has a head of 8 entries, and the ledger has 5: it was rolled back"):
        Workspace(path).erase("r-2", ids=["s9"])


def test_a_rollback_during_which_a_command_was_killed_is_not_finished(path, original):
    """An open seal would have the next command remove what is left of an old state: not of this ledger."""
    REWRITES[GENUINE](path, original.made.home / "earlier")
    seal_anew(path, "erase")
    before = snapshot(path)
    with pytest.raises(Damaged, match="rolled back"):
        Workspace(path).fit()
    assert snapshot(path) == before


def test_who_has_the_key_is_found_by_the_anchor_alone(path, original):
    rebuild(
        path,
        lambda entries: [shifted(entry, days=-1) for entry in entries],
        PrivateKey.read(original.made.home / "key.pem"),
    )
    assert Workspace(path).verify(keys=[original.public]).ok
    assert not Workspace(path).verify(anchor=original.anchor).ok


def test_a_chain_without_any_signature_fails_with_a_key(path, original):
    rebuild(path)
    assert Workspace(path).verify().ok
    found = Workspace(path).verify(keys=[original.public])
    assert found.damages == [("ledger.sqlite", "has no signature at all")]


def test_signatures_that_are_not_of_the_key_that_the_ledger_names(path, original):
    forge(path, f"UPDATE leaves SET signature = '{'A' * 86}==' WHERE seq = 1")
    seal_anew(path)
    found = Workspace(path).verify()
    assert found.damages == [("ledger.sqlite", "entry 1 is not signed by the key that the ledger names")]


def test_a_leaf_that_was_altered_is_named_without_any_key(path):
    forge(path, 'UPDATE leaves SET leaf = replace(leaf, \'"kind":"fitted"\', \'"kind":"titted"\') WHERE seq = 2')
    seal_anew(path)
    assert Workspace(path).verify().damages == [("ledger.sqlite", "the leaf of entry 2 was altered")]
    forge(path, "DELETE FROM leaves WHERE seq > 7")
    seal_anew(path)
    assert "leaf" in Workspace(path).verify().damages[0][1]


def test_a_key_does_not_sign_what_it_has_not_signed_before(path, original):
    """Else a forged ledger that names the owner's key would be genuine with the owner's next command."""
    Workspace(path).upgrade(without=["anchor"])
    forge(path, f"UPDATE leaves SET signature = '{'A' * 86}=='")
    seal_anew(path)
    before = snapshot(path)
    with pytest.raises(Damaged, match="not as the key signed it"):
        Workspace(path).erase("r-3", ids=["s9"])
    assert snapshot(path) == before


def unsigned_instead(path, record: toml.Record) -> None:
    """The history without its signatures, as if there had been no key yet; its settings name `record`."""
    settings = Workspace(path).settings()

    def change(entries):
        plain = settings.model_copy(update={"record": record}).to_dict()
        return [replace(e, details={**e.details, "settings": plain}) if "settings" in e.details else e for e in entries]

    keyed.set_record(path, key="../key.pem")
    rebuild(path, change)


@pytest.mark.parametrize(
    ("named", "code", "says"), [(None, 2, "in the ledger None"), ("../key.pem", 4, "no signature")]
)
def test_a_history_without_signatures_gets_none_by_a_line_of_text(named, code, says, path, original):
    """In place of the signed one it would be the owner's with the owner's next command."""
    unsigned_instead(path, toml.Record(key=named))
    before = snapshot(path)
    for words in (["erase", "--request", "r-3", "--ids", "s9"], ["fit", "--again"], ["report"], ["upgrade"]):
        assert says in call(words[0], path, *words[1:], code=code)[1]
    assert snapshot(path) == before
    assert not Workspace(path).verify(keys=[original.public]).ok


def test_a_history_from_before_the_first_signature_is_told(path, original):
    """Who begins to sign vouches for what is there; who checks must know since when."""
    unsigned_instead(path, toml.Record())
    Workspace(path).upgrade(key=original.made.home / "key.pem")
    assert Workspace(path).erase("r-3", ids=["s9"]).outcome == "erased"
    assert "entry 1 is not signed; 8 come" in Workspace(path).verify(keys=[original.public]).damages[0][1]
    found = Workspace(path).verify(keys=[original.public], unsigned_until=8)
    assert found.ok
    assert found.notes[0].startswith("The first 8 entries were not signed when they were made")
    assert not Workspace(path).verify(keys=[original.public], anchor=original.anchor, unsigned_until=8).ok


def test_times_that_run_backwards_are_noted(path, original):
    rebuild(
        path,
        lambda entries: [shifted(entry, days=-2) if entry.seq == 4 else entry for entry in entries],
        attackers_key(),
    )
    found = Workspace(path).verify()
    assert found.ok
    assert any("Times run backwards: entry 4 is of" in note for note in found.notes)


def test_an_old_key_signs_nothing_that_comes_after_it(path, original):
    """Keys are changed because somebody may have the old one; they must not get along with it alone."""
    home = original.made.home
    if not (home / "new.pem").exists():
        make_pair(home / "new.pem")
    Workspace(path).upgrade(key=home / "new.pem", without=["anchor"])
    assert Workspace(path).erase("r-3", ids=["s9"]).outcome == "erased"
    both = [original.public, public_path(home / "new.pem")]
    assert Workspace(path).verify(keys=both).ok
    rebuild(path, key=PrivateKey.read(home / "key.pem"))
    assert Workspace(path).verify().ok
    found = Workspace(path).verify(keys=both)
    assert "which was given, signed nothing in it" in found.damages[0][1]


def test_a_signature_of_a_key_that_is_given_and_not_in_force(path, original):
    """Of two keys that are both given, only the one that the ledger names at that place is the right one."""
    home = original.made.home
    if not (home / "new.pem").exists():
        make_pair(home / "new.pem")
    Workspace(path).upgrade(key=home / "new.pem", without=["anchor"])
    assert Workspace(path).erase("r-3", ids=["s9"]).outcome == "erased"
    with Ledger.read(path / "ledger.sqlite") as ledger:
        newest = Heads.of(ledger).newest()
    signed = encoded(PrivateKey.read(home / "key.pem").sign(newest.text().encode()))
    forge(path, f"UPDATE leaves SET signature = '{signed}' WHERE seq = {newest.size}")
    seal_anew(path)
    found = Workspace(path).verify(keys=[original.public, public_path(home / "new.pem")])
    assert found.damages == [("ledger.sqlite", f"entry {newest.size} is not signed by the key that was given")]
