"""Workspaces of scikit-learn's estimators: `ssse.sklearn.Eraser` behind the same commands."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ssse.erasure.health import Health, Seen, ruin, staying, worsening
from ssse.errors import BrokenArtefact, InvalidData, InvalidModel, InvalidSetting, Refused, SSSEError
from ssse.intake.estimators import is_words, name_of, read_estimator, write_arrays
from ssse.intake.messages import cause, listing
from ssse.intake.skops import write_skops
from ssse.intake.sources import Batches, Source
from ssse.problem.batches import named_inputs
from ssse.sklearn.composition import decompose
from ssse.sklearn.eraser import Eraser
from ssse.sklearn.outcome import LARGE_CORRECTION, Outcome
from ssse.system.progress import track
from ssse.verdict import Bound
from ssse.workspace.engines.data import UserData
from ssse.workspace.engines.engine import Asked, Engine, ErasedModel, Say
from ssse.workspace.engines.sklearn_outputs import Coded, Outputs, classes_of
from ssse.workspace.record.folder import SKOPS, WEIGHTS
from ssse.workspace.settings import Fit, Model, Settings

TRIED = 8  # samples that show whether model and data fit together
HOLDS = "gradients and curvature at the model, summed over all training samples"
HOLDS_AFTER_ERASURE = "sums over the samples, from which the forgotten ones were subtracted"
RUINED = (
    "A model that answers so cannot be what a refit would give. Were these samples in its training data in this form?"
)
NOT_AT_ITS_MINIMUM = (
    "The estimator is not at the minimum of its objective on this data: every request will correct for that too, and "
    "none will be vouched for. Was it trained on exactly this data, without sample weights?"
)
OWN = "the step is Newton's on the estimator's own objective"


class SklearnEngine(Engine):
    """Estimators of scikit-learn, by `ssse.sklearn.Eraser`."""

    name: ClassVar[Literal["torch", "sklearn"]] = "sklearn"

    def __init__(self, user_data: UserData):
        super().__init__(user_data)
        check_settings(self.settings)
        user_data.in_tables = torch.float64  # as scikit-learn reads them

    @property
    def file(self) -> str:
        return SKOPS if self.settings.model.factory is None else WEIGHTS

    # ------------------------------------------------------------------------------------------- the model

    def read(self, path: Path) -> Any:
        chosen = self.settings.model
        return read_estimator(path, chosen.factory, chosen.arguments, self.settings.data.classes)

    def write(self, folder: Path, model: Any) -> None:
        if self.file == SKOPS:
            write_skops(folder / SKOPS, model)
        else:
            write_arrays(folder / WEIGHTS, model, self.settings.data.classes)

    def take_over(self, model: Any) -> None:
        """The names of its classes, in its order: labels are read by them."""
        words = [part.tolist() for part in classes_of(model) if is_words(part)]
        if not words:
            return
        if len(classes_of(model)) > 1:
            raise InvalidModel("Several outputs whose classes are words cannot be read from data; number the classes.")
        if not all(isinstance(one, str) for one in words[0]):
            raise InvalidModel(f"The classes must be numbers or texts; they are {listing(words[0], 5)}.")
        named = self.settings.data.classes
        if named and named != words[0]:
            raise InvalidSetting(
                f"[data] classes are {listing(named, 5)}, and the model's are {listing(words[0], 5)}, in that order. "
                "Leave the setting out."
            )
        self.user_data.settings = self.settings.with_options({"data.classes": words[0]})
        self.settings: Settings = self.user_data.settings

    def try_out(self, model: Any, source: Source) -> None:
        self._check_columns(model, source)
        x, y = self._first(source, TRIED)
        shape = x.shape
        try:
            with _quiet():
                labels = self._labels(model, y)
                if source is self.user_data.test and classes_of(model) and y.ndim == 1:
                    labels = labels[np.isin(labels, classes_of(model)[0])]  # classes may be erased since it was drawn
                if len(labels):
                    decompose(model)[1].columns(labels)
                model.predict(x)
        except SSSEError as error:
            raise InvalidData(f"'{source.name}': {error}") from error
        except Exception as error:
            if not np.isfinite(x).all():  # an imputer would have taken it
                raise InvalidData(
                    f"'{source.name}' holds NaN or infinity in its inputs, which the model does not take. Repair those "
                    "values, or leave the samples out."
                ) from error
            raise InvalidModel(
                f"The model cannot be run on '{source.name}', whose inputs have the shape {shape}: {cause(error)}."
            ) from error

    def look(self, model: Any) -> dict[str, Any]:
        source = self.user_data.train
        self.try_out(model, source)
        x, y = self._first(source, self.settings.data.batch_size)
        with _quiet():
            score = float(model.score(x, self._labels(model, y)))
        parameters, outputs = _size(model)
        return {
            "model": name_of(model),
            "parameters": parameters,
            "in_theta": parameters,
            "samples": len(source),
            "has_ids": source.ids is not None,
            "outputs": outputs,
            "linear": True,
            "classifies": bool(classes_of(model)),
            "score": score if math.isfinite(score) else None,
            "first": len(y),
            "guessing": _score_of_guessing(model, y),
        }

    def about(self, model: Any) -> dict[str, Any]:
        steps = [step for _, step in getattr(decompose(model)[0], "steps", ())]
        return {
            "factory": name_of(model),
            "parameters": _size(model)[0],
            "classes": [part.tolist() for part in classes_of(model)],
            "transformers": [type(step).__name__ for step in steps if hasattr(step, "transform")],
        }

    # ------------------------------------------------------------------------------------------- its sums

    def fit(
        self,
        model: Any,
        data: Batches,
        room: Callable[[int], None],
        say: Say,
        checkpoint: Path | None = None,
    ) -> tuple[Eraser, dict[str, Any]]:
        self._check_columns(model, self.user_data.train)
        x, y = self._samples(data, "reading")
        budget, policy = self.settings.fit.memory_budget, self.settings.erase.policy
        started = time.perf_counter()
        eraser = Eraser(model, policy=policy, memory_budget=budget, progress=self.user_data.progress)
        with _quiet():
            eraser.fit(x, self._labels(model, y))
        sums = eraser.sums_
        doubts = [NOT_AT_ITS_MINIMUM] if sums.correction > LARGE_CORRECTION else []
        room(sum(sum(g.nbytes for g in one.loss_sums.grams) + 8 * one.theta.size**2 for one in sums.all_quadratics))
        return eraser, {
            **_about(eraser),
            "holds": HOLDS,
            "d": int(sums.parameters().size),
            "n": sums.samples,
            "mean_loss": None,
            "gradient_norm": None,
            "correction": _finite(sums.correction),
            "distance_bound": _finite(eraser.distance_bound_),
            "notes": doubts,
            "doubts": doubts,
            "seconds": time.perf_counter() - started,
        }

    def load(self, folder: Path, model: Any) -> Eraser:
        return Eraser.load(folder, model, verify=False)

    def has_moved(self, curvature: Eraser) -> bool:
        """Least squares has one curvature, wherever the model is; a joint stream's is of where it began."""
        return curvature.sums_.erased > 0 and self.settings.erase.policy != "joint" and not curvature.sums_.exact

    # ------------------------------------------------------------------------------------------- requests

    def check_request(self, model: Any, curvature: Eraser) -> Any:
        """All is in the settings, and `load` has compared the model."""
        return model

    def erase(self, checked: Any, curvature: Eraser, asked: Asked) -> ErasedModel:
        """A step that is too long, the eraser refuses, whatever is overridden; one that ruins the probe, we do."""
        x, y = self._samples(self.user_data.batches(asked.source, asked.places))
        curvature.policy = self.settings.erase.policy
        with _quiet():
            new = curvature.erase(x, self._labels(checked, y), override=asked.override)
        outcome = curvature.outcome_
        assert outcome is not None
        if asked.probe is not None:
            outcome = self._probed(outcome, checked, new, y, asked)
        details = {
            **_about(curvature),
            "k": outcome.k,
            "n": outcome.n,
            "holds": HOLDS_AFTER_ERASURE,
            "keeps_remainder": True,
            "scale": outcome.share,
            "distance_bound": _finite(outcome.distance_bound),
            "gradient_bound": _finite(outcome.gradient_bound),
            "exact": outcome.exact,
        }
        return ErasedModel(new, curvature, outcome, details)

    def _probed(self, outcome: Outcome, old: Any, new: Any, forgotten: np.ndarray, asked: Asked) -> Outcome:
        """With what the probe says of both models."""
        assert asked.probe is not None
        x, y = self._samples(asked.probe)
        classifies = bool(classes_of(old))
        if classifies and y.ndim == 1:  # of a class that an earlier request took away, nothing should keep working
            known = np.isin(self._labels(old, y), classes_of(old)[0])
            if not known.any():
                return replace(outcome, notes=(*outcome.notes, "The test data has only classes that were erased."))
            x, y = x[known], y[known]
        labels = self._labels(old, y)
        with _quiet():
            answers = [np.asarray(model.predict(x)).reshape(labels.shape) for model in (old, new)]
        count, guessing = np.ones(len(y), dtype=bool), None
        if not classifies:
            guessing = 0.5 * float(y.reshape(len(y), -1).astype(np.float64).var(0).sum())
        elif y.ndim == 1:
            count = staying(y, forgotten, outcome.n)
        seen = []
        for answer in answers:
            apart = (answer == labels if classifies else 0.5 * (answer - labels) ** 2).reshape(len(y), -1)[count]
            seen.append(Seen(None, apart.mean(1)) if classifies else Seen(apart.sum(1), None))
        health = Health(seen[0], seen[1], guessing)
        outcome = replace(outcome, **health.numbers())
        if refusal := ruin(health):
            return self._ruined(outcome, " ".join(refusal), asked.override)
        worse = worsening(health)
        judged = outcome.judged([*outcome.reasons, *worse])
        return replace(judged, probe_worse=bool(worse))

    def _ruined(self, outcome: Outcome, why: str, override: Collection[str]) -> Outcome:
        """`outcome` may have other bounds overridden already."""
        also: dict[Bound, str] = {**dict.fromkeys(outcome.overridden, ""), "probe": why}
        if "probe" not in override:
            raise Refused(outcome.breaking(also).refused(why, RUINED))
        taken = replace(outcome, verdict="caution", reasons=(f"Overridden (probe): {why}", *outcome.reasons))
        return replace(taken.breaking(also), overridden=taken.breaking(also).broken, probe_worse=True)

    def check_same(self, made: Any, read: Any, first: Batches) -> None:
        x, _ = self._samples(first)
        with _quiet():
            wanted, found = (np.asarray(model.predict(x)) for model in (made, read))
        parameters = [
            [np.concatenate([np.ravel(one.estimator.coef_), np.ravel(one.estimator.intercept_)]) for one in adapters]
            for adapters in (decompose(model)[1].adapters for model in (made, read))
        ]
        if len(parameters[0]) != len(parameters[1]) or not all(map(np.array_equal, *parameters)):
            raise BrokenArtefact("its coefficients are others.")
        if not np.array_equal(wanted, found):
            raise BrokenArtefact("it answers otherwise.")

    def numbers(self, model: Any) -> np.ndarray:
        parts = [(one.estimator.coef_, one.estimator.intercept_) for one in decompose(model)[1].adapters]
        return np.concatenate([np.ravel(part).astype(np.float64) for pair in parts for part in pair])

    def check_curvature(self, folder: Path, read: Any) -> None:
        Eraser.load(folder, read)

    # ------------------------------------------------------------------------------------------- evaluation

    def module(self, model: Any, created: Mapping[str, Any]) -> nn.Module:
        return Outputs(model, created["classes"])

    def labelled(self, data: Batches, created: Mapping[str, Any]) -> Iterable[Any]:
        return Coded(data, created["classes"], self.settings.data.classes)

    def class_names(self, created: Mapping[str, Any]) -> Sequence[str]:
        return [str(one) for one in created["classes"][0]] if len(created["classes"]) == 1 else []

    def objective(self, fitted: Mapping[str, Any]) -> dict[str, Any]:
        """An estimator spares its intercept and weighs its classes, which (1/n) Σ ℓ + (w/2)‖θ‖² does not."""
        return {}

    # ------------------------------------------------------------------------------------------- samples

    def _first(self, source: Source, size: int) -> tuple[np.ndarray, np.ndarray]:
        return self._samples(source.batches(np.arange(min(size, len(source))), size))

    def _samples(self, data: Batches, text: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """All of them, in memory, as scikit-learn takes them."""
        parts: list[tuple[Tensor, Tensor]] = []
        for x, y in track(data, len(data.sampler), text or "", bool(text) and self.user_data.progress):
            if not isinstance(x, Tensor):
                raise InvalidData(
                    f"scikit-learn takes one array of inputs, not {listing(named_inputs(x))}. Set [data] inputs."
                )
            if not isinstance(y, Tensor):
                raise InvalidData("The samples come with weights, which a workspace of scikit-learn's does not take.")
            parts.append((x, y))
        return torch.cat([x for x, _ in parts]).numpy(), torch.cat([y for _, y in parts]).numpy()

    def _labels(self, model: Any, y: np.ndarray) -> np.ndarray:
        """As the model knows them: where those are words, the source has their places among the names."""
        if any(is_words(part) for part in classes_of(model)):
            return np.array(self.settings.data.classes)[y]
        return y

    def _check_columns(self, model: Any, source: Source) -> None:
        """An estimator that was fitted to a table knows the names of its columns, which must come in that order."""
        known = [str(name) for name in getattr(model, "feature_names_in_", ())]
        if known and source.columns and known != list(source.columns):
            raise InvalidData(
                f"'{source.name}' has the columns {listing(source.columns, 5)}, and the model was fitted to "
                f"{listing(known, 5)}. Name those in [data] inputs, in that order."
            )


def check_settings(settings: Settings) -> None:
    """Of a torch module's settings most mean nothing here, and one that was set was meant to do something."""
    usual, chosen, erase = Fit(), settings.fit, settings.erase
    for name in Fit.model_fields:
        if name != "memory_budget" and getattr(chosen, name) != getattr(usual, name):
            raise InvalidSetting(f"fit.{name} means nothing for a scikit-learn model: {OWN}. Leave it out.")
    if settings.model.loss != Model().loss:
        raise InvalidSetting(f"model.loss means nothing for a scikit-learn model: {OWN}. Leave it out.")
    if settings.model.device not in ("auto", "cpu"):
        raise InvalidSetting(f"scikit-learn models are computed with on the CPU, not on '{settings.model.device}'.")
    if settings.model.factory is None and settings.model.arguments:
        raise InvalidSetting("model.arguments are in the skops file already: leave them out.")
    if erase.scale not in (None, 1.0):
        raise InvalidSetting(f"erase.scale must be 1 for a scikit-learn model: {OWN}, and that is how far it goes.")
    if not erase.leave_out:
        raise InvalidSetting(f"erase.leave_out must be true for a scikit-learn model: {OWN} over what stays.")
    if erase.residual:
        raise InvalidSetting(f"erase.residual must be false for a scikit-learn model: {OWN}, its residual included.")


def _about(eraser: Eraser) -> dict[str, Any]:
    quadratics = eraser.sums_.all_quadratics
    return {
        "structure": "dense",
        "blocks": len(quadratics),
        "rows": "expected",
        "loss": ", ".join(dict.fromkeys(one.loss.name for one in quadratics)),
        "damping": None,
        "exact": eraser.sums_.exact,
    }


def _size(model: Any) -> tuple[int, int]:
    """Its coefficients and intercepts; and how many outputs they have."""
    models = [adapter.estimator for adapter in decompose(model)[1].adapters]
    outputs = sum(len(np.atleast_2d(model.coef_)) for model in models)
    return sum(np.size(model.coef_) for model in models) + outputs * bool(models[0].fit_intercept), outputs


def _score_of_guessing(model: Any, y: np.ndarray) -> float | None:
    """Of always saying the most frequent class, or the mean."""
    if not classes_of(model):
        return 0.0
    return float(np.unique(y, return_counts=True)[1].max() / len(y)) if y.ndim == 1 else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Warnings about names of columns, which arrays do not have, and of arithmetic that the verdict speaks of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
