"""A ledger entry in one line, the same on a terminal and on the page. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ssse.rendering.numbers import NOTHING, shown
from ssse.workspace.record.details import read_details

SHORT = 12  # characters of a digest by which people tell two apart
NAMED = 5  # requests in a sentence

BECAUSE = {
    "refused": "the step was refused by the curvature from before",
    "leverage": "samples held most of a direction of the curvature from before",
    "dropped": "the last request had dropped the curvature",
    "repaired": "a repair had changed the weights that the curvature was of",
    "schedule": "erase.refit says so",
    "worthwhile": "fit --when-needed",
}

Details = Mapping[str, Any]


def describe(kind: str, details: Details) -> str:
    """Whatever is missing is not made up: an entry may be of another version."""
    write = _LINES.get(kind)
    if write is None:
        return f"a kind of entry that this version does not know: {kind}"
    return write(read_details(kind, details))


def count(number: int | None, what: str) -> str:
    """ "1 sample", "1,437 samples", "2 entries"."""
    several = what.removesuffix("y") + "ies" if what.endswith("entry") else f"{what}s"
    return f"{whole(number)} {what if number == 1 else several}"


def whole(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"


def number(value: float | int | None) -> str:
    """Four digits at most: 0.05 and not 0.05000."""
    if not isinstance(value, float) or not 1e-3 <= abs(value) < 1e4:
        return whole(value) if isinstance(value, int) else shown(value, 3)
    return f"{value:.4g}".replace("-", "−")


def scale(details: Details) -> str:
    """ε, which is rounded up where it was measured on few samples."""
    return f"{'up to ' if details.get('scale_up_to') else ''}{number(details.get('scale'))}"


def epsilon(details: Details) -> str:
    """ "ε = 1.5", "ε up to 2"."""
    return f"ε {'' if details.get('scale_up_to') else '= '}{scale(details)}"


def digest(text: str | None) -> str:
    return NOTHING if not text else text[:SHORT]


def named(requests: Sequence[str]) -> str:
    """The first few, and how many more."""
    few = ", ".join(f"“{name}”" for name in requests[:NAMED])
    return f"{few} and {len(requests) - NAMED:,} more" if len(requests) > NAMED else few


def setting(value: Any) -> str:
    """A setting as it is written."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(setting(one) for one in value) or "none"
    return str(value)


def not_erased_now(received: Details) -> str:
    """Why a request erases fewer samples than it asked for; nothing where it does not."""
    total, already = received.get("asked"), received.get("already") or {}
    parts = []
    if total is not None and total != received.get("k"):
        parts.append(f"{whole(total)} asked for")
    if already:
        parts.append(f"{whole(sum(already.values()))} erased before by {named(list(already))}")
    return "; ".join(parts)


def distance_from_refit(erased: Details) -> str:
    """Of coefficients and intercepts, for an erasure from an estimator; `erased` as `read_details` gives it."""
    if erased.get("exact"):
        return "rounding"
    bound = erased.get("distance_bound")
    if bound is None and erased.get("proved"):
        return "proved, and not shown"  # of few samples it could tell whose they are
    return "not proved" if bound is None else f"at most {number(bound)}"


def _created(d: Details) -> str:
    model = d.get("model") or {}
    norm = ", with BatchNorm" if model.get("batch_norm") else ""
    made = (d.get("after") or {}).get("weights") or d.get("weights")
    parameters = count(model.get("parameters"), "parameter")
    return f"model {model.get('factory', 'unknown')}: {parameters}{norm}, digest {digest(made)}"


def _configured(d: Details) -> str:
    changes = (d.get("changes") or {}).items()
    lines = [f"{key}: {setting(pair[0])} → {setting(pair[1])}" for key, pair in changes]
    if d.get("keys"):
        lines.append(f"signing key {' → '.join(digest(key) for key in d['keys'])}")
    return "; ".join(lines)


def _upgraded(d: Details) -> str:
    return f"to version {d.get('version', 'unknown')}: leaves for {count(d.get('leaves'), 'entry')}"


def _fitted(d: Details) -> str:
    if d["engine"] == "sklearn":
        form = f"sums over the samples, loss {d.get('loss', 'unknown')}"
    else:
        structure, rows = d.get("structure"), d.get("rows")
        form = ", ".join(part for part in (structure, rows and f"{rows} rows") if part)
        form += f", λ = {number(d.get('damping'))}"
    excluded = f"; {count(d['excluded'], 'erased sample')} left out" if d.get("excluded") else ""
    return f"{count(d.get('n'), 'sample')}, {count(d.get('d'), 'parameter')}, {form}{excluded}{_by_itself(d)}"


def _by_itself(d: Details) -> str:
    """Why nobody had to ask for a fit, and what it cost."""
    if d.get("because") is None:
        return ""
    why = BECAUSE.get(d["because"], d["because"])
    took = "" if d.get("seconds") is None else f", {d['seconds']:.1f} s"
    return f"; anew after {count(d.get('after_requests'), 'request')}{took}: {why}"


def _calibrated(d: Details) -> str:
    return f"{epsilon(d)}, λ = {number(d.get('damping'))}, by {d.get('method', 'unknown')}"


def _received(d: Details) -> str:
    by = {"file": "by a file", "ids": "by their ids"}.get(str(d.get("by")), "")
    due = f"due {d['due']}" if d.get("due") else ""
    parts = (f"{count(d.get('k'), 'sample')} to erase", by, not_erased_now(d), due, _who(d))
    return ", ".join(part for part in parts if part)


def _who(d: Details) -> str:
    """The name that was given with the command, where one was."""
    return f"by {d['who']}" if d.get("who") else ""


def _erased(d: Details) -> str:
    before, after = d.get("before") or {}, d.get("after") or {}
    sklearn = d["engine"] == "sklearn"
    how = f"distance from a refit: {distance_from_refit(d)}" if sklearn else epsilon(d)
    step = f"{whole(d.get('k'))} of {count(d.get('n'), 'sample')}, {how}; verdict {d.get('verdict', 'unknown')}"
    step += f", overriding {', '.join(d['overridden'])}" if d.get("overridden") else ""
    step += ", held until confirmed" if d.get("held") else ""
    return f"{step}; weights {digest(before.get('weights'))} → {digest(after.get('weights'))}"


def _sealed(d: Details) -> str:
    weights, curvature = (d.get(f"old_{part}", "not named") for part in ("weights", "curvature"))
    if weights == curvature:
        return f"old weights and curvature {weights}"
    return f"old weights {weights}, old curvature {curvature}"


def _repaired(d: Details) -> str:
    before, after = d.get("before") or {}, d.get("after") or {}
    training = f"{count(d.get('epochs'), 'epoch')} over {count(d.get('samples'), 'sample')} that stay"
    took = "" if d.get("seconds") is None else f", {d['seconds']:.1f} s"
    how = f"largest rate {number(d.get('learning_rate'))}{took}; verdict {d.get('verdict', 'unknown')}"
    weights = f"weights {digest(before.get('weights'))} → {digest(after.get('weights'))}"
    return f"{training}, {how}; {weights}; the curvature was dropped"


def _confirmed(d: Details) -> str:
    who = f" ({_who(d)})" if d.get("who") else ""
    return f"{named(d.get('requests') or [])}: the model from before goes{who}"


def _reverted(d: Details) -> str:
    weights = digest((d.get("after") or {}).get("weights"))
    refused = f"; refused because of them, and to be asked for again: {named(d['refused'])}" if d.get("refused") else ""
    undone = f"{named(d.get('requests') or [])} undone: back to the state of entry {d.get('back_to')}"
    who = f" ({_who(d)})" if d.get("who") else ""
    return f"{undone}, weights {weights}{refused}{who}"


def _refused(d: Details) -> str:
    return f"{count(d.get('k'), 'sample')}: {d.get('reason', '')}"


def _evaluated(d: Details) -> str:
    models = ", ".join((d.get("table") or {}).get("models", ()))
    return f"{models}, on the samples of {named(d.get('of') or [])}"


_LINES = {
    "created": _created,
    "configured": _configured,
    "fitted": _fitted,
    "calibrated": _calibrated,
    "received": _received,
    "erased": _erased,
    "repaired": _repaired,
    "sealed": _sealed,
    "confirmed": _confirmed,
    "reverted": _reverted,
    "refused": _refused,
    "evaluated": _evaluated,
    "upgraded": _upgraded,
}
