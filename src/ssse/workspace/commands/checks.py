"""What must hold before the samples of a command are used: of the model, of places as ids, of samples."""

from __future__ import annotations

import numpy as np

from ssse.errors import InvalidData, InvalidSetting
from ssse.intake.columns import PLACE
from ssse.workspace.engines.data import UserData
from ssse.workspace.record.folder import SAMPLES
from ssse.workspace.record.membership import Membership, shown
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.settings import Settings


def check_same_model(transaction: Transaction, settings: Settings) -> None:
    """Weights fit into many models; the curvature is of one."""
    fitted = transaction.ledger.last_in_force("fitted")
    then, now = fitted and fitted.details["model"], settings.model.identity()
    if then is not None and then != now:
        changed = ", ".join(f"model.{key}" for key in now if then[key] != now[key])
        raise InvalidSetting(f"{changed} changed since the curvature was fitted. Put it back, or `ssse fit --again`.")


def check_places(transaction: Transaction, user_data: UserData) -> None:
    """Where a sample's place is its id, a row that left the data has moved all others."""
    fitted = transaction.ledger.last_in_force("fitted")
    if (
        user_data.settings.data.ids == PLACE
        and fitted is not None
        and len(user_data.train) != fitted.details["samples"]
    ):
        raise InvalidData(
            f'With ids = "place" the data must stay as at the first fit: {fitted.details["samples"]} samples then, '
            f"{len(user_data.train)} now, so that places name other samples. Use --forget, or give the data ids."
        )


def check_trained(transaction: Transaction, digests: np.ndarray) -> None:
    """An ε that was measured on samples which the model does not contain would be stored all the same."""
    standing = Membership.load(transaction.folder.path / SAMPLES).standing(digests, transaction.ledger)
    if standing.unknown:
        raise InvalidData(
            f"{len(standing.unknown)} of the {len(digests)} samples ({shown(standing.unknown)}) were never in the "
            "training data, not bit for bit in this form; ε is measured on samples that could be erased."
        )
    if standing.already:
        raise InvalidData(f"{sum(standing.already.values())} of the samples are erased already; take others.")
