"""Deletion requests on the command line: what is printed, what is recorded, how it ends."""

from __future__ import annotations

import json
import pickle
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ssse.cli.app import app
from ssse.cli.wording import as_settings
from ssse.errors import InvalidSetting
from ssse.workspace.record.ledger import FIRST
from tests.support import workspaces
from tests.support.commands import call, call_error, call_json, exact, init
from tests.support.data_files import Bomb
from tests.support.workspaces import Made, copy, make, snapshot


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> Made:
    """A fitted workspace that no test changes."""
    return make(tmp_path_factory.mktemp("ready") / "home")


@pytest.fixture
def made(ready, tmp_path) -> Made:
    return copy(ready, tmp_path / "home")


# What is recorded


def test_an_entry_says_it_all(made):
    before = made.workspace.log().entries[-1].details["after"]
    last = call_json("log", made.path)["head"]
    answer = call_json("erase", made.path, "--request", "2026-001", "--ids", "s3,s4", "--set", "fit.seed=3")
    received, erased, sealed = answer["entries"]
    assert (received["kind"], erased["kind"], sealed["kind"]) == ("received", "erased", "sealed")
    assert {entry["request"] for entry in answer["entries"]} == {"2026-001"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", erased["time"])
    assert [received["previous"], erased["previous"]] == [last, received["hash"]]
    assert (received["details"]["asked"], received["details"]["by"], received["details"]["already"]) == (2, "ids", {})
    found = erased["details"]
    assert (found["k"], found["n"], found["scale"], found["damping"]) == (2, 40, 1.0, 0.01)
    assert (found["rows"], found["structure"], found["seeds"]) == ("expected", "dense", {"rows": 0})
    assert set(found["versions"]) == {"python", "torch", "numpy", "scikit-learn", "ssse"}
    assert found["before"] == {"weights": before["weights"]}
    assert found["after"] != found["before"]
    assert found["verdict"] == found["diagnostics"]["verdict"] == "ok"
    kept = exact(made.path, "2026-001")[1]["details"]
    assert kept["before"] == before
    assert set(kept["after"]) == {"weights", "curvature"}
    assert kept["diagnostics"]["leverage_max"] > 0
    assert kept["diagnostics"]["loss_after"] > kept["diagnostics"]["loss_before"]
    assert (found["leave_out"], found["policy"], found["residual"]) == (True, "rebase", False)
    assert sealed["details"]["old_weights"] == sealed["details"]["old_curvature"] == "shredded"
    assert answer["details"] == found
    first = call_json("log", made.path)["entries"][0]
    assert first["previous"] == FIRST


def test_no_sample_and_no_label_is_in_the_workspace(tmp_path):
    """Marked inputs, an outstanding label and ids are looked for in every byte that a request leaves behind."""
    made = make(tmp_path, fit=False, c=5)
    mark = np.frombuffer(b"SECRETx?", dtype=np.float64)[0]  # eight letters that are a number
    x, y = made.x.numpy().copy(), made.y.numpy().copy()
    x[7] = [mark, 0.123456789, mark, -3.5]
    y[7] = 4
    np.savez(tmp_path / "train.npz", x=x, y=y, id=np.array([f"person-{i}" for i in range(40)]))
    made.workspace.fit()
    call("erase", made.path, "--request", "r", "--ids", "person-7,person-8")
    for name, content in snapshot(made.path).items():
        body = content if isinstance(content, bytes) else content.encode()
        for word in (b"SECRET", b"person-", b"0.123456789", x[7].tobytes(), np.float64(0.123456789).tobytes()):
            assert word not in body, (name, word)
    with sqlite3.connect(f"file:{made.path}/ledger.sqlite?mode=ro", uri=True) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(samples)")]
        (details,) = connection.execute("SELECT details FROM entries WHERE kind = 'erased'").fetchone()
    connection.close()
    assert columns == ["entry", "digest"]
    assert not {"x", "y", "inputs", "labels", "label", "classes"} & set(json.loads(details))


def test_the_same_id_twice_does_nothing(made):
    call("erase", made.path, "--request", "a", "--forget", made.forget_file([3, 4]))
    before = snapshot(made.path)
    answer = call_json("erase", made.path, "--request", "a", "--forget", made.forget_file([4, 3]))
    assert (answer["outcome"], len(answer["entries"])) == ("repeated", 3)
    assert "was answered on" in answer["reason"]
    assert call_json("erase", made.path, "--request", "a", "--ids", "s3,s4")["outcome"] == "repeated"
    for other in ("s3", "s3,s5", "s3,s4,s5", "s99", "s3,s99,s4"):
        assert "for other samples" in call_error("erase", made.path, "--request", "a", "--ids", other)
    for nothing in ([], ["--forget", made.home / "nowhere.npz"]):  # must not pass for an answer either
        call_error("erase", made.path, "--request", "a", *nothing)
    assert snapshot(made.path) == before


def test_the_same_id_is_recognised_when_its_samples_have_left_the_data(made):
    call("erase", made.path, "--request", "a", "--ids", "s3,s4")
    stays = [place for place in range(len(made.y)) if place != 4]
    ids = np.array([f"s{place}" for place in stays])
    np.savez(made.home / "train.npz", x=made.x[stays].numpy(), y=made.y[stays].numpy(), id=ids)
    answer = call_json("erase", made.path, "--request", "a", "--ids", "s3,s4")
    assert answer["outcome"] == "repeated"
    assert "1 of the ids are no longer in the data" in answer["reason"]
    for other in ("s4", "s5,s4", "s3,s4,s99"):
        assert "for other samples" in call_error("erase", made.path, "--request", "a", "--ids", other)


def test_a_sample_that_another_request_erased_is_left_out(made):
    call("erase", made.path, "--request", "a", "--ids", "s3,s4")
    answer = call_json("erase", made.path, "--request", "b", "--forget", made.forget_file([5, 4, 6, 3]))
    assert answer["already"] == {"a": 2}
    assert answer["entries"][0]["details"]["already"] == {"a": 2}
    assert (answer["entries"][0]["details"]["asked"], answer["details"]["k"]) == (4, 2)
    text, _ = call("erase", made.path, "--request", "c", "--ids", "s3,s6,s7")
    assert "1 sample was erased already, by request 'a'; left out.\n" in text
    assert "1 sample was erased already, by request 'b'; left out.\n" in text
    whole = make(made.home.parent / "whole")
    for request, ids in (("1", "s3,s4"), ("2", "s5,s6"), ("3", "s7")):
        call("erase", whole.path, "--request", request, "--ids", ids)
    torch.testing.assert_close(made.weights(), whole.weights(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("change", ["ulp", "label", "dtype", "twice"])
def test_a_sample_that_was_never_there_is_refused_and_recorded(made, change):
    x, y = made.x[[3, 4]].numpy(), made.y[[3, 4]].numpy()
    if change == "ulp":
        x[1, 2] = np.nextafter(x[1, 2], 10)
    elif change == "label":
        y[1] = (y[1] + 1) % 3
    elif change == "dtype":
        x = x.astype(np.float32)
    else:
        x, y = x[[0, 0]], y[[0, 0]]
    np.savez(made.home / "f.npz", x=x, y=y)
    before = made.weights()
    answer = call_json("erase", made.path, "--request", "a", "--forget", made.home / "f.npz", code=3)
    assert f"{2 if change == 'dtype' else 1} of its 2 samples" in answer["reason"]
    assert [entry["kind"] for entry in answer["entries"]] == ["received", "refused"]
    assert answer["entries"][1]["details"]["reason"] == answer["reason"]
    assert all(torch.equal(before[name], value) for name, value in made.weights().items())
    assert call_json("verify", made.path)["ok"]
    answer = call_json("erase", made.path, "--request", "a", "--ids", "s3,s4")  # the id may be tried again
    assert [entry["kind"] for entry in answer["entries"]] == ["received", "refused", "received", "erased", "sealed"]


def test_samples_count_as_often_as_they_were_there(tmp_path):
    """Three copies of one sample: each can be erased once, under any request."""
    twice = make(tmp_path / "twice", fit=False)
    places = [*range(40), 5, 5]
    np.savez(twice.home / "train.npz", x=twice.x[places].numpy(), y=twice.y[places].numpy())
    twice.workspace.fit()
    answer = call_json("erase", twice.path, "--request", "a", "--forget", twice.forget_file([5, 5]))
    assert (answer["details"]["k"], answer["already"]) == (2, {})
    answer = call_json("erase", twice.path, "--request", "b", "--forget", twice.forget_file([5, 5]))
    assert (answer["details"]["k"], answer["already"]) == (1, {"a": 1})
    call("erase", twice.path, "--request", "c", "--forget", twice.forget_file([5]), code=3)
    answer = call_json("erase", twice.path, "--request", "d", "--forget", twice.forget_file([5] * 4), code=3)
    assert "or not that often" in answer["reason"]
    assert call_json("fit", twice.path, "--again")["entry"]["details"]["n"] == 39


@pytest.mark.parametrize("words", [[], ["--scale", "2"], ["--policy", "joint"], ["--old-weights", "keep"]], ids=str)
def test_a_dry_run_changes_no_byte(made, words):
    path = made.path / "ssse.toml"
    path.write_text(path.read_text().replace("level = 0.05", "level = 0.04"))  # is not written down either
    before = snapshot(made.path)
    tried = call_json("erase", made.path, "--request", "a", "--ids", "s3,s4", "--dry-run", *words)
    refused = call_json("erase", made.path, "--request", "a", "--forget", _stranger(made), "--dry-run", code=3)
    assert (tried["outcome"], tried["entries"], refused["entries"]) == ("tried", [], [])
    assert "never in the training data" in refused["reason"]
    assert snapshot(made.path) == before
    done = call_json("erase", made.path, "--request", "a", "--ids", "s3,s4", *words)["details"]
    assert tried["details"].items() <= done.items()


def _stranger(made: Made) -> Path:
    np.savez(made.home / "stranger.npz", x=np.zeros((1, 4)), y=np.zeros(1, dtype=np.int64))
    return made.home / "stranger.npz"


def test_only_ok_is_accepted_where_that_is_wanted(made):
    many = ",".join(f"s{i}" for i in range(10))
    tried = call_json("erase", made.path, "--request", "a", "--ids", many, "--dry-run")
    assert tried["details"]["verdict"] == "caution"
    before = made.weights()
    answer = call_json("erase", made.path, "--request", "a", "--ids", many, "--accept", "ok", code=3)
    first = answer["entries"][-1]["details"]["diagnostics"]["reasons"][0]
    assert answer["reason"].startswith(f"The verdict is 'caution' and only 'ok' is accepted here: {first}")
    assert all(torch.equal(before[name], value) for name, value in made.weights().items())
    text, _ = call("erase", made.path, "--request", "a", "--ids", many)
    assert f"Verdict: caution.\n  because {as_settings(first)}" in text


def test_everything_cannot_be_erased(made):
    everyone = ",".join(f"s{i}" for i in range(40))
    for words in ([], ["--dry-run"]):
        answer = call_json("erase", made.path, "--request", "a", "--ids", everyone, *words, code=3)
        assert answer["outcome"] == "refused"
    assert call_json("verify", made.path)["ok"]


# What is asked for


def test_ids_come_in_lists_and_files(made):
    (made.home / "ids.txt").write_bytes("\ufeffs3\r\n\n  s4 \n".encode())
    words = ["erase", made.path, "--dry-run", "--request", "a"]
    assert call_json(*words, "--ids", f"@{made.home}/ids.txt")["details"]["k"] == 2
    assert call_json(*words, "--ids", "s1, s2,", "--ids", "s3")["details"]["k"] == 3
    assert call_json(*words, "--ids", f"@{made.home}/ids.txt", "--ids", "s1")["details"]["k"] == 3
    (made.home / "bytes").write_bytes(b"\xff\xfe")
    forget = made.forget_file([1])
    for wrong, says in (
        (["--ids", "@"], "cannot be read"),
        (["--ids", "@\0"], "cannot hold the character NUL"),
        (["--ids", "@none"], "--ids @none: the file cannot be read"),
        (["--ids", f"@{made.home}/bytes"], "not UTF-8"),
        (["--ids", ","], "--ids is empty"),
        (["--ids", "s1,s1"], "more than once"),
        (["--ids", "s1,sx"], "no sample with the id 'sx'"),
        (["--ids", "s1", "--forget", forget], "one of the two"),
        (["--forget", forget, "--forget", forget], "takes one file, and 2 were given"),
        ([], "one of the two"),
    ):
        assert says in call_error(*words, *wrong)


@pytest.mark.parametrize("request_id", ["", " a", "a\nb", "a\x00", "x" * 201, "\u202e", "\ud800"], ids=ascii)
def test_ids_of_requests_are_words(made, request_id):
    before = snapshot(made.path)
    with pytest.raises(InvalidSetting, match="A request's id"):
        made.workspace.erase(request_id, ids=["s1"])
    with pytest.raises(InvalidSetting, match="There is no request"):
        made.workspace.log(request_id)
    of_the_line = "character NUL" if "\0" in request_id else None  # which no command line can hold
    assert (of_the_line or "A request's id") in call_error("erase", made.path, "--request", request_id, "--ids", "s1")
    assert (of_the_line or "There is no request") in call_error("log", made.path, "--request", request_id)
    assert snapshot(made.path) == before


def test_what_the_users_code_raises_is_one_line(tmp_path):
    workspaces.files(tmp_path)
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 9)), y=np.zeros(3, dtype=np.int64))
    for words, says in (
        (["--loss", "tests.support.commands:raises"], "tests.support.commands:raises' cannot be computed"),
        (["--loss", "tests.support.commands:leaves"], "ended Python (exit 0)"),
        (["--loss", "tests.support.commands:NOT_A_FUNCTION"], "is a int, not a function"),
        (["--data", tmp_path / "wide.npz"], "wide.npz', whose inputs have the shape (3, 9)"),
        (["--argument", "nonsense"], "--argument takes NAME=VALUE"),
        (["--argument", "bias.x=1"], "--argument takes NAME=VALUE"),
        (["--set", "nonsense"], "--set takes SECTION.KEY=VALUE"),
        (["--device", "tpu"], "There is no device 'tpu' here"),
        (["--scale", "3"], "No such option"),
    ):
        done = CliRunner().invoke(
            app,
            [
                *("init", str(tmp_path / "ws"), "--model", "torch.nn:Linear", "--data", str(tmp_path / "train.npz")),
                *("--argument", "in_features=4", "--argument", "out_features=3"),
                *("--weights", str(tmp_path / "w.safetensors"), *map(str, words)),
            ],
        )
        assert done.exit_code == (1 if "ended" in says else 2), done.output
        assert says in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "ws").exists()
    init(tmp_path, "--set", "fit.weight_decay=0.0", "--weight-decay", "0")
    assert "--damping" in call_error("fit", tmp_path / "ws")
    call("fit", tmp_path / "ws", "--damping", "0.01")


def test_a_folder_whose_name_is_no_text(tmp_path):
    workspaces.files(tmp_path)
    words = ["--model", "torch.nn:Linear", "--argument", "in_features=4", "--argument", "out_features=3"]
    words += ["--weights", str(tmp_path / "w.safetensors"), "--data", str(tmp_path / "train.npz")]
    assert "name one in UTF-8" in call_error("init", tmp_path / "w\udcff", *words)


def test_what_the_users_code_prints_is_not_part_of_the_object(tmp_path):
    workspaces.files(tmp_path)
    text = init(tmp_path, "--model", "tests.support.commands:talkative", "--json")
    assert json.loads(text)["samples"] == 40
    for words in (["fit"], ["erase", "--request", "a", "--ids", "s1"], ["evaluate"]):
        text, aside = call(words[0], tmp_path / "ws", *words[1:], "--json")
        json.loads(text)
        assert "building the model" in aside


# Nothing is ever unpickled


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.bin", "w.ckpt", "w.pth"])
def test_weights_are_never_executed(made, name):
    proof, path = made.home / "proof", made.home / "bad" / name
    path.parent.mkdir()
    path.write_bytes(pickle.dumps(Bomb(proof)))
    torch_made = made.home / "bad" / f"torch-{name}"
    torch.save({"weight": torch.zeros(3, 4), "bias": Bomb(proof)}, torch_made)
    made.workspace.erase("a", ids=["s1"])
    before = snapshot(made.path)
    sizes = ["--argument", "in_features=4", "--argument", "out_features=3", "--data", made.home / "train.npz"]
    for weights in (path, torch_made):
        for words in (
            ["evaluate", made.path, "--retrained", weights],
            ["evaluate", made.path, "--original", weights],
            ["calibrate", made.path, "--ids", "s2", "--retrained", weights],
            ["init", made.home / "new", "--model", "torch.nn:Linear", *sizes, "--weights", weights],
        ):
            call_error(*words)
    assert not proof.exists()
    assert not (made.home / "new").exists()
    assert snapshot(made.path) == before


@pytest.mark.parametrize("name", ["f.npz", "f.safetensors", "f.csv", "f.parquet", "f.pt", "f.pkl", "npy"])
def test_data_is_never_executed(made, name):
    proof, path = made.home / "proof", made.home / "bad" / name
    path.parent.mkdir()
    bomb = np.array([Bomb(proof)], dtype=object)
    if name == "npy":
        path.mkdir()
        np.save(path / "x.npy", bomb, allow_pickle=True)
        np.save(path / "y.npy", bomb, allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(Bomb(proof)))
    made.workspace.erase("a", ids=["s1"])
    before = snapshot(made.path)
    paths = [path]
    if name == "f.npz":
        np.savez(made.home / "objects.npz", x=bomb, y=bomb)
        paths.append(made.home / "objects.npz")
    for data in paths:
        call_error("erase", made.path, "--request", "b", "--forget", data)
        call_error("calibrate", made.path, "--forget", data)
        call_error("evaluate", made.path, "--test", data)
    assert not proof.exists()
    assert snapshot(made.path) == before


def test_a_folder_is_no_page(tmp_path):
    made = workspaces.make(tmp_path / "home", fit=False)
    for output in ("/", ".", tmp_path):
        assert "is a folder" in call_error("report", made.path, "--output", output)
