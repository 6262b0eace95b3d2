"""`ssse calibrate`: ε and λ by evidence, stored with the curvature and drawn on the page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ssse.calibration.calibrate import calibrate as calibrate_model
from ssse.curvature import Curvature
from ssse.errors import InvalidSetting
from ssse.evaluation.scan import DEFAULT_SCALES
from ssse.system import files
from ssse.system.environment import versions
from ssse.workspace import settings as toml
from ssse.workspace.commands.checks import check_same_model, check_trained
from ssse.workspace.engines.choice import engine_for
from ssse.workspace.engines.data import UserData
from ssse.workspace.engines.torch import TorchEngine, about
from ssse.workspace.record.folder import SAMPLES
from ssse.workspace.record.membership import places_that_stay
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.results import Calibrated
from ssse.workspace.settings import Settings


def calibrate(
    transaction: Transaction,
    settings: Settings,
    forget: str | None,
    ids: Sequence[str] | None,
    *,
    retrained: Path | None = None,
    held_out: str | None = None,
    progress: bool = False,
) -> Calibrated:
    """Choose ε on a set of samples like those of the requests to come. Nothing is erased."""
    user_data = UserData(settings, transaction.folder.path, progress)
    engine = engine_for(user_data)
    if not isinstance(engine, TorchEngine):
        raise InvalidSetting(
            "There is no ε to choose for a scikit-learn model: the step is Newton's on its own objective. Go on with "
            "`ssse erase`."
        )
    current, chosen = transaction.current, settings.calibrate
    state = transaction.folder.state(current)
    model = engine.read_state(state, current.details["files"])
    curvature = engine.load_state(state, current.details["files"], model)
    source, places = user_data.requested(forget, ids)
    engine.try_out(model, source)
    check_trained(transaction, user_data.digests(source, transaction.ledger.salt, places))
    check_same_model(transaction, settings)
    samples = list(user_data.batches(source, places))
    evidence: dict[str, Any] = {}
    if retrained is not None:
        evidence["retrained"] = engine.read(retrained)
    if held_out is not None:
        known = user_data.file(held_out)
        engine.try_out(model, known)
        evidence["held_out"] = user_data.batches(known)
    if _needs_data(curvature, chosen.method, retrained):
        digests = user_data.digests(user_data.train, transaction.ledger.salt, text="digests")
        evidence["data"] = user_data.batches(
            user_data.train, places_that_stay(transaction.folder.path / SAMPLES, transaction.ledger, digests)
        )
    started = time.perf_counter()
    chosen_scale = calibrate_model(
        model,
        curvature,
        engine.loss,
        samples,
        method=chosen.method,
        criterion=chosen.criterion,
        scales=tuple(chosen.scales) or DEFAULT_SCALES,
        dampings=tuple(chosen.dampings),
        whole_class=chosen.whole_class,
        leave_out=settings.erase.leave_out,
        residual=settings.erase.residual,
        progress=progress,
        **evidence,
    )
    details = {
        **about(chosen_scale.curvature),
        **chosen_scale.to_dict(),
        "options": toml.changes(transaction.settings, settings),
        "replaces": curvature.calibrated and asdict(curvature.calibrated),
        "k": sum(len(y) for _, y in samples),
        "seconds": time.perf_counter() - started,
        "versions": versions(),
    }
    transaction.folder.check_space(files.size_of(state))
    transaction.begin()
    entry = transaction.advance(
        "calibrated", None, details, lambda folder: engine.write_same_model(folder, state, chosen_scale.curvature)
    )
    return Calibrated(entry)


def _needs_data(curvature: Curvature, method: str, retrained: Path | None) -> bool:
    """The searches look at data that stays, conjugate gradients at all of it; else it need not be there any more."""
    searching = method in ("loss_search", "line_search") or (method == "auto" and retrained is None)
    return searching or curvature.structure.reads_data
