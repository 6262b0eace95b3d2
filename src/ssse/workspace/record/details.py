"""What an entry's details say, in today's form, whichever version of ssse wrote it. Nothing here imports torch.

The ledger keeps entries as they were written: their hashes are over them. Who interprets details reads them through
`read_details`; nobody else needs to know what they were once called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENGINES = ("torch", "sklearn")
RENAMED = {"epsilon": "distance_bound", "gradient": "gradient_bound"}  # in entries without the field "engine"
HELD = "what its structure needs of the samples that stay; the version of ssse that erased them did not write down more"


def read_details(kind: str, details: Mapping[str, Any]) -> Mapping[str, Any]:
    """With `engine`, and by today's names: `distance_bound`, `holds`, `keeps_remainder`."""
    if kind not in ("created", "fitted", "erased") or "engine" in details:
        return details
    now = {RENAMED.get(name, name): value for name, value in details.items()}
    now["engine"] = "sklearn" if _was_of_sklearn(kind, details) else "torch"
    if kind == "erased":
        now |= {"holds": HELD, "keeps_remainder": True}
    return now


def _was_of_sklearn(kind: str, details: Mapping[str, Any]) -> bool:
    """Before there was a field for it."""
    if kind == "created":
        return (details.get("model") or {}).get("kind") == "scikit-learn"
    return ("correction" if kind == "fitted" else "epsilon") in details
