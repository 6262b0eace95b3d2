"""Every measure of every model, in one pass over the splits."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ssse.errors import InvalidSetting
from ssse.evaluation.comparison import Comparison, Row, summary
from ssse.evaluation.outputs import Model
from ssse.evaluation.records import collect
from ssse.evaluation.resurfaced import check_resurfacing, resurfaced
from ssse.evaluation.splits import SPLITS, SplitData, Splits, batches_of_splits
from ssse.evaluation.table import Cell, Evaluation, Measure
from ssse.evaluation.tokens import TokenComparison, check_canaries, collect_tokens
from ssse.metrics.objective import objective
from ssse.metrics.relearning import relearn_time
from ssse.problem.losses import LossLike, as_loss
from ssse.problem.token_losses import TokenLoss
from ssse.problem.view import ParameterChoice

RELEARNED = 1.05  # times the original model's loss on S counts as learnt again


def evaluate(
    models: Mapping[str, Model | Sequence[Model]],
    splits: SplitData,
    *,
    original: str = "original",
    retrained: str = "retrained",
    loss_fn: LossLike | None = None,
    weight_decay: float = 0.0,
    parameters: ParameterChoice = "all",
    relearn: Mapping[str, Any] | bool | None = None,
    resurfacing: Mapping[str, Any] | bool | None = None,
    canaries: Sequence[tuple[Any, Any]] | None = None,
    level: float = 0.05,
    label_key: str | None = None,
    progress: bool = True,
) -> Evaluation:
    """Measure models against each other and against retraining, in one table.

    Args:
        models: by name: torch modules in eval mode, or functions from inputs to logits; or lists of them, one a seed.
            Two or more retrained models give the noise floor; with four or more of a kind KLoM and U-LiRA come too.
            Seed i of a model is taken to come from seed i of the original (of two, 0 and 1 in turn).
        splits: batches by name: "retained" (D∖S), "forgotten" (S), "test_other" (T∖T_a), "test_same" (T_a, the test
            samples of the kind that is forgotten), or "test" where there is no such kind.
        original, retrained: which of the names are these; measures that need one that is not there are left out, and
            the flags say so.
        loss_fn, weight_decay, parameters, label_key: as in `ssse.Curvature.fit`; with a loss L₋S and ‖∇L₋S‖ are
            measured too.
        relearn: True, or options of `ssse.metrics.relearn_time`, to measure that too; needs loss_fn.
        resurfacing: True, or options of `ssse.metrics.resurfacing`, to see whether S comes back along a harmless
            training on "retained", of every model that is a module; needs loss_fn.
        canaries: pairs (canary, alternatives) of token ids, as in `ssse.metrics.exposure`; of language models.
        level: of the audits: a model that never saw S passes one with probability 1 − level.

    Of a language model, with loss_fn="causal_lm" or another loss of tokens, a sequence is a sample: loss and perplexity
    of a token come first, accuracy is the share of labels that were the model's first choice, attacks go by the mean
    log-likelihood of a sequence, and the divergence is the mean over its labels. δ is not defined and left out.

    The predictions' divergence is KL(p̄ ‖ p) in nats, p̄ the average prediction of the retrained models but one, averaged
    over which one. The noise floor is the same number for each retrained model against all others of its kind.

    Raises:
        InvalidData: an empty or unknown split, labels that do not fit, models that disagree on the classes, logits that
            are NaN or the same for every sample.
    """
    if not isinstance(models, Mapping):
        raise InvalidSetting(f"models is a mapping from names to models, not a {type(models).__name__}.")
    splits = batches_of_splits(splits, label_key)
    relearn, resurfacing = _options(relearn), _options(resurfacing)
    if not 0 < level < 1:
        raise InvalidSetting(f"level is the rate of false alarms of an audit, between 0 and 1, not {level}.")
    flags = [_missing(models, "original", original), _missing(models, "retrained", retrained)]
    if original == retrained:
        raise InvalidSetting(f"'{original}' cannot be both the original and the retrained model.")
    loss = None if loss_fn is None else as_loss(loss_fn)
    planted = [] if canaries is None else check_canaries(canaries, loss)
    if loss_fn is not None:
        _check_two_passes(splits)
    if relearn is not None:
        _check_relearning(models, splits, original, loss_fn, relearn)
    if resurfacing is not None:
        check_resurfacing(splits, loss_fn, resurfacing)
    with torch.random.fork_rng(devices=[]):  # a data loader draws from it, shuffled or not
        if isinstance(loss, TokenLoss):
            records = collect_tokens(models, splits, loss, retrained, progress)
            comparison = TokenComparison(records, original, retrained, level)
            rows = [*comparison.rows(), *(comparison.exposures(planted) if planted else ())]
        else:
            records = collect(models, splits, retrained, progress)
            comparison = Comparison(records, original, retrained, level)
            rows = list(comparison.rows())
        if loss_fn is not None:
            rows += _objectives(comparison, splits, loss_fn, weight_decay, parameters, progress)
            rows += [] if relearn is None else _relearning(comparison, splits, loss_fn, relearn)
            if resurfacing is not None:
                trained = {"weight_decay": weight_decay} if weight_decay else {}
                rows += resurfaced(comparison, splits, loss_fn, {**trained, **resurfacing}, progress)
    if len(comparison.goal) == 1:
        flags.append(f"One '{retrained}' model only: pass two or more seeds to see the noise floor.")
    return Evaluation(
        models=tuple(records.names),
        seeds={name: len(records.seeds(name)) for name in records.names},
        counts=records.counts,
        measures=tuple(row.measure for row in rows),
        cells={row.measure.key: row.cells for row in rows},
        floors={row.measure.key: row.floor.value for row in rows if row.floor.value is not None},
        floor_spreads={row.measure.key: row.floor.spread for row in rows if row.floor.spread is not None},
        flags=(*records.flags[:1], *comparison.flags, *(flag for flag in flags if flag)),
    )


def _options(given: Mapping[str, Any] | bool | None) -> Mapping[str, Any] | None:
    """Of a measure that is left out by default: True is all of its own defaults."""
    return ({} if given else None) if isinstance(given, bool) else given


def _missing(models: Mapping[str, Any], role: str, name: str) -> str | None:
    """What to say where no model has this role; a name that was asked for must be there."""
    if name in models:
        return None
    if name == role:
        return f"No model is called '{name}' ({role}=), so that all comparisons with it are left out."
    near = difflib.get_close_matches(name, map(str, models), 1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise InvalidSetting(f"{role}='{name}', but the models are {', '.join(map(str, models))}.{hint}")


def _check_two_passes(splits: Splits) -> None:
    once = [name for name, data in splits.items() if isinstance(data, Iterator)]
    if once:
        raise InvalidSetting(
            f"With loss_fn the data is read again, and '{once[0]}' can be read only once: pass a list or a data loader."
        )


def _check_relearning(
    models: Mapping[str, Any], splits: Splits, original: str, loss_fn: LossLike | None, options: Mapping[str, Any]
) -> None:
    if loss_fn is None:
        raise InvalidSetting("Measuring the relearn time means training: pass loss_fn.")
    known = [name for name, p in inspect.signature(relearn_time).parameters.items() if p.kind is p.KEYWORD_ONLY]
    if unknown := [name for name in options if name not in known]:
        raise InvalidSetting(f"relearn has no option '{unknown[0]}'; its options are {', '.join(known)}.")
    given = models.get(original)
    first = given[0] if isinstance(given, (list, tuple)) and given else given
    if "forgotten" not in splits or not (isinstance(first, nn.Module) or "target" in options):
        raise InvalidSetting(
            f"The relearn time is counted on 'forgotten' until the loss of '{original}' is reached again; pass both, "
            "the model as a torch module."
        )


def _objectives(
    comparison: Comparison,
    splits: Splits,
    loss_fn: LossLike,
    weight_decay: float,
    parameters: ParameterChoice,
    progress: bool,
) -> Iterator[Row]:
    if "retained" not in splits:
        return
    objectives = {
        key: objective(
            model, loss_fn, splits["retained"], weight_decay=weight_decay, parameters=parameters, progress=progress
        )
        for key, model in comparison.records.models.items()
        if isinstance(model, nn.Module)
    }
    group = f"training objective on {SPLITS['retained']}"
    loss, slope = Measure("objective", "L₋S", group, 4), Measure("gradient_norm", "‖∇L₋S‖", group, 4)
    yield comparison.row(loss, lambda key: objectives[key].loss if key in objectives else None)
    yield comparison.row(slope, lambda key: objectives[key].gradient_norm if key in objectives else None)


def _relearning(comparison: Comparison, splits: Splits, loss_fn: LossLike, options: Mapping[str, Any]) -> Iterator[Row]:
    models, start = comparison.records.models, comparison.records.seeds(comparison.original)
    first = models[start[0]] if start else None
    if "target" not in options and isinstance(first, nn.Module):
        options = {**options, "target": RELEARNED * objective(first, loss_fn, splits["forgotten"]).loss}
    measure, cells = Measure("relearn", "steps until S is learnt again", "relearn time", 0), {}
    for name in comparison.records.names:
        modules = [m for key in comparison.records.seeds(name) if isinstance(m := models[key], nn.Module)]
        runs = [relearn_time(module, loss_fn, splits["forgotten"], **options) for module in modules]
        late = [run for run in runs if run.steps is None]
        if late:  # a mean of those that came back in time would be too low
            taken = len(late[0].losses) - 1
            note = f"> {taken}" if len(late) == len(runs) else f"{len(late)}/{len(runs)} > {taken}"
            cells[name] = Cell(None, note=note)
        else:
            cells[name] = summary([run.steps for run in runs])
    yield Row(measure, cells)
