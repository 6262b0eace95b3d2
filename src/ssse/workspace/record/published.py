"""What may be shown of an entry: on pages, by `log`, in proofs. Nothing here imports torch."""

from __future__ import annotations

from typing import Any

from ssse.workspace.record.ledger import Entry

SECRET = ("salt",)  # who has it and a sample could find out whether that was erased


def published(entry: Entry) -> dict[str, Any]:
    """As JSON can hold it, without what the ledger keeps to itself."""
    details = {key: value for key, value in entry.details.items() if key not in SECRET}
    return {**entry.to_dict(), "details": details}
