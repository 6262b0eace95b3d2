"""The user's data, as the settings name it, and digests of its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from ssse.errors import BrokenArtefact, InvalidData, InvalidSetting
from ssse.intake.columns import Columns
from ssse.intake.importing import is_spec
from ssse.intake.sources import Batches, Source, open_source
from ssse.problem.batches import read_batch
from ssse.problem.sample_digests import digest_samples
from ssse.system.digests import digest_file
from ssse.system.progress import track
from ssse.workspace.settings import Settings, absolute


@dataclass
class UserData:
    """Training data and samples of requests.

    `home`: the workspace's folder, which the settings' paths are relative to.
    `dtype`: of floating inputs: that of a torch model, as soon as there is one; None: as they are stored. `in_tables`:
    what the numbers of a table become where that says nothing.
    """

    settings: Settings
    home: Path
    progress: bool = False
    dtype: torch.dtype | None = None
    in_tables: torch.dtype = torch.float32

    @cached_property
    def search(self) -> Path:
        return absolute(self.settings.model.search, self.home)

    def file(self, where: str) -> Source:
        """Samples that a command brings, seen from where the user is: data and never code."""
        return self._source(where, Path.cwd(), files_alone=True)

    def _named(self, where: str, ids_needed: bool = False) -> Source:
        """By the settings, whose paths are seen from the workspace."""
        path = absolute(where, self.home)
        return self._source(where if is_spec(where) and not path.exists() else str(path), self.home, ids_needed)

    def _source(self, where: str, folder: Path, ids_needed: bool = False, files_alone: bool = False) -> Source:
        data = self.settings.data
        inputs = tuple(data.inputs) if isinstance(data.inputs, list) else data.inputs
        columns = Columns(inputs, data.labels, data.ids, tuple(data.classes), ids_needed)
        return open_source(
            where,
            columns,
            folder=folder,
            dtype=self.dtype,
            in_tables=self.in_tables,
            search=self.search,
            files_alone=files_alone,
        )

    @cached_property
    def train(self) -> Source:
        return self._named(self.settings.data.train, ids_needed=True)

    @cached_property
    def test(self) -> Source | None:
        where = self.settings.data.test
        return None if where is None else self._named(where)

    @cached_property
    def probe(self) -> Source | None:
        """What should keep working when samples are erased: the test data, where there is some."""
        if self.settings.erase.probe == "none":
            return None
        try:
            return self.test
        except InvalidData as error:
            raise InvalidData(
                f"{error} Erasing looks at the test data, to see that the model keeps working; to erase without it, "
                'set erase.probe = "none".'
            ) from error

    def batches(self, source: Source, places: np.ndarray | None = None) -> Batches:
        return source.batches(places, self.settings.data.batch_size)

    def requested(self, forget: str | None, ids: Sequence[str] | None) -> tuple[Source, np.ndarray | None]:
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
        return self.file(forget), None

    def missing_ids(self, ids: Sequence[str]) -> list[str]:
        """Those that are not in the training data, or not any more."""
        known = set() if self.train.ids is None else set(self.train.ids.tolist())
        return [name for name in ids if name not in known]

    def digests(
        self, source: Source, salt: bytes, places: np.ndarray | None = None, text: str = "reading"
    ) -> np.ndarray:
        """Of every sample, in order, shape (n,)."""
        total = len(source) if places is None else len(places)
        batches = (read_batch(batch, None) for batch in self.batches(source, places))
        shown = track(batches, total, text, self.progress)
        digests = [digest_samples(batch, salt).view(np.int64) for batch in shown]
        return np.concatenate(digests) if digests else np.empty(0, dtype=np.int64)


def check_files(state: Path, expected: Mapping[str, str]) -> None:
    for name, digest in expected.items():
        path = state / name
        if not path.is_file():
            raise BrokenArtefact(f"'{path}' is missing; `ssse verify` says more.")
        if digest_file(path) != digest:
            raise BrokenArtefact(f"'{path}' was altered; `ssse verify` says more. Restore it from a backup.")
