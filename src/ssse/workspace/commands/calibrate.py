"""`ssse calibrate`: ε and λ by evidence, stored with the curvature and drawn on the page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ssse.calibration.calibrate import calibrate
from ssse.curvature import Curvature
from ssse.errors import InvalidSetting
from ssse.evaluation.scan import DEFAULT_SCALES
from ssse.system import files
from ssse.system.environment import versions
from ssse.workspace import settings as toml
from ssse.workspace.commands.checks import check_same_model, check_trained
from ssse.workspace.commands.fit import places_that_stay, salt_of, write_same_weights
from ssse.workspace.engines.choice import engine_for
from ssse.workspace.engines.data import Bench
from ssse.workspace.engines.torch import OfModules, about
from ssse.workspace.record.ledger import Entry
from ssse.workspace.record.transaction import Hold
from ssse.workspace.settings import Settings


def choose_scale(
    hold: Hold,
    settings: Settings,
    forget: str | None,
    ids: Sequence[str] | None,
    *,
    retrained: Path | None = None,
    held_out: str | None = None,
    progress: bool = False,
) -> Entry:
    """On a set of samples like those of the requests to come. Nothing is erased."""
    bench = Bench(settings, hold.folder.path, progress)
    engine = engine_for(bench)
    if not isinstance(engine, OfModules):
        raise InvalidSetting(
            "There is no ε to choose for a scikit-learn model: the step is Newton's on its own objective. Go on with "
            "`ssse erase`."
        )
    current, chosen = hold.current, settings.calibrate
    state = hold.folder.state(current)
    model = engine.read_state(state, current.details["files"])
    curvature = engine.load_state(state, current.details["files"], model)
    source, places = bench.asked(forget, ids)
    engine.try_out(model, source)
    check_trained(hold, bench.digests(source, salt_of(hold.ledger), places))
    check_same_model(hold, settings)
    samples = list(bench.batches(source, places))
    evidence: dict[str, Any] = {}
    if retrained is not None:
        evidence["retrained"] = engine.read(retrained)
    if held_out is not None:
        known = bench.source(held_out)
        engine.try_out(model, known)
        evidence["held_out"] = bench.batches(known)
    if _needs_data(curvature, chosen.method, retrained):
        digests = bench.digests(bench.train, salt_of(hold.ledger), text="digests")
        evidence["data"] = bench.batches(bench.train, places_that_stay(hold, digests))
    started = time.perf_counter()
    found = calibrate(
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
        **about(found.curvature),
        **found.to_dict(),
        "options": toml.changes(hold.settings, settings),
        "replaces": curvature.calibrated and asdict(curvature.calibrated),
        "k": sum(len(y) for _, y in samples),
        "seconds": time.perf_counter() - started,
        "versions": versions(),
    }
    hold.folder.check_space(files.size_of(state))
    hold.begin()
    return hold.advance("calibrated", None, details, lambda folder: write_same_weights(folder, state, found.curvature))


def _needs_data(curvature: Curvature, method: str, retrained: Path | None) -> bool:
    """The searches look at data that stays, conjugate gradients at all of it; else it need not be there any more."""
    searching = method in ("loss_search", "line_search") or (method == "auto" and retrained is None)
    return searching or curvature.structure.reads_data
