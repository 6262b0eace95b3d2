"""`ssse verify --recompute`: one request again, from the state that was kept from before it. Reads only.

That every file is as the ledger says shows nothing of how the weights were made: whoever can write both could have put
any weights there. The same step taken again, from the old state and the samples themselves, shows that they are that
erasure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ssse.errors import InvalidData, InvalidSetting, Refused
from ssse.intake.sources import Source
from ssse.system.lock import locked
from ssse.verdict import BOUNDS
from ssse.workspace.engines.choice import engine_for
from ssse.workspace.engines.data import UserData
from ssse.workspace.engines.engine import Asked
from ssse.workspace.record.folder import MAKERS, SAMPLES, Folder, model_file, state_name
from ssse.workspace.record.holdings import holdings
from ssse.workspace.record.ledger import Entry, Ledger, digest_of_samples
from ssse.workspace.record.membership import Membership, places_among
from ssse.workspace.record.sentences import without_numbers
from ssse.workspace.results import Recomputed, Verification
from ssse.workspace.settings import Settings

TO_ROUNDING = 1e-3  # of the step's length: what other machines and another order of the samples do to a sum, with room


def recompute(
    folder: Folder,
    settings: Settings,
    verification: Verification,
    request: str,
    forget: str | None = None,
    *,
    wait: bool = True,
    waiting: Callable[[], None] = lambda: None,
    progress: bool = False,
) -> Verification:
    """The verification, with what the replay of a request says of the weights that it left.

    Raises:
        InvalidSetting: the request cannot be replayed: its old state or its samples are not there any more.
    """
    if not verification.ok:
        return verification  # what the replay would start from is not what was written
    with locked(folder.path, shared=True, wait=wait, waiting=waiting), folder.read() as ledger:
        entry = _erasure(ledger, request)
        before, there = _both_states(ledger, entry)
        user_data = UserData(_as_recorded(settings, entry), folder.path, progress)
        engine = engine_for(user_data)
        old = engine.read_state(folder.state(before), before.details["files"])
        curvature = engine.load_state(folder.state(before), before.details["files"], old)
        checked = engine.check_request(old, curvature)
        source, places = _samples(ledger, user_data, entry, forget)
        data = engine.training_data(curvature, lambda: _stayed(folder, ledger, user_data, entry))
        name = f"states/{state_name(there)}/{model_file(there.details['files'])}"
        try:
            made = engine.erase(checked, curvature, Asked(source, places, data, None, BOUNDS)).model
        except Refused as error:
            why = without_numbers(error.reason)  # they are of its samples
            return _damaged(verification, name, f"holds what no replay of '{request}' gives: {why}")
        found = engine.read(folder.path / name)
        same, distance = engine.compare(engine.read_state(folder.state(before), before.details["files"]), made, found)
    seen = replace(verification, recomputed=Recomputed(request, same, distance))
    if same or distance <= TO_ROUNDING:
        return seen
    return _damaged(
        seen,
        name,
        f"is not what erasing '{request}' gives: the same step taken again ends {distance:.3g} of its length away",
    )


def _erasure(ledger: Ledger, request: str) -> Entry:
    """The one that stands."""
    undone = ledger.reverted()
    found = [entry for entry in ledger.of_request(request) if entry.kind == "erased" and entry.seq not in undone]
    if not found:
        raise InvalidSetting(f"Request '{request}' erased nothing that stands, so there is nothing to replay.")
    return found[-1]


def _both_states(ledger: Ledger, entry: Entry) -> tuple[Entry, Entry]:
    """The entries whose states hold the model from before, and the one that it left."""
    entries = list(ledger.entries())
    makers = [one for one in entries if one.kind in MAKERS]
    files = holdings(entries).files
    place = makers.index(entry)
    before = makers[place - 1]
    if not all(f"states/{state_name(before)}/{name}" in files for name in before.details["files"]):
        raise InvalidSetting(
            f"Request '{entry.request}' cannot be replayed any more: the state from before it was shredded. To be able "
            'to, keep it (erase.old_weights and erase.old_curvature = "keep"), or replay the first '
            "of the requests that wait, while it does."
        )
    for one in makers[place:]:  # a new fit has the same weights under another name
        same = one.details["after"]["weights"] == entry.details["after"]["weights"]
        if same and f"states/{state_name(one)}/{model_file(one.details['files'])}" in files:
            return before, one
    raise InvalidSetting(
        f"The weights that request '{entry.request}' left were replaced by later requests, and are not kept: there is "
        "nothing to compare its replay with."
    )


def _as_recorded(settings: Settings, entry: Entry) -> Settings:
    """Model and data as the settings name them today, and the step as the entry has it."""
    details = entry.details
    options = {f"erase.{name}": details[name] for name in ("leave_out", "residual", "policy")}
    if details["engine"] == "torch":
        options["erase.scale"] = details["scale"]
    return settings.with_options(options)


def _samples(ledger: Ledger, user_data: UserData, entry: Entry, forget: str | None) -> tuple[Source, np.ndarray]:
    """Found in the training data by their digests, or those that were handed in."""
    wanted = Counter(ledger.samples_of(entry.seq))
    source = user_data.train if forget is None else user_data.file(forget)
    digests = user_data.digests(source, ledger.salt, text="digests")
    places = places_among(digests, wanted)
    if digest_of_samples(digests[places].tolist()) != entry.details["erased_samples"]:
        lacking = sum(wanted.values()) - len(places)
        raise InvalidSetting(
            f"{lacking} of the {sum(wanted.values())} samples of request '{entry.request}' are not in "
            f"'{source.name}', bit for bit; hand them in with --forget FILE."
        )
    return source, places


def _stayed(folder: Folder, ledger: Ledger, user_data: UserData, entry: Entry) -> np.ndarray:
    """Of the training data what earlier requests had left of it; for structures that read it."""
    digests = user_data.digests(user_data.train, ledger.salt, text="digests")
    try:
        return Membership.load(folder.path / SAMPLES).remaining(digests, ledger.erased_samples(before=entry.seq))
    except InvalidData as error:
        raise InvalidSetting(
            f"{error} This structure reads it, so the request cannot be replayed without it."
        ) from error


def _damaged(verification: Verification, name: str, what: str) -> Verification:
    return replace(verification, damages=[*verification.damages, (name, what)])
