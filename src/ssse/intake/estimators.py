"""The user's scikit-learn model: whole in a skops file, or as arrays beside the name of its class. Never a pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import LabelBinarizer
from torch import Tensor

from ssse.errors import InvalidData, InvalidModel, InvalidSetting, SSSEError
from ssse.intake.arrays import read_npz, read_safetensors
from ssse.intake.columns import tensor_of, texts_of
from ssse.intake.importing import import_object
from ssse.intake.messages import cause, did_you_mean, listing, require_file
from ssse.intake.models import check_arguments
from ssse.intake.skops import read_skops
from ssse.intake.weights import write_weights
from ssse.sklearn.adapters import ClassifierAdapter
from ssse.sklearn.classifiers import ADAPTERS
from ssse.sklearn.composition import decompose

SKOPS = ".skops"
ARRAYS = (".npz", ".safetensors")
PICKLES = (".pkl", ".pickle", ".joblib")
COEF, INTERCEPT, CLASSES, PLACES = "coef_", "intercept_", "classes_", "class_places"
KEYS = (COEF, INTERCEPT, CLASSES, PLACES)
DTYPES = (np.float64, np.float32)
REPAIR = "Save it with skops: skops.io.dump(model, 'model.skops')."


def read_estimator(path: Path, factory: str | None, arguments: Mapping[str, Any], classes: Sequence[str]) -> Any:
    """A fitted estimator.

    Args:
        factory: None: the file is of skops, which says by itself what it holds. Else module:class, one of those that
            are nothing but coefficients; the file holds them as arrays. arguments: of the class.
        classes: names of the classes, where the file cannot hold them (safetensors has no texts).
    Raises:
        InvalidData: missing, damaged, a pickle, or numbers that do not fit. InvalidModel: not supported.
        InvalidSetting: no such class, or not with these arguments.
    """
    require_file(path)
    suffix = path.suffix.lower()
    if suffix in PICKLES:
        raise InvalidData(f"'{path}' is a pickle, which is never loaded: it could run any code. {REPAIR}")
    if factory is None:
        if suffix != SKOPS:
            raise InvalidData(
                f"'{path}': without a factory the model must be a {SKOPS} file, which says by itself what it is; not "
                f"{suffix or 'a file without an extension'}. {REPAIR}"
            )
        model = read_skops(path)
    else:
        if suffix not in ARRAYS:
            raise InvalidData(
                f"'{path}': the arrays of {factory} must be in one of {', '.join(ARRAYS)}, not "
                f"{suffix or 'a file without an extension'}."
            )
        model = from_arrays(factory, arguments, _read_arrays(path), classes, str(path))
    check_estimator(model, str(path))
    return model


def name_of(model: Any) -> str:
    """Where a user finds its class: sklearn.linear_model:LogisticRegression."""
    public = [part for part in type(model).__module__.split(".") if not part.startswith("_")]
    return f"{'.'.join(public)}:{type(model).__name__}"


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    def wanted(keys: Sequence[str]) -> Sequence[str]:
        unknown = [key for key in keys if key not in KEYS]
        if unknown:
            raise InvalidData(
                f"'{path}' holds {listing(unknown, 5)}, and an estimator is made of {', '.join(KEYS[:3])} alone."
                f"{did_you_mean(unknown[0], KEYS)}"
            )
        return keys

    if path.suffix.lower() == ".npz":
        return read_npz(path, wanted)
    return {key: _numpy(value) for key, value in read_safetensors(path, wanted).items()}


def _numpy(value: Tensor) -> np.ndarray:
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # which numpy does not have


def from_arrays(
    factory: str, arguments: Mapping[str, Any], arrays: Mapping[str, np.ndarray], classes: Sequence[str], name: str
) -> Any:
    """Call the class, and set what fitting would have."""
    kind = import_object(factory, None, "model")
    if not isinstance(kind, type) or kind not in ADAPTERS:
        known = ", ".join(one.__name__ for one in ADAPTERS)
        raise InvalidModel(f"'{factory}' cannot be rebuilt from arrays; {known} can. {REPAIR}")
    check_arguments(factory, kind, arguments)
    model = kind(**arguments)
    classifies = issubclass(ADAPTERS[kind], ClassifierAdapter)
    coef = _floats(arrays, COEF, name)
    rows = len(coef) if coef.ndim == 2 else 1
    if INTERCEPT in arrays or model.fit_intercept:
        intercept = _floats(arrays, INTERCEPT, name)
    else:
        intercept = np.zeros(rows if classifies else (), dtype=coef.dtype)
    model.coef_, model.intercept_ = coef, intercept if intercept.ndim else intercept[()]
    model.n_features_in_ = coef.shape[-1] if coef.ndim else 0
    if not classifies:
        if CLASSES in arrays or PLACES in arrays:
            raise InvalidData(f"'{name}' holds classes, and {kind.__name__} is a regression.")
    else:
        _set_classes(model, _classes(arrays, classes, name), name)
    try:
        model._validate_params()  # what fit would do first
    except (ValueError, TypeError) as error:
        raise InvalidSetting(f"'{factory}' was called with a wrong argument: {cause(error)}.") from error
    return model


def _floats(arrays: Mapping[str, np.ndarray], key: str, name: str) -> np.ndarray:
    if key not in arrays:
        raise InvalidData(f"'{name}' lacks {key!r}; it holds {listing(arrays)}.")
    value = arrays[key]
    if value.dtype not in DTYPES:
        raise InvalidData(f"'{name}': {key!r} must be of float64 or float32, not {value.dtype}.")
    return np.array(value)


def _classes(arrays: Mapping[str, np.ndarray], named: Sequence[str], name: str) -> np.ndarray:
    words = np.array(list(named), dtype=str)
    if PLACES in arrays:
        places = arrays[PLACES]
        if places.dtype.kind not in "iu" or places.ndim != 1 or not all(0 <= place < len(words) for place in places):
            raise InvalidData(
                f"'{name}': {PLACES!r} must be places among the {len(words)} names of [data] classes; some are not."
            )
        return words[places]
    if CLASSES not in arrays:
        if not len(words):
            raise InvalidData(f"'{name}' lacks {CLASSES!r}. Where they are words, name them: --classes NAME,NAME.")
        return words
    stored = arrays[CLASSES]
    texts = texts_of(stored)
    if texts is None and stored.dtype.kind not in "biuf":
        raise InvalidData(f"'{name}': {CLASSES!r} must be numbers or texts, not {stored.dtype}.")
    return stored if texts is None else texts


def _set_classes(model: Any, classes: np.ndarray, name: str) -> None:
    _check_classes(classes, name)
    if isinstance(model, RidgeClassifier):
        model._label_binarizer = LabelBinarizer(pos_label=1, neg_label=-1).fit(classes)
    with suppress(AttributeError):  # of some versions, a property
        model.classes_ = classes
    if isinstance(model.class_weight, Mapping):  # TOML's keys are texts
        known = {str(one): one for one in classes.tolist()}
        unknown = [key for key in model.class_weight if str(key) not in known]
        if unknown:
            raise InvalidSetting(f"class_weight names {listing(unknown, 5)}, and the classes are {listing(known)}.")
        model.class_weight = {known[str(key)]: value for key, value in model.class_weight.items()}


def write_arrays(path: Path, model: Any, classes: Sequence[str]) -> None:
    """As `read_estimator` takes them; classes that are words as their places among `classes`."""
    arrays = {COEF: np.asarray(model.coef_), INTERCEPT: np.asarray(model.intercept_)}
    own = getattr(model, "classes_", None)
    if own is not None and is_words(own):
        arrays[PLACES] = np.array([list(classes).index(str(one)) for one in own])
    elif own is not None:
        arrays[CLASSES] = own
    write_weights(path, {key: tensor_of(np.ascontiguousarray(value), key, str(path)) for key, value in arrays.items()})


def is_words(classes: Any) -> bool:
    return isinstance(classes, np.ndarray) and classes.dtype.kind not in "biuf"


def check_estimator(model: Any, name: str) -> None:
    """Fitted, supported, and of numbers that fit together; a file may hold anything."""
    if isinstance(model, type) or not hasattr(model, "fit"):
        raise InvalidModel(f"'{name}' holds a {type(model).__name__}, not an estimator of scikit-learn.")
    try:
        for adapter in decompose(model)[1].adapters:
            _check_linear_model(adapter.estimator, isinstance(adapter, ClassifierAdapter), name)
    except SSSEError:
        raise
    except Exception as error:  # attributes that are not there, or not what fit would have made
        raise InvalidModel(f"'{name}' holds a {type(model).__name__} that is not whole: {cause(error)}.") from error


def _check_linear_model(model: Any, classifies: bool, name: str) -> None:
    what = f"'{name}': {type(model).__name__}"
    for key in (COEF, INTERCEPT):
        value = getattr(model, key)
        if np.asarray(value).dtype.kind != "f" or not np.isfinite(value).all():
            raise InvalidData(f"{what}: {key} holds NaN, infinity or no numbers; the model did not train properly.")
    shape, features = np.shape(model.coef_), int(model.n_features_in_)
    if classifies:
        _check_classes(model.classes_, name)
        rows = 1 if len(model.classes_) == 2 else len(model.classes_)
        expected = [(rows, features)]
        expected += [(features,)] * (rows == 1 and isinstance(model, RidgeClassifier))  # by its version
    else:
        rows = shape[0] if len(shape) == 2 else 1
        expected = [(features,), (rows, features)]
    if shape not in expected or not features:
        wanted = " or ".join(map(str, expected))
        of = f" for {len(model.classes_)} classes" if classifies else ""
        raise InvalidData(f"{what}: coef_ has the shape {shape}, and {wanted} is needed{of}.")
    if np.size(model.intercept_) not in {rows, 1} or np.ndim(model.intercept_) > 1:
        raise InvalidData(
            f"{what}: intercept_ has the shape {np.shape(model.intercept_)}, beside coef_ of the shape {shape}."
        )


def _check_classes(classes: Any, name: str) -> None:
    if not isinstance(classes, np.ndarray) or classes.ndim != 1 or len(classes) < 2:
        raise InvalidData(f"'{name}': classes_ must be a list of two classes at least.")
    if classes.dtype.kind == "f" and not np.isfinite(classes).all():
        raise InvalidData(f"'{name}': classes_ holds NaN or infinity.")
    values = classes.tolist()
    if not all(one < other for one, other in pairwise(values)):
        raise InvalidData(
            f"'{name}': classes_ must be sorted and each there once, as scikit-learn keeps them, because the rows of "
            f"coef_ are in that order; they are {listing(values, 5)}."
        )
