"""Rows of the table that say whether the memory of S comes back along a harmless training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from ssse.errors import InvalidSetting
from ssse.evaluation.comparison import Comparison, Row
from ssse.evaluation.records import Key
from ssse.evaluation.splits import HELD_OUT, Splits
from ssse.evaluation.table import Measure
from ssse.metrics.resurfacing import Moment, Resurfacing, resurfacing
from ssse.problem.losses import LossLike

OURS = ("held_out", "retrained", "label_key", "progress")  # what the table has already
ALONG = "S along a harmless training on D∖S"


def check_resurfacing(splits: Splits, loss_fn: LossLike | None, options: Mapping[str, Any]) -> None:
    if loss_fn is None:
        raise InvalidSetting("Measuring what comes back means training: pass loss_fn.")
    known = [name for name, p in inspect.signature(resurfacing).parameters.items() if p.kind is p.KEYWORD_ONLY]
    known = [name for name in known if name not in OURS]
    if unknown := [name for name in options if name not in known]:
        raise InvalidSetting(f"resurfacing has no option '{unknown[0]}'; its options are {', '.join(known)}.")
    if not {"retained", "forgotten"} <= splits.keys():
        raise InvalidSetting("Whether S comes back is seen on 'forgotten' along a training on 'retained'; pass both.")


def resurfaced(
    comparison: Comparison, splits: Splits, loss_fn: LossLike, options: Mapping[str, Any], progress: bool
) -> Iterator[Row]:
    """Every model that is a module, each trained in the same way: accuracy, loss and the attack's advantage on S."""
    # Read once: every model is trained on the same samples.
    retained, forgotten = list(splits["retained"]), list(splits["forgotten"])
    held_out = next((list(splits[name]) for name in HELD_OUT if name in splits), None)
    found: dict[Key, Resurfacing] = {
        key: resurfacing(model, retained, forgotten, loss_fn, held_out=held_out, progress=progress, **options)
        for key, model in comparison.records.models.items()
        if isinstance(model, nn.Module)
    }
    if not found:
        return
    epochs = next(iter(found.values())).epochs

    def row(measure: Measure, place: int, of: Callable[[Moment], float | None]) -> Row:
        return comparison.row(measure, lambda key: of(found[key].moments[place]) if key in found else None)

    def after(epoch: int) -> str:
        return "as it is" if epoch == 0 else "after 1 epoch" if epoch == 1 else f"after {epoch} epochs"

    if all(one.rise is not None for one in found.values()):
        group = f"{ALONG}: accuracy, %"
        for place, epoch in enumerate(epochs):
            measure = Measure(f"resurfacing_accuracy_{epoch}", after(epoch), group)
            yield row(measure, place, lambda moment: None if moment.accuracy is None else 100 * moment.accuracy)
        rise = Measure("resurfacing_rise", "rise, points", group)
        yield comparison.row(rise, lambda key: found[key].rise if key in found else None)
    for place, epoch in enumerate(epochs):
        measure = Measure(f"resurfacing_loss_{epoch}", after(epoch), f"{ALONG}: loss", 4)
        yield row(measure, place, lambda moment: moment.loss)
    if held_out is not None:
        for place, epoch in enumerate(epochs):
            measure = Measure(f"resurfacing_advantage_{epoch}", after(epoch), f"{ALONG}: attack advantage", 3)
            yield row(measure, place, lambda moment: moment.advantage)
