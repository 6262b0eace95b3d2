"""What the page of requests says about how good the erasures are: the last table, and how ε was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from ssse.evaluation.scan import Scan
from ssse.evaluation.table import Evaluation
from ssse.rendering.document import PageFigure
from ssse.rendering.numbers import NOTHING
from ssse.workspace.page import figures, words
from ssse.workspace.record import describe
from ssse.workspace.record.decision_words import listed
from ssse.workspace.record.published import bucket, enough
from ssse.workspace.record.sight import ATTACKS, failed_audits, failures, sights, void_audits
from ssse.workspace.record.story import Entry, Story

NO_DIFFERENCE = "the original model and the retrained one do alike on the erased samples"
WOULD_SEE = (
    "What would have: weights retrained without the samples (`--retrained`), for the divergence of the predictions and "
    "the distance of the weights from theirs; or, of a network, what comes back along a harmless training "
    "(`--resurfacing`)."
)


def evaluation(story: Story) -> dict[str, Any] | None:
    """The last one in full; how many requests came after it; those before it in a line each."""
    entries = story.all("evaluated")
    if not entries:
        return None
    last = entries[-1]
    details = last["details"]
    table = Evaluation.from_dict(details["table"])
    groups: list[tuple[str, list[dict[str, Any]]]] = []
    columns = table.columns(table.models)
    for i, measure in enumerate(table.measures):
        if not groups or groups[-1][0] != measure.group:
            groups.append((measure.group, []))
        meaning = words.measure_meaning(measure.key)
        said = any(row["meaning"] == meaning for row in groups[-1][1])  # of the first split, and not of each again
        fails = failures(details["table"], measure.key)
        texts = [(title, texts[i] or NOTHING) for title, texts in columns]
        cells = [{"text": text, "fails": model in fails} for (_, text), model in zip_longest(texts, table.models)]
        groups[-1][1].append({"title": measure.title, "meaning": "" if said else meaning, "cells": cells})
    later = [r for r in story.erasures if r.entries["erased"]["seq"] > last["seq"]]
    return {
        "time": last["time"],
        "of": describe.named(details.get("of") or []),
        "counts": ", ".join(
            f"{describe.whole(n)} {words.SPLIT_NAMES.get(split, split)}" for split, n in table.counts.items()
        ),
        "columns": [title for title, _ in columns],
        "groups": groups,
        "floor": bool(table.floors),
        "in_words": _in_words(table),
        "alarms": _alarms(details["table"]),
        "blind": _blind(details["table"]),
        "flags": list(table.flags),
        "notes": list(details.get("notes") or ()),
        "later": len(later),
        "earlier": [_earlier(entry) for entry in reversed(entries[:-1])],
        "drawings": figures.inlined(figures.evaluation(table) if table.measures else []),
    }


def _alarms(table: Mapping[str, Any]) -> list[str]:
    """Every FAIL in a sentence, for somebody who does not know what an audit is."""
    said = [
        f"{_capital(title)} can still tell the erased samples from samples that the model never saw, by how sure the "
        "model is of its answers. Of models that never saw them one in twenty fails by chance; one that fails again, "
        "on other unseen samples, remembers."
        for title in failed_audits(table)
    ]
    return said + [
        f"{_capital(title)} fails for the retrained model too, which never saw the samples: it tells something else "
        "than what was learned, such as another kind of sample, and says nothing here."
        for title in void_audits(table)
    ]


def _blind(table: Mapping[str, Any]) -> str:
    """Measures that could not show forgetting, and those that can; nothing where all can."""
    found, void = sights(table), void_audits(table)
    blind = [one for one in found if not one.sees and one.title not in void]
    attacks, others = [one for one in blind if one.key in ATTACKS], [one for one in blind if one.key not in ATTACKS]
    said = []
    for alike, why in ((attacks, "the samples are not found in the original model either"), (others, NO_DIFFERENCE)):
        if alike:
            have = "has" if len(alike) == 1 else "have"
            said.append(f"{_capital(listed([one.title for one in alike]))} {have} nothing to see here: {why}.")
    if not said:
        return ""
    said.append("That nothing is found by them shows no forgetting.")
    seers = [f"{one.title} ({_short(one.before)} before, {_short(one.after)} now)" for one in found if one.sees]
    said.append(f"What has something to see: {listed(seers)}." if seers else WOULD_SEE)
    return " ".join(said)


def _short(value: float) -> str:
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.2g}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _in_words(table: Evaluation) -> list[str]:
    """What the table says, for somebody who reads no table."""

    def value(model: str, key: str) -> float | None:
        return table[model, key] if model in table.models and key in table.cells else None

    said = []
    before, after = value("original", "accuracy_forgotten"), value("erased", "accuracy_forgotten")
    if before is not None and after is not None:
        said.append(f"On the erased samples the model was right in {before:.2f} % before and is in {after:.2f} % now.")
        goal = value("retrained", "accuracy_forgotten")
        said[-1] = said[-1][:-1] + (f"; a retrained model is in {goal:.2f} %." if goal is not None else ".")
    gap, start = value("erased", "mean_gap"), value("original", "mean_gap")
    if gap is not None:
        was = f"; before erasing it was {start:.2f}" if start is not None else ""
        said.append(f"The accuracies are {gap:.2f} points from those of retraining on average{was}.")
        floor = table.floors.get("mean_gap")
        if floor is not None:
            side = "no further than" if gap <= floor else "further than"
            said.append(f"Two retrained models differ by {floor:.2f} points: the erased model is {side} that.")
    return said


def _earlier(entry: Entry) -> dict[str, Any]:
    table = Evaluation.from_dict(entry["details"]["table"])

    def cell(key: str) -> str:
        there = key in table.cells and "erased" in table.models
        value = table["erased", key] if there else None
        return NOTHING if value is None else f"{value:.2f}"

    return {
        "seq": entry["seq"],
        "time": entry["time"],
        "of": describe.named(entry["details"].get("of") or []),
        "accuracy": cell("accuracy_forgotten"),
        "gap": cell("mean_gap"),
    }


def choice(story: Story) -> dict[str, Any]:
    """How ε came about, and whether the last erasure used it."""
    erased = story.erasures[-1].details("erased") if story.erasures else {}
    used = erased.get("scale")
    calibrated = story.last("calibrated")
    if calibrated is None:
        one = used is None or used == 1
        return {"calibrated": False, "used": words.maybe(used), "one": one, "none": story.of_sklearn}
    details = calibrated["details"]
    scale, stored = details["scale"], details.get("curve")
    drawn: list[PageFigure] = []
    if stored is not None:
        scan = Scan.from_dict(stored)
        drawn = figures.curve(scan, scale)
        heat = figures.over_dampings(details, scan)
        drawn += [heat] if heat is not None else []
    chosen = bucket(scale) if erased.get("scale_up_to") else scale
    before = bool(story.erasures) and story.erasures[-1].entries["erased"]["seq"] < calibrated["seq"]
    return {
        "calibrated": True,
        "time": calibrated["time"],
        "epsilon": describe.epsilon(details),
        "damping": words.maybe(details.get("damping")),
        "method": details.get("method", "unknown"),
        "meaning": words.METHODS.get(str(details.get("method")), ""),
        "reason": details.get("reason", ""),
        "k": details.get("k"),
        "few": not enough(details.get("k")),
        "after_the_last": before and story.choice_dropped is None,
        "dropped": None if story.choice_dropped is None else story.choice_dropped["time"],
        "other": words.maybe(used) if used not in (None, chosen) and not before else None,
        "drawings": figures.inlined(drawn),
        "times": len(story.all("calibrated")),
    }
