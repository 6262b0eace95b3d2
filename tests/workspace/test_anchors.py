"""Heads go elsewhere after every command, once and whole; and what is known there is believed before the folder."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from ssse.errors import Damaged, InvalidData, InvalidSetting, NotPublished
from ssse.workspace.proof.checkpoint import Checkpoint, Signature, parse, parse_all
from ssse.workspace.proof.keys import PASSPHRASE, PublicKey, make_pair
from ssse.workspace.record import anchors
from ssse.workspace.record.anchors import read_heads
from ssse.workspace.record.heads import Heads
from ssse.workspace.record.seal import Seal
from ssse.workspace.workspace import Workspace
from tests.support import keyed, workspaces
from tests.support.commands import call, call_error, call_json, init
from tests.support.rewrites import seal_anew
from tests.support.sizes import sized
from tests.support.workspaces import snapshot

HEAD = Checkpoint("ssse/" + "0f" * 16, 7, bytes(range(32)), "ab" * 32, "2026-05-04T10:20:30+00:00")
SIGNED = HEAD.signed(Signature(HEAD.origin, b"\x01\x02\x03\x04", bytes(64)))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> keyed.Keyed:
    return keyed.make(tmp_path_factory.mktemp("anchors"))


@pytest.fixture
def kept(made, tmp_path) -> keyed.Keyed:
    """Of its own, to be changed."""
    home = tmp_path / "home"
    copied = workspaces.copy(made.made, home)
    return keyed.Keyed(copied, home / "key.pem.pub", home / "heads.txt")


def sizes(path: Path) -> list[int]:
    return [head.size for head in read_heads(path).heads]


# ---------------------------------------------------------------------------------------- the form of a head


def test_a_head_is_read_as_it_was_written():
    for head in (HEAD, SIGNED, SIGNED.signed(*SIGNED.signatures, *SIGNED.signatures)):
        assert parse(head.note()) == head
        assert parse(head.record()) == head
        assert parse_all(head.record() * 3) == ([head] * 3, "")
        assert head.same_tree(HEAD)
    assert SIGNED.note().splitlines() == [
        *(HEAD.origin, "7", base64.b64encode(bytes(range(32))).decode(), f"head {'ab' * 32}"),
        *("time 2026-05-04T10:20:30+00:00", "", SIGNED.signatures[0].line().rstrip("\n")),
    ]
    assert SIGNED.note().endswith("=\n")


def test_signatures_are_those_of_signed_notes():
    """The example in the documentation of Go's sumdb/note, where the form comes from."""
    key = PublicKey(base64.b64decode("ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")[1:])
    said = (
        "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n",
        "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=",
    )
    signature = base64.b64decode(said[1])
    assert key.key_id("PeterNeumann") == signature[:4] == bytes.fromhex("c74f20a3")
    assert key.signed(said[0].encode(), signature[4:])
    assert key.signature("PeterNeumann", signature[4:]).line() == f"— PeterNeumann {said[1]}\n"


HOSTILE = {
    "nothing": "",
    "no origin": HEAD.note().replace("ssse/", "sse/"),
    "another's origin": HEAD.note().replace("0f", "0F"),
    "size zero": HEAD.note().replace("\n7\n", "\n0\n"),
    "a leading zero": HEAD.note().replace("\n7\n", "\n07\n"),
    "a negative size": HEAD.note().replace("\n7\n", "\n-7\n"),
    "a huge size": HEAD.note().replace("\n7\n", f"\n{'9' * 500}\n"),
    "digits of another script": HEAD.note().replace("\n7\n", "\n٧\n"),
    "a short root": HEAD.note().replace("AAECAwQF", "AAEC"),
    "a root in another form": HEAD.note().replace("Hh8=", "Hh9="),
    "no root": HEAD.note().replace("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", ""),
    "an extra line": HEAD.note().replace("time", "more\ntime"),
    "a line less": HEAD.note().replace(f"head {'ab' * 32}\n", ""),
    "no time": HEAD.note().replace("time 2026", "time x"),
    "no signature": SIGNED.note().replace("— ", "- "),
    "a short signature": SIGNED.note().replace("AAAAAAAA", "", 1),
    "a return": HEAD.note().replace("\n", "\r\n"),
    "two": HEAD.record() * 2,
    "something behind": HEAD.record() + "x\n",
    "a line of megabytes": "x" * 10**6 + "\n\n\n",
    "lines without end": "x\n" * 10**5,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_heads_are_refused(name):
    with pytest.raises(InvalidData) as caught:
        parse(HOSTILE[name])
    assert len(str(caught.value)) < 300


def test_every_altered_character_is_another_head_or_none():
    note = SIGNED.note()
    for place in range(len(note)):
        for sign in ("x", "0", "\n", "é"):
            altered = note[:place] + sign + note[place + 1 :]
            if altered == note:
                continue
            try:
                assert parse(altered) != SIGNED
            except InvalidData:
                continue


# ------------------------------------------------------------------------------------------- a file elsewhere


def test_the_head_is_appended_after_every_command(kept):
    assert sizes(kept.anchor) == [1, 2]  # init, fit
    before = kept.anchor.read_bytes()
    kept.made.workspace.erase("r-1", ids=["s3"])
    assert sizes(kept.anchor) == [1, 2, 5]
    assert kept.anchor.read_bytes().startswith(before)
    now = kept.anchor.read_bytes()
    kept.made.workspace.erase("r-1", ids=["s3"])  # repeated: nothing new
    kept.made.workspace.fit()
    kept.made.workspace.erase("r-2", ids=["s5"], dry_run=True)
    assert kept.anchor.read_bytes() == now
    key = PublicKey.read(kept.public)
    assert all(key.signed_checkpoint(head) for head in read_heads(kept.anchor).heads)
    assert kept.made.workspace.verify(keys=[kept.public], anchor=kept.anchor).anchored == 3


def test_without_a_key_the_heads_are_not_signed_and_still_find_a_rollback(tmp_path):
    made = workspaces.make(tmp_path, n=24, p=3, record__anchor="../heads.txt")
    assert [head.signatures for head in read_heads(tmp_path / "heads.txt").heads] == [(), ()]
    shutil.copytree(made.path, tmp_path / "earlier", symlinks=True)
    made.workspace.erase("r-1", ids=["s3"])
    assert made.workspace.verify(anchor=tmp_path / "heads.txt").ok
    assert not Workspace(tmp_path / "earlier").verify(anchor=tmp_path / "heads.txt").ok
    with pytest.raises(Damaged, match="rolled back"):
        Workspace(tmp_path / "earlier").erase("r-1", ids=["s5"])


def test_what_a_kill_prevented_the_next_command_publishes(kept):
    whole = kept.anchor.read_bytes()
    kept.made.workspace.erase("r-1", ids=["s3"])
    new = kept.anchor.read_bytes()
    lengths = [*range(len(whole), len(new), sized(29, 1)), len(new) - 1]
    for length in lengths:  # also within the sign "—", which has three bytes
        kept.anchor.write_bytes(new[:length])
        assert kept.made.workspace.verify(keys=[kept.public], anchor=kept.anchor).ok
        assert kept.made.workspace.erase("r-1", ids=["s3"]).outcome == "repeated"
        assert kept.anchor.read_bytes() == new
    kept.anchor.write_bytes(new[:-3])
    assert "not written to its end" in kept.made.workspace.verify(keys=[kept.public], anchor=kept.anchor).notes[-1]
    kept.made.workspace.erase("r-2", ids=["s5"])  # behind the one that was begun
    assert sizes(kept.anchor) == [1, 2, 5, 8]


def test_an_end_that_no_head_of_ours_begins_with_is_not_completed(kept):
    kept.anchor.write_bytes(kept.anchor.read_bytes() + b"ssse/ffff")
    said = call("erase", kept.path, "--request", "r", "--ids", "s3", code=1)[1]
    assert "ends in the middle of a head that this ledger does not have" in said
    assert "is done and in the ledger" in said
    assert kept.made.workspace.verify(keys=[kept.public]).ok


def no_folder(kept: keyed.Keyed) -> None:
    with pytest.raises(NotPublished):
        kept.made.workspace.upgrade(anchor=kept.made.home / "nowhere/heads.txt")


def a_link(kept: keyed.Keyed) -> None:
    (kept.made.home / "new.txt").symlink_to("nowhere/new.txt")
    with pytest.raises(NotPublished):
        kept.made.workspace.upgrade(anchor=kept.made.home / "new.txt")


@pytest.mark.parametrize("way", [no_folder, a_link])
def test_an_anchor_that_cannot_be_written_leaves_the_request_carried_out(way, kept):
    way(kept)
    with pytest.raises(NotPublished, match="is done and in the ledger; any further command"):
        kept.made.workspace.erase("r-1", ids=["s3"])
    assert kept.made.workspace.log("r-1").entries[-1].kind == "sealed"
    found = kept.made.workspace.verify(keys=[kept.public])
    assert (found.ok, found.interrupted) == (True, None)
    assert "The head was not published" in call("erase", kept.path, "--request", "r-1", "--ids", "s3", code=1)[1]
    (kept.made.home / "nowhere").mkdir()
    assert kept.made.workspace.erase("r-1", ids=["s3"]).outcome == "repeated"
    new = next(path for path in (kept.made.home / "nowhere").iterdir())
    assert sizes(new) == [6]
    assert kept.made.workspace.verify(keys=[kept.public], anchor=new).ok


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_an_anchor_that_may_not_be_written(kept):
    kept.anchor.chmod(0o400)
    with pytest.raises(NotPublished):
        kept.made.workspace.erase("r-1", ids=["s3"])


def test_an_anchor_that_is_gone_is_missed_before_anything_is_written(kept):
    kept.anchor.unlink()
    before = snapshot(kept.path)
    assert "held the heads up to entry 2, and is gone" in call("fit", kept.path, "--again", code=1)[1]
    assert snapshot(kept.path) == before
    assert not kept.anchor.exists()
    assert "its heads in" in call("upgrade", kept.path, "--anchor", kept.made.home / "other.txt")[0]
    assert kept.made.workspace.erase("r-1", ids=["s3"]).outcome == "erased"
    assert sizes(kept.made.home / "other.txt") == [3, 6]


@pytest.mark.parametrize("content", [b"ssh-ed25519 AAAA\n\n\n", b"\xff\n\n\n", b"x" * 10**5])
def test_a_file_of_something_else_is_never_appended_to(content, kept):
    """Who can edit ssse.toml must not be able to have lines written to any file."""
    kept.anchor.write_bytes(content)
    before = snapshot(kept.path)
    assert "is not a file of heads" in call_error("erase", kept.path, "--request", "r", "--ids", "s3")
    assert snapshot(kept.path) == before
    assert kept.anchor.read_bytes() == content


def test_an_anchor_is_one_workspaces_own(kept, tmp_path):
    workspaces.files(tmp_path)
    init(tmp_path, "--anchor", kept.anchor, code=2)
    assert not (tmp_path / "ws").exists()
    init(tmp_path, "--anchor", tmp_path / "heads.txt")
    assert sizes(tmp_path / "heads.txt") == [1]
    with pytest.raises(Damaged, match="another one, or written anew"):
        kept.made.workspace.upgrade(anchor=tmp_path / "heads.txt")


def test_an_anchor_in_the_workspace_is_refused(kept):
    assert "in the workspace itself" in call_error("upgrade", kept.path, "--anchor", kept.path / "heads.txt")


def test_a_folder_is_no_anchor(kept):
    assert "is not a file of heads" in call_error("upgrade", kept.path, "--anchor", kept.made.home)


@pytest.mark.parametrize("edited", [None, "../other.txt", "../foreign.txt"])
def test_an_anchor_that_the_ledger_does_not_know_is_refused(edited, kept):
    """Else who can edit a text file sends the heads elsewhere, or has lines written to any file."""
    (kept.made.home / "foreign.txt").touch()
    keyed.set_record(kept.path, key="../key.pem", anchor=edited)
    before, heads = snapshot(kept.path), kept.anchor.read_bytes()
    for words in (["erase", "--request", "r", "--ids", "s3"], ["fit", "--again"], ["report"], ["upgrade"]):
        said = call_error(words[0], kept.path, *words[1:])
        assert f"'record.anchor' is {edited!r}, and in the ledger '../heads.txt'. Put it back" in said
        assert "`ssse upgrade` with --anchor FILE names one" in said
    assert snapshot(kept.path) == before
    assert (kept.anchor.read_bytes(), (kept.made.home / "foreign.txt").read_bytes()) == (heads, b"")
    assert not (kept.made.home / "other.txt").exists()
    seal_anew(kept.path)
    found = kept.made.workspace.verify(keys=[kept.public], anchor=kept.anchor)
    assert [name for name, _ in found.damages] == ["ssse.toml"]
    kept.made.workspace.upgrade(anchor=kept.anchor)
    assert kept.made.workspace.verify(keys=[kept.public], anchor=kept.anchor).ok


def test_another_key_or_anchor_is_named_once_for_all(kept):
    make_pair(kept.made.home / "new.pem")
    workspace, other = kept.made.workspace, kept.made.home / "other.txt"
    said = call_json("upgrade", kept.path, "--key", kept.made.home / "new.pem", "--anchor", other)
    assert [text.split()[0] for text in said["gained"]] == ["signatures", "its"]
    configured = workspace.log().entries[-1]
    assert (configured.kind, set(configured.details["changes"])) == ("configured", {"record.key", "record.anchor"})
    assert workspace.settings().to_dict() == configured.details["settings"]
    workspace.erase("r-1", ids=["s3"])
    assert (sizes(kept.anchor), sizes(other)) == ([1, 2], [3, 6])
    found = workspace.verify(keys=[kept.public, kept.made.home / "new.pem.pub"], anchor=other)
    assert (found.ok, found.notes) == (True, [])
    assert call_json("upgrade", kept.path, "--without", "anchor")["gained"] == ["no anchor from now on"]
    assert workspace.settings().record.anchor is None


def test_entries_that_an_anchor_does_not_know_are_noted(kept):
    kept.made.workspace.upgrade(anchor=kept.made.home / "other.txt")
    kept.made.workspace.erase("r-1", ids=["s3"])
    found = kept.made.workspace.verify(keys=[kept.public], anchor=kept.anchor)
    assert found.ok
    assert "The 4 newest entries are not in" in found.notes[0]


def test_lines_of_a_foreign_file_are_not_quoted(kept):
    kept.anchor.write_text("root:secret\n1\n2\n3\n4\n\n\n")
    for words in (["fit", "--again"], ["verify", "--anchor", kept.anchor]):
        said = call_error(words[0], kept.path, *words[1:])
        assert "is not a file of heads" in said
        assert "secret" not in said


def test_one_command_may_have_an_anchor_of_its_own(kept):
    call(
        *("erase", kept.path, "--request", "r-1", "--ids", "s3"),
        *("--set", f"record.anchor={kept.made.home / 'other.txt'}"),
    )
    assert sizes(kept.made.home / "other.txt") == [5]
    assert sizes(kept.anchor) == [1, 2]
    kept.made.workspace.fit()
    assert sizes(kept.anchor) == [1, 2, 5]


def test_verify_needs_heads_that_are_there_and_whole(kept):
    (kept.made.home / "empty.txt").touch()
    for name in ("nothing.txt", "empty.txt"):
        call("verify", kept.path, "--anchor", kept.made.home / name, code=2)
    kept.anchor.write_text(kept.anchor.read_text().replace("time", "tame"))
    assert "is not a file of heads" in call("verify", kept.path, "--anchor", kept.anchor, code=2)[1]


def test_heads_in_an_anchor_must_be_signed_by_the_key(kept):
    heads = read_heads(kept.anchor).heads
    kept.anchor.write_text("".join(head.signed().record() for head in heads))
    assert kept.made.workspace.verify(anchor=kept.anchor).ok
    found = kept.made.workspace.verify(keys=[kept.public], anchor=kept.anchor)
    assert "without a signature of the key given" in found.damages[0][1]


def test_a_seal_that_says_more_was_published_than_there_is(tmp_path):
    """A command has no file to be compared with."""
    made = workspaces.make(tmp_path, n=24, p=3, record__anchor_command="true")
    shutil.copytree(made.path, tmp_path / "earlier", symlinks=True)
    made.workspace.erase("r-1", ids=["s3"])
    assert list(Seal.read(made.path).published.values()) == [5]
    shutil.copyfile(tmp_path / "earlier" / "ledger.sqlite", made.path / "ledger.sqlite")
    seal_anew(made.path)
    with pytest.raises(Damaged, match="shorter than the seal says"):
        made.workspace.erase("r-1", ids=["s5"])


def test_a_seal_that_says_nonsense_of_what_was_published(kept):
    seal = Seal.read(kept.path)
    Seal(seal.files, published={"file=../heads.txt": "many"}).write(kept.path)  # type: ignore[dict-item]
    with pytest.raises(Damaged, match="not a seal any more"):
        kept.made.workspace.fit(again=True)


# ---------------------------------------------------------------------------------------------- a command

PROGRAM = """\
import os, sys
home = sys.argv[1]
open(os.path.join(home, "sent.txt"), "ab").write(sys.stdin.buffer.read() + b"\\n")
open(os.path.join(home, "environment.txt"), "w").write("\\n".join(os.environ))
"""


def with_program(home: Path, body: str = PROGRAM) -> str:
    (home / "send.py").write_text(body)
    return shlex.join([sys.executable, str(home / "send.py"), str(home)])


def test_a_command_gets_the_head_once(tmp_path, monkeypatch):
    home = tmp_path / "a folder"
    home.mkdir()
    monkeypatch.setenv(PASSPHRASE, "secret")
    kept = keyed.make(home, anchored=False, record__anchor_command=with_program(home))
    workspace = kept.made.workspace
    workspace.erase("r-1", ids=["s3"])
    assert workspace.erase("r-1", ids=["s3"]).outcome == "repeated"
    assert sizes(home / "sent.txt") == [1, 2, 5]
    assert PASSPHRASE not in (home / "environment.txt").read_text().split("\n")
    assert workspace.verify(keys=[kept.public], anchor=home / "sent.txt").ok


def test_a_command_that_fails_is_tried_again(tmp_path, monkeypatch):
    command = with_program(tmp_path, "import sys; sys.exit('no network')")
    made = workspaces.make(tmp_path, n=24, p=3, fit=False)
    option = ["-q", "--set", f"record.anchor_command={command}"]
    said = call("fit", made.path, *option, code=1)[1]
    assert "ended with 1 (no network)" in said
    assert "is done and in the ledger" in said
    assert made.workspace.verify().ok
    with_program(tmp_path)
    assert "Fitted already" in call("fit", made.path, *option)[0]
    assert sizes(tmp_path / "sent.txt") == [2]
    monkeypatch.setattr(anchors, "LIMIT", 0.2)
    with_program(tmp_path, "import time; time.sleep(60)")
    assert "took more than" in call("erase", made.path, "--request", "r", "--ids", "s3", *option, code=1)[1]
    said = call("fit", made.path, "-q", "--set", "record.anchor_command=/no/such/program", code=1)[1]
    assert "No such file" in said


def test_only_the_command_of_init_is_run(tmp_path):
    """Who can edit ssse.toml must not be able to have anything run by the next command."""
    planted = tmp_path / "planted"
    made = workspaces.make(tmp_path, n=24, p=3, record__anchor_command="true")
    keyed.set_record(made.path, anchor_command=f"touch {planted}")
    before = snapshot(made.path)
    for words in (["erase", "--request", "r", "--ids", "s3"], ["fit", "--again"], ["report"]):
        said = call_error(words[0], made.path, *words[1:])
        assert "'record.anchor_command' is 'touch" in said
    assert not planted.exists()
    assert snapshot(made.path) == before
    assert call_json("verify", made.path, code=4)["damages"][0]["file"] == "ssse.toml"
    keyed.set_record(made.path)
    assert "and in the ledger 'true'" in call_error("fit", made.path, "--again")  # nor is it left out
    assert call_json("upgrade", made.path, "--without", "anchor_command")["gained"] == [
        "no command for its heads from now on"
    ]
    made.workspace.erase("r", ids=["s3"])


@pytest.mark.parametrize("command", ["./send", "sub/send", "'", "'  '"])
def test_a_command_is_named_or_lies_at_an_absolute_path(command, tmp_path):
    with pytest.raises(InvalidSetting, match=r"record\.anchor_command"):
        workspaces.make(tmp_path, fit=False, record__anchor_command=command)
    assert not (tmp_path / "ws").exists()


def test_a_shell_is_not_asked(tmp_path):
    command = f"true ; touch {tmp_path / 'planted'} $(touch {tmp_path / 'planted'})"
    workspaces.make(tmp_path, fit=False, record__anchor_command=command)
    assert not (tmp_path / "planted").exists()


def test_the_heads_of_a_ledger_follow_on_each_other(kept):
    kept.made.workspace.erase("r-1", ids=["s3"])
    with kept.made.workspace.folder.read() as ledger:
        heads = Heads.of(ledger)
    for size in range(1, heads.size + 1):
        assert heads.continues(heads.at(size))
        assert PublicKey.read(kept.public).signed_checkpoint(heads.at(size))
    make_pair(kept.made.home / "other.pem")
    assert not PublicKey.read(kept.made.home / "other.pem.pub").signed_checkpoint(heads.newest())
