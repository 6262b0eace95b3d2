"""Proofs: checked with nothing but the file and a key or a head; whatever is altered in them shows nothing."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace

import pytest

from ssse.errors import Damaged, InvalidData, InvalidSetting
from ssse.workspace.proof.keys import PublicKey, make_pair, public_path
from ssse.workspace.proof.merkle import consistency_proof, leaf_hash, root
from ssse.workspace.proof.proofs import Proof, check_proof, parse_proof, read_proof
from ssse.workspace.record.anchors import read_heads
from ssse.workspace.workspace import Workspace
from tests.support import keyed, workspaces
from tests.support.commands import call, call_error, call_json
from tests.support.rewrites import rebuild, shifted
from tests.support.sizes import sized


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> keyed.Keyed:
    """`early.txt`: the heads from before the first request."""
    kept = keyed.make(tmp_path_factory.mktemp("proofs"))
    shutil.copyfile(kept.anchor, kept.made.home / "early.txt")
    for request, sample in (("r-1", "s3"), ("r-2", "s5")):
        assert kept.made.workspace.erase(request, ids=[sample]).outcome == "erased"
    return kept


def test_a_request_is_shown_without_the_workspace(kept, tmp_path, monkeypatch):
    call("prove", kept.path, "--request", "r-1", "--output", tmp_path / "proof.json")
    text = (tmp_path / "proof.json").read_text()
    assert "r-2" not in text
    shutil.copyfile(kept.public, tmp_path / "key.pub")
    monkeypatch.chdir(tmp_path)
    said = call_json("check", "proof.json", "--key", "key.pub")
    assert said["ok"]
    assert said["shown"].startswith("Entries 3, 4, 5 belong to the ledger ssse/")
    assert [entry["kind"] for entry in said["entries"]] == ["received", "erased", "sealed"]
    assert {entry["request"] for entry in said["entries"]} == {"r-1"}
    assert "request 'r-1'" in call("check", "proof.json", "--key", "key.pub")[0]
    assert call_json("check", "proof.json", "--head", kept.anchor)["ok"]
    both = call("check", "proof.json", "--key", "key.pub", "--head", kept.anchor, "-q")[0]
    assert both.count("\n") == 1


def test_every_entry_can_be_shown(kept):
    entries = kept.made.workspace.log().entries
    key = PublicKey.read(kept.public)
    for entry in entries:
        proof = kept.made.workspace.prove(entry=entry.seq).proof
        assert proof.members[0].shown["hash"] == entry.hash
        assert proof.head.size == len(entries)
        assert check_proof(parse_proof(proof.to_json().encode()), [key]).ok


def test_nothing_was_changed_since_a_head(kept, tmp_path):
    early = kept.made.home / "early.txt"
    call("prove", kept.path, "--since", early, "--output", tmp_path / "since.json")
    said = call_json("check", tmp_path / "since.json", "--key", kept.public, "--head", early)
    assert said["ok"]
    assert "with 8 entries" in said["shown"]
    assert "begins with the 2 that it had on" in said["shown"]
    assert kept.made.workspace.prove(since=kept.anchor).proof.path == ()  # itself
    assert "that of 2 entries you have from elsewhere" in said["shown"]


def test_a_head_that_nobody_vouches_for_is_not_told_as_true(kept, tmp_path):
    """Without a key the other head is whatever the proof says: anything may be behind the entries, at any time."""
    early = kept.made.home / "early.txt"
    proof = kept.made.workspace.prove(since=early).proof
    assert proof.older is not None
    tree = [leaf_hash(b"genuine"), leaf_hash(b"genuine too"), leaf_hash(b"forged")]
    older = replace(proof.older, root=root(tree[:2]))
    newer = replace(proof.head, size=3, root=root(tree), time="2031-01-01T00:00:00+00:00").signed()
    forged = Proof(newer, older=older, path=tuple(consistency_proof(2, tree)))
    said = check_proof(forged, trusted=[older])
    assert said.ok
    assert newer.time not in said.shown
    assert f"{older.time}, a head that you have from elsewhere" in said.shown
    assert "Nobody vouches for that one" in said.shown
    dated = replace(older, time="2001-01-01T00:00:00+00:00")
    said = check_proof(replace(forged, older=dated), trusted=[newer])
    assert said.ok
    assert dated.time not in said.shown
    assert f"({newer.time}), a head that you have from elsewhere" in said.shown
    assert "Both are heads" in check_proof(forged, trusted=[newer, older]).shown
    (tmp_path / "since.json").write_text(proof.to_json())
    assert "Nobody vouches for that one" in call_json("check", tmp_path / "since.json", "--head", early)["shown"]


def test_a_proof_that_nobody_vouches_for_is_not_checked(kept, tmp_path):
    kept.made.workspace.prove(entry=1, output=tmp_path / "proof.json")
    assert "anybody could have made this proof" in call_error("check", tmp_path / "proof.json")


def test_another_key_and_another_head_show_nothing(kept, tmp_path):
    kept.made.workspace.prove(request="r-1", output=tmp_path / "proof.json")
    make_pair(tmp_path / "other.pem")
    said = call_json("check", tmp_path / "proof.json", "--key", public_path(tmp_path / "other.pem"), code=4)
    assert (said["ok"], said["entries"]) == (False, [])
    assert "no signature of the key" in said["wrong"]
    said = call_json("check", tmp_path / "proof.json", "--head", kept.made.home / "early.txt", code=4)
    assert "None of the heads" in said["wrong"]
    said = call("check", tmp_path / "proof.json", "--head", kept.made.home / "early.txt", code=4)[0]
    assert said.startswith("Nothing is shown: None of the heads")


def test_every_altered_byte_shows_nothing(kept):
    """Of the leaf, the path, the head, and all between."""
    key = PublicKey.read(kept.public)
    since = kept.made.workspace.prove(since=kept.made.home / "early.txt").proof
    chooser = random.Random(0)
    for proof in (kept.made.workspace.prove(request="r-2").proof, since):
        content = proof.to_json().encode()
        whole = parse_proof(content)
        assert check_proof(whole, [key]).ok
        for place in chooser.sample(range(len(content)), min(len(content), sized(400, 5000))):
            altered = bytearray(content)
            altered[place] ^= chooser.choice([1, 2, 4, 0x20, 0x80])
            try:
                found = parse_proof(bytes(altered))
            except InvalidData:
                continue
            if found == whole:  # between the values: blanks for other blanks
                continue
            assert not check_proof(found, [key]).ok, place


def change(body: dict, *path: object, to: object) -> bytes:
    plain = json.loads(json.dumps(body))
    place = plain
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return json.dumps(plain).encode()


def test_hostile_proofs_are_refused(kept):
    body = kept.made.workspace.prove(entry=2).proof.to_dict()
    since = kept.made.workspace.prove(since=kept.made.home / "early.txt").proof.to_dict()
    hostile = [
        *(b"", b"\xff", b"[]", b"3", b"{}", b"[" * 100_000, b'{"form": ' + b"9" * 10_000 + b"}", b'{"form": NaN}'),
        *(change(body, "form", to=2), change(body, "more", to=1), change(body, "head", to=3)),
        *(change(body, "entries", to=[]), change(body, "entries", to={}), change(body, "entries", 0, to=[])),
        *(change(body, "entries", 0, "index", to=index) for index in (0, 2, -1, True, "1", 1.0, None, 10**30)),
        *(change(body, "entries", 0, "leaf", to=leaf) for leaf in (3, "", "{}", "[", "\ud800", "[" * 10**5, "{" * 9)),
        *(change(body, "entries", 0, "path", to=path) for path in ("x", ["x"], [3], ["AA=="], ["A" * 44] * 65)),
        *(change(since, "older", to=older) for older in (None, "", since["head"] * 2)),
        change(since, "path", to=[[]]),
    ]
    for content in hostile:
        with pytest.raises(InvalidData) as caught:
            parse_proof(content)
        assert len(str(caught.value)) < 300, content[:80]


def test_files_that_are_no_proofs_end_in_one_line(kept, tmp_path):
    (tmp_path / "proof.json").write_text("{}")
    assert "is no proof as `ssse prove` writes it" in call_error("check", tmp_path / "proof.json", "--key", kept.public)
    assert "There is no file" in call_error("check", tmp_path / "nothing", "--key", kept.public)
    assert "There is no file" in call_error("check", tmp_path, "--key", kept.public)
    kept.made.workspace.prove(entry=1, output=tmp_path / "proof.json")
    assert "There is no file of heads" in call_error("check", tmp_path / "proof.json", "--head", tmp_path / "nothing")
    assert read_proof(tmp_path / "proof.json").head.size == 8


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "one of the three"),
        (["--request", "r-1", "--entry", "1"], "one of the three"),
        (["--request", "r-9"], "There is no request 'r-9'"),
        (["--entry", "0"], "There is no entry 0"),
        (["--entry", "9"], "There is no entry 9"),
        (["--since", "nothing"], "There is no file of heads"),
    ],
)
def test_what_cannot_be_proved(words, says, kept):
    assert says in call_error("prove", kept.path, *words)


def test_a_proof_on_stdout_is_the_same(kept):
    text = call("prove", kept.path, "--entry", "3")[0]
    assert json.loads(text) == call_json("prove", kept.path, "--entry", "3")
    assert parse_proof(text.encode()) == kept.made.workspace.prove(entry=3).proof


def test_a_rewritten_ledger_does_not_continue_an_older_head(kept, tmp_path):
    copied = workspaces.copy(kept.made, tmp_path / "home")
    rebuild(copied.path, lambda entries: [shifted(entry, days=-1) for entry in entries])
    with pytest.raises(Damaged, match="another one, or written anew"):
        copied.workspace.prove(since=kept.made.home / "early.txt")
    proof = copied.workspace.prove(request="r-1").proof
    assert not proof.head.signatures
    assert not check_proof(proof, [PublicKey.read(kept.public)]).ok
    assert not check_proof(proof, trusted=read_heads(kept.anchor).heads).ok
    with pytest.raises(InvalidSetting):
        check_proof(proof)


def test_an_unsigned_head_is_vouched_for_by_a_copy_of_it(tmp_path):
    made = workspaces.make(tmp_path, fit=False, record__anchor="../heads.txt")
    assert "is not signed" in call("prove", made.path, "--entry", "1", "--output", tmp_path / "p.json")[0]
    assert call_json("check", tmp_path / "p.json", "--head", tmp_path / "heads.txt")["ok"]
    assert Workspace(made.path).prove(entry=1).to_dict() == json.loads((tmp_path / "p.json").read_text())
