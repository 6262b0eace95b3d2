"""`ssse init` and `ssse fit`: from the user's files to a workspace, and to its curvature."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ssse import files
from ssse.batches import read_batch
from ssse.curvature import Curvature, plan
from ssse.environment import versions
from ssse.errors import InvalidSetting
from ssse.intake.models import weights_of, write_weights
from ssse.problem import Problem
from ssse.workspace import ledger as ledgers
from ssse.workspace import settings as toml
from ssse.workspace.bench import Bench, has_batch_norm, load_weights_of
from ssse.workspace.folder import CURVATURE, SAMPLES, WEIGHTS, Folder
from ssse.workspace.holding import Hold
from ssse.workspace.ledger import Entry, Ledger
from ssse.workspace.membership import Membership
from ssse.workspace.seal import seal_files
from ssse.workspace.settings import Settings

Say = Callable[[str], None]


def create(path: Path, settings: Settings, weights: Path) -> tuple[Entry, dict[str, Any]]:
    """A new workspace, whole or not at all; and what was seen while checking."""
    if os.path.lexists(path):
        raise InvalidSetting(f"'{path}' exists already; name a folder that does not.")
    if any("\ud800" <= sign <= "\udfff" for sign in str(path)):  # bytes of a name that are no UTF-8
        raise InvalidSetting(f"'{path}': safetensors cannot open files in such a folder; name one in UTF-8.")
    bench = Bench(settings, path)
    model = bench.model(weights)
    seen = _look(bench, model)
    if bench.train.columns and settings.data.inputs is None:  # other tables are read by these names, not by places
        settings = settings.with_options({"data.inputs": list(bench.train.columns)})
    with files.new_folder(path) as unfinished:
        (unfinished / toml.FILE).write_text(settings.to_toml(), encoding="utf-8")
        (unfinished / "states").mkdir()
        Ledger.create(unfinished / ledgers.FILE)
        details = {
            "model": {
                "factory": settings.model.factory,
                "parameters": seen["parameters"],
                "batch_norm": has_batch_norm(model),
            },
            "salt": secrets.token_hex(32),
            "settings": settings.plain(),
            "versions": versions(),
        }
        with Ledger.open(unfinished / ledgers.FILE) as ledger:
            hold = Hold(Folder(unfinished), ledger, settings, "init", seal_files(unfinished, ()))
            entry = hold.advance("created", None, details, lambda state: write_state(state, model, None))
        seal_files(unfinished, (ledgers.FILE, toml.FILE)).write(unfinished)
    return entry, seen


def _look(bench: Bench, model: nn.Module) -> dict[str, Any]:
    """Model, loss and data on a first batch: what cannot work is refused here."""
    source = bench.train
    bench.try_out(model, source)
    problem = Problem(model, bench.loss, parameters_of(bench.settings))
    x, y = read_batch(next(iter(bench.batches(source))), bench.device)
    problem.probe((x, y))
    z, _ = problem.forward(x)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "in_theta": problem.layout.dim,
        "samples": len(source),
        "has_ids": source.ids is not None,
        "outputs": problem.outputs,
        "linear": problem.linear is not None,
        "first_loss": problem.total_loss(z, y) / len(y),
        "first": len(y),
        "guessing": _loss_of_guessing(problem),
    }


def _loss_of_guessing(problem: Problem) -> float | None:
    """A trained model that does no better is not the one that was trained on these labels."""
    per_output = {"cross_entropy": math.log(max(problem.outputs, 1)), "binary_cross_entropy": math.log(2)}
    found = per_output.get(problem.loss.name)
    return found and (found if problem.loss.name == "cross_entropy" else found * problem.outputs)


def fit(hold: Hold, settings: Settings, say: Say, progress: bool) -> Entry:
    """The curvature of the current weights over the data that remains."""
    if not (settings.fit.damping or settings.fit.weight_decay):
        raise InvalidSetting(
            "Without weight decay the curvature needs a damping λ, or it is singular. Set the weight_decay that the "
            "model was trained with under [fit] in ssse.toml, or give --damping, for instance 1e-4."
        )
    bench = Bench(settings, hold.folder.path, progress)
    state = hold.folder.state(hold.current)
    model = load_weights_of(bench, state, hold.current.details["files"])
    digests = bench.digests(bench.train, salt_of(hold.ledger), text="digests")
    first = hold.ledger.first("fitted")
    places = None
    if first is not None:
        places = places_that_stay(hold, digests)
        places = None if len(places) == len(digests) else places
    data, choice = bench.batches(bench.train, places), _choices(settings)
    shared = {name: value for name, value in choice.items() if name in PLANNED}
    planned = plan(model, bench.loss, data, **shared)
    say(f"Chosen: {planned}. Why: {planned.reason}.")
    hold.folder.check_space(planned.artefact_bytes + files.size_of(state))
    started = time.perf_counter()
    curvature = Curvature.fit(
        model, bench.loss, data, damping=settings.fit.damping, weight_decay=settings.fit.weight_decay, **choice,
        seed=settings.fit.seed, preconditioner=settings.fit.preconditioner, tolerance=settings.fit.tolerance,
        max_iterations=settings.fit.max_iterations, progress=progress,
    )  # fmt: skip
    details = {
        **about(curvature),
        "model": of_model(settings),
        "dropped": _calibrated_scale(hold),
        "options": toml.changes(hold.settings, settings),
        "d": curvature.layout.dim,
        "n": curvature.n,
        "mean_loss": curvature.mean_loss,
        "gradient_norm": None if curvature.gradient is None else float(curvature.gradient.norm()),
        "notes": list(curvature.notes),
        "excluded": 0 if places is None else len(digests) - len(places),
        "seconds": time.perf_counter() - started,
        "versions": versions(),
    }
    hold.begin()
    if first is None:
        Membership.save(hold.folder.path / SAMPLES, digests)
    details |= {"samples": len(digests) if first is None else first.details["samples"]}
    details |= {"samples_file": files.sha256(hold.folder.path / SAMPLES)}
    return hold.advance("fitted", None, details, lambda folder: write_same_weights(folder, state, curvature))


PLANNED = ("rows", "rows_per_batch", "structure", "blocks", "rank", "parameters", "dtype", "memory_budget")


def _choices(settings: Settings) -> dict[str, Any]:
    chosen = {name: getattr(settings.fit, name) for name in PLANNED}
    dtype = settings.fit.dtype
    return {**chosen, "parameters": parameters_of(settings), "dtype": dtype and getattr(torch, dtype)}


def parameters_of(settings: Settings) -> str | list[str]:
    """ "all", "head", or names; one name alone may stand without a list."""
    chosen = settings.fit.parameters
    return chosen if isinstance(chosen, list) or chosen in ("all", "head") else [chosen]


def about(curvature: Curvature) -> dict[str, Any]:
    """What an entry says of a curvature."""
    blocks = getattr(curvature.structure, "blocks", ())
    return {
        "structure": curvature.structure.kind,
        "blocks": len(blocks),
        "rows": curvature.kind.name,
        "rows_per_batch": curvature.kind.per_batch,
        "seed": curvature.kind.seed,
        "loss": curvature.loss,
        "parameters": list(curvature.layout.names),
        "damping": curvature.damping,
        "weight_decay": curvature.weight_decay,
    }


def write_state(folder: Path, model: nn.Module, curvature: Curvature | None) -> None:
    write_weights(folder / WEIGHTS, weights_of(model))
    if curvature is not None:
        curvature.save(folder / CURVATURE)


def write_same_weights(folder: Path, old: Path, curvature: Curvature) -> None:
    """The file itself under another name, not a copy: a later request has one place to erase them from."""
    try:
        os.link(old / WEIGHTS, folder / WEIGHTS)
    except OSError:  # not on every disk
        shutil.copyfile(old / WEIGHTS, folder / WEIGHTS)
    curvature.save(folder / CURVATURE)


def salt_of(ledger: Ledger) -> bytes:
    created = ledger.first("created")
    assert created is not None
    return bytes.fromhex(created.details["salt"])


def _calibrated_scale(hold: Hold) -> float | None:
    """ε in force until now: it was of the old curvature."""
    chosen, fitted = hold.ledger.last("calibrated"), hold.ledger.last("fitted")
    stands = chosen is not None and fitted is not None and chosen.seq > fitted.seq
    return chosen.details["scale"] if stands and chosen is not None else None


def of_model(settings: Settings) -> dict[str, Any]:
    """What makes the function that the weights are of."""
    return settings.model.model_dump(mode="json", include={"factory", "arguments", "loss"})


def places_that_stay(hold: Hold, digests: np.ndarray) -> np.ndarray:
    return Membership.load(hold.folder.path / SAMPLES).remaining(digests, hold.ledger.erased_samples())


def untouched(model: nn.Module, curvature: Curvature) -> int:
    """Parameters of the model that no request can change."""
    inside = set(curvature.layout.names)
    return sum(p.numel() for name, p in model.named_parameters() if name not in inside)
