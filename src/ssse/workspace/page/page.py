"""The page of a workspace: what was asked, what was done, and what is known about it. Made from the ledger alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssse.rendering.numbers import NOTHING, duration
from ssse.rendering.templates import template
from ssse.verdict import probe_in_words
from ssse.workspace.page import evidence, figures, words
from ssse.workspace.record import decision_words, describe, ledger
from ssse.workspace.record.decision import Decision, decisions
from ssse.workspace.record.published import PUBLIC
from ssse.workspace.record.residues import REPLACED, what_remains
from ssse.workspace.record.story import Entry, Request, Story

SHOWN = 20  # requests and entries in view when there are many
FEW = 30  # up to here all are in view
CLOSED = 5  # of the requests that may be closed, the latest
ATTENTION = 100  # earlier requests that are in view because they were not carried out
PRINTED = 60  # rows that a print unfolds; more are left to the command that lists them
RECORD = 200_000  # characters of entries word for word
LONG = 12  # numbers of a list that are shown word for word


def render(
    entries: Sequence[ledger.Entry], *, name: str, head: str, checked: str | None = None, now: str | None = None
) -> str:
    """One HTML file: no network, no script; the same entries give the same bytes.

    Args:
        entries: those of the ledger, oldest first; what of them may not be shown is left out here. head: the hash of
            the last.
        name: of the workspace. checked: what the last check of the files found, in a sentence.
        now: by which requests that are open are overdue; the time of the last entry if not given.
    """
    story = Story(entries)
    judged = decisions(story, now or entries[-1].time)
    return template("ssse.workspace.page", "page.html.j2").render(
        name=name,
        head=head,
        checked=checked,
        story=story,
        words=words,
        describe=describe,
        nothing=NOTHING,
        printed=PRINTED,
        summary=_summary(story, judged),
        decided=_decided(judged),
        requests=_folded(story.requests, _needs_attention, _request_row),
        method=_method(story),
        erasures=_folded(story.erasures, lambda request: False, _erasure_row),
        drawings=_drawings(story),
        evaluation=evidence.evaluation(story),
        choice=evidence.choice(story),
        remains=_remains(story),
        ledger=_folded(story.entries, lambda entry: False, _entry_row),
        record=_record(story.entries),
        few=PUBLIC,
        provenance=_provenance(story),
    )


# ── what is in view and what is folded ────────────────────────────────────────────────────────────────────────────


def _folded(items: Sequence[Any], important: Any, row: Any) -> dict[str, Any]:
    """The latest, and earlier ones that somebody must see; all others are on the page too, folded. Latest first."""
    if len(items) <= FEW:
        return {"shown": [row(item) for item in reversed(items)], "folded": []}
    early = [item for item in items[:-SHOWN] if important(item)][-ATTENTION:]
    seen = {id(item) for item in (*early, *items[-SHOWN:])}
    return {
        "shown": [row(item) for item in reversed(items) if id(item) in seen],
        "folded": [row(item) for item in reversed(items) if id(item) not in seen],
    }


def _needs_attention(request: Request) -> bool:
    return request.state in ("refused", "pending", "unsealed", "held", "reverted")


# ── the parts of the page ─────────────────────────────────────────────────────────────────────────────────────────


def _decided(judged: Sequence[Decision]) -> dict[str, Any]:
    """What is to be done comes first; of what may be closed the latest. Latest first."""
    waiting = [one for one in reversed(judged) if not one.closes]
    closed = [one for one in reversed(judged) if one.closes]
    in_view = CLOSED if waiting or len(closed) > FEW else FEW
    return {
        "shown": [_decision_row(one) for one in (*waiting, *closed[:in_view])],
        "folded": [_decision_row(one) for one in closed[in_view:]],
    }


def _decision_row(one: Decision) -> dict[str, Any]:
    return {
        "id": one.request,
        "label": decision_words.label(one),
        "why": decision_words.why(one),
        "when": decision_words.when(one),
        "commands": decision_words.commands(one),
        "meant": decision_words.placeholders(one),
        "overdue": one.overdue,
    }


def _closing(judged: Sequence[Decision]) -> str:
    closed, late = sum(one.closes for one in judged), sum(one.overdue for one in judged)
    if not judged:
        return ""
    overdue = f" {describe.whole(late)} {'is' if late == 1 else 'are'} overdue." if late else ""
    if len(judged) == 1:
        return f"It may {'' if closed else 'not '}be closed{'' if closed else ' yet'}.{overdue}"
    return f"{describe.whole(closed) if closed else 'Not one'} of them may be closed.{overdue}"


def _summary(story: Story, judged: Sequence[Decision]) -> dict[str, Any]:
    done, refused, pending = len(story.erasures), len(story.of("refused")), len(story.of("pending"))
    idle, unsealed = len(story.of("nothing")), len(story.of("unsealed"))
    if not story.requests:
        fitted = story.last("fitted") is not None
        sentence = "No request has come yet: nothing was erased. "
        sentence += "The workspace is ready for the first." if fitted else "The curvature has not been fitted yet."
    else:
        counts = (
            (done, "carried out"),
            (len(story.of("reverted")), "undone"),
            (refused, "refused"),
            (pending, "pending"),
            (idle, "with nothing left to erase"),
        )
        parts = [f"{describe.whole(number)} {what}" for number, what in counts if number]
        sentence = f"{describe.count(len(story.requests), 'request')} came: {', '.join(parts)}."
    return {
        "sentence": sentence,
        "meaning": _closing(judged),
        "done": describe.whole(done),
        "refused": describe.whole(refused),
        "pending": describe.whole(pending),
        "unsealed": unsealed,
        "held": [request.id for request in story.of("held")],
        "fitted": story.last("fitted") is not None,
        "erased": describe.whole(story.erased_samples),
        "samples": describe.whole(story.samples),
        "share": f"{story.erased_samples / story.samples:.2%}" if story.samples and story.erased_samples else "",
        "weights": story.weights,
    }


def _verdict(request: Request) -> tuple[str, str]:
    verdict = request.verdict
    if request.overridden:
        return words.OVERRIDDEN.format(", ".join(request.overridden)), "no"
    return (NOTHING, "word") if verdict is None else words.VERDICTS.get(verdict, (verdict, "word"))


def _state(request: Request) -> tuple[str, str]:
    """A green tick only where somebody vouches for it."""
    vouched = request.verdict in ("ok", None) and not request.overridden
    return words.STATES[request.state] if request.state != "erased" or vouched else words.UNVOUCHED


def _request_row(request: Request) -> dict[str, Any]:
    reason = request.details("refused").get("reason") if request.state == "refused" else None
    reason = " ".join(request.details("erased").get("why_held") or ()) if request.state == "held" else reason
    return {
        "id": request.id,
        "received": request.received,
        "answered": request.answered,
        "k": describe.whole(request.k),
        "asked": describe.not_erased_now(request.details("received")),
        "state": _state(request),
        "reason": reason,
        "verdict": _verdict(request),
    }


def _erasure_row(request: Request) -> dict[str, Any]:
    diagnostics, erased = request.diagnostics, request.details("erased")
    probe = probe_in_words(diagnostics)
    return {
        "id": request.id,
        "k": describe.whole(erased.get("k")),
        "n": describe.whole(erased.get("n")),
        "scale": describe.scale(erased),
        "damping": describe.number(erased.get("damping")),
        "loss": words.change(diagnostics.get("loss_before"), diagnostics.get("loss_after")),
        "largest": words.up_to(diagnostics.get("leverage_max")),
        "sum": words.up_to(diagnostics.get("leverage_sum")),
        "step": words.up_to(diagnostics.get("relative_step")),
        "distance": describe.distance_from_refit(erased),
        "verdict": _verdict(request),
        "reasons": list(diagnostics.get("reasons") or ()),
        "notes": [
            *([f"Samples that should keep working: {probe}."] if probe else []),
            *(diagnostics.get("notes") or ()),
        ],
    }


def _method(story: Story) -> list[tuple[str, str, str]]:
    """What is in force, as (name, value, meaning): of the last erasure, else of the calibration and the fit."""
    known = story.known
    structure, rows = known("structure", "erased", "fitted"), known("rows", "erased", "fitted")
    policy, leave_out = known("policy", "erased"), known("leave_out", "erased")
    scaled, damping = story.last("erased", having="scale"), known("damping", "erased", "calibrated", "fitted")
    if scaled is None and story.choice_dropped is None:
        scaled = story.last("calibrated", having="scale")
    n, d = known("n", "fitted"), known("d", "fitted")
    meaning_of_rows = words.ROWS_OF_ESTIMATOR if story.of_sklearn else words.ROWS.get(str(rows), "")
    lines = [
        (
            "fitted on",
            None if n is None else describe.count(n, "sample"),
            "the training data, less what was erased before",
        ),
        ("weights that change", None if d is None else describe.whole(d), "all others stay as they are"),
        ("structure", structure, known("holds", "fitted") or ""),
        ("rows", rows, meaning_of_rows),
        ("λ, damping", words.maybe(damping), "keeps the step from going far where the data says little"),
        (
            "ε, scale",
            None if story.of_sklearn or scaled is None else describe.scale(scaled["details"]),
            "how far the step goes; how it was chosen is said below",
        ),
        ("leave-out", None if leave_out is None else describe.setting(leave_out), words.LEAVE_OUT[bool(leave_out)]),
        ("policy", policy, words.POLICIES.get(str(policy), "")),
    ]
    return [(name, str(value), meaning) for name, value, meaning in lines if value is not None]


def _drawings(story: Story) -> list[dict[str, Any]]:
    """Of the erasures, one after another: those of enough samples."""
    shown = [(i, r.diagnostics) for i, r in enumerate(story.erasures, start=1) if "loss_after" in r.diagnostics]
    return figures.inlined(figures.over_requests(shown, not story.of_sklearn) if len(shown) > 1 else [])


def _remains(story: Story) -> dict[str, Any]:
    last = next((r for r in reversed(story.erasures) if r.state in ("erased", "held")), None)
    created, repaired = story.last("created"), _repaired(story)
    if last is None or created is None:
        lines = []
    elif last.state == "held":
        lines = what_remains(last.details("erased"), created["details"], held=True, repaired=repaired is not None)
    else:
        lines = list(last.details("sealed").get("remains") or ())
        if repaired is not None:  # what was said when the request was sealed
            lines = [line for line in lines if line["what"] not in REPLACED]
    model = story.known("model", "created") or {}
    sealed = [r.details("sealed") for r in story.erasures if r.state == "erased"]
    return {
        "last": last,
        "lines": lines,
        "weights": _tally(sealed, "old_weights"),
        "curvature": _tally(sealed, "old_curvature"),
        "unsealed": [r.id for r in story.erasures if r.state == "unsealed"],
        "curvature_now": _curvature_now(story),
        "fitted_anew": _fitted_anew(story),
        "joint": story.known("policy", "erased") == "joint",
        "batch_norm": bool(model.get("batch_norm")),
        "repaired": None if repaired is None else describe.describe("repaired", repaired["details"]),
    }


def _repaired(story: Story) -> Entry | None:
    """The repair since the last erasure, where there was one."""
    last = story.last("erased", "repaired")
    return last if last is not None and last["kind"] == "repaired" else None


def _fitted_anew(story: Story) -> bool:
    last = story.last("fitted", "erased", "repaired")
    return last is not None and last["kind"] == "fitted"


def _curvature_now(story: Story) -> str:
    erased = story.last("erased")
    if _fitted_anew(story):
        return "The current curvature was fitted anew after the last erasure, without the erased samples."
    if _repaired(story) is not None:
        return "There is no curvature now: the repair changed the weights that it was of. The next request fits one."
    if erased is not None and erased["details"].get("curvature_dropped"):
        return "There is no curvature now: it was dropped, since the erased samples cannot be taken out of it."
    structure = story.known("structure", "erased", "fitted")
    if story.known("policy", "erased") == "joint" and story.known("leave_out", "erased") is False:
        return f"The current curvature ({structure}) holds the rows of all samples, the erased ones included."
    holds = None if erased is None else erased["details"].get("holds")
    return f"The current curvature ({structure}) holds {holds}." if structure and holds else ""


def _tally(sealed: Iterable[Mapping[str, Any]], name: str) -> str:
    """ "shredded after 3 of 4 erasures, kept after 1"."""
    counts: dict[str, int] = {}
    for details in sealed:
        status = str(details.get(name, "not named"))
        counts[status] = counts.get(status, 0) + 1
    return ", ".join(f"{status} after {describe.count(number, 'erasure')}" for status, number in counts.items())


def _entry_row(entry: Entry) -> dict[str, Any]:
    return {
        "seq": entry["seq"],
        "time": entry["time"],
        "kind": words.KINDS.get(entry["kind"], entry["kind"]),
        "request": entry["request"],
        "facts": describe.describe(entry["kind"], entry["details"]),
        "hash": entry["hash"],
    }


def _record(entries: Sequence[Entry]) -> dict[str, Any]:
    """Entries word for word, the latest first, as many as have room."""
    shown: list[dict[str, Any]] = []
    room = RECORD
    for entry in reversed(entries):
        text = json.dumps(_shortened(entry["details"]), ensure_ascii=False, indent=1)
        room -= len(text)
        if room < 0 and shown:
            break
        keys = ("seq", "time", "kind", "request", "previous", "hash")
        shown.append({"details": text, **{key: entry[key] for key in keys}})
    return {
        "entries": shown,
        "omitted": len(entries) - len(shown),
        "lines": sum(e["details"].count("\n") for e in shown),
    }


def _shortened(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _shortened(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        kept = [_shortened(entry) for entry in value[: LONG - 2 if len(value) > LONG else LONG]]
        return kept + ([f"… {len(value) - len(kept):,} more"] if len(value) > len(kept) else [])
    return value


def _provenance(story: Story) -> dict[str, Any]:
    versions: list[tuple[int, str]] = []
    for entry in story.entries:
        packages = entry["details"].get("versions")
        text = ", ".join(f"{name} {number}" for name, number in packages.items()) if packages else ""
        if text and (not versions or versions[-1][1] != text):
            versions.append((entry["seq"], text))
    model = story.known("model", "created") or {}
    fitted = story.last("fitted")
    details = {} if fitted is None else fitted["details"]
    return {
        "versions": versions[-SHOWN:],
        "more_versions": max(0, len(versions) - SHOWN),
        "factory": model.get("factory"),
        "parameters": model.get("parameters"),
        "loss": details.get("loss"),
        "seed": details.get("seed"),
        "seconds": None if details.get("seconds") is None else duration(details["seconds"]),
        "gradient": words.maybe(details.get("gradient_norm")),
        "notes": [*_plan(details), *(details.get("notes") or ())],
        "settings": [(key, describe.setting(value)) for key, value in _flat(story.known("settings") or {})],
    }


def _plan(fitted: Mapping[str, Any]) -> list[str]:
    """What was chosen before the fit, and why; entries of older versions have it among their notes."""
    plan = fitted.get("plan")
    return [f"Chosen: {plan['chosen']}.", f"Why: {plan['why']}."] if plan else []


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in settings.items():
        pairs += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return pairs
