"""Workspaces of torch modules: read, fitted, erased from and compared as the rest of the library does it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ssse.curvature.choices import Choice, StructureName, named_choice
from ssse.curvature.curvature import Curvature
from ssse.curvature.estimates import Plan
from ssse.erasure.erase import erase_from
from ssse.erasure.repair import UNCHECKED, Repair, repair
from ssse.erasure.request import check_settings, matching_loss, matching_view
from ssse.erasure.stages import showing
from ssse.errors import BrokenArtefact, DoubtfulSetting, InvalidData, InvalidModel, InvalidSetting, SSSEError
from ssse.intake.importing import import_object
from ssse.intake.messages import cause
from ssse.intake.models import build_model, load_weights, read_weights, weights_of, write_weights
from ssse.intake.sources import Batches, Source
from ssse.problem.batches import named_inputs, read_batch
from ssse.problem.binding import bind_loss
from ssse.problem.losses import LossLike, as_loss, total_loss
from ssse.problem.problem import Problem
from ssse.problem.training_mode import refuse_training_mode
from ssse.problem.view import ModelView, flat_outputs
from ssse.system.digests import digest_tensor
from ssse.workspace.engines.engine import Asked, Engine, ErasedModel, Say
from ssse.workspace.record.folder import WEIGHTS
from ssse.workspace.settings import Fit

TRIED = 8  # samples that show whether model, loss and data fit together
SAME_ANSWERS, COARSE = {torch.float64: 1e-9, torch.float32: 1e-4}, 1e-2  # of one model, computed twice
OPTIONS = ("rank", "preconditioner", "tolerance", "max_iterations")  # of one structure each


class TorchEngine(Engine):
    """Modules of torch, by `ssse.Curvature` and `ssse.erase`."""

    name: ClassVar[Literal["torch", "sklearn"]] = "torch"

    @property
    def file(self) -> str:
        return WEIGHTS

    @cached_property
    def device(self) -> torch.device:
        return device_named(self.settings.model.device)

    @cached_property
    def loss(self) -> LossLike:
        name = self.settings.model.loss
        if ":" in name:
            function = import_object(name, self.user_data.search, "loss")
            if not callable(function):
                raise InvalidSetting(f"The loss '{name}' is a {type(function).__name__}, not a function of (z, y).")
            return cast(LossLike, function)
        as_loss(name)  # an unknown name is refused before the data is read
        return name

    def read(self, path: Path) -> nn.Module:
        settings = self.settings.model
        assert settings.factory is not None
        model = build_model(settings.factory, settings.arguments, self.user_data.search)
        model = load_weights(model, read_weights(path), str(path)).to(self.device)
        self.user_data.dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
        return model

    def write(self, folder: Path, model: nn.Module) -> None:
        write_weights(folder / WEIGHTS, weights_of(model))

    def try_out(self, model: nn.Module, source: Source) -> None:
        """Model and loss."""
        first = next(iter(source.batches(None, TRIED)), None)
        if first is None:
            raise InvalidData(f"'{source.name}' is empty.")
        x, y = read_batch(first, self.device)
        refuse_training_mode(model)
        try:
            with torch.no_grad():
                z = ModelView(model).outputs_of(x)
        except SSSEError:
            raise
        except Exception as error:
            several = {key: tuple(value.shape) for key, value in named_inputs(x).items()}
            shapes = several["x"] if isinstance(x, torch.Tensor) else several
            raise InvalidModel(
                f"The model cannot be run on '{source.name}', whose inputs have the shape {shapes}: {cause(error)}."
            ) from error
        try:
            total_loss(bind_loss(as_loss(self.loss), z, y), flat_outputs(z), y)
        except SSSEError:
            raise
        except Exception as error:
            raise InvalidModel(
                f"The loss '{self.settings.model.loss}' cannot be computed on '{source.name}', with outputs of the "
                f"shape {tuple(z.shape)} and labels of the shape {tuple(y.shape)}: {cause(error)}."
            ) from error

    def look(self, model: nn.Module) -> dict[str, Any]:
        """Model, loss and data on a first batch."""
        source = self.user_data.train
        self.try_out(model, source)
        x, y = read_batch(next(iter(self.user_data.batches(source))), self.device)
        problem = Problem(model, self.loss, self.settings.fit.parameters, (x, y))
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

    def about(self, model: nn.Module) -> dict[str, Any]:
        return {
            "factory": self.settings.model.factory,
            "parameters": sum(p.numel() for p in model.parameters()),
            "batch_norm": any(isinstance(module, _BatchNorm) for module in model.modules()),
        }

    def check_fit(self) -> None:
        _structure(self.settings.fit)  # an option of another structure is refused before the data is read
        if not (self.settings.fit.damping or self.settings.fit.weight_decay):
            raise InvalidSetting(
                "Without weight decay the curvature needs a damping λ, or it is singular. Set the weight_decay that "
                "the model was trained with under [fit] in ssse.toml, or give --damping, for instance 1e-4."
            )

    def fit(
        self,
        model: nn.Module,
        data: Batches,
        room: Callable[[int], None],
        say: Say,
        checkpoint: Path | None = None,
    ) -> tuple[Curvature, dict[str, Any]]:
        chosen, started = self.settings.fit, 0.0
        gone = len(self.user_data.train) - len(data.sampler)  # erased before, and left out here

        def announce(planned: Plan) -> None:
            nonlocal started
            say(f"Chosen: {planned}. Why: {planned.reason}.")
            room(planned.stored_bytes)
            started = time.perf_counter()

        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", DoubtfulSetting)  # told by whoever shows the entry
            curvature = Curvature.fit(
                model, self.loss, data, damping=chosen.damping, weight_decay=chosen.weight_decay, rows=chosen.rows,
                rows_per_batch=chosen.rows_per_batch, structure=_structure(chosen), blocks=chosen.blocks,
                parameters=self.settings.fit.parameters, dtype=chosen.dtype and getattr(torch, chosen.dtype),
                memory_budget=chosen.memory_budget, seed=chosen.seed, progress=self.user_data.progress,
                n=chosen.n and chosen.n - gone, on_plan=announce, checkpoint=checkpoint,
            )  # fmt: skip
        norm = None if curvature.gradient is None else float(curvature.gradient.norm())
        if norm is not None and not math.isfinite(norm):
            raise InvalidSetting(
                f"With a weight decay of {chosen.weight_decay:.3g} the gradient of the training objective is beyond "
                "all numbers: that is not what the model was trained with."
            )
        return curvature, {
            **about(curvature),
            "holds": curvature.structure.holds,
            "d": curvature.layout.dim,
            "n": curvature.n,
            "mean_loss": curvature.mean_loss,
            "gradient_norm": norm,
            "plan": {"chosen": curvature.chosen, "why": curvature.reason},
            "notes": list(curvature.notes),
            "doubts": [str(one.message) for one in heard if issubclass(one.category, DoubtfulSetting)],
            "seconds": time.perf_counter() - started,
        }

    def load(self, folder: Path, model: nn.Module) -> Curvature:
        return Curvature.load(folder, verify=False, device=self.device)

    def has_moved(self, curvature: Curvature) -> bool:
        """A joint stream's rows are all of the θ that it began at."""
        return curvature.erased > 0 and curvature.joint is None

    def measured_scale(self, curvature: Curvature) -> dict[str, Any] | None:
        found = curvature.calibrated
        return None if found is None else {"damping": curvature.damping, **asdict(found)}

    def with_measured_scale(self, curvature: Curvature, measured: Mapping[str, Any]) -> Curvature:
        found = dict(measured)
        return curvature.with_damping(found.pop("damping")).with_scale(**found)

    def check_request(self, model: nn.Module, curvature: Curvature) -> ModelView:
        check_settings(curvature, **self._options())
        matching_loss(curvature, self.loss)
        return matching_view(model, curvature)

    def training_data(self, curvature: Curvature, places: Callable[[], np.ndarray]) -> Any:
        """Only conjugate gradients read it; what earlier requests erased must not come back."""
        if not curvature.structure.reads_data:
            return None
        if self.settings.erase.policy == "joint" and not self.settings.erase.leave_out:
            raise InvalidSetting(
                "structure matrix_free with policy joint and leave_out = false would need the data as it was before "
                "the stream. Set leave_out = true, or the policy rebase."
            )
        return self.user_data.batches(self.user_data.train, places())

    def erase(self, checked: ModelView, curvature: Curvature, asked: Asked) -> ErasedModel:
        batches = self.user_data.batches(asked.source, asked.places)
        how = {**self._options(), "data": asked.data, "probe": asked.probe, "override": asked.override}
        with showing(self.user_data.progress) as stages:
            erasure = erase_from(checked, curvature, self.loss, batches, **how, stages=stages)
        diagnostics, calibrated = erasure.diagnostics, curvature.calibrated
        after = None if curvature.kind.per_batch > 1 else erasure.curvature
        structure = curvature.structure if after is None else after.structure
        details = {
            **about(curvature),
            "k": diagnostics.k,
            "n": diagnostics.n,
            "holds": structure.holds_after_erasure,
            "keeps_remainder": structure.keeps_remainder,
            "scale": diagnostics.scale,
            "scale_source": calibrated.source if self.settings.erase.scale is None and calibrated else None,
            "damping": diagnostics.damping,
            "seeds": {"rows": curvature.kind.seed},
            "untouched": _untouched(checked.working.inner, curvature),
        }
        return ErasedModel(erasure.model, after, diagnostics, details)

    def check_repair(self) -> None:
        """Any network can be."""

    def repair(
        self, model: nn.Module, data: Batches, probe: Batches | None, original: Any, how: Mapping[str, Any]
    ) -> Repair:
        """The workspace has made sure, by its own digests, that nothing forgotten is among the data."""
        done = repair(
            model, data, self.loss, forget=None, probe=probe, original=original,
            progress=self.user_data.progress, **how,
        )  # fmt: skip
        return replace(done, notes=tuple(note for note in done.notes if note != UNCHECKED))

    def check_same(self, made: nn.Module, read: nn.Module, first: Batches) -> None:
        ours, theirs = weights_of(made), weights_of(read)
        for name, value in ours.items():
            if name not in theirs or digest_tensor(value) != digest_tensor(theirs[name]):
                raise BrokenArtefact(f"'{name}' is another.")
        x, _ = read_batch(next(iter(first)), self.device)
        with torch.no_grad():
            wanted, found = (ModelView(model).outputs_of(x) for model in (made, read))
        scale = float(wanted.abs().max()) + torch.finfo(wanted.dtype).tiny
        if not float((found - wanted).abs().max()) <= SAME_ANSWERS.get(wanted.dtype, COARSE) * scale:
            raise BrokenArtefact("it answers otherwise.")

    def numbers(self, model: nn.Module) -> np.ndarray:
        parts = [value.detach().cpu().double().flatten() for _, value in sorted(weights_of(model).items())]
        return torch.cat(parts).numpy()

    def check_curvature(self, folder: Path, read: nn.Module) -> None:
        curvature = Curvature.load(folder)  # on the CPU, where its files are mapped: a second one need not fit the GPU
        curvature.fingerprint.check(ModelView(read, curvature.layout.names))

    def _options(self) -> dict[str, Any]:
        chosen = self.settings.erase
        return {
            "scale": chosen.scale,
            "leave_out": chosen.leave_out,
            "residual": chosen.residual,
            "policy": chosen.policy,
        }

    def module(self, model: nn.Module, created: Mapping[str, Any]) -> nn.Module:
        return model

    def labelled(self, data: Batches, created: Mapping[str, Any]) -> Iterable[Any]:
        return data

    def class_names(self, created: Mapping[str, Any]) -> Sequence[str]:
        return self.settings.data.classes

    def objective(self, fitted: Mapping[str, Any]) -> dict[str, Any]:
        """What the settings say now may not be in force yet."""
        return {
            "loss_fn": self.loss,
            "weight_decay": fitted["weight_decay"],
            "parameters": fitted["parameters"],
        }


def about(curvature: Curvature) -> dict[str, Any]:
    """What an entry says of a curvature."""
    return {
        "structure": curvature.structure.kind,
        "blocks": len(curvature.structure.blocks),
        "rows": curvature.kind.name,
        "rows_per_batch": curvature.kind.per_batch,
        "seed": curvature.kind.seed,
        "loss": curvature.loss,
        "parameters": list(curvature.layout.names),
        "damping": curvature.damping,
        "weight_decay": curvature.weight_decay,
    }


def _structure(chosen: Fit) -> StructureName | Choice:
    """With those of its options that are not the usual ones."""
    usual = Fit()
    options = {name: getattr(chosen, name) for name in OPTIONS if getattr(chosen, name) != getattr(usual, name)}
    return named_choice(chosen.structure, options)


def _loss_of_guessing(problem: Problem) -> float | None:
    """A trained model that does no better is not the one that was trained on these labels."""
    match problem.loss.name:
        case "cross_entropy":
            return math.log(max(problem.outputs, 1))
        case "binary_cross_entropy":
            return math.log(2) * problem.outputs
    return None


def _untouched(model: nn.Module, curvature: Curvature) -> int:
    """Parameters of the model that no request can change."""
    inside = set(curvature.layout.names)
    return sum(p.numel() for name, p in model.named_parameters() if name not in inside)


def device_named(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()  # also "meta" is a device, without any numbers
    except Exception as error:  # torch raises nearly anything, by the name
        raise InvalidSetting(f"There is no device '{name}' here: {cause(error)}.") from None
    return device
