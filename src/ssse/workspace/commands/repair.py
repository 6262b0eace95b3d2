"""`ssse repair`: a short training of the current model on what stays, entered into the ledger as what it is."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssse.erasure.health import NOISE, WORSE_ACCURACY
from ssse.errors import InvalidData, InvalidSetting
from ssse.system import files
from ssse.system.environment import versions
from ssse.workspace import settings as toml
from ssse.workspace.commands.checks import check_same_model
from ssse.workspace.commands.erase import CHECKED, probe_of
from ssse.workspace.engines.choice import engine_for
from ssse.workspace.engines.data import UserData
from ssse.workspace.engines.engine import Engine
from ssse.workspace.record.folder import SAMPLES
from ssse.workspace.record.holdings import read_holdings
from ssse.workspace.record.ledger import digest_of_samples
from ssse.workspace.record.membership import Membership, places_that_stay, shown
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.results import Repaired
from ssse.workspace.settings import Settings

if TYPE_CHECKING:
    from ssse.erasure.repair import Repair
    from ssse.intake.sources import Source


def repair(
    transaction: Transaction,
    settings: Settings,
    *,
    data: str | None = None,
    again: bool = False,
    progress: bool = False,
    **how: Any,
) -> Repaired:
    """Of what requests have left. Until the training is done nothing is written. `how`: as `ssse.repair` takes it.

    `data`: a file of samples that stay; the training data of the settings, less what was erased, if not given.
    """
    ledger, current = transaction.ledger, transaction.current
    erased, last = ledger.last_in_force("erased"), ledger.last_in_force("repaired")
    if erased is None:
        raise InvalidSetting("Nothing was erased yet, so there is nothing to repair: run `ssse erase` first.")
    if last is not None and last.seq > erased.seq and not again:
        return Repaired(last, now=False)
    user_data = UserData(settings, transaction.folder.path, progress)
    engine = engine_for(user_data)
    engine.check_repair()
    check_same_model(transaction, settings)
    model = engine.read_state(transaction.folder.state(current), current.details["files"])
    transaction.folder.check_space(files.size_of(transaction.folder.state(current)))
    source, places, digests = _retained(transaction, engine, model, data)
    sound = read_holdings(ledger).sound
    original = None
    if sound is not None:  # the model from before is still there, to be compared with
        original = engine.read_state(transaction.folder.state(sound), sound.details["files"])
    fitted = ledger.last_in_force("fitted")
    if fitted is not None and how.get("weight_decay") is None:
        how = {**how, "weight_decay": fitted.details["weight_decay"]}
    probe = probe_of(engine, model)
    done = engine.repair(model, user_data.batches(source, places), probe, original, how)
    _refuse_worse(done, 0 if probe is None else len(probe.sampler))
    details = {
        "engine": engine.name,
        **_details(done),
        "by": "settings" if data is None else "file",
        "data": digest_of_samples(digests.tolist()),
        "curvature_dropped": True,
        "old": {"weights": settings.erase.old_weights, "curvature": settings.erase.old_curvature},
        "options": toml.changes(transaction.settings, settings),
        "versions": versions(),
    }
    transaction.begin()

    def write(folder: Path) -> None:
        engine.write_state(folder, done.model, None)

    def check(folder: Path) -> None:
        first = np.arange(CHECKED) if places is None else places[:CHECKED]
        engine.check_repaired(folder, done.model, source.batches(first[: len(source)], CHECKED))

    return Repaired(transaction.advance("repaired", None, details, write, check=check), now=True)


def _retained(
    transaction: Transaction, engine: Engine, model: Any, data: str | None
) -> tuple[Source, np.ndarray | None, np.ndarray]:
    """Where the samples that stay are, which of them, and their digests."""
    user_data, ledger, samples = engine.user_data, transaction.ledger, transaction.folder.path / SAMPLES
    if data is None:
        digests = user_data.digests(user_data.train, ledger.salt, text="digests")
        places = places_that_stay(samples, ledger, digests)
        return user_data.train, places, digests[places]
    source = user_data.file(data)
    engine.try_out(model, source)
    digests = user_data.digests(source, ledger.salt, text="digests")
    standing = Membership.load(samples).standing(digests, ledger)
    if standing.already:
        count = sum(standing.already.values())
        raise InvalidData(
            f"{count:,} of the {len(digests):,} samples of '{data}' {'was' if count == 1 else 'were'} erased: a "
            "training on them would teach them again. Leave them out."
        )
    if standing.unknown:
        raise InvalidData(
            f"{len(standing.unknown):,} of the {len(digests):,} samples of '{data}' ({shown(standing.unknown)}) were "
            "never in the training data, not bit for bit in this form, or not that often: nobody could have them "
            "erased later. Repair with samples that the model was trained on."
        )
    return source, None, digests


def _refuse_worse(done: Repair, samples: int) -> None:
    first, last = (point.accuracies.get("probe") for point in (done.curve[0], done.curve[-1]))
    if first is None or last is None:
        return
    spread = math.sqrt((first * (1 - first) + last * (1 - last)) / samples)
    if first - last > max(WORSE_ACCURACY, NOISE * spread):
        raise InvalidSetting(
            f"The repair makes the model worse: {first:.1%} of the test data were right before it, {last:.1%} after. "
            "Nothing was changed. Use a smaller --learning-rate, or more --epochs."
        )


def _details(done: Repair) -> dict[str, Any]:
    """What the entry says of the training and its result; nothing of any sample."""
    assert done.training is not None
    first, last = done.curve[0], done.curve[-1]
    seen = {}
    if "probe" in last.losses:
        for moment, point in (("before", first), ("after", last)):
            seen[f"probe_loss_{moment}"] = point.losses["probe"]
            seen[f"probe_accuracy_{moment}"] = point.accuracies.get("probe")
    return {
        **asdict(done.training),
        "steps": done.steps,
        "seed": done.seed,
        "samples": done.samples,
        "retained_loss": last.losses["retained"],
        "retained_accuracy": last.accuracies.get("retained"),
        **seen,
        "verdict": done.verdict,
        "reasons": list(done.reasons),
        "notes": list(done.notes),
        "seconds": done.seconds,
    }
