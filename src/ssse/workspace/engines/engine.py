"""The seam between a workspace and its kind of model: a torch module with its curvature, or an estimator with its sums.

What a command does is the same for both: it reads the model, fits, erases, writes a state. How, an engine knows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ssse.errors import BrokenArtefact, InvalidSetting, SSSEError
from ssse.verdict import Assessment
from ssse.workspace.engines.data import UserData, check_files
from ssse.workspace.record.folder import CURVATURE, link_model
from ssse.workspace.settings import Settings

if TYPE_CHECKING:
    from torch import nn

    from ssse.erasure.repair import Repair
    from ssse.intake.sources import Batches, Source

Say = Callable[[str], None]


@dataclass(frozen=True)
class ErasedModel:
    """`curvature`: of what stays; None where nothing of it can be. `details`: what else the entry says."""

    model: Any
    curvature: Any
    assessment: Assessment
    details: dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """One request, as an engine is asked to carry it out.

    Attributes:
        source, places: of the samples to forget. data: what of the training data it reads, as the engine gave it.
        probe: samples that should keep working; None where there are none.
        override: bounds that are not to refuse the step.
    """

    source: Source
    places: np.ndarray
    data: Any
    probe: Batches | None
    override: Collection[str]


class Engine(ABC):
    """One kind of model.

    Attributes:
        name: as entries of the ledger have it in their field "engine".
    """

    name: ClassVar[Literal["torch", "sklearn"]]

    def __init__(self, user_data: UserData):
        self.user_data = user_data
        self.settings: Settings = user_data.settings

    @property
    @abstractmethod
    def file(self) -> str:
        """What its file is called in a state."""

    # ------------------------------------------------------------------------------------------- the model

    @abstractmethod
    def read(self, path: Path) -> Any:
        """The model of a file: the user's, or one of a state."""

    @abstractmethod
    def write(self, folder: Path, model: Any) -> None: ...

    @abstractmethod
    def try_out(self, model: Any, source: Source) -> None:
        """Run it once, on the first samples: what is wrong is the user's to read, in one line."""

    @abstractmethod
    def look(self, model: Any) -> dict[str, Any]:
        """What cannot work with the training data is refused here. Returns what was seen."""

    @abstractmethod
    def about(self, model: Any) -> dict[str, Any]:
        """What the entry "created" says of it: its factory, its parameters, and what else the page needs."""

    def take_over(self, model: Any) -> None:  # noqa: B027  # may be nothing
        """Into the settings what the model says by itself."""

    # ------------------------------------------------------------------------------------------- its curvature

    def check_fit(self) -> None:  # noqa: B027  # may be nothing
        """Whether the settings can work, before the data is read."""

    @abstractmethod
    def fit(
        self,
        model: Any,
        data: Batches,
        room: Callable[[int], None],
        say: Say,
        checkpoint: Path | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """The curvature, which has a `save`; and what the entry says. `room`: raises where the disk has not that.

        `checkpoint`: a folder for what an interrupted fit has done, where the engine goes on from there.
        """

    @abstractmethod
    def load(self, folder: Path, model: Any) -> Any:
        """The curvature that was saved; its files are checked as they lie, so their tensors need not be."""

    @abstractmethod
    def has_moved(self, curvature: Any) -> bool:
        """Whether requests since its fit have moved the model from where it was taken: a new one may then do better."""

    def measured_scale(self, curvature: Any) -> dict[str, Any] | None:
        """ε, and λ beside it, that was measured for this curvature; None where none was."""
        return None

    def with_measured_scale(self, curvature: Any, measured: Mapping[str, Any]) -> Any:
        """A new curvature of the same kind, with what was measured for the one before."""
        return curvature

    # ------------------------------------------------------------------------------------------- requests

    @abstractmethod
    def check_request(self, model: Any, curvature: Any) -> Any:
        """What can be refused before the samples are looked at. Returns the model as `erase` takes it."""

    def training_data(self, curvature: Any, places: Callable[[], np.ndarray]) -> Any:
        """What of it a request reads; `places`: of the samples that stay."""
        return None

    @abstractmethod
    def erase(self, checked: Any, curvature: Any, asked: Asked) -> ErasedModel: ...

    def check_repair(self) -> None:
        """Whether models of this kind are repaired."""
        raise InvalidSetting(
            "A repair is a short training of a network. An estimator of scikit-learn is fitted to the end: a request "
            "leaves nothing to repair, and `fit()` on what stays is a retraining."
        )

    def repair(self, model: Any, data: Batches, probe: Batches | None, original: Any, how: Mapping[str, Any]) -> Repair:
        """On what stays. `probe`: samples that should keep working; `original`: the model from before, if it is there;
        `how`: options of `ssse.repair`."""
        raise NotImplementedError  # `check_repair` has said so

    # ------------------------------------------------------------------------------------------- evaluation

    @abstractmethod
    def module(self, model: Any, created: Mapping[str, Any]) -> nn.Module:
        """From inputs to logits; `created`: what the entry says of the first model."""

    @abstractmethod
    def labelled(self, data: Batches, created: Mapping[str, Any]) -> Iterable[Any]:
        """With labels as `ssse.evaluate` takes them."""

    @abstractmethod
    def class_names(self, created: Mapping[str, Any]) -> Sequence[str]: ...

    @abstractmethod
    def objective(self, fitted: Mapping[str, Any]) -> dict[str, Any]:
        """As `ssse.evaluate` takes it; nothing where its form of objective is not the model's."""

    # ------------------------------------------------------------------------------------------- states

    def read_state(self, state: Path, expected: Mapping[str, str]) -> Any:
        if self.file not in expected:
            raise InvalidSetting(
                f"[model] factory names another kind of model than this workspace holds ('{state}' has no "
                f"{self.file}). Put it back."
            )
        check_files(state, {self.file: expected[self.file]})
        return self.read(state / self.file)

    def load_state(self, state: Path, expected: Mapping[str, str], model: Any) -> Any:
        ours = {name: digest for name, digest in expected.items() if name.startswith(f"{CURVATURE}/")}
        if not ours:
            raise InvalidSetting(
                "There is no curvature yet, or the last request or a repair has dropped it: run `ssse fit`."
            )
        check_files(state, ours)
        return self.load(state / CURVATURE, model)

    def write_same_model(self, folder: Path, old: Path, curvature: Any) -> None:
        """A state with the model of an old one, and another curvature."""
        link_model(old, folder)
        curvature.save(folder / CURVATURE)

    def write_state(self, folder: Path, model: Any, curvature: Any) -> None:
        self.write(folder, model)
        if curvature is not None:
            curvature.save(folder / CURVATURE)

    def check_state(self, folder: Path, erased: ErasedModel, first: Batches) -> None:
        """What was written, read back as the next command will read it, before anything older is removed.

        `first`: a few samples, on which it must answer as the model in memory does.

        Raises:
            BrokenArtefact: it is not what was made.
        """
        with self._reading_back(folder, "erased", "the request is not carried out"):
            again = self.read(folder / self.file)
            self.check_same(erased.model, again, first)
            if erased.curvature is not None:
                self.check_curvature(folder / CURVATURE, again)

    def check_repaired(self, folder: Path, model: Any, first: Batches) -> None:
        """As `check_state`, of a model without a curvature."""
        with self._reading_back(folder, "repaired", "nothing is repaired"):
            self.check_same(model, self.read(folder / self.file), first)

    @contextmanager
    def _reading_back(self, folder: Path, made: str, ending: str) -> Iterator[None]:
        try:
            yield
        except SSSEError as error:
            raise BrokenArtefact(
                f"The {made} model was written to '{folder.parent}' and does not read back as it was made: {error} "
                f"The old model stays, and {ending}. Is the disk in order?"
            ) from error

    @abstractmethod
    def check_same(self, made: Any, read: Any, first: Batches) -> None:
        """Whether the model that was read back is the one in memory, by its numbers and by its answers."""

    @abstractmethod
    def numbers(self, model: Any) -> np.ndarray:
        """All of its numbers that were trained, one after another, in float64."""

    def compare(self, old: Any, made: Any, found: Any) -> tuple[bool, float]:
        """Whether two erased models are the same bit for bit; and how far apart, over the step from the old model."""
        before, one, other = (self.numbers(model) for model in (old, made, found))
        if one.shape != other.shape:
            return False, math.inf
        apart = float(np.linalg.norm(one - other))
        step = float(np.linalg.norm(one - before)) if one.shape == before.shape else float(np.linalg.norm(one))
        return bool(np.array_equal(one, other)), apart / step if step else math.inf if apart else 0.0

    @abstractmethod
    def check_curvature(self, folder: Path, read: Any) -> None:
        """Whether the curvature that was written is whole, and of the model that was read back."""
