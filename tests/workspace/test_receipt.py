"""Receipts: of an untouched workspace they verify, of another they are refused, and no character of one may change."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import save_file

from ssse.errors import Damaged, InvalidData
from ssse.workspace.page import receipt as pages
from ssse.workspace.page.receipt import check_receipt, parse, render_receipt
from ssse.workspace.proof.keys import PublicKey
from ssse.workspace.record.anchors import read_heads
from ssse.workspace.record.decision import decisions
from ssse.workspace.record.receipt import Receipt, bearing
from ssse.workspace.record.story import Story
from tests.paper.test_pages import Reader, assert_policy
from tests.support import keyed, workspaces
from tests.support.commands import call, call_error, call_json
from tests.support.ledger_entries import LEDGERS, receipt_of
from tests.support.rewrites import rebuild, shifted
from tests.support.sizes import sized
from tests.workspace.test_decision import CASES, book

OLD = Path(__file__).parents[1] / "before" / "torch"


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> keyed.Keyed:
    """`r-1`: one sample by its id; `r-2`: 24 samples, measured; `r-3`: refused."""
    kept = keyed.make(tmp_path_factory.mktemp("receipts"), n=60)
    home, workspace = kept.made.home, kept.made.workspace
    shutil.copyfile(kept.path / "current" / "weights.safetensors", home / "old.safetensors")
    workspace.erase("r-1", ids=["s3"], due="2031-01-31", by="A. Person")
    workspace.erase("r-2", forget=kept.made.forget_file(list(range(10, 34))), override=("share",))
    save_file(kept.made.weights(), home / "new.safetensors")
    words = {"original": home / "old.safetensors", "retrained": [home / "new.safetensors"]}
    workspace.evaluate(requests=["r-2"], **words)  # pyright: ignore[reportArgumentType]
    workspace.erase("r-3", ids=["s3"])
    return kept


@pytest.fixture(scope="module")
def written(kept) -> dict[str, Path]:
    """A page of each request; its data beside it."""
    found = {}
    for request in ("r-1", "r-2", "r-3"):
        found[request] = kept.made.home / f"{request}.html"
        kept.made.workspace.receipt(request, found[request])
    return found


def tree(kept: keyed.Keyed) -> str:
    found = kept.made.workspace.verify().tree
    assert found is not None
    return found


@pytest.mark.parametrize("request_id", ["r-1", "r-2", "r-3"])
def test_it_verifies_without_the_workspace(request_id, kept, written, tmp_path, monkeypatch):
    page, head = written[request_id], tree(kept)
    for path in (page, page.with_suffix(".json"), kept.public, kept.anchor):
        shutil.copyfile(path, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    for name in (page.name, f"{page.stem}.json"):
        for vouching in (("--key", kept.public.name), ("--head", kept.anchor.name), ("--head", head)):
            said = call_json("check", name, *vouching)
            assert said["ok"]
            assert said["shown"].startswith(f"The receipt of request '{request_id}' is genuine. ")
    assert "anybody could have made" in call_error("check", page.name)


def test_it_says_what_the_page_says(kept, written):
    decided = {one.request: one for one in kept.made.workspace.log().decisions}
    for request, page in written.items():
        data = json.loads(page.with_suffix(".json").read_text())
        mine = decided[request].to_dict()
        assert {key: data["decision"][key] for key in mine} == mine
        assert data["head"]["digest"] == tree(kept)
    data = json.loads(written["r-1"].with_suffix(".json").read_text())
    assert (data["asked"]["due"], data["decision"]["who"], data["asked"]["samples"]) == ("2031-01-31", "A. Person", 1)
    text = written["r-1"].read_text()
    assert "A. Person" in text
    assert "2031-01-31" in text
    evidence = json.loads(written["r-2"].with_suffix(".json").read_text())["evidence"]
    assert evidence["shown"]
    assert {"accuracy_forgotten", "kl_forgotten"} <= {one["key"] for one in evidence["measures"]}
    assert json.loads(written["r-3"].with_suffix(".json").read_text())["evidence"] is None


def test_no_sample_no_label_and_no_id_is_in_it(kept, written):
    ledger = kept.made.workspace.log().entries
    secret = [ledger[0].details["salt"], *(e.details["blind"] for e in ledger)]
    secret += [
        e.details[key]
        for e in ledger
        for key in ("samples", "ids", "erased_samples")
        if e.kind != "fitted" and isinstance(e.details.get(key), str)
    ]
    measured = next(e for e in ledger if (e.kind, e.request) == ("erased", "r-1")).details["diagnostics"]
    secret += [str(measured[name]) for name in ("loss_before", "loss_after", "relative_step", "leverage_max")]
    assert len(secret) > 15
    for page in written.values():
        for text in (page.read_text(), page.with_suffix(".json").read_text()):
            assert not re.search(r"(?<![\w+/])s\d+(?![\w+/=])", text)  # nor within a signature, by chance
            assert [one for one in secret if one in text] == []


def verifies(content: bytes, kept: keyed.Keyed) -> bool:
    """By the key, or by a head: somebody may take either."""
    try:
        receipt, text = parse(content)
    except InvalidData:
        return False
    heads = read_heads(kept.anchor).heads
    by_key = check_receipt(receipt, text, [PublicKey.read(kept.public)]).ok
    return by_key or check_receipt(receipt, text, trusted=heads).ok


@pytest.mark.parametrize("ending", [".html", ".json"])
def test_every_altered_character_is_found(ending, kept, written):
    content = written["r-2"].with_suffix(ending).read_bytes()
    assert verifies(content, kept)
    chooser = random.Random(0)
    for place in chooser.sample(range(len(content)), min(len(content), sized(100, 20_000))):
        altered = bytearray(content)
        altered[place] ^= chooser.choice([1, 2, 4, 0x20, 0x80])
        assert not verifies(bytes(altered), kept), (place, content[max(0, place - 30) : place + 30])
        assert not verifies(content[:place] + content[place + 1 :], kept), place
        assert not verifies(content[:place] + b" " + content[place:], kept), place


def test_blanks_and_ends_of_lines_count(kept, written):
    for ending in (".html", ".json"):
        content = written["r-1"].with_suffix(ending).read_bytes()
        for altered in (content + b"\n", content[:-1], content.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + content):
            assert not verifies(altered, kept)
    data = json.loads(written["r-1"].with_suffix(".json").read_text())
    assert not verifies(json.dumps(data).encode(), kept)  # the same, written in another way


def test_what_is_told_beside_the_proof_is_bound_too(kept, written):
    """Fields from which all the rest is derived: version, signature, time of the head, other requests."""
    data = written["r-1"].with_suffix(".json").read_text()
    body = json.loads(data)
    receipt, _ = parse(data.encode())
    other = Receipt(receipt.request, "0.0.1", receipt.proof)
    assert not verifies(other.to_json().encode(), kept)
    found = check_receipt(other, other.to_json(), [PublicKey.read(kept.public)])
    assert "written by ssse 0.0.1" in found.wrong
    signature = body["proof"]["head"].rsplit(" ", 1)[1].strip()
    forged = ("A" if signature[20] != "A" else "B").join((signature[:20], signature[21:]))
    assert not verifies(data.replace(signature, forged).encode(), kept)
    unsigned = json.loads(data)
    unsigned["proof"]["head"] = body["proof"]["head"].split("— ")[0]
    made, _ = parse(json.dumps(unsigned).encode())
    assert made.proof.head.signatures == ()
    assert not verifies(made.to_json().encode(), kept)
    assert not verifies(data.replace("r-1", "r-2").encode(), kept)
    swapped = json.loads(data)
    swapped["proof"]["entries"].reverse()
    assert not verifies(json.dumps(swapped).encode(), kept)


def test_ids_stand_in_it_when_asked_for_and_are_bound(kept, tmp_path):
    page = tmp_path / "r-1.html"
    call("receipt", kept.path, "r-1", "--with-ids", "s3", "--output", page)
    for path in (page, page.with_suffix(".json")):
        assert re.search(r"\bs3\b", path.read_text())
        assert verifies(path.read_bytes(), kept)
        assert not verifies(re.sub(rb"\bs3\b", b"s4", path.read_bytes()), kept)
    data = json.loads(page.with_suffix(".json").read_text())
    data["named"]["ids"] = ["s4"]
    made, _ = parse(json.dumps(data).encode())
    assert not verifies(made.to_json().encode(), kept)
    assert "not the ids that request 'r-1' named" in call_error("receipt", kept.path, "r-1", "--with-ids", "s4")
    assert "named no ids" in call_error("receipt", kept.path, "r-2", "--with-ids", "s10")


def test_ids_have_one_order(kept, tmp_path):
    copied = workspaces.copy(kept.made, tmp_path / "home")
    copied.workspace.erase("two", ids=["s50", "s41"])
    made = copied.workspace.receipt("two", tmp_path / "two.html", ids=["s50", "s41"]).receipt
    assert made.named is not None
    assert made.named.ids == ("s41", "s50")
    data = json.loads((tmp_path / "two.json").read_text())
    data["named"]["ids"].reverse()
    with pytest.raises(InvalidData, match="order"):
        parse(json.dumps(data).encode())


def test_of_a_tampered_workspace_there_is_none(kept, tmp_path):
    copied = workspaces.copy(kept.made, tmp_path / "a")
    weights = copied.path / "current" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    page = tmp_path / "r-1.html"
    assert "no receipt from a damaged workspace" in call("receipt", copied.path, "r-1", "--output", page, code=4)[1]
    with pytest.raises(Damaged):
        copied.workspace.receipt("r-1", page)
    assert not page.exists()


def test_of_a_rewritten_history_it_does_not_verify(kept, tmp_path):
    copied = workspaces.copy(kept.made, tmp_path / "b")
    rebuild(copied.path, lambda entries: [shifted(entry, days=-1) for entry in entries])
    made = copied.workspace.receipt("r-1", tmp_path / "r-1.html")
    for path in (made.page, made.data):
        assert not verifies(path.read_bytes(), kept)
        assert call("check", path, "--head", tree(kept), code=4)[0].startswith("Nothing is shown: None of the heads")


def test_workspaces_without_leaves_are_upgraded_first(tmp_path):
    shutil.copytree(OLD, tmp_path / "home", symlinks=True)
    path = tmp_path / "home" / "ws"
    request = next(e.request for e in workspaces.Workspace(path).log().entries if e.request)
    error = call_error("receipt", path, request, "--output", tmp_path / "r.html")
    assert "`ssse upgrade` makes them" in error
    call("upgrade", path)
    call("receipt", path, request, "--output", tmp_path / "r.html")
    head = workspaces.Workspace(path).verify().tree
    assert call_json("check", tmp_path / "r.html", "--head", head)["ok"]


@pytest.mark.parametrize("case", CASES)
def test_the_entries_of_a_receipt_decide_as_all_do(case):
    made = CASES[case][0]()
    whole = next(one for one in decisions(Story(made.entries), made.entries[-1].time) if one.request == "r")
    assert receipt_of(made, "r").decision == whole
    page = render_receipt(receipt_of(made, "r"))
    assert "None" not in re.sub(r'<pre id="receipt">.*?</pre>', "", page, flags=re.DOTALL)


def test_what_it_hangs_on_is_in_it():
    made = book()
    made.answer("r", 30)
    made.received("again", 0, {"r": 30})
    made.answer("stranger", 30)
    receipt = receipt_of(made, "again")
    assert receipt.others == ["r"]
    assert (receipt.decision.action, receipt.decision.because) == ("measure", "depends")
    assert 3 in bearing(Story(made.entries), "again")
    assert "stranger" not in receipt.to_json()


@pytest.mark.parametrize("name", ["one", "five", "hostile"])
def test_the_page_loads_and_runs_nothing_whatever_the_names(name):
    made = LEDGERS[name]()
    for request in [one.id for one in Story(made.entries).requests]:
        text = render_receipt(receipt_of(made, request))
        seen = Reader(text)
        assert_policy(seen)
        assert not {"script", "link", "iframe", "img", "form"} & {tag for tag, _ in seen.elements}
        assert not re.search("[\u202e\u2066\u200b\x07]", text)
        assert receipt_of(made, request).to_json().isascii()


def test_files(kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = kept.made.workspace.receipt("r-1")
    assert (made.page, made.data) == (Path("receipt-r-1.html"), Path("receipt-r-1.json"))
    assert call_json("receipt", kept.path, "r-1")["receipt"] == json.loads(made.data.read_text())
    assert call("receipt", kept.path, "r-1", "-q")[0] == "The receipt: receipt-r-1.html\n"
    assert "outside of the workspace" in call_error("receipt", kept.path, "r-1", "--output", kept.path / "r.html")
    assert "FILE.html" in call_error("receipt", kept.path, "r-1", "--output", "r.pdf")
    assert "There is no request 'r-9'" in call_error("receipt", kept.path, "r-9")
    (tmp_path / "folder.html").mkdir()
    assert "is a folder" in call_error("receipt", kept.path, "r-1", "--output", "folder.html")
    (tmp_path / "no.html").write_text("<!DOCTYPE html><p>x")
    assert "is no receipt" in call_error("check", "no.html", "--key", kept.public)
    newest = kept.made.workspace.verify().head
    assert "prints as tree" in call_error("check", made.page, "--head", newest)
    assert "There is no file of heads" in call_error("check", made.page, "--head", "nothing")


def test_names_of_files_are_apart_and_stay_here(tmp_path, monkeypatch):
    made = workspaces.make(tmp_path / "w")
    monkeypatch.chdir(tmp_path)
    names = {made.workspace.folder.path}
    for number, request in enumerate(["../up", "a/b", "a b", "a_b", ".."]):
        made.workspace.erase(request, ids=[f"s{number}"])
        page = made.workspace.receipt(request).page
        assert page.resolve().parent == tmp_path
        names.add(page)
    assert len(names) == 6
    made.workspace.erase("ж" * 100, ids=["s9"])
    assert "too long for the name of a file" in call_error("receipt", made.path, "ж" * 100)


def test_a_receipt_of_entries_that_nobody_writes_is_refused(kept, written, monkeypatch):
    """A key may vouch for anything; reading it must not end otherwise."""
    receipt, text = parse(written["r-1"].read_bytes())

    def broken(_: Receipt) -> str:
        raise KeyError("requests")

    monkeypatch.setattr(pages, "render_receipt", broken)
    found = check_receipt(receipt, text, [PublicKey.read(kept.public)])
    assert (found.ok, found.wrong) == (False, "Its entries are not as ssse writes them.")
