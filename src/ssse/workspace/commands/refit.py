"""When a new curvature is due: the rules, in one place. What then happens is in `stream` and `fit`."""

from __future__ import annotations

from typing import Any, Literal

from ssse.verdict import Assessment
from ssse.workspace.engines.engine import Engine
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.settings import Settings

# Why a curvature was fitted anew without anybody asking for it: by the old one the step was refused; or the samples
# determined most of a direction; there was none any more, since a request has dropped it, or a repair; so many requests
# had passed; `--when-needed` found it due.
Because = Literal["refused", "leverage", "dropped", "repaired", "schedule", "worthwhile"]
# Of a request after others, up to which its leverage is trusted although the rows have moved since the fit: beyond, the
# small rest that the step is divided by is more drift than curvature (benchmarks/stream.py).
TRUSTED_STALE_LEVERAGE = 0.5


class NeedsFit(Exception):
    """A request that goes on as soon as there is a fresh curvature. `measured`: ε of the old one, where it had one."""

    def __init__(self, because: Because, measured: Any = None):
        self.because: Because = because
        self.measured = measured
        super().__init__(because)


def was_dropped(transaction: Transaction) -> bool:
    """Whether there was a curvature, from which the last request could not be taken out, or of another model."""
    return (
        transaction.ledger.last_in_force("fitted") is not None and not transaction.current.details["after"]["curvature"]
    )


def was_repaired(transaction: Transaction) -> bool:
    """Whether the current model is one that no curvature was ever fitted of, since a repair made it."""
    return transaction.current.kind == "repaired"


def scale_of_dropped(transaction: Transaction) -> dict[str, Any] | None:
    """ε of a curvature that is gone, by what its last request says; of a model before a repair it is worth nothing."""
    if was_repaired(transaction):
        return None
    erased = transaction.ledger.last_in_force("erased")
    if erased is None or erased.details.get("scale_source") is None:
        return None
    found = {name: erased.details[name] for name in ("damping", "scale", "leave_out", "residual")}
    return {**found, "source": erased.details["scale_source"]}


def requests_since_fit(transaction: Transaction) -> int:
    fitted = transaction.ledger.last_in_force("fitted")
    return 0 if fitted is None else transaction.ledger.count_after(fitted.seq, "erased")


def check_schedule(transaction: Transaction, settings: Settings, engine: Engine, curvature: Any) -> None:
    """Raises: NeedsFit: so many requests were answered since the last fit that the settings want another one."""
    most = settings.erase.refit
    if isinstance(most, int) and engine.has_moved(curvature) and requests_since_fit(transaction) >= most:
        raise NeedsFit("schedule", engine.measured_scale(curvature))


def check_step(seen: Assessment, settings: Settings, measured: Any) -> None:
    """Of a step by a curvature that earlier requests have moved away from. Raises: NeedsFit: it is not one to take."""
    if seen.verdict != "ok" and settings.erase.accept == "ok":
        raise NeedsFit("refused", measured)
    network = seen.strain is None  # of linear models it is known how far the samples that stay have moved
    if network and seen.leverage_max is not None and seen.leverage_max > TRUSTED_STALE_LEVERAGE:
        raise NeedsFit("leverage", measured)


def is_worthwhile(transaction: Transaction, settings: Settings) -> bool:
    """Whether a fit now spares the requests to come one: by the ledger alone, without the model.

    It does where the curvature was dropped; and, unless the policy is joint (which goes on from the first model), where
    a request since the fit was not vouched for, as of networks none is, or as many passed as the settings say.
    """
    fitted = transaction.ledger.last_in_force("fitted")
    if fitted is None or was_dropped(transaction):
        return True
    if settings.erase.policy == "joint":
        return False
    most = settings.erase.refit
    if isinstance(most, int) and requests_since_fit(transaction) >= most:
        return True
    erased = transaction.ledger.last_in_force("erased")  # doubt stays until the next fit, so the last one has it
    return erased is not None and erased.seq > fitted.seq and erased.details["verdict"] != "ok"
