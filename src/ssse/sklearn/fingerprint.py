"""Which estimator: so that sums and model are never of two different ones."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from scipy import sparse

from ssse.sklearn.adapters import Adapter
from ssse.sklearn.composition import Composition, decompose

OBJECTIVE = (
    "C", "alpha", "penalty", "l1_ratio", "fit_intercept", "intercept_scaling", "class_weight", "loss", "positive",
    "solver",
)  # fmt: skip


def fingerprint(estimator: Any) -> str:
    """Which model: its classes, its objective, and its coefficients to the last bit."""
    hasher = hashlib.sha256()
    transformers, composition = decompose(estimator)
    _take_in(hasher, [type(composition.estimator).__name__, getattr(composition.estimator, "classes_", None)])
    _take_in(hasher, [] if transformers is None else [step for _, step in transformers.steps])
    hasher.update(digest_linear_models(composition).encode())
    return hasher.hexdigest()


def digest_linear_models(composition: Composition) -> str:
    """Objective, classes and coefficients of the linear models alone: what a request starts from."""
    hasher = hashlib.sha256()
    for adapter in composition.adapters:
        hasher.update(_objective(adapter).encode())
        for name in ("coef_", "intercept_"):
            value = np.ascontiguousarray(getattr(adapter.estimator, name))
            hasher.update(f"{name}{value.dtype}{value.shape}".encode() + value.tobytes())
    return hasher.hexdigest()


def _take_in(hasher: Any, thing: Any) -> None:
    """Numbers and texts, and of an estimator its settings and what it learned: attributes that end in _ alone."""
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        hasher.update(f"{thing.dtype}{thing.shape}".encode() + np.ascontiguousarray(thing).tobytes())
    elif sparse.issparse(thing):
        rows: Any = sparse.csr_array(thing)
        _take_in(hasher, [rows.shape, rows.data, rows.indices, rows.indptr])
    elif isinstance(thing, dict):
        _take_in(hasher, [part for key in sorted(thing, key=repr) for part in (key, thing[key])])
    elif isinstance(thing, list | tuple | np.ndarray):
        hasher.update(f"{len(thing)}(".encode())
        for part in thing:
            _take_in(hasher, part)
    elif hasattr(thing, "get_params") and not isinstance(thing, type):
        learned = {key: value for key, value in vars(thing).items() if key.endswith("_") and not key.startswith("_")}
        _take_in(hasher, [type(thing).__name__, thing.get_params(deep=False), learned])
    else:
        plain = thing is None or isinstance(thing, str | bytes | bool | int | float | np.generic)
        hasher.update((repr(thing) if plain else type(thing).__name__).encode() + b";")


def _objective(adapter: Adapter) -> str:
    settings = {name: repr(getattr(adapter.estimator, name, None)) for name in OBJECTIVE}
    classes = [repr(one) for one in getattr(adapter.estimator, "classes_", np.zeros(0)).tolist()]
    return f"{adapter.name}{settings}{classes}"
