"""Requests to a scikit-learn model: the same commands, the same guarantees, and what `Eraser` says by itself."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from ssse import Workspace
from ssse.erasure.policy import Policy
from ssse.errors import Damaged, InvalidData, InvalidModel, InvalidSetting
from ssse.evaluation.table import Evaluation
from ssse.intake.skops import read_skops
from ssse.sklearn import Eraser
from tests.support.commands import call, call_error, call_json, exact
from tests.support.sizes import sized
from tests.support.workspaces import snapshot
from tests.workspace.test_kills import kill

N, P, FORGET = 160, 4, [3, 11, 40]
IDS = ",".join(f"s{place}" for place in FORGET)
STAY = np.delete(np.arange(N), FORGET)
LOGISTIC = ["--model", "sklearn.linear_model:LogisticRegression", "--argument", "C=0.5"]


def data(words: bool = False, seed: int = 0, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, P))
    y = (x @ np.random.default_rng(7).normal(size=(P, 3)) + rng.normal(size=(n, 3))).argmax(1)
    return x, np.array(["ant", "bee", "cow"])[y] if words else y


def logistic(**settings: Any) -> LogisticRegression:
    return LogisticRegression(C=0.5, tol=1e-10, max_iter=2000, **settings)


def same_numbers(found: Any, expected: Any) -> None:
    """From a file and from memory: they lie at other addresses, and a BLAS may add in another order there."""
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@dataclass
class Case:
    """A user's files, and what they were made from."""

    home: Path
    model: Any
    x: np.ndarray
    y: np.ndarray

    @property
    def ws(self) -> Path:
        return self.home / "ws"

    def write(self, name: str, places: Any, with_ids: bool = False) -> Path:
        ids: dict[str, Any] = {"id": np.array([f"s{place}" for place in places])} if with_ids else {}
        np.savez(self.home / name, x=self.x[places], y=self.y[places], **ids)
        return self.home / name

    def init(self, *words: object, weights: str = "model.skops", code: int = 0) -> tuple[str, str]:
        where = ("--weights", self.home / weights, "--data", self.home / "train.npz")
        return call("init", self.ws, *where, *words, code=code)

    def erased(self, places: list[int] = FORGET, policy: Policy = "rebase") -> tuple[Any, Any]:
        """The same by `Eraser` alone."""
        eraser = Eraser(self.model, policy=policy).fit(self.x, self.y)
        return eraser.erase(self.x[places], self.y[places]), eraser

    def current(self) -> Any:
        return read_skops(self.ws / "current" / "model.skops")


def measured(made: Case, *words: object) -> Evaluation:
    """As the ledger has it."""
    call("evaluate", made.ws, *words)
    return Evaluation.from_dict(Workspace(made.ws).log().entries[-1].details["table"])


def case(home: Path, model: Any = None, words: bool = False, y: np.ndarray | None = None) -> Case:
    x, labels = data(words)
    labels = labels if y is None else y
    made = Case(home, (model or logistic()).fit(x, labels), x, labels)
    made.write("train.npz", range(N), with_ids=True)
    skops.io.dump(made.model, home / "model.skops")
    return made


@pytest.fixture
def made(tmp_path: Path) -> Case:
    return case(tmp_path)


@pytest.fixture
def fitted(made: Case) -> Case:
    made.init()
    call("fit", made.ws)
    return made


# The whole way


def test_a_skops_model_from_the_first_command_to_the_last(tmp_path):
    made = case(tmp_path, words=True)
    test_x, test_y = data(words=True, seed=5, n=60)
    np.savez(tmp_path / "test.npz", x=test_x, y=test_y)
    text, _ = made.init("--test", tmp_path / "test.npz")
    assert "sklearn.linear_model:LogisticRegression: 15 parameters, 3 outputs" in text
    assert "accuracy" in text
    assert "weight decay" not in text
    text, _ = call("fit", made.ws)
    assert "Fitted 160 samples, 15 parameters" in text
    assert "Fitted already" in call("fit", made.ws)[0]
    before = snapshot(made.ws)
    tried = call_json("erase", made.ws, "--request", "r", "--ids", IDS, "--dry-run")
    assert snapshot(made.ws) == before
    text, _ = call("erase", made.ws, "--request", "r", "--ids", IDS)
    expected, eraser = made.erased()
    found = made.current()
    same_numbers(found.coef_, expected.coef_)
    same_numbers(found.intercept_, expected.intercept_)
    assert found.classes_.tolist() == ["ant", "bee", "cow"]
    outcome = eraser.outcome_
    assert "distance from a refit  proved, and not shown" in text
    assert f"The erased model: {made.ws}/current/model.skops" in text
    details = exact(made.ws, "r")[1]["details"]
    assert (details["k"], details["n"], details["scale"], details["exact"]) == (3, N, 1.0, False)
    assert details["distance_bound"] == outcome.distance_bound
    assert tried["details"]["proved"] is True
    assert details["diagnostics"]["verdict"] == details["verdict"] == outcome.verdict
    assert details["structure"] == "dense"
    refit = logistic().fit(made.x[STAY], made.y[STAY])
    away = np.hypot(np.linalg.norm(refit.coef_ - found.coef_), np.linalg.norm(refit.intercept_ - found.intercept_))
    assert away <= outcome.distance_bound
    skops.io.dump(refit, tmp_path / "refit.skops")
    table = measured(made, "--retrained", tmp_path / "refit.skops", "--original", tmp_path / "model.skops")
    right = 100 * made.model.score(made.x[STAY], made.y[STAY])
    assert table["original", "accuracy_retained"] == pytest.approx(right)
    distance = table["erased", "distance"]
    assert distance is not None
    assert distance < 0.2
    assert "objective" not in table.cells
    assert call("verify", made.ws)[0].startswith("All is as it was written: 6 entries")
    assert call("report", made.ws)[0]
    page = (made.ws / "report.html").read_text()
    assert "proved, and not shown" in page
    assert f"{outcome.distance_bound:.3g}" not in page
    assert "There is no ε to choose" in page
    assert "sum of leverages" not in page
    lines = call("log", made.ws)[0]
    assert "distance from a refit: proved" in lines
    assert "sums over the samples" in lines


@pytest.mark.parametrize("form", ["model.npz", "model.safetensors"])
@pytest.mark.parametrize("words", [False, True], ids=["numbers", "words"])
def test_plain_arrays_from_the_first_command_to_the_last(tmp_path, form, words):
    made = case(tmp_path, words=words)
    arrays = {"coef_": made.model.coef_, "intercept_": made.model.intercept_, "classes_": made.model.classes_}
    named = []
    if form.endswith("npz"):
        np.savez(tmp_path / form, **arrays)
    else:
        if words:
            named = ["--classes", ",".join(arrays.pop("classes_"))]
        save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, tmp_path / form)
    made.init(*LOGISTIC, *named, weights=form)
    call("fit", made.ws)
    call("erase", made.ws, "--request", "r", "--forget", made.write("forget.npz", FORGET))
    found = load_file(made.ws / "current" / "weights.safetensors")
    expected, _ = made.erased()
    same_numbers(found["coef_"], expected.coef_)
    same_numbers(found["intercept_"], expected.intercept_)
    assert found["class_places" if words else "classes_"].tolist() == [0, 1, 2]
    refit = logistic().fit(made.x[STAY], made.y[STAY])
    np.savez(tmp_path / "refit.npz", coef_=refit.coef_, intercept_=refit.intercept_, classes_=refit.classes_)
    call("evaluate", made.ws, "--retrained", tmp_path / "refit.npz")
    assert call_json("verify", made.ws)["ok"]
    assert str(tmp_path) in call("report", made.ws)[0]


MODELS = {
    "pipeline": lambda: make_pipeline(StandardScaler(), logistic()),
    "one versus rest": lambda: OneVsRestClassifier(logistic()),
    "support vectors": lambda: LinearSVC(tol=1e-8, max_iter=10**5),
    "ridge classifier": RidgeClassifier,
}


@pytest.mark.parametrize("name", MODELS)
def test_other_classifiers(tmp_path, name):
    made = case(tmp_path, MODELS[name](), words=True)
    made.init()
    call("fit", made.ws)
    text, _ = call("erase", made.ws, "--request", "r", "--ids", IDS)
    says = {"support vectors": "not proved", "ridge classifier": "rounding"}.get(name, "proved, and not shown")
    assert f"distance from a refit  {says}" in text
    expected, _ = made.erased()
    same_numbers(made.current().decision_function(made.x), expected.decision_function(made.x))
    skops.io.dump(MODELS[name]().fit(made.x[STAY], made.y[STAY]), tmp_path / "refit.skops")
    table = measured(made, "--retrained", tmp_path / "refit.skops")
    accuracy = 100 * made.current().score(made.x[STAY], made.y[STAY])
    assert table["erased", "accuracy_retained"] == pytest.approx(accuracy)
    call("confirm", made.ws)  # what is not vouched for waits
    call("report", made.ws)
    sealed = call_json("log", made.ws, "--request", "r")["entries"][-1]["details"]
    kept = [line["status"] for line in sealed["remains"] if line["what"] == "transformers of the pipeline"]
    assert len(kept) == (name == "pipeline")
    assert all("StandardScaler" in line for line in kept)


def test_several_outputs(tmp_path):
    x, _ = data()
    labels = (x[:, :2] + np.random.default_rng(3).normal(size=(N, 2)) > 0).astype(int)
    for i, model in enumerate((MultiOutputClassifier(logistic()), OneVsRestClassifier(logistic()))):
        home = tmp_path / str(i)
        home.mkdir()
        made = case(home, model, y=labels)
        made.init()
        call("fit", made.ws)
        call("erase", made.ws, "--request", "r", "--ids", IDS)
        expected, _ = made.erased()
        assert np.array_equal(made.current().predict(made.x), expected.predict(made.x))
        assert made.current().estimators_[1].coef_.tolist() == expected.estimators_[1].coef_.tolist()
        call("evaluate", made.ws, "--original", home / "model.skops")


def test_outputs_with_more_than_two_classes_are_erased_from_and_not_evaluated(tmp_path):
    labels = np.stack([data()[1], data(seed=1)[1]], axis=1)
    made = case(tmp_path, MultiOutputClassifier(logistic()), y=labels)
    made.init()
    call("fit", made.ws)
    call("erase", made.ws, "--request", "r", "--ids", IDS)
    assert "several with two each" in call_error("evaluate", made.ws)


@pytest.mark.parametrize("model", [Ridge(alpha=2.0), LinearRegression()], ids=["ridge", "linear"])
def test_regressions_are_exact(tmp_path, model):
    x, y = data()
    made = case(tmp_path, model, y=x[:, 0] - 2 * x[:, 1] + y)
    text, _ = made.init()
    assert "R²" in text
    call("fit", made.ws)
    text, _ = call("erase", made.ws, "--request", "r", "--ids", IDS)
    assert "Verdict: ok." in text
    assert "distance from a refit  rounding" in text
    refit = type(model)(**model.get_params()).fit(made.x[STAY], made.y[STAY])
    assert np.allclose(made.current().coef_, refit.coef_, atol=1e-10)
    assert "compares classifiers" in call_error("evaluate", made.ws)
    call("report", made.ws)
    assert "rounding" in (made.ws / "report.html").read_text()
    remains = call_json("log", made.ws, "--request", "r")["entries"][-1]["details"]["remains"]
    assert not any("a remainder stays" in line["status"] for line in remains)


def test_tables_are_read_as_scikit_learn_reads_them(tmp_path):
    pandas = pytest.importorskip("pandas")
    x, y = data(words=True)
    table = pandas.DataFrame(x, columns=["a", "b", "c", "d"])
    model = logistic().fit(table, y)
    skops.io.dump(model, tmp_path / "model.skops")
    table.assign(label=y, id=[f"s{i}" for i in range(N)]).to_csv(tmp_path / "train.csv", index=False)
    table.assign(label=y).iloc[FORGET].to_csv(tmp_path / "forget.csv", index=False)
    where = ("--weights", tmp_path / "model.skops", "--data", tmp_path / "train.csv")
    call("init", tmp_path / "ws", *where)
    chosen = tomllib.loads((tmp_path / "ws" / "ssse.toml").read_text())["data"]
    assert (chosen["inputs"], chosen["classes"]) == (["a", "b", "c", "d"], ["ant", "bee", "cow"])
    call("fit", tmp_path / "ws")
    call("erase", tmp_path / "ws", "--request", "r", "--forget", tmp_path / "forget.csv")
    expected = Eraser(logistic().fit(x, y)).fit(x, y).erase(x[FORGET], y[FORGET])
    same_numbers(read_skops(tmp_path / "ws" / "current" / "model.skops").coef_, expected.coef_)
    said = call_error("init", tmp_path / "other", *where, "--inputs", "b,a,c,d")
    assert "was fitted to 'a', 'b', 'c', 'd'" in said


def test_from_python(made):
    created = Workspace.init(made.ws, {"data.train": "../train.npz"}, made.home / "model.skops")
    workspace = created.workspace
    assert created.seen["samples"] == N
    assert created.entry.details["engine"] == "sklearn"
    fitted = workspace.fit()
    assert fitted.now
    assert fitted.entry.details["correction"] < 1e-6
    assert fitted.entry.details["engine"] == "sklearn"
    assert workspace.erase("r", forget=made.write("forget.npz", FORGET)).outcome == "erased"
    with pytest.raises(InvalidSetting, match="no ε to choose"):
        workspace.calibrate(ids=["s1"])
    assert workspace.verify().ok


# Requests as everywhere


def test_repeated_strange_and_erased_samples(fitted):
    call("erase", fitted.ws, "--request", "r", "--ids", IDS)
    weights = (fitted.ws / "current" / "model.skops").read_bytes()
    assert "Nothing was done" in call("erase", fitted.ws, "--request", "r", "--ids", IDS)[0]
    assert "for other samples" in call_error("erase", fitted.ws, "--request", "r", "--ids", "s5")
    np.savez(fitted.home / "strange.npz", x=fitted.x[:2] + 1e-9, y=fitted.y[:2])
    text, _ = call("erase", fitted.ws, "--request", "s", "--forget", fitted.home / "strange.npz", code=3)
    assert "never in the training data" in text
    text, _ = call("erase", fitted.ws, "--request", "t", "--ids", "s3", code=3)
    assert "erased already, by 'r'" in text
    assert (fitted.ws / "current" / "model.skops").read_bytes() == weights
    text, _ = call("erase", fitted.ws, "--request", "u", "--ids", "s3,s5")
    assert "1 sample was erased already" in text


def test_policies(tmp_path):
    """Joint: in whatever order the same requests come. Rebase: as `Eraser` does it, one after the other."""
    made = case(tmp_path)
    found = []
    for policy, order in (("joint", ("s3,s11", "s40")), ("joint", ("s40", "s11,s3")), ("rebase", ("s3,s11", "s40"))):
        made.init("--policy", policy)
        call("fit", made.ws)
        for i, ids in enumerate(order):
            call("erase", made.ws, "--request", i, "--ids", ids)
        found.append(made.current().coef_)
        remains = call_json("log", made.ws, "--request", "1")["entries"][-1]["details"]["remains"]
        assert any(line["what"] == "joint stream" for line in remains) == (policy == "joint")
        shutil.rmtree(made.ws)
    assert np.allclose(found[0], found[1], atol=1e-13)
    assert np.allclose(found[0], made.erased(policy="joint")[0].coef_, atol=1e-13)
    eraser = Eraser(made.model).fit(made.x, made.y)
    eraser.erase(made.x[[3, 11]], made.y[[3, 11]])
    same_numbers(found[2], eraser.erase(made.x[[40]], made.y[[40]]).coef_)


@pytest.mark.parametrize(("weights", "curvature"), [("shred", "shred"), ("keep", "shred"), ("shred", "keep")])
def test_old_files_are_shredded_or_kept(made, weights, curvature):
    made.init("--old-weights", weights, "--old-curvature", curvature)
    call("fit", made.ws)
    old = (made.ws / "current").resolve()
    call("erase", made.ws, "--request", "r", "--ids", IDS)
    assert (old / "model.skops").exists() == (weights == "keep")
    assert (old / "curvature").exists() == (curvature == "keep")
    assert call_json("verify", made.ws)["ok"]
    if weights == "keep":
        assert "original" in call_json("evaluate", made.ws)["entry"]["details"]["table"]["models"]


def test_the_verdict_that_is_accepted(fitted):
    text, _ = call("erase", fitted.ws, "--request", "r", "--ids", "s3", "--accept", "ok", "--dry-run")
    verdict = "ok" if "Verdict: ok" in text else "caution"
    call("erase", fitted.ws, "--request", "r", "--ids", "s3", "--accept", "ok", code=0 if verdict == "ok" else 3)
    many = ",".join(f"s{i}" for i in range(60))
    text, _ = call("erase", fitted.ws, "--request", "many", "--ids", many, "--accept", "ok", code=3)
    assert "only 'ok' is accepted here" in text


def test_a_whole_class_can_go(tmp_path):
    """Also from test data that still has it: there it is no reason to refuse the requests that follow."""
    made = case(tmp_path, words=True)
    made.init("--test", made.write("test.npz", np.arange(len(made.y))))
    call("fit", made.ws)
    gone = np.flatnonzero(made.y == "bee")
    text, _ = call("erase", made.ws, "--request", "r", "--forget", made.write("bees.npz", gone))
    assert "not proved" in text
    assert made.current().classes_.tolist() == ["ant", "cow"]
    stays = made.y != "bee"
    skops.io.dump(logistic().fit(made.x[stays], made.y[stays]), tmp_path / "refit.skops")
    table = measured(made, "--retrained", tmp_path / "refit.skops", "--original", tmp_path / "model.skops")
    assert table["erased", "accuracy_forgotten"] == table["retrained", "accuracy_forgotten"] == 0
    call("erase", made.ws, "--request", "s", "--ids", f"s{np.flatnonzero(stays)[0]}")
    call("fit", made.ws, "--again")
    rest = np.flatnonzero(made.y == "cow")
    text, _ = call("erase", made.ws, "--request", "t", "--forget", made.write("cows.npz", rest), code=3)
    assert "Only the class" in text
    assert call_json("verify", made.ws)["ok"]
    call("report", made.ws)


def test_words_survive_a_class_that_goes_from_arrays(tmp_path):
    made = case(tmp_path, words=True)
    np.savez(tmp_path / "m.npz", coef_=made.model.coef_, intercept_=made.model.intercept_, classes_=made.model.classes_)
    made.init(*LOGISTIC, weights="m.npz")
    call("fit", made.ws)
    call("erase", made.ws, "--request", "r", "--forget", made.write("ants.npz", np.flatnonzero(made.y == "ant")))
    assert load_file(made.ws / "current" / "weights.safetensors")["class_places"].tolist() == [1, 2]
    call("erase", made.ws, "--request", "s", "--ids", f"s{np.flatnonzero(made.y == 'cow')[0]}")


@pytest.mark.parametrize("kind", [bool, float, np.int8, np.uint16], ids=lambda kind: kind.__name__)
def test_labels_of_every_kind_of_number(tmp_path, kind):
    made = case(tmp_path, y=(data()[1] > 0).astype(kind))
    made.init()
    call("fit", made.ws)
    call("erase", made.ws, "--request", "r", "--ids", IDS)
    same_numbers(made.current().coef_, made.erased()[0].coef_)
    accuracy = 100 * made.current().score(made.x[STAY], made.y[STAY])
    assert measured(made, "--same", "1")["erased", "accuracy_retained"] == pytest.approx(accuracy)


def test_the_policy_may_change_between_requests(fitted):
    for i, (policy, ids) in enumerate((("rebase", "s1"), ("joint", "s2"), ("joint", "s3"), ("rebase", "s4"))):
        call("erase", fitted.ws, "--request", i, "--ids", ids, "--policy", policy)
    stays = np.arange(N) > 4
    stays[0] = True
    refit = logistic().fit(fitted.x[stays], fitted.y[stays])
    assert np.abs(refit.coef_ - fitted.current().coef_).max() < 0.1 * np.abs(refit.coef_ - fitted.model.coef_).max()


def test_fitting_again_leaves_out_what_was_erased(fitted):
    call("erase", fitted.ws, "--request", "r", "--ids", IDS)
    text, _ = call("fit", fitted.ws, "--again")
    assert "3 erased samples still in the data" in text
    call("erase", fitted.ws, "--request", "s", "--ids", "s5")
    assert call_json("verify", fitted.ws)["ok"]


def test_a_model_that_was_not_trained_on_this_data_is_seen(tmp_path):
    made = case(tmp_path)
    made.model.coef_ = made.model.coef_ * 1.3
    skops.io.dump(made.model, tmp_path / "model.skops")
    made.init()
    assert "not at the minimum of its objective" in "".join(call("fit", made.ws))
    assert "not at the minimum" in call("erase", made.ws, "--request", "r", "--ids", IDS)[0]


# What is refused


def test_settings_that_mean_nothing_are_refused(made):
    for words, says in (
        (["--weight-decay", "0.1"], "fit.weight_decay means nothing for a scikit-learn model"),
        (["--damping", "0.1"], "fit.damping"),
        (["--rows", "empirical"], "fit.rows"),
        (["--structure", "dense"], "fit.structure"),
        (["--parameters", "head"], "fit.parameters"),
        (["--set", "fit.seed=1"], "fit.seed"),
        (["--loss", "mse"], "model.loss"),
        (["--device", "cuda"], "on the CPU"),
        (["--argument", "C=1"], "are in the skops file already"),
        (["--set", "erase.scale=2"], "erase.scale must be 1"),
        (["--set", "erase.leave_out=false"], "erase.leave_out must be true"),
        (["--set", "erase.residual=true"], "erase.residual must be false"),
        (["--model", "sklearn.linear_model:LogisticRegression"], "leave --model and --argument out"),
        (["--model", "torch.nn:Linear"], "leave --model and --argument out"),
        (["--classes", "a,b,c"], "none of [data] classes"),
        (["--inputs", "x,id"], "must be"),
        (["--inputs", "y", "--labels", "x"], "takes one label for each sample"),
    ):
        assert says in made.init(*words, code=2)[1], words
        assert not made.ws.exists()
    made.init("--set", "erase.scale=1", "--device", "cpu", "--set", "fit.memory_budget=1GiB")
    assert "fit.damping" in call_error("fit", made.ws, "--damping", "1")
    call("fit", made.ws)
    assert "erase.scale" in call_error("erase", made.ws, "--request", "r", "--ids", IDS, "--scale", "2")
    assert "leave_out" in call_error("erase", made.ws, "--request", "r", "--ids", IDS, "--no-leave-out")
    assert "no ε to choose" in call_error("calibrate", made.ws, "--ids", IDS)


def test_classes_that_are_not_the_models_are_refused(tmp_path):
    made = case(tmp_path, words=True)
    assert "Leave the setting out" in made.init("--classes", "cow,bee,ant", code=2)[1]
    made.init("--classes", "ant,bee,cow")


def test_files_that_are_no_models(made):
    (made.home / "model.pkl").write_bytes(pickle.dumps(made.model))
    (made.home / "bad.skops").write_bytes(pickle.dumps(made.model))
    np.savez(made.home / "m.npz", coef_=made.model.coef_)
    for weights, words, says in (
        ("model.pkl", [], "skops.io.dump"),
        ("model.pkl", LOGISTIC, "skops.io.dump"),
        ("bad.skops", [], "cannot be read as a skops file"),
        ("m.npz", [], "Name the model with --model"),
        ("m.npz", LOGISTIC, "lacks 'intercept_'"),
        ("model.skop", [], "Did you mean 'model.skops'"),
    ):
        assert says in made.init(*words, weights=weights, code=2)[1]
        assert not made.ws.exists()


def test_data_that_is_not_the_models(made):
    np.savez(made.home / "wide.npz", x=np.ones((5, 9)), y=np.arange(5) % 3)
    np.savez(made.home / "other.npz", x=made.x, y=made.y + 7)
    for name, says in (("wide.npz", "9 features"), ("other.npz", "none of the estimator's classes")):
        said = made.init("--data", made.home / name, code=2)[1]
        assert says in said
        assert name in said
    made.init()
    call("fit", made.ws)
    assert "9 features" in call_error("erase", made.ws, "--request", "r", "--forget", made.home / "wide.npz")


def test_a_model_that_changed_since_the_fit_is_refused(tmp_path):
    made = case(tmp_path)
    np.savez(tmp_path / "m.npz", coef_=made.model.coef_, intercept_=made.model.intercept_, classes_=made.model.classes_)
    made.init(*LOGISTIC, weights="m.npz")
    call("fit", made.ws)
    settings = made.ws / "ssse.toml"
    good = settings.read_text()
    settings.write_text(good.replace("C = 0.5", "C = 2.0"))
    assert "model.arguments changed" in call_error("erase", made.ws, "--request", "r", "--ids", IDS)
    settings.write_text(good.replace('factory = "sklearn.linear_model:LogisticRegression"\n', ""))
    assert "'model.factory' is None, and was" in call_error("erase", made.ws, "--request", "r", "--ids", IDS)
    settings.write_text(good)
    call_error("erase", made.ws, "--request", "r", "--ids", IDS, "--set", "model.factory=torch.nn:Linear")


def test_another_kind_of_model_than_the_workspace_holds(fitted):
    other = "model.factory=sklearn.linear_model:LogisticRegression"
    assert "Put it back" in call_error("erase", fitted.ws, "--request", "r", "--ids", IDS, "--set", other)


# Damage, and death


def test_damage_is_found(fitted):
    call("erase", fitted.ws, "--request", "r", "--ids", IDS)
    for path in sorted(path for path in (fitted.ws / "current").rglob("*") if path.is_file()):
        good = path.read_bytes()
        path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
        found = call_json("verify", fitted.ws, code=4)
        assert [one["file"].rpartition("/")[2] for one in found["damages"]] == [path.name]
        with pytest.raises((Damaged, InvalidData, InvalidModel)):
            Workspace(fitted.ws).erase("s", ids=["s5"])
        path.write_bytes(good)
    assert call_json("verify", fitted.ws)["ok"]


@pytest.mark.long
def test_killed_at_lines_that_find_the_disk_changed():
    every = sized(6, 1)
    names = sized(["erase estimator"], ["fit estimator", "erase estimator", "erase estimator and keep"])
    for name, counts in kill(f"lines{every},{','.join(names)}").items():
        assert counts["killed"] >= 14 // every, name
        assert counts["middle"] >= counts["killed"] - 2, name


def test_help_and_the_record_import_neither_torch_nor_scikit_learn(fitted):
    for words in (["--help"], ["log", str(fitted.ws)], ["verify", str(fitted.ws)]):
        code = (
            "import sys; from ssse.cli.app import app\n"
            f"try: app({words!r}, prog_name='ssse')\n"
            "except SystemExit: pass\n"
            "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'skops')))"
        )
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0, words
