"""LoRA adapters of a small GPT: one author's texts and planted secrets are erased, held against retraining.

The model is trained here, on text that ships with Python, a character a token. Of the sequences that its adapters are
tuned on, 1 % are to go: copies of two canaries, phrases with a secret of six digits, and texts of one author; or each
alone. Every seed has its own adapters, secrets and texts. Retraining starts from the same untrained adapters.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

import ssse
from language_models import gpt, gradient_norm, pretrain, trainable, tune
from language_texts import Batch, Texts, batch_of, library, rows_of, texts
from record import Report, number, run_alone, seconds_of
from ssse.rows.kinds import RowName

LOSS = "causal_lm"
SEEDS = (0, 1, 2)
N, SHARE, CANARIES, COPIES, ALTERNATIVES = 1000, 0.01, 2, 4, 1023
DECAY, EPOCHS, STEPS = 0.02, 30, 30  # w of the objective; epochs of Adam and steps of L-BFGS on all of the data
ROWS: tuple[RowName, ...] = ("sampled", "margin", "empirical")
ASCENTS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
OTHER, OTHER_SEED = "retrained from other adapters", 100
WANTED = {
    "both": "canaries and author",
    "secret": "the canaries alone",
    "author": "the author alone",
}
MEASURES = {
    "exposure": "exposure, bits",
    "loss_forgotten": "loss on S",
    "loss_retained": "on D∖S",
    "loss_test": "held out",
    "kl_forgotten": "KL on S",
    "kl_test": "KL held out",
}
Measures = dict[str, float]


@dataclass
class Outcome:
    """Of one seed: by request and method, what `evaluate` measures, and seconds; how well all were trained."""

    seed: int
    measures: dict[str, dict[str, Measures]]
    gradients: dict[str, float]
    verdicts: dict[str, str]
    fits: dict[str, float]
    parameters: int


def parts_of(data: Batch) -> list[Batch]:
    return [rows_of(data, slice(i, i + 100)) for i in range(0, len(data["labels"]), 100)]


def without(data: Batch, gone: list[int]) -> Batch:
    kept = torch.ones(len(data["labels"]), dtype=torch.bool)
    kept[gone] = False
    return {key: value[kept] for key, value in data.items()}


def trained(base: nn.Module, data: Batch, seed: int) -> tuple[float, nn.Module]:
    return seconds_of(partial(tune, base, data, DECAY, seed, EPOCHS, STEPS))


def study(seed: int, weights: dict[str, torch.Tensor]) -> Outcome:
    torch.set_num_threads(1)
    base = gpt(0)
    base.load_state_dict(weights)
    own = texts(seed, N, SHARE, CANARIES, COPIES, ALTERNATIVES)
    seconds, model = trained(base, own.train, seed)
    outcome = Outcome(seed, {}, {"trained": gradient_norm(model, own.train, DECAY)}, {}, {}, 0)
    model.zero_grad()
    outcome.parameters = sum(p.numel() for p in trainable(model))
    curvatures = {}
    for rows in ROWS:
        outcome.fits[rows], curvatures[rows] = seconds_of(partial(fitted, model, own, rows))
    for request in WANTED:
        gone: list[int] = getattr(own, request)
        forget, kept = [rows_of(own.train, gone)], without(own.train, gone)
        models, times = {"original": model}, {"original": seconds}
        times["retrained"], retrained = trained(base, kept, seed)
        outcome.gradients[f"retrained, {request}"] = gradient_norm(retrained, kept, DECAY)
        for rows, curvature in curvatures.items():
            name = f"SSSE, {rows} rows"
            times[name], erasure = seconds_of(partial(erased, model, curvature, forget))
            models[name], told = erasure.model, erasure.diagnostics
            over = ", ".join(told.overridden) or "nothing"
            outcome.verdicts[f"{name}, {request}"] = f"{told.verdict}, overridden: {over}"
        times["fine-tuning"], models["fine-tuning"] = seconds_of(partial(fine_tuned, model, own, forget))
        times["gradient ascent"], models["gradient ascent"] = seconds_of(partial(ascended, model, forget, retrained))
        models["retrained"] = retrained
        if request == "both":  # how far apart two trainings are
            times[OTHER], models[OTHER] = trained(base, kept, seed + OTHER_SEED)
        outcome.measures[request] = measured(models, times, own, kept, forget)
    return outcome


def erased(model: nn.Module, curvature: ssse.Curvature, forget: list[Batch]) -> ssse.Erasure:
    return ssse.erase(model, curvature, forget=forget, scale=1.0, override=ssse.BOUNDS)


def fitted(model: nn.Module, own: Texts, rows: RowName) -> ssse.Curvature:
    return ssse.Curvature.fit(
        model, LOSS, parts_of(own.train), weight_decay=DECAY, parameters="adapters", rows=rows, structure="dense",
        progress=False,
    )  # fmt: skip


def fine_tuned(model: nn.Module, own: Texts, forget: list[Batch]) -> nn.Module:
    return ssse.baselines.fine_tuning(
        model, None, LOSS, forget, data=parts_of(own.train), epochs=5, learning_rate=1e-3, batch_size=50,
        weight_decay=DECAY, parameters="adapters", progress=False,
    ).model  # fmt: skip


def ascended(model: nn.Module, forget: list[Batch], retrained: nn.Module) -> nn.Module:
    """With that step length, of a few, whose loss on S is nearest to the retrained model's: chosen in hindsight."""
    goal = loss_on(retrained, forget)
    candidates = [
        ssse.baselines.gradient_ascent(
            model, None, LOSS, forget, scale=scale, weight_decay=DECAY, parameters="adapters"
        ).model
        for scale in ASCENTS
    ]
    return min(candidates, key=lambda one: abs(loss_on(one, forget) - goal))


def loss_on(model: nn.Module, data: list[Batch]) -> float:
    table = ssse.evaluate({"original": model}, {"forgotten": data}, loss_fn=LOSS, progress=False)
    return table["original", "loss_forgotten"] or 0.0


def measured(
    models: dict[str, nn.Module], times: dict[str, float], own: Texts, kept: Batch, forget: list[Batch]
) -> dict[str, Measures]:
    splits = {"retained": parts_of(kept), "forgotten": forget, "test": parts_of(own.held_out)}
    canaries = [(canary.ids, canary.alternatives) for canary in own.canaries]
    table = ssse.evaluate(models, splits, loss_fn=LOSS, canaries=canaries, progress=False)
    return {
        name: {key: float(table[name, key] or 0.0) for key in MEASURES} | {"seconds": times[name]} for name in models
    }


def main(_: Path) -> None:
    report = Report("language", "LoRA adapters of a small GPT: canaries and one author's texts are erased")
    torch.set_num_threads(1)
    before, base = seconds_of(lambda: pretrain(batch_of(library(400)), 1))
    weights = dict(base.state_dict())
    # A process a seed, each with one thread: products are too small to be shared.
    with multiprocessing.get_context("spawn").Pool(len(SEEDS)) as pool:
        outcomes = pool.starmap(study, [(seed, weights) for seed in SEEDS])
    for request, words in WANTED.items():
        report.table(
            f"{words}: mean over {len(SEEDS)} seeds, and exposure of each",
            ("method", *MEASURES.values(), "exposure of each seed", "seconds"),
            [row(method, [outcome.measures[request][method] for outcome in outcomes])
             for method in outcomes[0].measures[request]],
        )  # fmt: skip
    report.numbers = {"base_seconds": before, "outcomes": [asdict(outcome) for outcome in outcomes]}
    report.notes += notes(outcomes)
    aims(report, outcomes)
    report.finish()


def row(method: str, each: list[Measures]) -> list[Any]:
    means = [mean(one[key] for one in each) for key in MEASURES]
    exposures = ", ".join(number(one["exposure"]) for one in each)
    return [method, *means, exposures, mean(one["seconds"] for one in each)]


def notes(outcomes: list[Outcome]) -> list[str]:
    gradients = [value for outcome in outcomes for value in outcome.gradients.values()]
    verdicts = sorted({verdict for outcome in outcomes for verdict in outcome.verdicts.values()})
    fits = {rows: mean(outcome.fits[rows] for outcome in outcomes) for rows in ROWS}
    return [
        f"{outcomes[0].parameters:,} parameters of {N:,} sequences, w = {DECAY:g}; exposure is at most "
        f"{(ALTERNATIVES + 1).bit_length() - 1} bits. Losses are of a token, in nats. KL is of the "
        "predictions, from the retrained model's.",
        f"‖∇L‖ where training ended: {number(min(gradients))} to {number(max(gradients))}.",
        "Seconds of a fit, once: " + ", ".join(f"{rows} {number(seconds)}" for rows, seconds in fits.items()) + ".",
        "What the library says of its steps: " + "; ".join(verdicts) + ".",
        "Expected rows are refused: one for each character of the alphabet at each token. Gradient ascent has the step "
        "length that brings the loss on S nearest to the retrained model's, chosen in hindsight.",
    ]


def aims(report: Report, outcomes: list[Outcome]) -> None:
    def of(request: str, method: str, key: str) -> float:
        return mean(outcome.measures[request][method][key] for outcome in outcomes)

    rows = f"SSSE, {ROWS[0]} rows"
    for request in ("both", "secret"):
        left = of(request, rows, "exposure") - of(request, "retrained", "exposure")
        report.at_most(f"{WANTED[request]}: exposure above the retrained model's", left, 1, " bits")
    for request, words in WANTED.items():
        share = of(request, rows, "kl_forgotten") / of(request, "original", "kl_forgotten")
        report.at_most(f"{words}: KL on S, against the original's", share, 0.5)
        worse = of(request, rows, "loss_test") - of(request, "retrained", "loss_test")
        report.at_most(f"{words}: held-out loss above the retrained model's", worse, 0.02, " nats")


if __name__ == "__main__":
    run_alone(main, __doc__)
