"""An eraser on disk: safetensors and one manifest, checked when read; no pickle, and not the model."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ssse.errors import BrokenArtefact, ModelMismatch
from ssse.sklearn.adapters import Tally
from ssse.sklearn.bound import Bound
from ssse.sklearn.coordinates import Frame
from ssse.sklearn.fingerprint import fingerprint
from ssse.sklearn.losses import Softmax, loss_named
from ssse.sklearn.quadratic import Head, Sums
from ssse.sklearn.sums import State
from ssse.system.environment import now

KIND = "scikit-learn"  # what tells such a folder from a curvature of a PyTorch model


@dataclass(frozen=True)
class Stored:
    """What an eraser keeps besides its estimator."""

    state: State
    policy: str
    in_parts: bool
    distance_bound: float
    leverage: float | None


def save(folder: str | os.PathLike[str], estimator: Any, stored: Stored) -> None:
    import torch

    from ssse.system.store import write_folder

    state = stored.state
    arrays: dict[str, np.ndarray] = {"center": state.frame.center, "scale": state.frame.scale}
    leaves = []
    for i, (tally, heads) in enumerate(zip(state.tallies, state.heads, strict=True)):
        arrays |= {f"{i}.counts": tally.counts, f"{i}.mass": tally.mass}
        leaves.append([_describe(head, f"{i}.{j}", arrays) for j, head in enumerate(heads)])
    manifest = {
        "kind": KIND,
        "written": now(),
        "estimator": fingerprint(estimator),
        "policy": stored.policy,
        "in_parts": stored.in_parts,
        "intercept": state.frame.intercept,
        "erased": state.erased,
        "shift": state.shift,
        "weighted": state.weighted,
        "dropped": state.dropped,
        "epsilon": _finite(stored.distance_bound),
        "leverage": stored.leverage,
        "leaves": leaves,
    }
    write_folder(folder, {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}, manifest)


def load(folder: str | os.PathLike[str], estimator: Any, verify: bool) -> Stored:
    from ssse.system.store import read_folder

    tensors, manifest = read_folder(folder, verify)
    if manifest.get("kind") != KIND:
        raise BrokenArtefact(
            f"'{os.fspath(folder)}' holds no sums of a scikit-learn model; load it with ssse.Curvature."
        )
    try:
        arrays = {name: value.numpy() for name, value in tensors.items()}
        found = _restore(arrays, manifest)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise BrokenArtefact(f"The manifest of '{os.fspath(folder)}' lacks {error}.") from error
    if fingerprint(estimator) != manifest["estimator"]:
        raise ModelMismatch(
            f"'{os.fspath(folder)}' belongs to another estimator: class, settings of the objective, classes and "
            "coefficients must be as when it was saved (eraser.estimator_)."
        )
    return found


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


def _restore(arrays: dict[str, np.ndarray], manifest: dict[str, Any]) -> Stored:
    leaves = manifest["leaves"]
    state = State(
        Frame(arrays["center"], arrays["scale"], manifest["intercept"]),
        tuple(Tally(arrays[f"{i}.counts"], arrays[f"{i}.mass"]) for i in range(len(leaves))),
        tuple(tuple(_head(one, f"{i}.{j}", arrays) for j, one in enumerate(heads)) for i, heads in enumerate(leaves)),
        erased=manifest["erased"],
        shift=manifest["shift"],
        weighted=manifest["weighted"],
        dropped=manifest["dropped"],
    )
    bound = math.inf if manifest["epsilon"] is None else manifest["epsilon"]
    return Stored(state, manifest["policy"], manifest["in_parts"], bound, manifest["leverage"])


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
