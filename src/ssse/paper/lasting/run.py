"""Networks whose erasure lasts: step and repair, its opponents, and what comes back in a harmless training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from ssse.metrics.ulira import u_lira
from ssse.paper.cache import key_of
from ssse.paper.lasting import case
from ssse.paper.lasting.case import Numbers
from ssse.paper.lasting.drawing import drawings
from ssse.paper.lasting.findings import findings, targets
from ssse.paper.lasting.jobs import NOTHING, OURS, OWN, RETRAINED, SHADOWED, Study
from ssse.paper.lasting.networks import CLASSES, DIGITS, FULL, LARGE, MEDIUM
from ssse.paper.lasting.tables import summary_rows, tables
from ssse.paper.lasting.view import unmeasured
from ssse.paper.result import STAND_IN, Result
from ssse.paper.settings import Settings
from ssse.rendering.document import as_plain

FEWEST = 4  # networks on each side, that u_lira can judge by
ATTACKED = ((OURS, "repaired"), (NOTHING, "alone"), (NOTHING, "repaired"), *((name, "repaired") for name in SHADOWED))

Answers = Mapping[str, Mapping[str, Mapping[str, Numbers]]]


def run(settings: Settings) -> Result:
    return compose(as_plain(measure(settings)))  # as they are stored, so that they can be drawn again


def measure(settings: Settings) -> dict[str, Any]:
    """Everything that is computed, as numbers and words."""
    sizes = {"small": MEDIUM, "classes": CLASSES, "large": LARGE}
    form = DIGITS if settings.data is None else sizes.get(settings.scale, FULL)
    if form.shadows and settings.torch_device().type == "cpu":
        form = replace(form, shadows=0)  # networks of as many more seeds as U-LiRA needs: hours on a CPU
    if settings.seeds is not None:
        form = replace(form, seeds=settings.seeds, shadows=0)  # seeds that were looked at are no shadows
    study, left_out, absent = Study(settings, form), set[str](), set[int]()
    answers: dict[str, dict[str, dict[str, Numbers]]] = {}
    for block in settings.each(study.blocks(), "lasting", lambda one: f"{one.method}, seed {one.seed}"):
        shadow = block.seed in study.shadows
        if settings.late and (shadow or block.method not in OWN) and not study.has(block):
            if not shadow:
                left_out.add(block.method)
            elif block.method in OWN:
                absent.add(block.seed)
            continue
        answers.setdefault(block.method, {})[str(block.seed)] = study.numbers(block)
    main, recipe, first = [str(seed) for seed in range(form.seeds)], form.recipe, study.cases(0)
    shadows = [str(seed) for seed in study.shadows if seed not in absent]
    attacked = [removal.words for removal in study.removals(study.shadows.start)] if shadows else []
    return {
        "form": {FULL.name: "full", CLASSES.name: "classes", LARGE.name: "large"}.get(form.name, "small"),
        "name": form.name,
        "title": STAND_IN if settings.data is None else "CIFAR-10",
        "data": study.ground.words,
        "requests": [{"words": one.words, "rate": one.removal.rate, "k": len(one.removal.forget)} for one in first],
        "answers": {method: {s: _without_phi(found) for s, found in by_seed.items() if s in main}
                    for method, by_seed in answers.items()},
        "attacked": _attacked(answers, attacked, [*main, *shadows]),
        "further": _further(answers, attacked, shadows),
        "asked": sorted({block.method for block in study.blocks()} - {RETRAINED}),
        "left_out": sorted(left_out),
        "shadows_left_out": len(absent),
        "push": form.push,
        "floors": (two_seeds := _floors(study))["gap"],
        "floors_kl": two_seeds["kl"],
        "steps": {seed: study.steps(int(seed))[1] for seed in main},
        "training": {"epochs": recipe.epochs, "rate": recipe.rate, "batch": recipe.batch, "decay": recipe.decay},
        "repair": {one.words: vars(one.repairing) for one in first},
        "train_seconds": float(np.mean([study.twins(int(seed)).seconds for seed in main])),
        "parameters": sum(p.numel() for p in study.twins(0).original.parameters()),
    }  # fmt: skip


def compose(numbers: dict[str, Any]) -> Result:
    """Figures, tables and findings from the numbers alone."""
    training = numbers["training"]
    result = Result(
        "lasting",
        "Networks: an erasure that lasts",
        numbers["form"],
        numbers["title"] == STAND_IN,
        numbers=numbers,
    )
    seeds = len(numbers["steps"])
    result.data = [numbers["data"], f"networks of {seeds} seeds" if seeds > 1 else "networks of one seed"]
    result.differs = [
        f"Not of the paper. A residual network of {numbers['parameters']:,} parameters with BatchNorm, "
        f"{training['epochs']} epochs in batches of {training['batch']}, one cycle of the rate up to "
        f"{training['rate']:g}, weight decay {training['decay']:g}, no augmentation."
    ]
    result.figures, result.tables = drawings(numbers), tables(numbers)
    result.findings, result.targets = findings(numbers), targets(numbers)
    result.summary = summary_rows(numbers)
    result.notes = _notes(numbers)
    return result


def _notes(numbers: Mapping[str, Any]) -> list[str]:
    push = numbers.get("push", 0.0)
    notes = [
        "Gap: the mean absolute difference in accuracy to the network that was retrained with the same seed, over D∖S, "
        "S and the test samples of the removed kind and of the others (three splits where samples go at random), in "
        "points. Held-out samples that anything was chosen by are not among the test samples.",
        f"Our step pushes {'every margin of S alike' if push == 0 else f'the margins of S by (1−p)^{push:g}'}; how far "
        "it goes is chosen by S, held-out samples and what stays, as ssse.erase_and_repair does. The settings of the "
        "opponents are those of a grid with the least gap to the retrained network itself, on the first request of the "
        "kind with the first seed: more than a user could know.",
        "Repair: the same for all, as ssse.repair trains; BatchNorm statistics from up to 10,000 samples of D∖S. "
        "Fine-tuning is the repair of the original. Each opponent trains for as many epochs as the repair has.",
        "Tried and dropped: margin rows of held-out samples as a guard in the curvature (no better after the repair, "
        "and the samples then no longer judge), two and four shorter rounds with S linearised anew under the "
        "same curvature (no better than one step as long), smaller batches in the repair (heal less).",
        "A network's erasure is never certified, whatever the table says.",
    ]
    if numbers["name"] == "medium":
        notes.append(
            "That all margins are pushed alike, the lengths that are tried and the rate of the repair were settled "
            "with the retrained networks of the first three seeds in view; the others were not looked at."
        )
    if numbers["name"] == "full":
        notes.append(
            "What was settled at the small size was taken over. Damping, push and the rate of the repair were then "
            "tried on airplanes, cats and the tenth of seed 0 with the retrained networks in view, and left as they "
            "were."
        )
    if numbers["name"] == "classes":
        notes.append(
            "That all margins are pushed alike, the lengths that are tried and the rate of the repair were settled on "
            "airplanes and samples at random with these seeds; the other four classes were not looked at."
        )
    if missing := unmeasured(numbers, numbers["asked"]):
        notes.append(f"Not measured: {missing}.")
    if numbers.get("left_out"):
        notes.append("It ran for a limited time (--minutes); the same command goes on from there.")
    if numbers.get("made"):  # stored numbers of several runs say so
        notes.append(numbers["made"])
    if not numbers["floors"]:
        notes.append("Networks of one seed: how far two retrained ones lie apart is not known here.")
    if numbers["attacked"] and numbers.get("shadows_left_out"):
        notes.append(f"Of further seeds, for U-LiRA, {numbers['shadows_left_out']} were left out as well.")
    if not numbers["attacked"]:
        notes.append(
            "U-LiRA needs the networks of some more seeds. They are trained at the small and the full size alone, on a "
            "GPU, without --seeds."
        )
    if numbers["title"] == STAND_IN:
        notes.append("Three in ten labels are drawn at random, so that there is something to remember.")
    return notes


def _without_phi(found: Mapping[str, Numbers]) -> dict[str, Numbers]:
    def bare(value: Any) -> Any:
        return {k: bare(v) for k, v in value.items() if k != "phi"} if isinstance(value, dict) else value

    return {words: bare(numbers) for words, numbers in found.items()}


def _attacked(answers: Answers, requests: Sequence[str], seeds: Sequence[str]) -> dict[str, dict[str, Numbers]]:
    """U-LiRA, by request and method: models of every seed, each original with its retrained twin."""
    found: dict[str, dict[str, Numbers]] = {}
    for words in requests:
        for method, way in ATTACKED:
            # Of the seeds that it answered, and whose training did not diverge: each beside its own twin.
            known = [seed for seed in seeds if _answer(answers, method, seed, words, way)]
            if len(known) < FEWEST:
                continue
            erased = [answers[method][seed][words][way]["phi"] for seed in known]
            never = [answers[RETRAINED][seed][words]["alone"]["phi"] for seed in known]
            score = u_lira(np.array(erased), np.array(never))
            found.setdefault(words, {})[f"{method} {way}"] = {
                "accuracy": score.accuracy, "low": score.low, "high": score.high, "models": len(erased),
            }  # fmt: skip
    return found


def _further(answers: Answers, requests: Sequence[str], seeds: Sequence[str]) -> dict[str, Numbers]:
    """The shadows by themselves, by request and method: seeds that nobody looked at when anything was settled."""
    found: dict[str, Numbers] = {}
    for words in requests:
        for method, way in (*ATTACKED, (RETRAINED, "alone")):
            others = [_answer(answers, method, seed, words, way) for seed in seeds]
            there = [one for one in others if one]  # but for those whose training diverged
            found.setdefault(words, {})[f"{method} {way}"] = {
                "gaps": [one["gap"] for one in there],
                "forgotten": [one["accuracy"]["forgotten"] for one in there],
                "auc": [one["auc"] for one in there],
            }
    return found


def _answer(answers: Answers, method: str, seed: str, words: str, way: str) -> Numbers:
    """Empty where there is none."""
    return answers.get(method, {}).get(seed, {}).get(words, {}).get(way) or {}


def _floors(study: Study) -> dict[str, dict[str, float]]:
    """The mean gap, and KL on S, between two seeds' retrained networks, by request."""
    seeds = range(study.form.seeds)
    if len(seeds) < 2:
        return {"gap": {}, "kl": {}}

    def make() -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, list[float]]] = {"gap": {}, "kl": {}}
        for one, other in combinations(seeds, 2):
            for own, twin in zip(study.cases(one), study.cases(other), strict=True):
                measured = own.measure(twin.retrained)
                for name, by_request in found.items():
                    by_request.setdefault(own.words, []).append(measured[name])
        return {k: {words: float(np.mean(values)) for words, values in one.items()} for k, one in found.items()}

    bases = [part for seed in seeds for part in study.base(seed)]
    return study.settings.cache.numbers(key_of("lasting-two-seeds", *bases, case), make)
