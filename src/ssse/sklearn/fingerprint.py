"""Which estimator: so that sums and model are never of two different ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from scipy import sparse

from ssse.sklearn.adapters import Adapter
from ssse.sklearn.composition import Composition, decompose
from ssse.system.digests import digest_parts

OBJECTIVE = (
    "C", "alpha", "penalty", "l1_ratio", "fit_intercept", "intercept_scaling", "class_weight", "loss", "positive",
    "solver",
)  # fmt: skip


def fingerprint(estimator: Any) -> str:
    """Which model: its classes, its objective, and its coefficients to the last bit."""
    transformers, composition = decompose(estimator)
    about = [type(composition.estimator).__name__, getattr(composition.estimator, "classes_", None)]
    steps = [] if transformers is None else [step for _, step in transformers.steps]
    return digest_parts(chain(_content_of(about), _content_of(steps), [digest_linear_models(composition)]))


def digest_linear_models(composition: Composition) -> str:
    """Objective, classes and coefficients of the linear models alone: what a request starts from."""
    parts: list[bytes | str] = []
    for adapter in composition.adapters:
        parts.append(_objective(adapter))
        for name in ("coef_", "intercept_"):
            value = np.ascontiguousarray(getattr(adapter.estimator, name))
            parts += [f"{name}{value.dtype}{value.shape}", value.tobytes()]
    return digest_parts(parts)


def _content_of(thing: Any) -> Iterator[bytes | str]:
    """Numbers and texts, and of an estimator its settings and what it learned: attributes that end in _ alone."""
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        yield f"{thing.dtype}{thing.shape}"
        yield np.ascontiguousarray(thing).tobytes()
    elif sparse.issparse(thing):
        rows: Any = sparse.csr_array(thing)
        yield from _content_of([rows.shape, rows.data, rows.indices, rows.indptr])
    elif isinstance(thing, dict):
        yield from _content_of([part for key in sorted(thing, key=repr) for part in (key, thing[key])])
    elif isinstance(thing, list | tuple | np.ndarray):
        yield f"{len(thing)}("
        for part in thing:
            yield from _content_of(part)
    elif hasattr(thing, "get_params") and not isinstance(thing, type):
        learned = {key: value for key, value in vars(thing).items() if key.endswith("_") and not key.startswith("_")}
        yield from _content_of([type(thing).__name__, thing.get_params(deep=False), learned])
    else:
        plain = thing is None or isinstance(thing, str | bytes | bool | int | float | np.generic)
        yield (repr(thing) if plain else type(thing).__name__) + ";"


def _objective(adapter: Adapter) -> str:
    settings = {name: repr(getattr(adapter.estimator, name, None)) for name in OBJECTIVE}
    classes = [repr(one) for one in getattr(adapter.estimator, "classes_", np.zeros(0)).tolist()]
    return f"{adapter.name}{settings}{classes}"
