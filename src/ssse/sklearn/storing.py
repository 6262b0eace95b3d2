"""An eraser on disk: safetensors and one manifest, checked when read; no pickle, and not the model."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from ssse.environment import now
from ssse.errors import BrokenArtefact, ModelMismatch
from ssse.sklearn.bound import Bound
from ssse.sklearn.frame import Frame
from ssse.sklearn.head import Head, Sums
from ssse.sklearn.leaves import Leaf, Tally
from ssse.sklearn.losses import Softmax, loss_named
from ssse.sklearn.state import State
from ssse.sklearn.tree import tree_of

if TYPE_CHECKING:
    from ssse.sklearn.eraser import Eraser

KIND = "scikit-learn"  # what tells such a folder from a curvature of a PyTorch model
OBJECTIVE = (
    "C", "alpha", "penalty", "l1_ratio", "fit_intercept", "intercept_scaling", "class_weight", "loss", "positive",
    "solver",
)  # fmt: skip


def save(eraser: Eraser, folder: str | os.PathLike[str]) -> None:
    import torch

    from ssse.store import write_folder

    state: State = eraser._fitted()
    arrays: dict[str, np.ndarray] = {"center": state.frame.center, "scale": state.frame.scale}
    leaves = []
    for i, (tally, heads) in enumerate(zip(state.tallies, state.heads, strict=True)):
        arrays |= {f"{i}.counts": tally.counts, f"{i}.mass": tally.mass}
        leaves.append([_describe(head, f"{i}.{j}", arrays) for j, head in enumerate(heads)])
    manifest = {
        "kind": KIND,
        "written": now(),
        "estimator": fingerprint(eraser.estimator_),
        "policy": eraser.policy,
        "in_parts": eraser.in_parts_,
        "intercept": state.frame.intercept,
        "erased": state.erased,
        "correction": state.correction,
        "weighted": state.weighted,
        "dropped": state.dropped,
        "travelled": state.travelled,
        "epsilon": _finite(eraser.epsilon_),
        "leverage": eraser.leverage_,
        "leaves": leaves,
    }
    write_folder(folder, {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}, manifest)


def load(kind: type[Eraser], folder: str | os.PathLike[str], estimator: Any, verify: bool) -> Eraser:
    from ssse.store import read_folder

    tensors, manifest = read_folder(folder, verify)
    if manifest.get("kind") != KIND:
        raise BrokenArtefact(
            f"'{os.fspath(folder)}' holds no sums of a scikit-learn model; load it with ssse.Curvature."
        )
    try:
        arrays = {name: value.numpy() for name, value in tensors.items()}
        found = _restore(kind, estimator, arrays, manifest)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise BrokenArtefact(f"The manifest of '{os.fspath(folder)}' lacks {error}.") from error
    if fingerprint(estimator) != manifest["estimator"]:
        raise ModelMismatch(
            f"'{os.fspath(folder)}' belongs to another estimator: class, settings of the objective, classes and "
            "coefficients must be as when it was saved (eraser.estimator_)."
        )
    return found


def fingerprint(estimator: Any) -> str:
    """Which model: its classes, its objective, and its coefficients to the last bit."""
    hasher = hashlib.sha256()
    transformers, tree = tree_of(estimator)
    _take_in(hasher, [type(tree.estimator).__name__, getattr(tree.estimator, "classes_", None)])
    _take_in(hasher, [] if transformers is None else [step for _, step in transformers.steps])
    for leaf in tree.leaves:
        hasher.update(_what(leaf).encode())
        for name in ("coef_", "intercept_"):
            value = np.ascontiguousarray(getattr(leaf.estimator, name))
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


def _what(leaf: Leaf) -> str:
    settings = {name: repr(getattr(leaf.estimator, name, None)) for name in OBJECTIVE}
    classes = [repr(one) for one in getattr(leaf.estimator, "classes_", np.zeros(0)).tolist()]
    return f"{leaf.name}{settings}{classes}"


def _describe(head: Head, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Numbers for the manifest; arrays into the dictionary."""
    arrays |= {f"{name}.theta": head.theta, f"{name}.ridge": head.ridge}
    if head.anchor is not head.theta:  # of a joint stream alone
        arrays[f"{name}.anchor"] = head.anchor
    for g, (slope, gram) in enumerate(zip(head.sums.slopes, head.sums.grams, strict=True)):
        arrays |= {f"{name}.slope.{g}": slope, f"{name}.gram.{g}": gram}
    if head.inverse is not None:
        arrays[f"{name}.inverse"] = head.inverse
    if head.peak is not None:
        arrays[f"{name}.peak"] = head.peak
    return {
        "loss": head.loss.name,
        "classes": head.loss.classes if isinstance(head.loss, Softmax) else 0,
        "per_sample": head.per_sample,
        "weights": list(head.weights),
        "samples": head.samples,
        "largest": head.sums.largest,
        "energy": head.sums.energy,
        "bound": {key: _finite(value) for key, value in asdict(head.bound).items()},
    }


def _restore(kind: type[Eraser], estimator: Any, arrays: dict[str, np.ndarray], manifest: dict[str, Any]) -> Eraser:
    leaves = manifest["leaves"]
    state = State(
        Frame(arrays["center"], arrays["scale"], manifest["intercept"]),
        tuple(Tally(arrays[f"{i}.counts"], arrays[f"{i}.mass"]) for i in range(len(leaves))),
        tuple(tuple(_head(one, f"{i}.{j}", arrays) for j, one in enumerate(heads)) for i, heads in enumerate(leaves)),
        erased=manifest["erased"],
        correction=manifest["correction"],
        weighted=manifest["weighted"],
        dropped=manifest["dropped"],
        travelled=manifest["travelled"],
    )
    eraser = kind(estimator, policy=manifest["policy"])
    eraser._set(estimator, state)
    eraser.in_parts_ = manifest["in_parts"]
    eraser.epsilon_ = math.inf if manifest["epsilon"] is None else manifest["epsilon"]
    eraser.leverage_ = manifest["leverage"]
    return eraser


def _head(one: dict[str, Any], name: str, arrays: dict[str, np.ndarray]) -> Head:
    groups = range(len(one["weights"]))
    return Head(
        loss=loss_named(one["loss"], one["classes"]),
        theta=arrays[f"{name}.theta"],
        ridge=arrays[f"{name}.ridge"],
        sums=Sums(
            tuple(arrays[f"{name}.slope.{g}"] for g in groups),
            tuple(arrays[f"{name}.gram.{g}"] for g in groups),
            largest=one["largest"],
            energy=one["energy"],
        ),
        per_sample=one["per_sample"],
        weights=tuple(one["weights"]),
        samples=one["samples"],
        anchor=arrays.get(f"{name}.anchor", arrays[f"{name}.theta"]),
        inverse=arrays.get(f"{name}.inverse"),
        peak=arrays.get(f"{name}.peak"),
        bound=_bound(one["bound"]),
    )


def _bound(stored: dict[str, Any]) -> Bound:
    plain: dict[str, Any] = {key: math.inf if value is None else value for key, value in stored.items()}
    return Bound(**plain)


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    return None if isinstance(value, float) and math.isinf(value) else value
