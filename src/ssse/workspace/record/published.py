"""What may be shown of an entry: on pages, by `log`, in proofs. Nothing here imports torch.

The ledger holds numbers that were measured on the samples of a request. With the model that is served, and some people
of whom one is meant, a single loss or leverage of three digits tells which one. So an entry is shown by a list of what
may be shown, kind by kind; whatever is not on the list stays in the ledger, which is as secret as the data. How well
that works is measured by an attack (benchmarks/identification.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ssse.workspace.record.details import read_details
from ssse.workspace.record.entry import BLIND, SHOWN, Entry
from ssse.workspace.record.sentences import without_numbers

# Who has the salt and a sample could find out whether that was erased; `BLIND` hides what an entry's hash is of.
# `SHOWN` is the digest of what is shown.
SECRET = ("salt", BLIND, SHOWN)
PUBLIC = 20  # samples from which on what was measured on them is shown, coarsely
LARGEST = 1023  # the power of two that a float can hold
ENVELOPE = ("seq", "time", "kind", "request", "previous", "hash")

Details = Mapping[str, Any]
Rule = Callable[[Any], Any]


def published(entry: Entry) -> dict[str, Any]:
    """As JSON can hold it, without what the ledger keeps to itself."""
    whole = entry.to_dict()
    return {**{key: whole[key] for key in ENVELOPE}, "details": published_details(entry.kind, entry.details)}


def exact(entry: Entry) -> dict[str, Any]:
    """All that the ledger holds, but for what nobody needs to see: for those who may see the data too."""
    return {**entry.to_dict(), "details": {key: v for key, v in entry.details.items() if key not in SECRET}}


def published_details(kind: str, details: Details) -> dict[str, Any]:
    """Of an entry of any version, in today's form. Of a kind that is not known here, nothing."""
    known, shown = read_details(kind, details), LISTED.get(kind, {})
    made = {key: shown[key](value) for key, value in known.items() if key in shown}
    return {**made, **COMPUTED[kind](known)} if kind in COMPUTED else made


# ── how a value is shown ──────────────────────────────────────────────────────────────────────────────────────────


def bucket(value: float | None) -> float | None:
    """Rounded up to a power of two: two samples that differ by less are one to whoever reads it."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return math.copysign(2.0 ** min(math.ceil(math.log2(abs(value))), LARGEST), value) if value else 0.0


def _digits(count: int) -> Rule:
    """So many significant ones, of every number in it."""

    def rounded(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: rounded(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [rounded(one) for one in value]
        return float(f"{value:.{count}g}") if isinstance(value, float) else value

    return rounded


def _as_it_is(value: Any) -> Any:
    return value


def _sentence(value: Any) -> Any:
    return without_numbers(value) if isinstance(value, str) else None


def _sentences(value: Any) -> list[str]:
    return [without_numbers(str(one)) for one in value or ()]


def _weights(value: Any) -> Any:
    """Not the curvature's digest: who has all the data could compute it without each sample in turn, and compare."""
    return value and {"weights": value.get("weights")}


def _model_files(value: Any) -> Any:
    return {name: digest for name, digest in (value or {}).items() if not name.startswith("curvature/")}


def _replaced(value: Any) -> Any:
    """An ε from before, which may have been measured on few samples."""
    if not isinstance(value, Mapping):
        return bucket(value)
    return {**value, "scale": bucket(value.get("scale")), "source": _sentence(value.get("source"))}


def _percent(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


# ── what is shown, kind by kind ───────────────────────────────────────────────────────────────────────────────────


def _each(*keys: str, by: Rule = _as_it_is) -> dict[str, Rule]:
    return dict.fromkeys(keys, by)


_STATE = {**_each("before", "after", by=_weights), **_each("files", by=_model_files), **_each("weights")}
_HOW = _each("structure", "rows", "rows_per_batch", "blocks", "loss", "seed")
_COARSE = _digits(2)
_COUNTED = _digits(4)
_CHOSEN = _digits(3)  # λ; ε that was set by somebody, or chosen on enough samples

LISTED: dict[str, dict[str, Rule]] = {
    "created": {**_each("engine", "model", "settings", "versions", "public_key"), **_STATE},
    "configured": _each("changes", "settings", "public_key", "keys"),
    "upgraded": _each("version", "leaves", "root"),
    "fitted": {
        **_each("engine", "holds", "n", "d", "parameters", "weight_decay", "plan", "model", "options", "exact"),
        **_each("samples", "excluded", "versions", "because", "after_requests"),
        **_HOW,
        **_each("damping", by=_CHOSEN),
        **_each("seconds", by=_COARSE),
        **_each("dropped", "kept", by=bucket),  # ε that were measured, perhaps on few samples
        # Over all samples that stay: who has them all could leave out each in turn and compare.
        **_each("mean_loss", "gradient_norm", "correction", "distance_bound", by=bucket),
        **_each("notes", "doubts", by=_sentences),
        **_STATE,
    },
    "calibrated": {
        **_each("method", "k", "options", "versions", "weight_decay"),
        **_HOW,
        **_each("scale", "damping", by=_CHOSEN),
        **_each("replaces", by=_replaced),
        **_each("reason", by=_sentence),
        **_STATE,
    },
    "received": _each("asked", "k", "already", "by", "options", "due", "who", "named"),
    "erased": {
        **_each("engine", "k", "n", "holds", "keeps_remainder", "leave_out", "residual", "policy", "old", "versions"),
        **_each(
            "verdict",
            "overridden",
            "held",
            "curvature_dropped",
            "exact",
            "untouched",
            "structure",
            "rows",
            "blocks",
            "seeds",
        ),
        **_each("damping", by=_CHOSEN),
        **_each("scale_source", by=_sentence),
        **_each("why_held", by=_sentences),
        **_STATE,
    },
    "repaired": {
        **_each(
            "engine", "by", "samples", "epochs", "steps", "batch_size", "learning_rate", "weight_decay", "momentum"
        ),
        **_each("seed", "verdict", "curvature_dropped", "old", "options", "versions"),
        **_each("seconds", by=_COARSE),
        # Over all samples that stay, as of a fit.
        **_each("retained_loss", "probe_loss_before", "probe_loss_after", by=bucket),
        **_each("probe_accuracy_before", "probe_accuracy_after", by=_percent),
        **_each("reasons", "notes", by=_sentences),
        **_STATE,
    },
    "confirmed": _each("requests", "entries", "who"),
    "reverted": {**_each("requests", "entries", "back_to", "refused", "who"), **_STATE},
    "sealed": _each("old_weights", "old_curvature", "remains"),
    "refused": _each("k", "verdict", "measured"),
    "evaluated": {**_each("of"), **_STATE},
}

# Measured on the samples of a request: only where there are `PUBLIC` of them, and only so.
_MEASURED: dict[str, Rule] = {
    **_each("loss_before", "loss_after", "leverage_max", "leverage_sum", "relative_step", by=bucket),
    **_each("probe_samples"),
    **_each("probe_loss_before", "probe_loss_after", by=bucket),
    **_each("probe_accuracy_before", "probe_accuracy_after", by=_percent),
}
_JUDGED: dict[str, Rule] = {**_each("verdict", "broken", "overridden"), **_each("reasons", "notes", by=_sentences)}
_CURVE: dict[str, Rule] = {
    **_each("curve", "grid", by=_COARSE),
    **_each("dampings", by=_CHOSEN),
    **_each("grid_name"),
}


def enough(k: Any) -> bool:
    """Whether what was measured on so many samples is shown at all."""
    return isinstance(k, int) and k >= PUBLIC


def _diagnostics(known: Details) -> dict[str, Any]:
    said = known.get("diagnostics")
    if not said:
        return {"diagnostics": None}
    rules = {**_JUDGED, **(_MEASURED if enough(known.get("k")) else {})}
    return {"diagnostics": {key: rules[key](value) for key, value in said.items() if key in rules}}


def _erased(known: Details) -> dict[str, Any]:
    """With ε, which of scikit-learn's is a share that the samples decide; and whether a distance is proved."""
    made = _diagnostics(known)
    if known["engine"] == "sklearn":
        bound = known.get("distance_bound")
        made |= {"proved": bound is not None}
        made |= {"distance_bound": bucket(bound)} if enough(known.get("k")) else {}
    elif "scale" in known:  # the entry does not say on how many samples it was measured
        made |= {"scale": _CHOSEN(known["scale"])} if known.get("scale_source") is None else _up_to(known["scale"])
    return made


def _up_to(scale: Any) -> dict[str, Any]:
    """An ε of three digits, measured on one sample, tells on which."""
    return {"scale": bucket(scale), "scale_up_to": True}


def published_reason(reason: str, measured: bool) -> str:
    """`measured`: it was said after a step on the samples. Before that it is about the request alone: its own counts,
    places in its own file, which are not those of the training data, and the ids of other requests."""
    return without_numbers(reason) if measured else reason


def _refused(known: Details) -> dict[str, Any]:
    """Entries of older versions do not say whether something was measured."""
    reason = published_reason(str(known.get("reason", "")), known.get("measured", True))
    return {"reason": reason, **_diagnostics(known)}


def _calibrated(known: Details) -> dict[str, Any]:
    if not enough(known.get("k")):
        return {"curve": None, **_up_to(known.get("scale"))}
    return {key: rule(known[key]) for key, rule in _CURVE.items() if key in known}


def _evaluated(known: Details) -> dict[str, Any]:
    """Of few samples which models were compared, and on how many: the split of the test data tells their class."""
    table = known.get("table") or {}
    k = (table.get("counts") or {}).get("forgotten")
    if enough(k):
        cells = {
            key: {name: {**_cell(key, cell), "note": _sentence(cell.get("note"))} for name, cell in row.items()}
            for key, row in (table.get("values") or {}).items()
        }
        floors = {
            name: {key: _cell(key, value) for key, value in (table.get(name) or {}).items()}
            for name in ("noise_floor", "noise_floor_spread")
        }
        whole = {key: table.get(key) for key in ("models", "seeds", "counts", "measures")}
        shown = {**whole, "values": cells, **floors, "flags": _sentences(table.get("flags"))}
        return {"table": shown, "notes": _sentences(known.get("notes"))}
    empty = {"measures": [], "values": {}, "noise_floor": {}, "noise_floor_spread": {}, "flags": []}
    models = {"models": table.get("models") or [], "seeds": table.get("seeds") or {}, "counts": {"forgotten": k}}
    return {"table": {**models, **empty}, "notes": []}


def _cell(key: str, value: Any) -> Any:
    """Accuracies are counts of samples, of `PUBLIC` or more: no sample has a value of its own in them."""
    return (_COUNTED if key.startswith("accuracy_") or key in ("mean_gap", "member_rate") else _COARSE)(value)


COMPUTED: dict[str, Callable[[Details], dict[str, Any]]] = {
    "erased": _erased,
    "refused": _refused,
    "calibrated": _calibrated,
    "evaluated": _evaluated,
}
