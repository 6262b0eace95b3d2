"""An eraser on disk: safetensors and one manifest, checked when read; no pickle, and not the model."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ssse.erasure.policy import Policy
from ssse.errors import ModelMismatch
from ssse.sklearn.adapters import ClassCounts
from ssse.sklearn.bound import Bound
from ssse.sklearn.coordinates import Coordinates
from ssse.sklearn.fingerprint import fingerprint
from ssse.sklearn.loss_sums import LossSums
from ssse.sklearn.losses import Softmax, loss_named
from ssse.sklearn.quadratic import Quadratic
from ssse.sklearn.sums import TrainingSums


@dataclass(frozen=True)
class StoredEraser:
    """What an eraser keeps besides its estimator."""

    sums: TrainingSums
    policy: Policy
    in_parts: bool
    distance_bound: float
    leverage: float | None


def save(folder: str | os.PathLike[str], estimator: Any, stored: StoredEraser) -> None:
    import torch

    from ssse.system.store import ERASER, write_folder

    sums = stored.sums
    arrays: dict[str, np.ndarray] = {"center": sums.coordinates.center, "scale": sums.coordinates.scale}
    models = []
    for i, (class_counts, quadratics) in enumerate(zip(sums.class_counts, sums.quadratics, strict=True)):
        arrays |= {f"{i}.counts": class_counts.counts, f"{i}.mass": class_counts.weight_sums}
        models.append([_describe(quadratic, f"{i}.{j}", arrays) for j, quadratic in enumerate(quadratics)])
    manifest = {
        "estimator": fingerprint(estimator),
        "policy": stored.policy,
        "in_parts": stored.in_parts,
        "intercept": sums.coordinates.intercept,
        "erased": sums.erased,
        "shift": sums.shift,
        "strained": sums.strained,
        "doubted": sums.doubted,
        "weighted": sums.weighted,
        "dropped": sums.dropped,
        "epsilon": _finite(stored.distance_bound),
        "leverage": stored.leverage,
        "leaves": models,
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    write_folder(folder, ERASER, tensors, manifest)


def load(folder: str | os.PathLike[str], estimator: Any, verify: bool) -> StoredEraser:
    from ssse.system.store import ERASER, read_folder, reading_entries

    tensors, manifest = read_folder(folder, ERASER, verify)
    with reading_entries(folder, manifest):
        stored = _restore({name: value.numpy() for name, value in tensors.items()}, manifest)
    if fingerprint(estimator) != manifest["estimator"]:
        raise ModelMismatch(
            f"'{os.fspath(folder)}' belongs to another estimator: class, settings of the objective, classes and "
            "coefficients must be as when it was saved (eraser.estimator_)."
        )
    return stored


def _describe(quadratic: Quadratic, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Numbers for the manifest; arrays into the dictionary."""
    arrays |= {f"{name}.theta": quadratic.theta, f"{name}.ridge": quadratic.ridge}
    if quadratic.anchor is not quadratic.theta:  # of a joint stream alone
        arrays[f"{name}.anchor"] = quadratic.anchor
    for g, (slope, gram) in enumerate(zip(quadratic.loss_sums.slopes, quadratic.loss_sums.grams, strict=True)):
        arrays |= {f"{name}.slope.{g}": slope, f"{name}.gram.{g}": gram}
    if quadratic.inverse is not None:
        arrays[f"{name}.inverse"] = quadratic.inverse
    if quadratic.peak is not None:
        arrays[f"{name}.peak"] = quadratic.peak
    return {
        "loss": quadratic.loss.name,
        "classes": quadratic.loss.classes if isinstance(quadratic.loss, Softmax) else 0,
        "per_sample": quadratic.per_sample,
        "weights": list(quadratic.weights),
        "samples": quadratic.samples,
        "largest": quadratic.loss_sums.largest,
        "energy": quadratic.loss_sums.energy,
        "traces": quadratic.loss_sums.traces,
        "bound": {key: _finite(value) for key, value in asdict(quadratic.bound).items()},
    }


def _restore(arrays: dict[str, np.ndarray], manifest: dict[str, Any]) -> StoredEraser:
    models = manifest["leaves"]
    sums = TrainingSums(
        Coordinates(arrays["center"], arrays["scale"], manifest["intercept"]),
        tuple(ClassCounts(arrays[f"{i}.counts"], arrays[f"{i}.mass"]) for i in range(len(models))),
        tuple(
            tuple(_quadratic(one, f"{i}.{j}", arrays) for j, one in enumerate(quadratics))
            for i, quadratics in enumerate(models)
        ),
        erased=manifest["erased"],
        shift=manifest["shift"],
        strained=manifest.get("strained", None if manifest["erased"] else 0.0),
        doubted=manifest.get("doubted", False),
        weighted=manifest["weighted"],
        dropped=manifest["dropped"],
    )
    bound = math.inf if manifest["epsilon"] is None else manifest["epsilon"]
    return StoredEraser(sums, manifest["policy"], manifest["in_parts"], bound, manifest["leverage"])


def _quadratic(one: dict[str, Any], name: str, arrays: dict[str, np.ndarray]) -> Quadratic:
    groups = range(len(one["weights"]))
    return Quadratic(
        loss=loss_named(one["loss"], one["classes"]),
        theta=arrays[f"{name}.theta"],
        ridge=arrays[f"{name}.ridge"],
        loss_sums=LossSums(
            tuple(arrays[f"{name}.slope.{g}"] for g in groups),
            tuple(arrays[f"{name}.gram.{g}"] for g in groups),
            largest=one["largest"],
            energy=one["energy"],
            traces=None if one.get("traces") is None else tuple(one["traces"]),  # version 0.2 did not keep them
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
