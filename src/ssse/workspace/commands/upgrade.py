"""`ssse upgrade`: a workspace of an earlier version gets what it lacks. Without torch."""

from __future__ import annotations

from ssse.system.environment import versions
from ssse.workspace.record.folder import open_to_others, restrict
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.results import Upgraded


def upgrade(transaction: Transaction) -> Upgraded:
    """Leaves for all entries, in one step, and modes for the owner alone; what is there already is left as it is."""
    gained = []
    if open_to_others(transaction.folder.path):
        restrict(transaction.folder.path)
        gained.append("modes by which nobody else may read it, but for the model that is served")
    if transaction.ledger.has_leaves:
        return Upgraded(None, gained)
    transaction.open_seal()
    entry = transaction.ledger.upgrade({"version": versions()["ssse"]})
    transaction.record_settings()
    gained.insert(0, f"leaves for its {entry.details['leaves']} entries: `ssse prove` can show each by itself")
    if transaction.signing.public is not None:
        gained.append(f"signatures from now on, by the key {transaction.signing.public.fingerprint[:12]}…")
    return Upgraded(entry, gained)
