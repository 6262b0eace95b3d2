"""`ssse compare`: a comparison of methods on a model and data that are named as for `ssse init`. Makes no workspace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ssse.comparison.compare import compare
from ssse.comparison.table import MethodComparison
from ssse.erasure.retained import retained_batches
from ssse.errors import InvalidSetting
from ssse.intake.importing import import_object
from ssse.workspace.engines.data import UserData
from ssse.workspace.engines.torch import TorchEngine
from ssse.workspace.settings import Settings


def compare_files(
    settings: Settings,
    weights: Path,
    *,
    forget: str | None,
    ids: Sequence[str] | None,
    retrain: str | None = None,
    retrained: Sequence[Path] = (),
    seeds: int = 1,
    methods: Sequence[str] | str = "usual",
    progress: bool = False,
) -> MethodComparison:
    """Paths are seen from where the user is; S is a file of samples or ids, as for `ssse erase`."""
    if settings.model.is_estimator:
        raise InvalidSetting("Methods are compared on models of torch: --model names what makes one.")
    user_data = UserData(settings, Path.cwd(), progress)
    engine = TorchEngine(user_data)
    train = None if retrain is None else import_object(retrain, user_data.search, "retrain")
    model = engine.read(weights)
    engine.try_out(model, user_data.train)
    source, places = user_data.requested(forget, ids)
    gone = list(user_data.batches(source, places))
    splits: dict[str, Iterable[Any]] = {
        "retained": retained_batches(user_data.batches(user_data.train), gone, engine.device),
        "forgotten": gone,
    }
    if user_data.test is not None:
        engine.try_out(model, user_data.test)
        splits |= _test_splits(user_data, gone)
    return compare(
        model,
        engine.loss,
        splits,
        weight_decay=settings.fit.weight_decay,
        parameters=settings.fit.parameters,
        methods=methods,  # type: ignore[arg-type]  # an unknown word is refused there
        retrain=train,
        retrained=[engine.read(path) for path in retrained],
        seeds=seeds,
        progress=progress,
    )


def _test_splits(user_data: UserData, gone: list[Any]) -> dict[str, Iterable[Any]]:
    """T_a and the rest, where S is of one class and the test data holds both; else the test data as a whole."""
    test = user_data.test
    assert test is not None
    labels = torch.cat([torch.as_tensor(y) for _, y in gone])
    whole: dict[str, Iterable[Any]] = {"test": user_data.batches(test)}
    if labels.dim() != 1 or labels.is_floating_point() or not bool((labels == labels[0]).all()):
        return whole
    alike = (torch.cat([torch.as_tensor(y) for _, y in user_data.batches(test)]) == labels[0]).numpy()
    if alike.all() or not alike.any():
        return whole
    return {
        "test_other": user_data.batches(test, np.flatnonzero(~alike)),
        "test_same": user_data.batches(test, np.flatnonzero(alike)),
    }
