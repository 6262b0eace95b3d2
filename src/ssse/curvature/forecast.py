"""What a fit would do, and take: only a trial is computed."""

from __future__ import annotations

import torch
from torch import nn

from ssse.curvature.choices import Choice, StructureName, as_choice
from ssse.curvature.estimates import Plan, Wanted
from ssse.curvature.fit import prepare
from ssse.curvature.settings import check_damping
from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.loaders import Data, as_batches
from ssse.problem.losses import LossLike
from ssse.problem.parameters import BlockChoice
from ssse.problem.view import ParameterChoice
from ssse.rows.kinds import RowChoice


def plan(
    model: nn.Module,
    loss_fn: LossLike,
    data: Data,
    *,
    rows: RowChoice = "auto",
    rows_per_batch: int = 1,
    structure: StructureName | Choice = "auto",
    blocks: BlockChoice = "auto",
    parameters: ParameterChoice = "all",
    dtype: torch.dtype | None = None,
    memory_budget: int | str | None = None,
    damping: float | None = None,
    weight_decay: float = 0.0,
    label_key: str | None = None,
    processes: int = 1,
    forget: int | None = None,
) -> Plan:
    """What `Curvature.fit` would do with these choices, its memory and its time; only a trial is computed.

    `print(plan.table())` lists every way that was compared, with the memory and the seconds of the fit, and the seconds
    of a request of `forget` samples (100, or 1 % of them where that is less); and, where the most faithful way is not
    the chosen one, parts of the model that fit, with the `parameters=` that asks for each. How long `matrix_free` takes
    for a request of a network depends on the damping: without `damping` or `weight_decay` it is not told.

    `processes`: of a fit by so many (docs/scale.md), `memory_budget` being of each; then also how much each sends.
    """
    if processes < 1:
        raise InvalidSetting(f"processes must be at least 1, not {processes}.")
    if forget is not None and (isinstance(forget, bool) or not isinstance(forget, int) or forget < 1):
        raise InvalidSetting(f"forget must be how many samples a request has, 1 or more, not {forget!r}.")
    data = as_batches(data, label_key)
    if iter(data) is data:
        raise InvalidData("plan() would use up an iterator's first batch; pass a DataLoader or a list.")
    wanted = Wanted(rows, rows_per_batch, 0, as_choice(structure), blocks, dtype)
    known = None if damping is None and not weight_decay else check_damping(damping, weight_decay)
    prepared = prepare(
        model, loss_fn, parameters, data, wanted, memory_budget, damping=known, with_parts=True, processes=processes,
        forget=forget,
    )  # fmt: skip
    if forget is not None and prepared.total is not None and forget >= prepared.total:
        raise InvalidSetting(f"forget={forget:,} would leave nothing of the {prepared.total:,} samples.")
    return prepared.plan
