"""The words of the page of requests: for somebody who has to answer for them and need not know the mathematics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ssse.rendering.numbers import NOTHING, shown
from ssse.workspace.page.story import Entry, Request

SHORT = 12  # characters of a digest by which people tell two apart
NAMED = 5  # requests in a sentence

# A sign and a word: readable without colour. The second word is the class of its colour.
STATES = {
    "erased": ("✔ erased", "yes"),
    "unsealed": ("◐ erased, clean-up not recorded", "partly"),
    "refused": ("✘ refused", "no"),
    "pending": ("… pending", "partly"),
    "nothing": ("– all erased before", "word"),
}
MEANINGS = {
    "ok": "The last erasure is one that is vouched for.",
    "caution": "The last erasure was carried out, but is not vouched for.",
}
VERDICTS = {"ok": ("✔ ok", "yes"), "caution": ("▲ caution", "partly"), "refused": ("✘ refused", "no")}
KINDS = {
    "created": "workspace made",
    "configured": "settings changed",
    "fitted": "curvature fitted",
    "calibrated": "ε chosen",
    "received": "request received",
    "erased": "samples erased",
    "sealed": "old files dealt with",
    "refused": "request refused",
    "evaluated": "models measured",
}
STRUCTURES = {
    "dense": "sums over all training samples",
    "lowrank": "one row for every training sample; for a linear model the rows are the samples' inputs themselves",
    "lowrank truncated": "the strongest directions of the samples' rows, and the curvature in them",
    "truncated": "the strongest directions of the samples' rows, and the curvature in them",
    "matrix_free": "nothing but a rough summary is kept; every request reads the training data again",
    "diagonal": "one number for each weight: only a part of the curvature, meant for comparison",
    "recurrence": "the published recurrence, word for word: meant as a reference",
}
OF_ESTIMATOR = {
    "dense": "gradients and curvature at the model, summed over all training samples",
    "expected": "the second derivative of the estimator's own objective",
}
SUMS = "the sum less the erased samples' rows; with “rebase”, a small remainder of all but the first request stays"
AFTER = {
    "dense": SUMS,
    "lowrank": "the rows of the other samples. The old model's outputs on them can still be read off it",
    "lowrank truncated": "the same directions less the erased samples' rows inside them",
    "truncated": "the same directions less the erased samples' rows inside them",
    "matrix_free": "a rough summary less the erased samples' rows",
    "diagonal": SUMS,
    "recurrence": SUMS,
}
ROWS = {
    "expected": "averaged over the labels that the model holds possible (the true Fisher matrix)",
    "empirical": "from the labels as they are; how far to step must then be measured",
    "sampled": "from labels that were drawn from the model, an estimate of the average over them",
}
POLICIES = {
    "rebase": "each request starts from the model and the curvature that the one before it left",
    "joint": "all requests are taken together, from the first model on, so that their order does not matter; for this "
    "the first weights and the sum of the removed gradients are kept, and the old model can be rebuilt from them",
}
LEAVE_OUT = {
    True: "the curvature is that of the data that stays",
    False: "the curvature is that of all the data, the erased samples included",
}
METHODS = {
    "retrained": "A model was retrained without a set of samples. ε is where erasing that set comes nearest to it.",
    "attack_parity": "Nothing was retrained. ε is the smallest at which the model's confidence no longer tells these "
    "samples from unseen ones; for a whole class, at which they are recognised no better than by chance.",
    "loss_search": "Nothing was retrained. ε is where the loss on the data that stays is lowest along the step.",
    "line_search": "Nothing was retrained. ε is where the loss on the data that stays would be lowest along the step, "
    "were it a parabola.",
}
MEASURES = {
    "accuracy_retained": "training samples that stay",
    "accuracy_forgotten": "the erased samples",
    "accuracy_test_same": "unseen samples of the same kind",
    "accuracy_test_other": "other unseen samples",
    "accuracy_test": "unseen samples",
    "mean_gap": "the mean difference in accuracy",
    "tow": "all accuracies in one number",
    "kl": "how far the predictions are away; 0 = the same",
    "delta": "0: mistakes them as the retrained model does, 1: as the original",
    "gamma": "1: ranks them as the retrained model does, 0: as the original",
    "distance": "0: the retrained model's weights, 1: the original's",
    "attack": "can confidence tell them from unseen samples? 0.5 = cannot",
    "calibrated_attack": "the same, allowing for how hard each sample is",
    "member_rate": "taken for training samples by their confidence",
    "u_lira": "can an attacker tell erased from retrained models?",
    "klom": "how far apart erased and retrained models are on each sample",
    "objective": "the loss of training on the data that stays",
    "gradient_norm": "its slope; 0 = trained to the end",
    "relearn": "fewer than the retrained model: something was left",
}
PANELS = {
    "γ": "γ on the samples: 1 is as the retrained model ranks them, 0 as the original does.",
    "δ": "δ on the samples: 0 is as the retrained model mistakes them, 1 as the original does.",
    "KL": "How far the predictions on the samples are from the retrained model's. Lower is nearer.",
    "distance": "How far the weights are from the retrained model's: 0 is there, 1 is the original.",
    "attack": "How well confidence tells the samples from unseen ones: 0.5 is not at all.",
    "accuracy": "The accuracy on each set of samples.",
    "gap": "The difference in accuracy to the retrained model, on each set of samples.",
}
SPLIT_NAMES = {
    "retained": "training samples that stay (D∖S)",
    "forgotten": "erased samples (S)",
    "test_other": "other unseen samples (T∖T_a)",
    "test_same": "unseen samples of the same kind (T_a)",
    "test": "unseen samples (T)",
}
SPLITS = (
    "S: the erased samples. D∖S: the training samples that stay. T_a: unseen samples of the same kind as S. "
    "T∖T_a: the other unseen samples. T: all unseen samples."
)


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


def maybe(value: float | int | None) -> str | None:
    return None if value is None else number(value)


def moment(time: str) -> str:
    """2026-05-04T10:20:30.123456+00:00 as people write it, to the second."""
    day, _, clock = time.partition("T")
    return f"{day} {clock[:8]} UTC" if clock else time


def digest(text: str | None) -> str:
    return NOTHING if not text else text[:SHORT]


def measure_meaning(key: str) -> str:
    return MEASURES.get("kl" if key.startswith("kl_") else key, "")


def named(requests: Sequence[str]) -> str:
    """The first few, and how many more."""
    few = ", ".join(f"“{name}”" for name in requests[:NAMED])
    return f"{few} and {len(requests) - NAMED:,} more" if len(requests) > NAMED else few


def asked(request: Request) -> str:
    """How many samples, and why not all that were asked for."""
    received = request.details("received")
    total, already = received.get("asked"), received.get("already") or {}
    parts = []
    if total is not None and total != received.get("k"):
        parts.append(f"{whole(total)} asked for")
    if already:
        parts.append(f"{whole(sum(already.values()))} erased before by {named(list(already))}")
    return "; ".join(parts)


def distance(details: Mapping[str, Any]) -> str:
    """From a refit, of an erasure from an estimator."""
    if details.get("exact"):
        return "rounding"
    bound = details.get("epsilon")
    return "not proved" if bound is None else f"at most {number(bound)}"


def change(before: float | None, after: float | None) -> str:
    return f"{number(before)} → {number(after)}"


def facts(entry: Entry) -> str:
    """An entry in a line."""
    found = _FACTS.get(entry["kind"])
    return found(entry["details"]) if found else f"a kind of entry that this version does not know: {entry['kind']}"


def _created(d: Mapping[str, Any]) -> str:
    model = d.get("model") or {}
    norm = ", with BatchNorm" if model.get("batch_norm") else ""
    factory, weights = model.get("factory", "unknown"), whole(model.get("parameters"))
    made = (d.get("after") or {}).get("weights") or d.get("weights")
    return f"model {factory}: {weights} weights{norm}, digest {digest(made)}"


def _configured(d: Mapping[str, Any]) -> str:
    changes = (d.get("changes") or {}).items()
    return "; ".join(f"{key}: {value(pair[0])} → {value(pair[1])}" for key, pair in changes)


def _fitted(d: Mapping[str, Any]) -> str:
    left = f"; {count(d['excluded'], 'erased sample')} left out" if d.get("excluded") else ""
    form = ", ".join(str(d[name]) for name in ("structure", "rows") if d.get(name))
    force = "" if "correction" in d else f", λ = {number(d.get('damping'))}"
    return f"{count(d.get('n'), 'sample')}, {count(d.get('d'), 'parameter')}, {form}{force}{left}"


def _calibrated(d: Mapping[str, Any]) -> str:
    return f"ε = {number(d.get('scale'))}, λ = {number(d.get('damping'))}, by {d.get('method', 'unknown')}"


def _received(d: Mapping[str, Any]) -> str:
    more = asked(Request("", {"received": {"details": d, "seq": 1}}))
    by = {"file": "by a file", "ids": "by their ids"}.get(str(d.get("by")), "")
    return ", ".join(part for part in (f"{count(d.get('k'), 'sample')} to erase", by, more) if part)


def _erased(d: Mapping[str, Any]) -> str:
    before, after = d.get("before") or {}, d.get("after") or {}
    how = f"{distance(d)} from a refit" if "epsilon" in d else f"ε = {number(d.get('scale'))}"
    step = f"{whole(d.get('k'))} of {count(d.get('n'), 'sample')}, {how}, {d.get('verdict', '')}"
    return f"{step}; weights {digest(before.get('weights'))} → {digest(after.get('weights'))}"


def _sealed(d: Mapping[str, Any]) -> str:
    return f"old weights {d.get('old_weights', 'not named')}, old curvature {d.get('old_curvature', 'not named')}"


def _refused(d: Mapping[str, Any]) -> str:
    return f"{count(d.get('k'), 'sample')}: {d.get('reason', '')}"


def _evaluated(d: Mapping[str, Any]) -> str:
    models = ", ".join((d.get("table") or {}).get("models", ()))
    return f"{models}, on the samples of {named(d.get('of') or [])}"


_FACTS = {
    "created": _created,
    "configured": _configured,
    "fitted": _fitted,
    "calibrated": _calibrated,
    "received": _received,
    "erased": _erased,
    "sealed": _sealed,
    "refused": _refused,
    "evaluated": _evaluated,
}


def value(setting: Any) -> str:
    """A setting as it is written."""
    if setting is None:
        return "not set"
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    if isinstance(setting, list | tuple):
        return ", ".join(value(one) for one in setting) or "none"
    return str(setting)
