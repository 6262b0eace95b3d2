"""What an entry's details say, in today's form, whichever version of ssse wrote it. Nothing here imports torch.

The ledger keeps entries as they were written: their hashes are over them. Who interprets details reads them through
`read_details`; nobody else needs to know what they were once called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORCE = "force"  # what overrode bounds before they had names
RENAMED = {"epsilon": "distance_bound", "gradient": "gradient_bound"}  # in entries without the field "engine"
# What structures held in version 0.1, whose entries name the structure alone: when fitted; after an erasure; whether a
# remainder stays in a rebased stream.
SUMS = "sums over the samples, from which the forgotten ones were subtracted"
ROWS = "the rows of every sample that stays. The old model's outputs on them can still be read off it"
HELD: dict[str, tuple[str, str, bool]] = {
    "dense": ("sums over all training samples", SUMS, True),
    "diagonal": ("one number for each weight, a sum over all training samples", SUMS, True),
    "recurrence": ("a sum over all training samples", SUMS, True),
    "lowrank": (
        "one row for every training sample; for a linear model the rows are the samples' inputs themselves",
        ROWS,
        False,
    ),
    "truncated": (
        "the strongest directions of the samples' rows, and the curvature in them",
        "the leading directions of all samples; the forgotten ones were subtracted inside them",
        True,
    ),
    "matrix_free": (
        "nothing but a rough summary; every request reads the training data again",
        "a preconditioner at most, from which the forgotten samples were subtracted",
        False,
    ),
}


def read_details(kind: str, details: Mapping[str, Any]) -> Mapping[str, Any]:
    """With `engine`, and by today's names: `distance_bound`, `holds`, `keeps_remainder`, `overridden`."""
    if kind == "erased" and "forced" in details:  # one option was for all bounds, and nobody wrote down which
        details = {**details, "overridden": [FORCE] if details.get("forced") else []}
    if kind not in ("created", "fitted", "erased") or "engine" in details:
        return details
    now = {RENAMED.get(name, name): value for name, value in details.items()}
    now["engine"] = "sklearn" if _was_of_sklearn(kind, details) else "torch"
    at_fit, after, remainder = HELD.get(str(details.get("structure")), HELD["dense"])
    if kind == "fitted":
        now["holds"] = at_fit
    if kind == "erased":
        now |= {"holds": after, "keeps_remainder": remainder}
    return now


def _was_of_sklearn(kind: str, details: Mapping[str, Any]) -> bool:
    """Before there was a field for it."""
    if kind == "created":
        return (details.get("model") or {}).get("kind") == "scikit-learn"
    return ("correction" if kind == "fitted" else "epsilon") in details
