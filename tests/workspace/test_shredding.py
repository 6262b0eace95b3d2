"""What is to be forgotten is overwritten before it goes, kept where the settings say so, and nowhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ssse.workspace.record import folder as folders
from ssse.workspace.record.transaction import open_transaction
from tests.support import workspaces

OLD, STATE = "states/000002", "states/000004"  # fitted is entry 2, erased entry 4


@pytest.mark.parametrize(("weights", "curvature"), [("shred", "shred"), ("keep", "shred"), ("shred", "keep")])
def test_what_is_shredded_is_overwritten_before_it_is_unlinked(weights, curvature, tmp_path):
    made = workspaces.make(tmp_path, n=24, p=3, erase__old_weights=weights, erase__old_curvature=curvature)
    state = made.path / OLD
    linked: dict[str, Path] = {}
    for name in sorted(path.relative_to(state).as_posix() for path in state.rglob("*") if path.is_file()):
        linked[name] = tmp_path / f"linked-{name.replace('/', '-')}"
        os.link(state / name, linked[name])  # another name of the same bytes on the disk
    before = {name: path.read_bytes() for name, path in linked.items()}
    assert made.workspace.erase("r-1", ids=["s3"]).outcome == "erased"
    sealed = made.workspace.log().entries[-1].details
    for name, path in linked.items():
        policy = weights if name == "weights.safetensors" else curvature
        part = "old_weights" if name == "weights.safetensors" else "old_curvature"
        assert path.read_bytes() == (before[name] if policy == "keep" else bytes(len(before[name]))), name
        assert (state / name).exists() == (policy == "keep")
        assert sealed[part] == {"keep": "kept", "shred": "shredded"}[policy]
    assert made.workspace.verify().ok


def test_a_new_fit_overwrites_the_curvature_of_the_stream(tmp_path):
    """A joint stream's curvature can rebuild the first model; fitting anew ends the stream."""
    made = workspaces.make(tmp_path, n=24, p=3, erase__policy="joint", erase__leave_out=False)
    assert made.workspace.erase("r-1", ids=["s3"]).outcome == "erased"
    parts = sorted((made.path / STATE / "curvature").iterdir())
    for part in parts:
        os.link(part, tmp_path / part.name)
    sizes = [part.stat().st_size for part in parts]
    made.workspace.fit(again=True)
    assert [(tmp_path / part.name).read_bytes() for part in parts] == [bytes(size) for size in sizes]
    assert made.workspace.verify().ok


def test_neither_samples_nor_labels_are_left_in_the_workspace(tmp_path):
    made = workspaces.make(tmp_path, n=24, p=4, fit__structure="dense")
    places = [3, 11]
    assert made.workspace.erase("r-1", forget=made.forget_file(places)).outcome == "erased"
    with open_transaction(made.workspace.folder, "report") as transaction:  # a page of all that is known
        transaction.write_page(json.dumps([entry.to_dict() for entry in transaction.ledger.entries()]))
    assert made.workspace.verify().ok
    inputs = made.x[places].numpy()
    rows = [row.tobytes() for row in inputs] + [row.astype("float32").tobytes() for row in inputs]
    numbers = [value.tobytes() for value in inputs.ravel()]
    texts = [repr(float(value)).encode() for value in inputs.ravel()]
    for name, body in workspaces.snapshot(made.path).items():
        content = body if isinstance(body, bytes) else body.encode()
        for pattern in (*rows, *numbers, *texts):
            assert pattern not in content, name
    assert numbers[0] in (tmp_path / "train.npz").read_bytes()  # where they are, they would be found


def lists_in(value: Any, path: str = "") -> dict[str, list[Any]]:
    if isinstance(value, dict):
        return {place: found for key, inner in value.items() for place, found in lists_in(inner, key).items()}
    return {path: value} if isinstance(value, list) else {}


def test_no_entry_of_a_request_lists_labels_or_ids(tmp_path):
    """Labels are whole numbers and ids words: no entry holds a list with one of them a sample."""
    made = workspaces.make(tmp_path, n=24, p=4)
    assert made.workspace.erase("r-1", ids=["s3", "s11", "s12"]).outcome == "erased"
    assert made.workspace.erase("r-2", ids=["s3", "s12"]).outcome == "refused"
    of_requests = [entry for entry in made.workspace.log().entries if entry.request is not None]
    assert [entry.kind for entry in of_requests] == ["received", "erased", "sealed", "received", "refused"]
    for entry in of_requests:
        lists = lists_in(entry.details)
        words = {"parameters", "notes", "reasons", "remains", "broken", "overridden", "why_held"}
        assert set(lists) <= {*words, "leverages"}, entry.kind
        assert all(isinstance(value, float) for value in lists.get("leverages", []))
        body = json.dumps(entry.details)
        assert not any(f'"s{place}"' in body for place in range(24))


def test_a_failing_shredder_is_not_called_a_success(tmp_path, monkeypatch):
    made = workspaces.make(tmp_path, n=24, p=3)
    workspace = made.workspace

    def fail(file: Path) -> None:
        raise OSError(5, "Input/output error", str(file))

    with monkeypatch.context() as patched:
        patched.setattr(folders.files, "overwrite", fail)
        for _ in range(2):  # and again, as long as the disk is as it is
            with pytest.raises(OSError, match="Input/output error"):
                workspace.erase("r-1", ids=["s5"])
            assert [entry.kind for entry in workspace.log().entries][-1] == "erased"
            assert workspace.verify().interrupted == "erase"
            assert (made.path / OLD / "weights.safetensors").exists()
    assert workspace.erase("r-1", ids=["s5"]).outcome == "repeated"
    assert [entry.kind for entry in workspace.log().entries][-1] == "sealed"
    assert not (made.path / OLD).exists()
    assert workspace.verify().ok
