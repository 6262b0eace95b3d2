"""What the commands make is what the library makes, to the last bit; and what a request may do to a workspace."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import ssse
from ssse.curvature import Curvature
from ssse.workspace import settings as toml
from ssse.workspace.record.published import bucket
from ssse.workspace.workspace import Workspace
from tests.support import commands, workspaces
from tests.support.commands import OVERRIDES, call, call_error, call_json
from tests.support.workspaces import DECAY, make

FIRST, SECOND = [3, 8, 11], [0, 21]


@dataclass(frozen=True)
class Case:
    """A model, its data, and how it is fitted and erased from."""

    factory: str = "tests.support.commands:linear"
    arguments: dict[str, Any] = field(default_factory=lambda: {"inputs": 4, "outputs": 3})
    loss: Any = "cross_entropy"
    labels: str = "classes"
    fit: dict[str, Any] = field(default_factory=dict)
    erase: dict[str, Any] = field(default_factory=dict)
    n: int = 30

    def model(self) -> nn.Module:
        return getattr(commands, self.factory.split(":")[1])(**self.arguments)

    def arrays(self) -> tuple[dict[str, Tensor], Tensor]:
        generator = torch.Generator().manual_seed(7)

        def normal(p: int) -> Tensor:
            return torch.randn(self.n, p, generator=generator, dtype=torch.float64)

        x = {"a": normal(3), "b": normal(2)} if self.factory.endswith("two_inputs") else {"x": normal(4)}
        if self.labels == "attributes":
            return x, (torch.rand(self.n, 3, generator=generator) > 0.5).double()
        if self.labels == "numbers":
            return x, normal(2)
        return x, torch.randint(0, 2 if len(x) > 1 else 3, (self.n,), generator=generator)


CASES = {
    "dense": Case(fit={"structure": "dense"}),
    "dense-joint": Case(fit={"structure": "dense"}, erase={"policy": "joint"}),
    "dense-residual": Case(fit={"structure": "dense"}, erase={"residual": True, "scale": 0.7, "policy": "joint"}),
    "lowrank": Case(fit={"structure": "lowrank", "rows": "empirical"}),
    "lowrank-joint": Case(fit={"structure": "lowrank", "rows": "empirical"}, erase={"policy": "joint"}),
    "matrix-free": Case(fit={"structure": "matrix_free"}),
    "matrix-free-joint": Case(fit={"structure": "matrix_free"}, erase={"policy": "joint"}),
    "diagonal": Case(fit={"structure": "diagonal"}),
    "sampled": Case(fit={"structure": "dense", "rows": "sampled", "seed": 4}),
    "margin": Case(fit={"structure": "lowrank", "rows": "margin"}),
    "empirical-all-rows": Case(fit={"rows": "empirical"}, erase={"leave_out": False}),
    "head-of-batch-norm": Case("tests.support.commands:batch_norm", {}, fit={"parameters": "head"}),
    "named-parameters": Case("tests.support.commands:batch_norm", {}, fit={"parameters": ["3.weight"]}),
    "several-inputs": Case("tests.support.commands:two_inputs", {}),
    "own-loss": Case(loss=commands.smoothed, fit={"rows": "empirical", "damping": 0.02}),
    "attributes": Case(loss="binary_cross_entropy", labels="attributes"),
    "regression": Case(arguments={"inputs": 4, "outputs": 2}, loss="mse", labels="numbers"),
}


def built(case: Case, home: Path) -> Workspace:
    """The user's files, and a workspace of them."""
    x, y = case.arrays()
    save_file(case.model().state_dict(), home / "w.safetensors")
    arrays: dict[str, Any] = {key: value.numpy() for key, value in x.items()}
    np.savez(home / "train.npz", **arrays, y=y.numpy())
    loss = case.loss if isinstance(case.loss, str) else f"tests.support.commands:{case.loss.__name__}"
    options: dict[str, Any] = {
        "model.factory": case.factory,
        "model.arguments": case.arguments,
        "model.loss": loss,
        "model.device": "cpu",
        "data.train": "../train.npz",
        "data.ids": "place",
        "fit.weight_decay": DECAY,
        **{f"fit.{key}": value for key, value in case.fit.items()},
        **{f"erase.{key}": value for key, value in case.erase.items()},
    }
    if len(x) > 1:
        options["data.inputs"] = list(x)
    return Workspace.init(home / "ws", toml.from_options(options), home / "w.safetensors").workspace


def batch(case: Case, places: list[int]) -> list[tuple[Any, Tensor]]:
    x, y = case.arrays()
    taken = {key: value[places] for key, value in x.items()}
    return [(taken if len(taken) > 1 else next(iter(taken.values())), y[places])]


def fitted(case: Case, model: nn.Module, places: list[int]) -> Curvature:
    return kept(Curvature.fit(model, case.loss, batch(case, places), weight_decay=DECAY, **case.fit))


def kept(curvature: Curvature) -> Curvature:
    """As it comes back from a disk: BLAS may round the last bit by where in memory a matrix begins."""
    folder = Path(tempfile.mkdtemp()) / "curvature"
    curvature.save(folder)
    loaded = Curvature.load(folder)
    shutil.rmtree(folder.parent)  # what is mapped stays
    return loaded


def assert_same(workspace: Workspace, model: nn.Module) -> None:
    stored, expected = load_file(workspace.folder.current / "weights.safetensors"), model.state_dict()
    assert set(stored) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(stored[name], value, rtol=1e-10, atol=1e-12)  # a BLAS may add in another order


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_the_librarys(name, tmp_path):
    case = CASES[name]
    workspace = built(case, tmp_path)
    entry = workspace.fit().entry
    everyone = list(range(case.n))
    model, gone = case.model(), []
    curvature = fitted(case, model, everyone)
    assert (entry.details["n"], entry.details["d"]) == (curvature.n, curvature.layout.dim)
    for request, places in (("first", FIRST), ("second", SECOND)):
        # By force: of models that nobody trained, on few samples, some steps are longer than any that can be right.
        answer = workspace.erase(request, ids=[str(place) for place in places], override=ssse.BOUNDS)
        stays = [place for place in everyone if place not in gone]
        data = batch(case, stays) if case.fit.get("structure") == "matrix_free" else None
        erasure = ssse.erase(
            model, curvature, case.loss, batch(case, places), data=data, override=ssse.BOUNDS, **case.erase
        )
        assert_same(workspace, erasure.model)
        said = erasure.diagnostics
        assert answer.details["verdict"] == said.verdict
        assert answer.details["overridden"] == list(said.overridden)
        assert answer.details["diagnostics"]["step_norm"] == said.step_norm
        assert answer.details["diagnostics"]["leverages"] == list(said.leverages)
        model, curvature, gone = erasure.model, kept(erasure.curvature), gone + places
    changed = curvature.layout.names[0]
    assert not torch.equal(model.state_dict()[changed], case.model().state_dict()[changed])
    assert workspace.verify().ok


def test_rows_of_batches_drop_the_curvature(tmp_path):
    """The forgotten samples cannot leave it, so it goes; the next fit is on the data that stays."""
    case = Case(fit={"rows": "empirical", "rows_per_batch": 4}, erase={"leave_out": False})
    workspace = built(case, tmp_path)
    workspace.fit()
    model, everyone = case.model(), list(range(case.n))
    text, _ = call("erase", workspace.folder.path, "--request", "a", "--ids", "3,8,11", *OVERRIDES)
    assert f"curvature was dropped: rows of mini-batches cannot be separated. Next: ssse fit {tmp_path}" in text
    erasure = ssse.erase(
        model, fitted(case, model, everyone), case.loss, batch(case, FIRST), override=ssse.BOUNDS, **case.erase
    )
    assert_same(workspace, erasure.model)
    assert not (workspace.folder.current / "curvature").exists()
    assert workspace.log().entries[-1].details["after"]["curvature"] is None
    before = workspaces.snapshot(workspace.folder.path)
    never = ("--set", "erase.refit=never")
    assert "run `ssse fit`" in call_error("erase", workspace.folder.path, "--request", "b", "--ids", "0,21", *never)
    assert workspaces.snapshot(workspace.folder.path) == before
    call("fit", workspace.folder.path)
    stays = [place for place in everyone if place not in FIRST]
    curvature = fitted(case, erasure.model, stays)
    workspace.erase("b", ids=["0", "21"], override=ssse.BOUNDS)
    again = ssse.erase(erasure.model, curvature, case.loss, batch(case, SECOND), override=ssse.BOUNDS, **case.erase)
    assert_same(workspace, again.model)
    assert workspace.verify().ok


@pytest.mark.parametrize("purged", [False, True], ids=["still-there", "purged"])
def test_fitting_again_leaves_out_what_was_erased(tmp_path, purged):
    case = CASES["dense"]
    workspace = built(case, tmp_path)
    workspace.fit()
    workspace.erase("a", ids=[str(place) for place in FIRST])
    stays = [place for place in range(case.n) if place not in FIRST]
    if purged:
        x, y = case.arrays()
        np.savez(tmp_path / "train.npz", x=x["x"][stays].numpy(), y=y[stays].numpy())
    model = case.model()
    model.load_state_dict(load_file(workspace.folder.current / "weights.safetensors"))
    again = call_json("fit", workspace.folder.path, "--again")
    assert again["fitted"]
    assert again["entry"]["details"]["n"] == case.n - 3
    assert again["entry"]["details"]["excluded"] == (0 if purged else 3)
    assert again["entry"]["details"]["samples"] == case.n
    expected = fitted(case, model, stays)
    stored = Curvature.load(workspace.folder.current / "curvature")
    right = torch.arange(1.0, 1.0 + expected.layout.dim, dtype=torch.float64)
    torch.testing.assert_close(stored.structure.solve(right), expected.structure.solve(right), rtol=1e-10, atol=1e-12)
    assert stored.mean_loss == pytest.approx(expected.mean_loss, rel=1e-12)


def test_data_that_is_not_what_was_trained_on_cannot_be_fitted_again(tmp_path):
    made = make(tmp_path)
    np.savez(tmp_path / "train.npz", x=made.x[1:].numpy(), y=made.y[1:].numpy())
    assert "lacks 1 samples" in call_error("fit", made.path, "--again")
    np.savez(tmp_path / "train.npz", x=made.x.numpy() + 1, y=made.y.numpy())
    assert "not those that the first fit saw" in call_error("fit", made.path, "--again")


def test_the_calibrated_scale_is_the_one_that_is_used(tmp_path):
    case = CASES["dense"]
    workspace = built(case, tmp_path)
    workspace.fit()
    model = case.model()
    curvature = fitted(case, model, list(range(case.n)))
    entry = workspace.calibrate(ids=[str(place) for place in FIRST], options={"calibrate.method": "line_search"}).entry
    stays = list(range(case.n))
    found = ssse.calibrate(
        model, curvature, case.loss, batch(case, FIRST), method="line_search", data=batch(case, stays)
    )
    assert entry.details["scale"] == found.scale
    assert entry.details["method"] == "line_search"
    answer = workspace.erase("a", ids=[str(place) for place in FIRST])
    assert answer.details["scale"] == found.scale
    assert found.curvature.calibrated is not None
    assert answer.details["scale_source"] == found.curvature.calibrated.source
    assert_same(workspace, ssse.erase(model, kept(found.curvature), case.loss, batch(case, FIRST)).model)


@pytest.mark.parametrize("method", ["retrained", "attack_parity", "loss_search", "line_search"])
def test_every_way_to_calibrate(tmp_path, method):
    made = make(tmp_path, n=60, p=24)  # so many inputs that the labels, drawn by lot, are learnt by heart
    forget = torch.nonzero(made.y == 1).flatten().tolist()[:12]
    stays = [place for place in range(60) if place not in forget]
    x, y = workspaces.data(90, 24, seed=2)
    alike = y == 1
    np.savez(tmp_path / "held.npz", x=x[alike].numpy(), y=y[alike].numpy())
    save_file(workspaces.train(made.x[stays], made.y[stays], 3).state_dict(), tmp_path / "r.safetensors")
    arguments = ["calibrate", made.path, "--forget", made.forget_file(forget), "--method", method]
    evidence = {
        "retrained": ["--retrained", tmp_path / "r.safetensors", "--set", "calibrate.criterion=divergence"],
        "attack_parity": ["--held-out", tmp_path / "held.npz"],
    }
    before = made.weights()
    entry = call_json(*arguments, *evidence.get(method, []), "--scales", "0.1,0.3,1,3,10,30")["entry"]
    assert (entry["kind"], entry["details"]["method"], entry["details"]["k"]) == ("calibrated", method, 12)
    assert all(torch.equal(before[name], value) for name, value in made.weights().items())
    stored = Curvature.load(made.path / "current" / "curvature").calibrated
    assert stored is not None
    assert stored.scale == made.workspace.log().entries[-1].details["scale"]
    assert entry["details"]["scale"] == bucket(stored.scale)  # of 12 samples
    assert made.workspace.verify().ok


def test_evidence_that_does_not_decide_changes_nothing(tmp_path):
    made = make(tmp_path)
    before = workspaces.snapshot(made.path)
    forget = made.forget_file([1, 2])
    call_error("calibrate", made.path, "--forget", forget, "--retrained", tmp_path / "w.safetensors")
    call_error("calibrate", made.path, "--forget", forget, "--method", "attack_parity")
    assert "one of the two" in call_error("calibrate", made.path)
    assert workspaces.snapshot(made.path) == before


# Where things lie


def test_a_workspace_moves_with_its_data(tmp_path, monkeypatch):
    made = make(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    monkeypatch.chdir("/")
    moved = tmp_path / "there" / "ws"
    call("erase", moved, "--request", "a", "--ids", "s3,s4")
    call("evaluate", moved, "--original", tmp_path / "there" / "w.safetensors")
    assert Workspace(moved).verify().ok
    assert not made.path.exists()


def test_paths_of_the_command_line_are_seen_from_where_the_user_is(tmp_path, monkeypatch):
    workspaces.files(tmp_path / "data")
    (tmp_path / "work" / "deep").mkdir(parents=True)
    os.symlink(tmp_path / "work" / "deep", tmp_path / "short")
    monkeypatch.chdir(tmp_path / "short")  # ".." of the shell's folder is not ".." of the real one
    call(
        *("init", "ws", "--model", "torch.nn:Linear", "--weights", "../../data/w.safetensors"),
        *("--data", "../../data/train.npz", "--test", "../../data/test.npz", "--weight-decay", "0.01"),
        *("--argument", "in_features=4", "--argument", "out_features=3", "--set", "model.device=cpu"),
    )
    written = toml.read(Path("ws/ssse.toml"))
    assert (written.data.train, written.data.test) == ("../../../data/train.npz", "../../../data/test.npz")
    assert written.model.search == ".."
    call("fit", "ws")
    monkeypatch.chdir(tmp_path / "data")
    x, y = workspaces.data()
    np.savez("some.npz", x=x[:2].numpy(), y=y[:2].numpy())
    call("erase", tmp_path / "short" / "ws", "--request", "a", "--forget", "some.npz")
    call("evaluate", "../work/deep/ws", "--forget", "some.npz")
    os.symlink(tmp_path / "work" / "deep" / "ws", "link")
    call("erase", "link", "--request", "b", "--ids", "s5")
    call("verify", "link")


def test_a_workspace_made_behind_a_link(tmp_path, monkeypatch):
    workspaces.files(tmp_path / "data")
    (tmp_path / "work" / "deep").mkdir(parents=True)
    os.symlink("work/deep", tmp_path / "short")
    monkeypatch.chdir(tmp_path)
    call(
        *(
            "init",
            "short/ws",
            "--model",
            "torch.nn:Linear",
            "--weights",
            "data/w.safetensors",
            "--weight-decay",
            "0.01",
        ),
        *("--data", "data/train.npz", "--argument", "in_features=4", "--argument", "out_features=3", "--device", "cpu"),
    )
    assert toml.read(Path("work/deep/ws/ssse.toml")).data.train == "../../../data/train.npz"
    call("fit", "short/ws")
    call("fit", "work/deep/ws", "--again")


# What is measured


def measured(made: workspaces.Made, *arguments: object) -> dict[str, Any]:
    """As the ledger has it."""
    call("evaluate", made.path, *arguments)
    return made.workspace.log().entries[-1].details


def test_the_table_is_the_librarys(tmp_path):
    """S is of one class, so the test data parts into that class and the others; two seeds give the noise floor."""
    made = make(tmp_path, n=60, erase__old_weights="keep")
    forget = torch.nonzero(made.y == 1).flatten().tolist()[:6]
    made.workspace.erase("a", ids=[f"s{place}" for place in forget])
    stays = [place for place in range(60) if place not in forget]
    retrained = []
    for seed, decay in enumerate((DECAY, 1.1 * DECAY)):
        retrained.append(workspaces.train(made.x[stays], made.y[stays], 3, decay))
        save_file(retrained[-1].state_dict(), tmp_path / f"r{seed}.safetensors")
    found = measured(made, *(word for seed in (0, 1) for word in ("--retrained", tmp_path / f"r{seed}.safetensors")))
    original, erased = nn.Linear(4, 3).double().eval(), nn.Linear(4, 3).double().eval()
    original.load_state_dict(load_file(tmp_path / "w.safetensors"))
    erased.load_state_dict(made.weights())
    x, y = workspaces.data(30, seed=1)
    expected = ssse.evaluate(
        {"original": original, "erased": erased, "retrained": retrained},
        {
            "retained": [(made.x[stays], made.y[stays])],
            "forgotten": [(made.x[forget], made.y[forget])],
            "test_other": [(x[y != 1], y[y != 1])],
            "test_same": [(x[y == 1], y[y == 1])],
        },
        loss_fn="cross_entropy",
        weight_decay=DECAY,
    )
    assert found["table"] == expected.to_dict()
    assert found["table"]["noise_floor"]
    assert found["of"] == ["a"]
    assert found["notes"] == []
    handed_in = measured(
        made,
        *(word for seed in (0, 1) for word in ("--retrained", tmp_path / f"r{seed}.safetensors")),
        *("--forget", made.forget_file(forget), "--original", tmp_path / "w.safetensors", "--request", "a"),
    )
    assert handed_in["table"] == found["table"]


def test_several_classes_leave_the_test_data_together(tmp_path):
    made = make(tmp_path, erase__confirm="never")
    made.workspace.erase("a", ids=["s0", "s1", "s2"])
    found = measured(made)
    assert set(found["table"]["counts"]) == {"retained", "forgotten", "test"}
    assert "of several kinds" in found["notes"][0]
    assert "original" not in found["table"]["models"]  # shredded
    assert set(measured(made, "--same", "1")["table"]["counts"]) >= {"test_same", "test_other"}
    assert set(measured(made, "--set", "evaluate.same=1")["table"]["counts"]) >= {"test_same", "test_other"}
    for wrong in ("x", "9" * 30, "1.5"):
        assert "evaluate.same is 'auto'" in call_error("evaluate", made.path, "--same", wrong)


def test_what_was_purged_must_be_handed_in(tmp_path):
    made = make(tmp_path)
    made.workspace.erase("a", ids=["s0", "s1"])
    np.savez(tmp_path / "train.npz", x=made.x[2:].numpy(), y=made.y[2:].numpy())
    assert "hand them in with --forget" in call_error("evaluate", made.path)
    found = measured(made, "--forget", made.forget_file([0, 1]))
    assert found["table"]["counts"]["forgotten"] == 2
    assert measured(made, "--forget", made.forget_file([1]))["notes"][0].startswith("1 of the 2 erased samples are not")
    for places in ([1, 5], [1, 1]):  # one that stays, one twice
        assert "1 of the 2 samples" in call_error("evaluate", made.path, "--forget", made.forget_file(places))


def test_some_requests_alone(tmp_path):
    made = make(tmp_path)
    made.workspace.erase("a", ids=["s0", "s1"])
    made.workspace.erase("b", ids=["s2"])
    found = measured(made, "--request", "b", "--request", "b")
    assert (found["of"], found["table"]["counts"]["forgotten"], found["table"]["counts"]["retained"]) == (["b"], 1, 37)
    assert "one other request." in found["notes"][0]
    assert "'c' erased nothing" in call_error("evaluate", made.path, "--request", "c")


def test_a_copy_that_stays_is_no_measure_of_one_that_went(tmp_path):
    made = make(tmp_path, fit=False)
    x, y = torch.cat([made.x, made.x[:1]]), torch.cat([made.y, made.y[:1]])
    np.savez(tmp_path / "train.npz", x=x.numpy(), y=y.numpy())
    made.workspace.fit()
    made.workspace.erase("a", forget=made.forget_file([0]))
    counts = measured(made)["table"]["counts"]
    assert (counts["retained"], counts["forgotten"]) == (40, 1)
    np.savez(tmp_path / "train.npz", x=made.x.numpy(), y=made.y.numpy())
    assert "hand them in" in call_error("evaluate", made.path)


def test_nothing_erased_nothing_to_measure(tmp_path):
    made = make(tmp_path)
    before = workspaces.snapshot(made.path)
    assert "Nothing was erased yet" in call_error("evaluate", made.path)
    assert workspaces.snapshot(made.path) == before


def test_test_data_of_another_shape_is_one_line(tmp_path):
    made = make(tmp_path)
    made.workspace.erase("a", ids=["s0"])
    np.savez(tmp_path / "other.npz", x=np.zeros((3, 5)), y=np.zeros(3, dtype=np.int64))
    before = workspaces.snapshot(made.path)
    for command in (["evaluate", made.path, "--test"], ["calibrate", made.path, "--forget"]):
        said = call_error(*command, tmp_path / "other.npz")
        assert "other.npz', whose inputs have the shape (3, 5)" in said
    assert workspaces.snapshot(made.path) == before
