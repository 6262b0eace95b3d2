"""`ssse evaluate`: the current model beside the original and the retrained ones, on the four splits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ssse.errors import BrokenArtefact, InvalidData, InvalidSetting
from ssse.evaluation.evaluate import evaluate as evaluate_models
from ssse.evaluation.table import Evaluation
from ssse.intake.sources import Source
from ssse.workspace.engines.choice import engine_for
from ssse.workspace.engines.data import UserData
from ssse.workspace.engines.engine import Engine
from ssse.workspace.record.folder import MAKERS, SAMPLES, model_file
from ssse.workspace.record.membership import Membership, places_among
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.results import Evaluated
from ssse.workspace.settings import LARGEST, Settings

Split = Iterable[Any]  # read as often as needed, never held whole


def evaluate(
    transaction: Transaction,
    settings: Settings,
    *,
    test: str | None = None,
    retrained: Sequence[Path] = (),
    original: Path | None = None,
    forget: str | None = None,
    requests: Sequence[str] = (),
    resurfacing: bool = False,
    progress: bool = False,
) -> Evaluated:
    """Everything that was erased, or by some requests, is S. What is no longer in the data must be handed in."""
    user_data = UserData(settings, transaction.folder.path, progress)
    engine, current = engine_for(user_data), transaction.current
    model = engine.read_state(transaction.folder.state(current), current.details["files"])
    of = _requests(transaction, requests)
    view = _View(engine, _of_first_model(transaction))
    fitted = transaction.ledger.last_in_force("fitted")
    if fitted is None:
        raise BrokenArtefact(
            f"'{transaction.folder.ledger}' is damaged: requests were answered, and nothing was fitted."
        )
    objective = engine.objective(fitted.details)
    if resurfacing and "loss_fn" not in objective:
        raise InvalidSetting(
            "Whether something comes back while a model is trained on is a question about networks: an estimator of "
            "scikit-learn is fitted to the end, wherever it began. Leave --resurfacing out."
        )
    notes = _also_forgotten(transaction, of)
    splits = _training_splits(view, transaction, of, forget, notes)
    source = user_data.test if test is None else user_data.file(test)
    if source is not None:
        engine.try_out(model, source)
        splits |= _test_splits(view, source, splits["forgotten"], settings, notes)
    else:
        notes.append("No test data was given: nothing is known of samples that were never trained on.")
    models: dict[str, nn.Module | list[nn.Module]] = {}
    before = _original(engine, transaction, of, original)
    if before is not None:
        models["original"] = view.module(before)
    models["erased"] = view.module(model)
    if retrained:
        models["retrained"] = [view.module(engine.read(path)) for path in retrained]
    table = evaluate_models(
        models,
        splits,
        **objective,
        level=settings.evaluate.level,
        resurfacing=resurfacing,
        progress=progress,
    )
    _check_finite(table)
    details = {"table": table.to_dict(), "of": of, "notes": notes, "after": current.details["after"]}
    transaction.begin()
    return Evaluated(transaction.ledger.append("evaluated", None, details), table)


def _check_finite(table: Evaluation) -> None:
    """Of weights that are finite and far too large. Neither the ledger nor JSON holds an infinity."""
    for measure in table.measures:
        for name, cell in table.cells[measure.key].items():
            if not all(math.isfinite(value) for value in (cell.value or 0.0, cell.spread or 0.0)):
                raise InvalidData(
                    f"'{measure.title}' of the model '{name}' is no finite number: its outputs, or those of the model "
                    "that it is compared with, are too large. Are these weights of this model?"
                )


def _requests(transaction: Transaction, asked: Sequence[str]) -> list[str]:
    erased = transaction.ledger.requests("erased")
    if not erased:
        raise InvalidSetting("Nothing was erased yet, so there is nothing to evaluate: run `ssse erase` first.")
    for request in asked:
        if request not in erased:
            raise InvalidSetting(f"Request '{request}' erased nothing; those that did: {', '.join(erased[:5])}.")
    return list(dict.fromkeys(asked)) or erased


def _also_forgotten(transaction: Transaction, of: list[str]) -> list[str]:
    """The model is the one after all requests; a retrained one may only have forgotten some."""
    others = len(_requests(transaction, [])) - len(of)
    which = "one other request" if others == 1 else f"{others} other requests"
    return [f"The current model has also forgotten the samples of {which}."] if others else []


@dataclass(frozen=True)
class _View:
    """Models and samples as `ssse.evaluate` takes them. `created`: what the ledger says of the first model."""

    engine: Engine
    created: Mapping[str, Any]

    def module(self, model: Any) -> nn.Module:
        return self.engine.module(model, self.created)

    def batches(self, source: Source, places: np.ndarray | None = None) -> Split:
        return self.engine.labelled(self.engine.user_data.batches(source, places), self.created)

    def places_of(self, name: str | int) -> int:
        names = self.engine.class_names(self.created)
        return names.index(str(name)) if str(name) in names else int(name)


def _of_first_model(transaction: Transaction) -> Mapping[str, Any]:
    return transaction.ledger.created.details["model"]


def _training_splits(
    view: _View, transaction: Transaction, of: list[str], forget: str | None, notes: list[str]
) -> dict[str, Split]:
    user_data = view.engine.user_data
    digests = user_data.digests(user_data.train, transaction.ledger.salt, text="digests")
    known = Membership.load(transaction.folder.path / SAMPLES)
    stays = known.remaining(digests, transaction.ledger.erased_samples())
    wanted = transaction.ledger.erased_samples(of)
    if forget is not None:
        source, places = user_data.file(forget), None
        given = Counter(user_data.digests(source, transaction.ledger.salt).tolist())
        if unknown := (given - wanted).total():
            raise InvalidData(
                f"{unknown} of the {given.total()} samples of '{forget}' were not erased by these requests, or not "
                "that often."
            )
    else:
        source = user_data.train
        gone = np.setdiff1d(np.arange(len(digests)), stays)  # a copy that stays is no measure of one that went
        places = gone[places_among(digests[gone], wanted)]
        if not len(places):
            raise InvalidData(
                "The erased samples are no longer in the training data. To measure on them, hand them in with --forget."
            )
        given = Counter(digests[places].tolist())
    if lacking := (wanted - given).total():
        notes.append(f"{lacking} of the {wanted.total()} erased samples are not there to measure on.")
    return {
        "retained": view.batches(user_data.train, stays),
        "forgotten": view.batches(source, places),
    }


def _test_splits(
    view: _View, source: Source, forgotten: Split, settings: Settings, notes: list[str]
) -> dict[str, Split]:
    """T_a and the rest where S is of one kind: one class, or what the settings name."""
    same = _kind(view, forgotten, settings)
    if same is None:
        notes.append("The erased samples are of several kinds, so the test samples stay together.")
        return {"test": view.batches(source)}
    labels = torch.cat([torch.as_tensor(y) for _, y in view.batches(source)])
    alike = (labels == same if labels.dim() == 1 else labels[:, same] > 0).numpy()
    if not alike.any() or alike.all():
        notes.append("The test data does not hold both samples of the erased kind and others, so it stays together.")
        return {"test": view.batches(source)}
    parts = {"test_other": np.flatnonzero(~alike), "test_same": np.flatnonzero(alike)}
    return {name: view.batches(source, places) for name, places in parts.items()}


def _kind(view: _View, forgotten: Split, settings: Settings) -> int | None:
    """A class, or the place of an attribute; None where S has no kind."""
    labels = torch.cat([torch.as_tensor(y) for _, y in forgotten])
    asked = settings.evaluate.same
    if asked == "none":
        return None
    if asked != "auto":
        try:
            place = view.places_of(asked)
            if abs(place) > LARGEST:
                raise ValueError
        except ValueError:
            raise InvalidSetting(
                f"evaluate.same is 'auto', 'none', a class or the place of an attribute, not '{str(asked)[:40]}'."
            ) from None
        if labels.dim() > 1 and not 0 <= place < labels.shape[1]:
            raise InvalidSetting(f"evaluate.same is {place}, and there are {labels.shape[1]} attributes.")
        return place
    one_class = labels.dim() == 1 and not labels.is_floating_point() and bool((labels == labels[0]).all())
    return int(labels[0]) if one_class else None


def _original(engine: Engine, transaction: Transaction, of: list[str], path: Path | None) -> Any:
    """The model before these requests: a file of the user's, or the state from then where it was kept."""
    if path is not None:
        return engine.read(path)
    first = min(
        entry.seq
        for request in of
        for entry in transaction.ledger.of_request(request)
        if entry.kind == "erased" and entry.seq not in transaction.ledger.reverted()
    )
    before = transaction.ledger.last_before(first, *MAKERS)
    if before is None or not (transaction.folder.state(before) / model_file(before.details["files"])).is_file():
        return None
    return engine.read_state(transaction.folder.state(before), before.details["files"])
