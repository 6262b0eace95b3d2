"""The user's things, as the settings name them: model with the current weights, loss, data; and their digests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ssse.batches import read_batch
from ssse.curvature import Curvature
from ssse.errors import BrokenArtefact, InvalidData, InvalidModel, InvalidSetting, SSSEError
from ssse.files import sha256
from ssse.intake.columns import Columns
from ssse.intake.importing import import_object, is_spec
from ssse.intake.models import build_model, load_weights, read_weights
from ssse.intake.sources import Source, open_source
from ssse.intake.wording import cause
from ssse.losses import LossLike, as_loss
from ssse.problem import Problem
from ssse.progress import track
from ssse.sampling import digest_samples
from ssse.workspace.folder import CURVATURE, WEIGHTS
from ssse.workspace.settings import Settings, absolute

TRIED = 8  # samples that show whether model, loss and data fit together


@dataclass
class Bench:
    """`home`: the workspace's folder, which the settings' paths are relative to."""

    settings: Settings
    home: Path
    progress: bool = False
    dtype: torch.dtype | None = None  # of floating inputs: the model's, as soon as there is one

    @cached_property
    def device(self) -> torch.device:
        return device_named(self.settings.model.device)

    @cached_property
    def search(self) -> Path:
        return absolute(self.settings.model.search, self.home)

    @cached_property
    def loss(self) -> LossLike:
        name = self.settings.model.loss
        if ":" in name:
            function = import_object(name, self.search, "loss")
            if not callable(function):
                raise InvalidSetting(f"The loss '{name}' is a {type(function).__name__}, not a function of (z, y).")
            return cast(LossLike, function)
        as_loss(name)  # an unknown name is refused before the data is read
        return name

    def model(self, weights: Path) -> nn.Module:
        settings = self.settings.model
        model = build_model(settings.factory, settings.arguments, self.search)
        model = load_weights(model, read_weights(weights), str(weights)).to(self.device)
        self.dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
        return model

    def source(self, where: str, ids_needed: bool = False) -> Source:
        """Data by its name; a path is seen from where the user is."""
        data = self.settings.data
        inputs = tuple(data.inputs) if isinstance(data.inputs, list) else data.inputs
        columns = Columns(inputs, data.labels, data.ids, tuple(data.classes), ids_needed)
        return open_source(where, columns, folder=Path.cwd(), dtype=self.dtype, search=self.search)

    @cached_property
    def train(self) -> Source:
        where = self.settings.data.train
        return self.source(where if is_spec(where) else str(absolute(where, self.home)), ids_needed=True)

    def batches(self, source: Source, places: np.ndarray | None = None) -> Iterable[Any]:
        return source.batches(places, self.settings.data.batch_size)

    def asked(self, forget: str | None, ids: Sequence[str] | None) -> tuple[Source, np.ndarray | None]:
        """The samples that a command names: a file, seen from where the user is, or ids of the training data."""
        if (forget is None) == (ids is None):
            raise InvalidSetting("Name the samples by a file (--forget) or by their ids (--ids), one of the two.")
        if isinstance(ids, str):
            raise InvalidSetting(f"ids is a list of ids, not the text {ids!r}.")
        if ids is not None:
            if not ids:
                raise InvalidData("--ids is empty; there is nothing to erase.")
            return self.train, self.train.places_of(ids)
        assert forget is not None
        return self.source(forget), None

    def unknown(self, ids: Sequence[str]) -> list[str]:
        """Those that are not in the training data, or not any more."""
        known = set() if self.train.ids is None else set(self.train.ids.tolist())
        return [name for name in ids if name not in known]

    def try_out(self, model: nn.Module, source: Source) -> None:
        """Run model and loss once, on the first samples: what they raise is the user's to read, in one line."""
        first = next(iter(source.batches(None, TRIED)), None)
        if first is None:
            raise InvalidData(f"'{source.name}' is empty.")
        x, y = read_batch(first, self.device)
        problem = Problem(model, self.loss)
        try:
            z, _ = problem.forward(x)
        except SSSEError:
            raise
        except Exception as error:
            shapes = {key: tuple(value.shape) for key, value in x.items()} if isinstance(x, dict) else tuple(x.shape)
            raise InvalidModel(
                f"The model cannot be run on '{source.name}', whose inputs have the shape {shapes}: {cause(error)}."
            ) from error
        try:
            problem.total_loss(z, y)
        except SSSEError:
            raise
        except Exception as error:
            raise InvalidModel(
                f"The loss '{self.settings.model.loss}' cannot be computed on '{source.name}', with outputs of the "
                f"shape {tuple(z.shape)} and labels of the shape {tuple(y.shape)}: {cause(error)}."
            ) from error

    def digests(
        self, source: Source, salt: bytes, places: np.ndarray | None = None, text: str = "reading"
    ) -> np.ndarray:
        """Of every sample, in order, shape (n,)."""
        total = len(source) if places is None else len(places)
        batches = (read_batch(batch, None) for batch in self.batches(source, places))
        shown = track(batches, total, text, self.progress)
        found = [digest_samples(batch, salt).view(np.int64) for batch in shown]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def load_weights_of(bench: Bench, state: Path, expected: Mapping[str, str]) -> nn.Module:
    check_files(state, {WEIGHTS: expected[WEIGHTS]})
    return bench.model(state / WEIGHTS)


def load_curvature_of(bench: Bench, state: Path, expected: Mapping[str, str]) -> Curvature:
    """Its files are checked as they lie, so their tensors need not be."""
    ours = {name: digest for name, digest in expected.items() if name.startswith(f"{CURVATURE}/")}
    if not ours:
        raise InvalidSetting("There is no curvature yet, or it was dropped by the last request: run `ssse fit`.")
    check_files(state, ours)
    return Curvature.load(state / CURVATURE, verify=False, device=bench.device)


def check_files(state: Path, expected: Mapping[str, str]) -> None:
    for name, digest in expected.items():
        path = state / name
        if not path.is_file():
            raise BrokenArtefact(f"'{path}' is missing; `ssse verify` says more.")
        if sha256(path) != digest:
            raise BrokenArtefact(f"'{path}' was altered; `ssse verify` says more. Restore it from a backup.")


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def device_named(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()  # also "meta" is a device, without any numbers
    except Exception as error:  # torch raises nearly anything, by the name
        raise InvalidSetting(f"There is no device '{name}' here: {cause(error)}.") from None
    return device
