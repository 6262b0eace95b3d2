"""What may be shown of an entry: on pages, by `log`, in proofs. Nothing here imports torch."""

from __future__ import annotations

from typing import Any

from ssse.workspace.record.entry import BLIND, SHOWN, Entry

# Who has the salt and a sample could find out whether that was erased; `BLIND` hides what an entry's hash is of.
# `SHOWN` is the digest of what is shown.
SECRET = ("salt", BLIND, SHOWN)


def published(entry: Entry) -> dict[str, Any]:
    """As JSON can hold it, without what the ledger keeps to itself."""
    details = {key: value for key, value in entry.details.items() if key not in SECRET}
    return {**entry.to_dict(), "details": details}
