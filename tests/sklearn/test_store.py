"""An eraser on disk: it goes on bit for bit, belongs to its model, and tells nobody what was erased."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import ssse
from ssse.errors import BrokenArtefact, InvalidModel, ModelMismatch
from ssse.sklearn import Eraser
from tests.support import problems
from tests.support import sklearn_refits as refits
from tests.support.sklearn_refits import Data, fitted, parameters, quiet, tight

BEFORE = Path(__file__).parents[1] / "before"
DATA = refits.classes(n=200, k=3)
GONE = np.array([0, 5, 44])
MODELS = [
    tight(), tight(class_weight="balanced"), RidgeClassifier(class_weight="balanced"), Ridge(), LinearRegression(),
    SGDClassifier("log_loss", alpha=0.1, random_state=0, class_weight="balanced"), LinearSVC(C=0.05, tol=1e-9),
    OneVsRestClassifier(tight()), make_pipeline(StandardScaler(), tight()),
]  # fmt: skip


def eraser_of(model=None, data: Data = DATA, weighted: bool = False, **options) -> Any:
    s = data.weights if weighted else None
    with quiet():
        estimator = fitted(tight() if model is None else model, data.x, data.y, s)
    return Eraser(estimator, **options).fit(data.x, data.y, s)


def stored_arrays(folder: Path) -> dict[str, np.ndarray]:
    return {key: value for path in folder.glob("*.safetensors") for key, value in load_file(path).items()}


@pytest.mark.parametrize("policy", ["rebase", "joint"])
@pytest.mark.parametrize("when", ["before", "after a request", "after a class vanished", "after refining"])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_it_goes_on_bit_for_bit(tmp_path, model, policy, when):
    if when == "after a class vanished" and isinstance(model, Ridge | LinearRegression):
        pytest.skip("no classes")
    eraser = eraser_of(model, policy=policy)
    gone = np.zeros(0, dtype=int) if when == "before" else GONE
    if when == "after a class vanished":
        gone = np.flatnonzero(DATA.y == 2)
    if len(gone):
        eraser.erase(DATA.x[gone], DATA.y[gone])
    rest = DATA.without(gone)
    if when == "after refining":
        eraser.refine(rest.x, rest.y)
    eraser.save(tmp_path / "sums")
    other = Eraser.load(tmp_path / "sums", copy.deepcopy(eraser.estimator_))
    assert (other.n_erased_, other.distance_bound_, other.policy) == (eraser.n_erased_, eraser.distance_bound_, policy)
    assert other.leverage_ == eraser.leverage_
    for rows in (np.array([3, 9]), np.arange(20, 60)):
        one, two = (one.erase(rest.x[rows], rest.y[rows]) for one in (eraser, other))
        assert refits.same(parameters(one), parameters(two))
        assert refits.same(one, two)
        assert (other.n_erased_, other.distance_bound_, other.leverage_) == (
            eraser.n_erased_, eraser.distance_bound_, eraser.leverage_
        )  # fmt: skip
        rest = rest.without(rows)


def test_several_outputs_with_weights(tmp_path):
    y = np.stack([DATA.y, DATA.x[:, 0] > 0.5], axis=1).astype(int)
    model = MultiOutputClassifier(tight(class_weight="balanced")).fit(DATA.x, y, DATA.weights)
    eraser = Eraser(model).fit(DATA.x, y, DATA.weights)
    eraser.save(tmp_path / "sums")
    other = Eraser.load(tmp_path / "sums", model)
    given = (DATA.x[GONE], y[GONE], DATA.weights[GONE])
    assert refits.same(eraser.erase(*given), other.erase(*given))


def test_parts_saved_midway(tmp_path):
    first = fitted(tight(), DATA.x, DATA.y)
    half = Eraser(first).partial_fit(DATA.x[:90], DATA.y[:90])
    half.save(tmp_path / "half")
    assert np.isinf(half.distance_bound_)
    other = Eraser.load(tmp_path / "half", first)
    for one in (half, other):
        one.partial_fit(DATA.x[90:], DATA.y[90:])
    one, two = (one.erase(DATA.x[GONE], DATA.y[GONE]) for one in (half, other))
    assert refits.same(one, two)
    assert half.distance_bound_ == other.distance_bound_
    whole = eraser_of().erase(DATA.x[GONE], DATA.y[GONE])
    assert refits.distance(one, whole) < 1e-12


def test_the_folder_must_be_new(tmp_path):
    eraser = eraser_of()
    eraser.save(tmp_path / "sums")
    with pytest.raises(FileExistsError, match="exists already"):
        eraser.save(tmp_path / "sums")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileExistsError):
        eraser.save(tmp_path / "empty")


@pytest.mark.parametrize("verify", [True, False])
def test_a_truncated_file(tmp_path, verify):
    eraser = eraser_of()
    eraser.save(tmp_path / "sums")
    for path in sorted((tmp_path / "sums").iterdir()):
        whole = path.read_bytes()
        for length in (0, 5, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(BrokenArtefact):
                Eraser.load(tmp_path / "sums", eraser.estimator_, verify=verify)
        path.write_bytes(whole)
    Eraser.load(tmp_path / "sums", eraser.estimator_, verify=verify)


def test_altered_numbers_and_an_altered_manifest(tmp_path):
    eraser = eraser_of()
    eraser.save(tmp_path / "sums")
    manifest = tmp_path / "sums" / "manifest.json"
    whole = manifest.read_text()
    for key, value in (("erased", 7), ("policy", "joint"), ("epsilon", 0.0), ("weighted", True), ("leaves", [])):
        manifest.write_text(json.dumps({**json.loads(whole), key: value}))
        with pytest.raises(BrokenArtefact, match="altered"):
            Eraser.load(tmp_path / "sums", eraser.estimator_)
    manifest.write_text(whole)
    path = next((tmp_path / "sums").glob("*.safetensors"))
    arrays = load_file(path)
    name = sorted(arrays)[0]
    arrays[name] = arrays[name] + 1
    save_file(arrays, path)
    with pytest.raises(BrokenArtefact, match="altered"):
        Eraser.load(tmp_path / "sums", eraser.estimator_)


def other_coefficients(model):
    model.coef_ = model.coef_ * (1 + 1e-15)


def other_intercept(model):
    model.intercept_ = np.nextafter(model.intercept_, 1)


CHANGES = [
    other_coefficients, other_intercept, lambda m: m.set_params(C=2.0), lambda m: m.set_params(class_weight="balanced"),
    lambda m: setattr(m, "classes_", np.array([0, 1, 3])),
    lambda m: m.set_params(solver="liblinear", intercept_scaling=2.0),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_it_belongs_to_its_model(tmp_path, change):
    eraser = eraser_of()
    eraser.save(tmp_path / "sums")
    other = copy.deepcopy(eraser.estimator_)
    change(other)
    with pytest.raises((ModelMismatch, InvalidModel)):
        Eraser.load(tmp_path / "sums", other)


@pytest.mark.parametrize("other", [Ridge(), RidgeClassifier(), OneVsRestClassifier(tight()), tight(C=0.5)], ids=repr)
def test_it_belongs_to_no_other_estimator(tmp_path, other):
    eraser_of().save(tmp_path / "sums")
    with pytest.raises(ModelMismatch):
        Eraser.load(tmp_path / "sums", fitted(other, DATA.x, DATA.y))
    with pytest.raises(InvalidModel):
        Eraser.load(tmp_path / "sums", LogisticRegression())


def test_it_belongs_to_the_transformers_before_the_model_too(tmp_path):
    """Through another scaler the samples would be others: the wrong sums would be subtracted, and nobody told."""
    eraser = eraser_of(make_pipeline(StandardScaler(), tight()))
    eraser.save(tmp_path / "sums")
    other = copy.deepcopy(eraser.estimator_)
    other[0].mean_ = other[0].mean_ + 1
    with pytest.raises(ModelMismatch):
        Eraser.load(tmp_path / "sums", other)


def test_it_belongs_to_the_classes_of_a_one_versus_rest(tmp_path):
    eraser = eraser_of(OneVsRestClassifier(tight()))
    eraser.save(tmp_path / "sums")
    other = copy.deepcopy(eraser.estimator_)
    other.label_binarizer_.fit([0, 1, 7])
    other.__dict__["classes_"] = other.label_binarizer_.classes_
    with pytest.raises(ModelMismatch):
        Eraser.load(tmp_path / "sums", other)


def test_a_curvature_of_a_torch_model_is_none_of_this(tmp_path):
    sample = problems.linear("cross_entropy", n=12)
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=1e-2, structure="dense")
    curvature.save(tmp_path / "torch")
    torch_words = r"the curvature of a PyTorch model, not the sums .*Load it with ssse\.Curvature\.load"
    for folder in (tmp_path / "torch", BEFORE / "curvature-dense"):  # which did not yet say its kind
        with pytest.raises(BrokenArtefact, match=torch_words):
            Eraser.load(folder, eraser_of().estimator_)
    eraser_of().save(tmp_path / "sums")
    for folder in (tmp_path / "sums", BEFORE / "eraser"):
        with pytest.raises(BrokenArtefact, match=r"the sums of a scikit-learn model, not .*\.Eraser\.load"):
            ssse.Curvature.load(folder)
    for folder in ("nowhere", "."):
        with pytest.raises(BrokenArtefact, match=r"that Eraser\.save wrote"):
            Eraser.load(tmp_path / folder, eraser_of().estimator_)


def test_one_that_was_written_before_classes_were_renamed():
    stored = np.load(BEFORE / "eraser.npz")
    model: Any = LogisticRegression()
    model.coef_, model.intercept_, model.classes_ = stored["coef"], stored["intercept"], np.arange(3)
    model.n_features_in_, model.n_iter_ = stored["coef"].shape[1], np.array([1])
    new = Eraser.load(BEFORE / "eraser", model).erase(stored["x"][:2], stored["y"][:2])
    np.testing.assert_allclose(new.coef_, stored["erased_coef"], rtol=1e-9)
    np.testing.assert_allclose(new.intercept_, stored["erased_intercept"], rtol=1e-9)


@pytest.mark.parametrize(("version", "repair"), [(3, "Update ssse"), (0, "Fit and save it again"), (None, "Fit and")])
def test_another_format_says_who_wrote_it_and_what_to_do(tmp_path, version, repair):
    eraser = eraser_of()
    eraser.save(tmp_path / "sums")
    path = tmp_path / "sums" / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    assert manifest["library"]["ssse"] == ssse.__version__
    path.write_text(json.dumps({**manifest, "format": version}), encoding="utf-8")
    with pytest.raises(BrokenArtefact, match=rf"format {version}, written by ssse .*reads formats up to 2\. {repair}"):
        Eraser.load(tmp_path / "sums", eraser.estimator_)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_of_the_erased_sample_and_the_model_before_nothing_is_stored(tmp_path, model):
    eraser = eraser_of(model)
    row = 17
    old = {one for one in parameters(eraser.estimator).tolist() if one}
    x = DATA.x[row] if not hasattr(model, "steps") else eraser.estimator_[0].transform(DATA.x[[row]])[0]
    eraser.erase(DATA.x[[row]], DATA.y[[row]])
    eraser.save(tmp_path / "sums")
    arrays = stored_arrays(tmp_path / "sums")
    scale, center = arrays["scale"], arrays["center"]
    frames = [x, x * scale, (x - center) / scale, (x / scale) ** 2, x**2]
    secrets = old | {float(one) for values in frames for one in values if one}
    for name, array in arrays.items():
        assert not secrets & set(np.ravel(array).astype(float).tolist()), name
    for key, value in walk(json.loads((tmp_path / "sums" / "manifest.json").read_text())):
        assert value not in secrets, key


def walk(nested, path: str = ""):
    for key, value in nested.items() if isinstance(nested, dict) else enumerate(nested):
        if isinstance(value, dict | list):
            yield from walk(value, f"{path}.{key}")
        elif isinstance(value, float):
            yield f"{path}.{key}", value


@pytest.mark.parametrize("seed", range(5))
def test_center_and_sums_do_not_give_the_sample_away(tmp_path, seed):
    """Were the center the mean of all samples, n·center − Σ of the rest would be the sample that went."""
    data = refits.numbers(n=100, d=3, seed=seed)
    eraser = eraser_of(LinearRegression(), data)
    eraser.erase(data.x[:1], data.y[:1])
    eraser.save(tmp_path / "sums")
    arrays = stored_arrays(tmp_path / "sums")
    sums = arrays["0.0.gram.0"][:-1, -1] * arrays["scale"] + 99 * arrays["center"]
    np.testing.assert_allclose(sums, data.x[1:].sum(axis=0))
    guess = 100 * arrays["center"] - sums
    assert np.abs(guess - data.x[0]).min() > 0.5 * data.x.std(axis=0).min()
    np.testing.assert_array_equal(np.log2(arrays["scale"]) % 1, 0)
    np.testing.assert_array_equal(arrays["center"] / arrays["scale"] % 1, 0)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_length_of_the_longest_sample_is_not_kept(tmp_path, classes):
    """Of one feature, a length is the sample itself."""
    data = refits.classes(n=100, d=1, k=classes)
    row = int(np.abs(data.x[:, 0]).argmax())
    eraser = eraser_of(tight(fit_intercept=False), data)
    eraser.erase(data.x[[row]], data.y[[row]])
    eraser.save(tmp_path / "sums")
    manifest = json.loads((tmp_path / "sums" / "manifest.json").read_text())
    scale = float(stored_arrays(tmp_path / "sums")["scale"][0])
    for where, value in walk(manifest):
        for known in (value, value / 2, value**2, value**2 / 2):
            assert abs(known - (data.x[row, 0] / scale) ** 2) > 1e-9 * known, where


def test_an_eraser_can_be_pickled_and_copied():
    eraser = eraser_of()
    eraser.erase(DATA.x[GONE], DATA.y[GONE])
    for other in (pickle.loads(pickle.dumps(eraser)), copy.deepcopy(eraser)):
        assert refits.same(other.sums_, eraser.sums_)
        one, two = (copy.deepcopy(one).erase(DATA.x[[9]], DATA.y[[9]]) for one in (eraser, other))
        assert refits.same(one, two)
