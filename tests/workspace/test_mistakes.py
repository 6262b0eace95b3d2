"""Mistakes that a user can make without noticing: each must be seen, and none may pass for an answer."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ssse.errors import Damaged, InvalidData, InvalidModel, InvalidSetting
from ssse.system.digests import digest_file
from ssse.system.environment import clock
from ssse.system.lock import locked
from ssse.workspace.record import transaction as transactions
from ssse.workspace.record.ledger import FILE
from tests.support import workspaces
from tests.support.commands import call, call_error, call_json
from tests.support.workspaces import Made
from tests.workspace.test_ledger_digest import altered_in_silence


def rewrite(made: Made, places: list[int], **more: object) -> None:
    """The training data with these samples only."""
    ids = np.array([f"s{place}" for place in places])
    np.savez(made.home / "train.npz", x=made.x[places].numpy(), y=made.y[places].numpy(), id=ids)


def test_an_erased_sample_does_not_come_back_through_a_copy_in_the_data(tmp_path):
    made = workspaces.make(tmp_path / "home")
    made.workspace.erase("a", ids=["s0"])
    x, y = torch.cat([made.x, made.x[:1]]), torch.cat([made.y, made.y[:1]])
    ids = np.array([f"s{place}" for place in range(len(y))])
    np.savez(made.home / "train.npz", x=x.numpy(), y=y.numpy(), id=ids)
    entry = made.workspace.fit(again=True).entry
    assert (entry.details["n"], entry.details["excluded"]) == (39, 2)
    np.savez(made.home / "train.npz", x=np.r_[x, x[5:6]], y=np.r_[y, y[5:6]], id=np.array([f"s{i}" for i in range(42)]))
    with pytest.raises(InvalidData, match="more often"):
        made.workspace.fit(again=True)


@pytest.mark.parametrize("trained", [np.uint8, np.int64], ids=lambda kind: kind.__name__)
def test_the_same_bytes_as_other_numbers_are_another_sample(tmp_path, trained):
    from ssse.problem.sample_digests import digest_samples

    x = torch.from_numpy(np.arange(48).reshape(6, 8).astype(trained))
    y = torch.zeros(6)
    seen = {digest_samples((x, y), b"salt").tobytes()}
    for other in (x.view(torch.int8), x.view(torch.float64), x.reshape(6, 2, -1), {"a": x[:, :4], "b": x[:, 4:]}):
        seen.add(digest_samples((other, y), b"salt").tobytes())
    cut = {"a": x[:, :2], "b": x[:, 2:]}
    seen.add(digest_samples((cut, y), b"salt").tobytes())
    assert len(seen) == 6


def test_a_place_as_id_is_refused_when_rows_have_left_the_data(tmp_path):
    made = workspaces.make(tmp_path / "home", fit=False, data__ids="place")
    rewrite(made, list(range(40)))
    made.workspace.fit()
    made.workspace.erase("a", ids=["3"])
    rewrite(made, [place for place in range(40) if place != 3])
    with pytest.raises(InvalidData, match="places name other samples"):
        made.workspace.erase("b", ids=["10"])


def test_another_model_than_the_fitted_one_is_refused(tmp_path):
    """Weights fit into many models."""
    made = workspaces.make(tmp_path / "home")
    options = {"model.arguments": {"in_features": 4, "out_features": 3, "bias": True}}
    before = workspaces.snapshot(made.path)
    with pytest.raises(InvalidSetting, match=r"model.arguments changed since the curvature was fitted"):
        made.workspace.erase("a", ids=["s1"], options=options)
    with pytest.raises(InvalidSetting, match="changed since"):
        made.workspace.calibrate(ids=["s1"], options=options)
    assert workspaces.snapshot(made.path) == before


def test_what_was_set_for_one_command_is_in_its_entry(tmp_path):
    made = workspaces.make(tmp_path / "home")
    shutil.copyfile(made.home / "train.npz", made.home / "other.npz")
    answer = made.workspace.erase("a", ids=["s1"], options={"data.train": "../other.npz", "erase.scale": 0.5})
    received = next(entry for entry in answer.entries if entry.kind == "received")
    assert received.details["options"] == {"data.train": ["../train.npz", "../other.npz"], "erase.scale": [None, 0.5]}
    assert answer.details["scale_source"] is None


def test_data_that_is_away_for_a_moment_is_no_refusal(tmp_path):
    made = workspaces.make(tmp_path / "home", fit__structure="matrix_free")
    forget = made.forget_file([1])
    (made.home / "train.npz").rename(made.home / "away.npz")
    before = workspaces.snapshot(made.path)
    with pytest.raises(InvalidData, match="is not a file"):
        made.workspace.erase("a", forget=forget)
    assert workspaces.snapshot(made.path) == before
    (made.home / "away.npz").rename(made.home / "train.npz")
    assert made.workspace.erase("a", forget=forget).outcome == "erased"


def test_conjugate_gradients_in_a_joint_stream_over_all_data_are_refused_at_once(tmp_path):
    made = workspaces.make(
        tmp_path / "home", fit__structure="matrix_free", erase__policy="joint", erase__leave_out=False
    )
    with pytest.raises(InvalidSetting, match="before the stream"):
        made.workspace.erase("a", ids=["s1"])


def test_samples_that_cannot_run_through_the_model_are_no_request(tmp_path):
    made = workspaces.make(tmp_path / "home")
    np.savez(made.home / "f.npz", x=made.x[:2, :3].numpy(), y=made.y[:2].numpy())
    before = workspaces.snapshot(made.path)
    with pytest.raises(InvalidModel, match="cannot be run"):
        made.workspace.erase("a", forget=made.home / "f.npz")
    assert workspaces.snapshot(made.path) == before


def test_a_text_is_not_a_list_of_ids(tmp_path):
    made = workspaces.make(tmp_path / "home")
    with pytest.raises(InvalidSetting, match="not the text 's1'"):
        made.workspace.erase("a", ids="s1")
    with pytest.raises(InvalidSetting, match="requests is a list"):
        made.workspace.evaluate(requests="a")


def test_a_copied_link_is_damage_and_no_command_begins(tmp_path):
    """cp -r and archives make a folder of it, which would go on serving the old model."""
    made = workspaces.make(tmp_path / "home")
    made.workspace.folder.current.unlink()
    shutil.copytree(made.workspace.folder.states / "000002", made.workspace.folder.current)
    before = workspaces.snapshot(made.path)
    with pytest.raises(Damaged, match="should be a link"):
        made.workspace.erase("a", ids=["s1"])
    assert [name for name, _ in made.workspace.verify().damages] == ["current"]
    assert workspaces.snapshot(made.path) == before
    shutil.rmtree(made.workspace.folder.current)
    assert made.workspace.erase("a", ids=["s1"]).outcome == "erased"
    assert made.workspace.verify().ok


def test_shredding_reaches_what_earlier_requests_kept(tmp_path):
    made = workspaces.make(tmp_path / "home")
    keep = {"erase.old_weights": "keep", "erase.old_curvature": "keep"}
    made.workspace.erase("a", ids=["s1"], options=keep)
    made.workspace.erase("b", ids=["s2"], options=keep)
    assert len(list(made.workspace.folder.states.iterdir())) == 3
    probe = next(made.workspace.folder.states.iterdir()) / "weights.safetensors"
    os.link(probe, tmp_path / "probe")
    made.workspace.erase("c", ids=["s3"], options={"erase.old_curvature": "keep"})
    assert set((tmp_path / "probe").read_bytes()) == {0}
    assert made.workspace.verify().ok
    made.workspace.erase("d", ids=["s4"])
    assert len(list(made.workspace.folder.states.iterdir())) == 1
    assert made.workspace.verify().ok


def test_fitting_and_calibrating_make_no_second_copy_of_the_weights(tmp_path):
    """A process that has mapped them keeps them, and a later request has one place to erase them from."""
    made = workspaces.make(tmp_path / "home", fit=False)
    first = (made.workspace.folder.current / "weights.safetensors").stat().st_ino
    mapped = made.weights()["weight"]
    value = mapped.clone()
    made.workspace.fit()
    made.workspace.calibrate(ids=["s1", "s2"], options={"calibrate.method": "loss_search"})
    assert (made.workspace.folder.current / "weights.safetensors").stat().st_ino == first
    assert torch.equal(mapped, value)


def test_calibration_takes_only_samples_that_could_be_erased(tmp_path):
    made = workspaces.make(tmp_path / "home")
    with pytest.raises(InvalidData, match="were never in the training data"):
        made.workspace.calibrate(forget=made.home / "test.npz", options={"calibrate.method": "loss_search"})
    made.workspace.erase("a", ids=["s1"])
    with pytest.raises(InvalidData, match="erased already"):
        made.workspace.calibrate(ids=["s1", "s2"], options={"calibrate.method": "loss_search"})


def test_a_new_choice_and_a_new_fit_say_what_they_replace(tmp_path):
    made = workspaces.make(tmp_path / "home")
    arguments = ("calibrate", made.path, "--ids", "s1,s2", "--method", "loss_search")
    first = call_json(*arguments)["entry"]["details"]
    assert first["replaces"] is None
    text, _ = call(*arguments)
    assert "It replaces the ε that was chosen before." in text
    text, _ = call("fit", made.path, "--again")
    assert "which was calibrated before" in text


def test_evaluation_measures_with_the_weight_decay_of_the_fit(tmp_path):
    made = workspaces.make(tmp_path / "home")
    made.workspace.erase("a", ids=["s1"])
    one = made.workspace.evaluate().table
    other = made.workspace.evaluate(options={"fit.weight_decay": 0.5}).table
    assert one["erased", "objective"] == other["erased", "objective"]


@pytest.mark.parametrize("option", ["original", "retrained"])
def test_weights_that_are_finite_and_too_large_to_be_compared(tmp_path, option):
    """One byte of an exponent is enough."""
    made = workspaces.make(tmp_path / "home")
    made.workspace.erase("a", ids=["s1"])
    weights = made.weights()
    weights["weight"][0, 0] = 1e300
    save_file(weights, made.home / "large.safetensors")
    before = workspaces.snapshot(made.path)
    said = call_error("evaluate", made.path, f"--{option}", made.home / "large.safetensors")
    assert "is no finite number" in said or "beyond all measure" in said
    assert workspaces.snapshot(made.path) == before


def test_tables_are_read_by_the_names_of_their_columns(tmp_path):
    x, y = workspaces.data()
    model = workspaces.train(x.float().double(), y, 3)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    lines = ["a,b,c,d,label,id"] + [",".join(map(repr, row)) + f",{k},s{i}" for i, (row, k) in rows(x, y)]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    turned = ["label,d,c,extra,b,a"] + [f"{k},{r[3]!r},{r[2]!r},7,{r[1]!r},{r[0]!r}" for _, (r, k) in rows(x, y)]
    (tmp_path / "turned.csv").write_text("\n".join(turned[:3]))
    (tmp_path / "lacking.csv").write_text("a,b,c,label\n1,2,3,0")
    arguments = ["--model", "torch.nn:Linear", "--argument", "in_features=4", "--argument", "out_features=3"]
    data = ["--weights", tmp_path / "w.safetensors", "--data", tmp_path / "train.csv", "--weight-decay", "1e-2"]
    call("init", tmp_path / "ws", *arguments, *data)
    call("fit", tmp_path / "ws")
    answer = call_json("erase", tmp_path / "ws", "--request", "a", "--forget", tmp_path / "turned.csv")
    assert (answer["outcome"], answer["details"]["k"]) == ("erased", 2)
    lacking = call_error("erase", tmp_path / "ws", "--request", "b", "--forget", tmp_path / "lacking.csv")
    assert "has no 'd'" in lacking


def rows(x: torch.Tensor, y: torch.Tensor) -> list[tuple[int, tuple[list[float], int]]]:
    return list(enumerate(zip(x.tolist(), y.tolist(), strict=True)))


def test_a_loss_no_better_than_guessing_is_said_at_once(tmp_path):
    x, y = workspaces.files(tmp_path)
    save_file({"weight": torch.zeros(3, 4).double(), "bias": torch.zeros(3).double()}, tmp_path / "zero.safetensors")
    arguments = ["--model", "torch.nn:Linear", "--argument", "in_features=4", "--argument", "out_features=3"]
    for weights, said in (("zero.safetensors", True), ("w.safetensors", False)):
        words = ["--weights", tmp_path / weights, "--data", tmp_path / "train.npz", "--weight-decay", "1e-2"]
        text, _ = call("init", tmp_path / weights[0], *arguments, *words)
        assert ("no better than guessing" in text) == said
    assert len(x) == len(y)


def test_a_page_that_no_command_made_is_noted(tmp_path):
    made = workspaces.make(tmp_path / "home")
    (made.path / "report.html").write_text("<h1>All is well</h1>")
    assert "report.html" in " ".join(made.workspace.verify().notes)


def test_an_edit_of_the_settings_is_named_and_the_report_takes_it_over(tmp_path):
    made = workspaces.make(tmp_path / "home")
    path = made.path / "ssse.toml"
    path.write_text(path.read_text().replace('accept = "caution"', 'accept = "ok"'))
    assert [name for name, _ in made.workspace.verify().damages] == ["ssse.toml"]
    call("report", made.path)
    assert made.workspace.verify().ok
    assert made.workspace.log().entries[-1].details["changes"] == {"erase.accept": ["caution", "ok"]}


def test_a_page_elsewhere_is_not_in_the_workspace(tmp_path):
    made = workspaces.make(tmp_path / "home")
    before = workspaces.snapshot(made.path)
    assert "elsewhere" in call_error("report", made.path, "--output", made.path / "page.html")
    assert workspaces.snapshot(made.path) == before


def test_names_of_files_do_not_reach_the_terminal_raw(tmp_path):
    made = workspaces.make(tmp_path / "home")
    (made.path / "\x1b[2Jall is well").touch()
    text, _ = call("verify", made.path)
    assert "\x1b" not in text
    assert "all is well" in text


def test_the_salt_is_not_shown(tmp_path):
    made = workspaces.make(tmp_path / "home")
    salt = made.workspace.log().entries[0].details["salt"]
    for words in (["log", made.path, "--json"], ["log", made.path, "-v"]):
        assert salt not in call(*words)[0]


def test_the_ledgers_time_is_the_clocks(tmp_path, monkeypatch):
    """A variable for reproducible builds that was left in a shell must not date a record."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    made = workspaces.make(tmp_path / "home")
    assert {entry.time[:10] for entry in made.workspace.log().entries} <= {clock()[:10]}


def test_an_alteration_does_not_slip_into_the_seal_of_a_command_that_failed(tmp_path, monkeypatch):
    made = workspaces.make(tmp_path / "home")

    def fail(*_: object, **__: object) -> None:
        altered_in_silence(made.workspace.folder.ledger, 70)  # the application's id in SQLite's header: nobody reads it
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(transactions.Transaction, "advance", fail)
        with pytest.raises(OSError, match="no space left"):
            made.workspace.erase("a", ids=["s1"])
    assert [name for name, _ in made.workspace.verify().damages] == [FILE]


def test_a_folder_that_was_replaced_while_we_waited_is_locked_itself(tmp_path):
    folder, inside = tmp_path / "ws", threading.Event()
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    waited = threading.Event()

    def wait() -> None:
        with locked(folder, waiting=waited.set):
            inside.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert waited.wait(10)
    folder.rename(tmp_path / "old")
    folder.mkdir()
    new = os.open(folder, os.O_RDONLY)
    fcntl.flock(new, fcntl.LOCK_EX)
    os.close(handle)
    assert not inside.wait(0.3)
    os.close(new)
    thread.join(10)
    assert inside.is_set()


def test_the_demo_leaves_what_a_user_made_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("demo", "--quiet")
    Path("out/demo/mine").mkdir()
    Path("out/demo/mine/work.txt").write_text("mine")
    digest = digest_file(Path("out/demo/train.npz"))
    assert call_json("demo") == {"page": "out/demo/ws/report.html"}  # in the folder that it made itself
    assert Path("out/demo/mine/work.txt").read_text() == "mine"
    assert digest_file(Path("out/demo/train.npz")) == digest


def test_more_words_name_every_file_that_was_checked(tmp_path):
    made = workspaces.make(tmp_path / "home")
    assert "bytes." in call("report", made.path, "-v")[0]
    text, _ = call("verify", made.path, "-v")
    for name in workspaces.snapshot(made.path):
        assert name in text.splitlines() or name == "current"
