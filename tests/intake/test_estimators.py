"""scikit-learn models in files: skops and plain arrays are read whole or refused in a line; a pickle never is."""

from __future__ import annotations

import io
import json
import pickle
import sys
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import skops.io
from safetensors.numpy import save_file
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC

from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from ssse.intake.estimators import name_of, read_estimator, write_arrays
from ssse.intake.skops import read_skops, write_skops

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4))
Y = (X @ RNG.normal(size=(4, 3)) + RNG.normal(size=(90, 3))).argmax(1)
WORDS = np.array(["ant", "bee", "cow"])[Y]
LOGISTIC = "sklearn.linear_model:LogisticRegression"


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    names = ("coef_", "intercept_", "classes_")
    return {name: np.asarray(getattr(model, name)) for name in names if hasattr(model, name)}


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


CASES = {
    "logistic": (LogisticRegression(C=0.5), Y, {"C": 0.5}),
    "binary": (LogisticRegression(), Y > 0, {}),
    "words": (LogisticRegression(), WORDS, {}),
    "two words": (RidgeClassifier(), np.where(Y > 0, "yes", "no"), {}),
    "ridge": (Ridge(alpha=2.0), X[:, 0] + Y, {"alpha": 2.0}),
    "ridge without intercept": (Ridge(fit_intercept=False), Y + 0.5, {"fit_intercept": False}),
    "two targets": (LinearRegression(), X[:, :2] + Y[:, None], {}),
    "classes by ridge": (RidgeClassifier(), Y * 3 + 1, {}),
    "stochastic": (SGDClassifier(loss="log_loss", random_state=0), Y, {"loss": "log_loss"}),
    "support vectors": (LinearSVC(), WORDS, {}),
    "single precision": (LogisticRegression(), Y, {}),
}


@pytest.mark.parametrize("form", [".npz", ".safetensors"])
@pytest.mark.parametrize("case", CASES)
def test_arrays_come_back_as_the_model_that_they_are_of(tmp_path, case, form):
    model, y, arguments = CASES[case]
    x = X.astype(np.float32) if case == "single precision" else X
    model.fit(x, y)
    held, names = arrays_of(model), []
    if form == ".safetensors" and held.get("classes_", np.zeros(1)).dtype.kind == "U":
        names = held.pop("classes_").tolist()
    path = tmp_path / f"model{form}"
    np.savez(path, **held) if form == ".npz" else save_file(  # type: ignore[arg-type]
        {key: np.ascontiguousarray(value) for key, value in held.items()}, path
    )
    found = read_estimator(path, name_of(model), arguments, names)
    assert type(found) is type(model)
    assert np.array_equal(found.predict(x), model.predict(x))
    assert found.coef_.dtype == model.coef_.dtype
    again = tmp_path / "again.safetensors"
    write_arrays(again, found, list(map(str, getattr(model, "classes_", ()))))
    twice = read_estimator(again, name_of(model), arguments, list(map(str, getattr(model, "classes_", ()))))
    assert np.array_equal(twice.coef_, model.coef_)
    assert np.array_equal(twice.predict(x), model.predict(x))


def test_weights_of_classes_are_named_by_text(tmp_path):
    """TOML has no other keys."""
    path = saved(tmp_path / "m.npz", **arrays_of(LogisticRegression().fit(X, Y)))
    found = read_estimator(path, LOGISTIC, {"class_weight": {"0": 2.0, "2": 1.0}}, [])
    assert found.class_weight == {0: 2.0, 2: 1.0}
    with pytest.raises(InvalidSetting, match="class_weight names 'x'"):
        read_estimator(path, LOGISTIC, {"class_weight": {"x": 2.0}}, [])


GOOD = arrays_of(LogisticRegression().fit(X, Y))
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "nan": ({"coef_": np.full((3, 4), np.nan)}, "coef_ holds NaN"),
    "infinite": ({"intercept_": np.full(3, np.inf)}, "intercept_ holds NaN"),
    "rows": ({"coef_": np.ones((2, 4))}, r"coef_ has the shape \(2, 4\), and \(3, 4\) is needed for 3 classes"),
    "flat": ({"coef_": np.ones(4)}, r"coef_ has the shape \(4,\)"),
    "deep": ({"coef_": np.ones((3, 4, 1))}, "coef_ has the shape"),
    "no features": ({"coef_": np.ones((3, 0))}, "coef_ has the shape"),
    "intercepts": ({"intercept_": np.ones(2)}, r"intercept_ has the shape \(2,\)"),
    "whole numbers": ({"coef_": np.ones((3, 4), dtype=int)}, "must be of float64 or float32, not int64"),
    "texts": ({"coef_": np.full((3, 4), "a")}, "must be of float64 or float32"),
    "order": ({"classes_": np.array([2, 1, 0])}, "must be sorted"),
    "doubled": ({"classes_": np.array([0, 1, 1])}, "must be sorted"),
    "one class": ({"classes_": np.array([0])}, "two classes at least"),
    "complex": ({"classes_": np.array([0, 1, 2j])}, "must be numbers or texts"),
    "nan class": ({"classes_": np.array([0, 1, np.nan])}, "classes_ holds NaN"),
    "strange": ({"coefs": np.ones(3)}, "holds 'coefs'.*Did you mean 'coef_'"),
    "objects": ({"classes_": np.array([None, 1, 2], dtype=object)}, "never unpickled"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_arrays_that_do_not_fit_are_refused(tmp_path, case):
    change, says = BROKEN[case]
    with pytest.raises(InvalidData, match=says):
        read_estimator(saved(tmp_path / "m.npz", **(GOOD | change)), LOGISTIC, {}, [])


@pytest.mark.parametrize("lacking", ["coef_", "intercept_", "classes_"])
def test_what_is_missing_is_named(tmp_path, lacking):
    held = {key: value for key, value in GOOD.items() if key != lacking}
    with pytest.raises(InvalidData, match=f"lacks '{lacking}'"):
        read_estimator(saved(tmp_path / "m.npz", **held), LOGISTIC, {}, [])


@pytest.mark.parametrize(
    ("factory", "arguments", "error", "says"),
    [
        ("sklearn.linear_model:LogisticRegresion", {}, InvalidSetting, "Did you mean 'LogisticRegression'"),
        ("sklearn.nowhere:A", {}, InvalidSetting, "there is no module"),
        ("sklearn.linear_model:Lasso", {}, InvalidModel, "cannot be rebuilt from arrays"),
        ("sklearn:clone", {}, InvalidModel, "cannot be rebuilt from arrays"),
        ("sklearn.linear_model:__all__", {}, InvalidModel, "cannot be rebuilt from arrays"),
        (LOGISTIC, {"c": 1}, InvalidSetting, "takes"),
        (LOGISTIC, {"C": -1.0}, InvalidSetting, "wrong argument"),
        (LOGISTIC, {"C": "much"}, InvalidSetting, "wrong argument"),
        (LOGISTIC, {"solver": "saga", "l1_ratio": 1.0}, InvalidModel, "L1"),
        ("sklearn.linear_model:SGDClassifier", {}, InvalidModel, "log_loss"),
        ("sklearn.linear_model:Ridge", {}, InvalidData, "is a regression"),
    ],
)
def test_classes_and_arguments_that_cannot_be(tmp_path, factory, arguments, error, says):
    with pytest.raises(error, match=says):
        read_estimator(saved(tmp_path / "m.npz", **GOOD), factory, arguments, [])


# skops


def make_all() -> list[Any]:
    labels = np.stack([Y > 0, X[:, 0] > 0], axis=1).astype(int)
    return [
        LogisticRegression().fit(X, WORDS),
        LogisticRegression().fit(X, WORDS.astype(object)),
        make_pipeline(StandardScaler(), RidgeClassifier()).fit(X, WORDS),
        MultiOutputClassifier(LogisticRegression()).fit(X, labels),
        OneVsRestClassifier(LogisticRegression()).fit(X, Y),
        OneVsRestClassifier(LogisticRegression()).fit(X, labels),
        make_pipeline(StandardScaler(), Ridge()).fit(X, X[:, 0]),
    ]


def test_skops_files_come_back_and_have_the_same_bytes(tmp_path):
    for i, model in enumerate(make_all()):
        skops.io.dump(model, tmp_path / "m.skops")
        found = read_estimator(tmp_path / "m.skops", None, {}, [])
        assert np.array_equal(found.predict(X), model.predict(X))
        for name in ("a", "b"):
            write_skops(tmp_path / f"{name}.skops", read_skops(tmp_path / "m.skops"))
        write_skops(tmp_path / "c.skops", read_skops(tmp_path / "a.skops"))
        bodies = {(tmp_path / f"{name}.skops").read_bytes() for name in "abc"}
        assert len(bodies) == 1, i
        assert np.array_equal(read_skops(tmp_path / "c.skops").predict(X), model.predict(X))


class Bomb:
    def __init__(self, proof: Path):
        self.proof = proof

    def __reduce__(self) -> Any:
        return Path.touch, (self.proof,)


def strange(x: Any) -> Any:
    return x


def test_types_that_skops_does_not_trust_are_named(tmp_path):
    skops.io.dump(make_pipeline(FunctionTransformer(strange), Ridge()).fit(X, Y), tmp_path / "m.skops")
    with pytest.raises(InvalidData, match=r"test_estimators\.strange.*does not trust"):
        read_estimator(tmp_path / "m.skops", None, {}, [])


@pytest.mark.parametrize("name", ["m.pkl", "m.pickle", "m.joblib", "m.PKL", "m.skops", "m.npz", "m.safetensors"])
@pytest.mark.parametrize("dump", [joblib.dump, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_no_pickle_is_ever_executed(tmp_path, name, dump):
    dump(Bomb(tmp_path / "proof"), tmp_path / name)
    for factory in (None, LOGISTIC):
        with pytest.raises(InvalidData) as caught:
            read_estimator(tmp_path / name, factory, {}, [])
        if Path(name).suffix.lower() in (".pkl", ".pickle", ".joblib"):
            assert "skops.io.dump" in str(caught.value)
    assert not (tmp_path / "proof").exists()


def test_a_pickle_inside_a_zip_is_not_executed(tmp_path):
    body = io.BytesIO()
    np.save(body, np.array([Bomb(tmp_path / "proof")], dtype=object), allow_pickle=True)
    skops.io.dump(LogisticRegression().fit(X, Y), tmp_path / "good.skops")
    with zipfile.ZipFile(tmp_path / "good.skops") as good, zipfile.ZipFile(tmp_path / "m.skops", "w") as bad:
        for name in good.namelist():
            bad.writestr(name, good.read(name) if name == "schema.json" else body.getvalue())
    with pytest.raises(InvalidData, match="never unpickled"):
        read_estimator(tmp_path / "m.skops", None, {}, [])
    assert not (tmp_path / "proof").exists()


def test_a_file_that_unfolds_to_far_more_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.skops", "w", zipfile.ZIP_DEFLATED) as bad:
        bad.writestr("schema.json", b" " * (1 << 27))
    with pytest.raises(InvalidData, match=r"unfold from .* KiB to 128 MiB"):
        read_estimator(tmp_path / "m.skops", None, {}, [])


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": 1}, "holds a dict, not an estimator"),
        (LogisticRegression(), "is not fitted"),
        (GaussianNB().fit(X, Y), "GaussianNB is not supported"),
        (StandardScaler().fit(X), "StandardScaler is not supported"),
    ],
    ids=["dict", "unfitted", "bayes", "scaler"],
)
def test_what_is_no_model_of_ours_is_refused(tmp_path, value, says):
    skops.io.dump(value, tmp_path / "m.skops")
    with pytest.raises(InvalidModel, match=says):
        read_estimator(tmp_path / "m.skops", None, {}, [])


def test_models_whose_parts_do_not_fit_are_refused(tmp_path):
    for name, value in (
        ("coef_", np.ones((2, 4))),
        ("coef_", np.full((3, 4), np.nan)),
        ("coef_", None),
        ("intercept_", np.ones(7)),
        ("classes_", np.array([3, 1, 2])),
        ("classes_", "abc"),
        ("n_features_in_", 5),
    ):
        model = LogisticRegression().fit(X, Y)
        setattr(model, name, value)
        skops.io.dump(model, tmp_path / "m.skops")
        with pytest.raises((InvalidData, InvalidModel)):
            read_estimator(tmp_path / "m.skops", None, {}, [])


def test_damaged_files_end_in_a_line(tmp_path):
    """Cut, or with a byte changed: refused, or a model all the same."""
    write_skops(tmp_path / "good.skops", make_pipeline(StandardScaler(), LogisticRegression()).fit(X, WORDS))
    good, chooser = (tmp_path / "good.skops").read_bytes(), np.random.default_rng(1)
    bodies = [good[: len(good) * i // 7] for i in range(7)]
    for place in chooser.integers(0, len(good), 150).tolist():
        bodies.append(good[:place] + bytes([good[place] ^ int(chooser.integers(1, 256))]) + good[place + 1 :])
    refused = 0
    for body in bodies:
        (tmp_path / "m.skops").write_bytes(body)
        with suppress(InvalidData, InvalidModel):
            refused += 1
            read_estimator(tmp_path / "m.skops", None, {}, [])
            refused -= 1
    assert refused >= 100


def test_schemas_of_anything_end_in_a_line(tmp_path):
    deep = '{"__class__": "list", "__module__": "builtins", "__loader__": "ListNode", "content": [' * 3000
    for text in ("", "{}", "[]", "null", "3", '{"__class__": 3}', deep, json.dumps({"__loader__": "MethodNode"})):
        with zipfile.ZipFile(tmp_path / "m.skops", "w") as bad:
            bad.writestr("schema.json", text)
        with pytest.raises(InvalidData):
            read_estimator(tmp_path / "m.skops", None, {}, [])


def test_without_skops_the_message_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "m.skops").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "skops", None)
    monkeypatch.setitem(sys.modules, "skops.io", None)
    with pytest.raises(InvalidSetting, match=r"pip install 'ssse\[skops\]'"):
        read_estimator(tmp_path / "m.skops", None, {}, [])


@pytest.mark.parametrize("name", ["m.pt", "m.onnx", "m"])
def test_other_forms_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    for factory in (None, LOGISTIC):
        with pytest.raises(InvalidData):
            read_estimator(tmp_path / name, factory, {}, [])
    with pytest.raises(InvalidData, match="is not a file"):
        read_estimator(tmp_path / "nothing.skops", None, {}, [])


def test_reading_says_nothing_else(tmp_path):
    """A model of another version of scikit-learn is read without a warning; the ledger has the versions."""
    skops.io.dump(LogisticRegression().fit(X, Y), tmp_path / "m.skops")
    with zipfile.ZipFile(tmp_path / "m.skops") as packed:
        parts = {name: packed.read(name) for name in packed.namelist()}
    version = json.dumps(json.dumps(__import__("sklearn").__version__)).encode()
    assert version in parts["schema.json"]
    parts["schema.json"] = parts["schema.json"].replace(version, json.dumps('"1.2.3"').encode())
    with zipfile.ZipFile(tmp_path / "m.skops", "w") as packed:
        for name, body in parts.items():
            packed.writestr(name, body)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_estimator(tmp_path / "m.skops", None, {}, [])
