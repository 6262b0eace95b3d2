"""`ssse.compare`: methods side by side on one's own model and data."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from ssse.baselines.retrain import retrain as train_anew
from ssse.comparison.clock import Clock
from ssse.comparison.methods import METHODS, USUAL, Answer, Job
from ssse.comparison.table import ONCE, READS, SECONDS, MethodComparison
from ssse.curvature.curvature import Curvature
from ssse.erasure.erase import erase
from ssse.errors import InvalidSetting, SSSEError
from ssse.evaluation.evaluate import evaluate
from ssse.evaluation.splits import SplitData, batches_of_splits
from ssse.evaluation.table import Cell
from ssse.problem.losses import LossLike
from ssse.problem.shares import Joined
from ssse.problem.view import ParameterChoice
from ssse.system.progress import bar

ORIGINAL, RETRAINED = "original", "retrained"
WITHOUT_RETRAINED = (
    "Without a retrained model this shows accuracies and costs, and not whether a method forgets: a model can be made "
    "wrong on S without forgetting it. Give one, or the function that trains one (retrain=, --retrain)."
)
WITHOUT_TEST = "Without test data nothing is known of samples that were never trained on (split 'test')."
AS_THEY_COME = (
    "The methods ran with the settings they have by default, unless settings= gives others: before a claim is made of "
    "one, tune it (ssse.baselines.tune)."
)


def compare(
    model: nn.Module,
    loss_fn: LossLike,
    splits: SplitData,
    *,
    weight_decay: float = 0.0,
    parameters: ParameterChoice = "all",
    methods: Sequence[str] | Literal["usual", "all"] = "usual",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    retrain: Callable[[list[Any]], nn.Module] | None = None,
    retrained: nn.Module | Sequence[nn.Module] = (),
    seeds: int = 1,
    label_key: str | None = None,
    progress: bool = True,
) -> MethodComparison:
    """Erase S with every method, and measure them all: accuracy, distance from retraining, attacks, seconds.

    Args:
        model, loss_fn, weight_decay, parameters, label_key: as in `ssse.Curvature.fit`.
        splits: batches by name, as `ssse.four_splits` makes them: "retained" (D∖S) and "forgotten" (S), and of test
            samples "test", or "test_same" and "test_other". All can be read more than once.
        methods: "usual", "all", or names of them: see `ssse.comparison.methods.METHODS`.
        settings: by the name of a method, what it is called with beside the request: {"fine-tuning": {"epochs": 5}}.
        retrain: trains a new model on batches of D∖S and returns it, as in `ssse.baselines.retrain`. It is called once
            a seed, with torch's random numbers at that seed.
        retrained: models that were trained without S before; instead of `retrain`.
        seeds: retrained models; two or more give the noise floor, below which a gap means nothing.

    A method that cannot be used here, or whose step is refused, is listed with its reason and has no row.

    Raises:
        InvalidSetting: an unknown method, or settings of one that does not run. InvalidData: see `ssse.evaluate`.
    """
    names = _chosen(methods, settings or {})
    given = [retrained] if isinstance(retrained, nn.Module) else list(retrained)
    if retrain is not None and given:
        raise InvalidSetting("retrain= trains the models that retrained= would hand in: give one of the two.")
    if not isinstance(seeds, int) or seeds < 1:
        raise InvalidSetting(f"seeds is the number of retrained models, from 1 on, not {seeds!r}.")
    batches = batches_of_splits(splits, label_key)
    if lacking := {"retained", "forgotten"} - batches.keys():
        raise InvalidSetting(f"splits lacks '{sorted(lacking)[0]}': to compare methods, D∖S and S are needed.")
    if once := [name for name, data in batches.items() if isinstance(data, Iterator)]:
        raise InvalidSetting(f"'{once[0]}' can be read only once, and every method reads it: pass a list or a loader.")
    retained, forget = batches["retained"], batches["forgotten"]
    clock = Clock(next((parameter.device for parameter in model.parameters()), torch.device("cpu")))
    data = Joined(retained, forget)

    answers: dict[str, Answer] = {}
    failed: dict[str, str] = {}
    with bar("methods", len(names) + (seeds if retrain is not None else 0), progress) as advance:
        anew = []
        for seed in range(seeds if retrain is not None else 0):
            advance(text=f"retraining, seed {seed}")
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                with clock as taken:
                    done = train_anew(
                        model, None, loss_fn, forget, train=_checked(retrain), data=data, label_key=label_key
                    )
            anew.append((done.model, taken.seconds))
            advance(1)
        goals = [one for one, _ in anew] or given
        first = goals[0] if goals else None
        job = Job(model, loss_fn, retained, forget, data, weight_decay, parameters, first, clock)
        _warm_up(job)
        for name in names:
            advance(text=name)
            try:
                with torch.random.fork_rng():
                    torch.manual_seed(0)
                    answers[name] = METHODS[name].answer(job, **(settings or {}).get(name, {}))
            except SSSEError as error:
                failed[name] = str(error)
            advance(1)
    if not answers:
        raise InvalidSetting(f"No method gave a model; {names[0]}: {failed[names[0]]}")

    models = {name: done.model for name, done in answers.items()}
    table = evaluate(
        {ORIGINAL: model, **models, **({RETRAINED: goals} if goals else {})},
        batches,
        loss_fn=loss_fn,
        weight_decay=weight_decay,
        parameters=parameters,
        progress=progress,
    )
    spent = {name: (done.seconds, done.once, METHODS[name].reads_data) for name, done in answers.items()}
    if anew:
        spent[RETRAINED] = (sum(seconds for _, seconds in anew) / len(anew), None, True)
    cells = {
        measure.key: {name: _cell(spend[place]) for name, spend in spent.items()}
        for place, measure in enumerate((SECONDS, ONCE, READS))
    }
    table = replace(table, measures=(*table.measures, ONCE, SECONDS, READS), cells={**table.cells, **cells})
    missing = [] if goals else [WITHOUT_RETRAINED]
    missing += [] if {"test", "test_same", "test_other"} & batches.keys() else [WITHOUT_TEST]
    notes = {name: done.notes for name, done in answers.items() if done.notes}
    return MethodComparison(table, models, failed, notes, (*missing, AS_THEY_COME))


def _warm_up(job: Job) -> None:
    """Libraries load what they need at first use: without this, the first method would pay for all that follow."""
    with suppress(SSSEError):
        curvature = Curvature.fit(job.model, job.loss_fn, job.forget, parameters=job.parameters, progress=False)
        erase(job.model, curvature, job.loss_fn, job.forget, progress=False)


def _chosen(methods: Sequence[str] | str, settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    names: list[str]
    if methods == "usual":
        names = list(USUAL)
    elif methods == "all":
        names = list(METHODS)
    elif isinstance(methods, str) or not methods:
        raise InvalidSetting(f"methods is 'usual', 'all', or a list of names, not {methods!r}.")
    else:
        names = list(dict.fromkeys(methods))
    for name in (*names, *settings):
        if name not in METHODS:
            near = difflib.get_close_matches(str(name), METHODS, 1, 0.5)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise InvalidSetting(f"There is no method '{name}'; there are {', '.join(METHODS)}.{hint}")
    if idle := [name for name in settings if name not in names]:
        raise InvalidSetting(f"settings= has some of '{idle[0]}', which is not among the methods that are compared.")
    return names


def _checked(retrain: Callable[[list[Any]], nn.Module] | None) -> Callable[[list[Any]], nn.Module]:
    if not callable(retrain):
        raise InvalidSetting(f"retrain is a function from batches of D∖S to a trained model, not {retrain!r}.")
    return retrain


def _cell(value: float | bool | None) -> Cell:
    return Cell(None if value is None else float(value))
