"""One request by many methods: each step is scanned over ε beside the retrained model, and becomes numbers.

A curve is what one method did on one request, as plain numbers, so that it can be kept, and drawn later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ssse.calibration.criteria import Undecided
from ssse.calibration.search import loss_along_step
from ssse.curvature.curvature import Curvature
from ssse.errors import InvalidData
from ssse.evaluation.outputs import logits_of
from ssse.evaluation.scan import scan
from ssse.evaluation.splits import Splits
from ssse.metrics.gaps import accuracy
from ssse.problem.losses import LossLike
from ssse.problem.view import ParameterChoice

T = TypeVar("T")
Curve = dict[str, Any]
SCALES = np.geomspace(1e-2, 1e2, 41)
WIDE = np.geomspace(1e-4, 1e4, 65)  # of a step without a curvature nobody knows the scale
KEPT = ("scales", "accuracy", "ratio", "ratio_name", "divergence", "distance", "recognised", "mean_gap")


@dataclass(frozen=True)
class Method:
    """Attributes:
    chosen: how ε is found: by "ratio", the best γ or δ of this very request, or by "gap", its smallest, neither of
        which a user can know; by "chance", the smallest at which S is recognised by chance only; by the name of a
        search, whose result the curve holds; or a number.
    needs: what is read when a request comes. group: of the summary.
    """

    key: str
    label: str
    group: str
    chosen: str | float = "ratio"
    needs: str = "S"


@dataclass(frozen=True)
class Removal:
    """Samples of one kind, an attribute or a class, of which a share is forgotten."""

    kind: str
    place: int  # of the attribute or class
    rate: float
    forget: Tensor  # indices into the training data
    keep: Tensor
    same: Tensor  # which test samples are of the kind

    @property
    def words(self) -> str:
        return f"{self.rate:.0%} of {self.kind}"

    @property
    def parts(self) -> tuple[str, float, Tensor, Tensor]:
        """What tells it from every other one."""
        return self.kind, self.rate, self.forget, self.same


def draw_removals(
    kinds: Mapping[int, str], member: Tensor, test_member: Tensor, rates: Sequence[float], seed: int
) -> list[Removal]:
    """For every kind one random order of its members; each rate takes its first part, so that requests are nested.

    Args:
        member: (n, kinds) whether a training sample is of a kind; test_member alike.
    """
    generator = torch.Generator().manual_seed(seed)
    removals = []
    for place, kind in kinds.items():
        members = member[:, place].nonzero()[:, 0]
        if not len(members):
            raise InvalidData(f"No training sample is of the kind '{kind}', so none can be removed.")
        members = members[torch.randperm(len(members), generator=generator)]
        for rate in rates:
            forget = members[: max(1, round(rate * len(members)))].sort().values
            stays = torch.ones(len(member), dtype=torch.bool)
            stays[forget] = False
            removals.append(Removal(kind, place, rate, forget, stays.nonzero()[:, 0], test_member[:, place]))
    return removals


@dataclass(frozen=True)
class Scanner:
    """Measures steps away from one model on the splits of one request, beside the model retrained for it."""

    model: nn.Module
    loss_fn: LossLike
    splits: Splits
    retrained: nn.Module

    def curve(
        self,
        direction: Tensor,
        seconds: float,
        scales: Iterable[float] = SCALES,
        parameters: ParameterChoice = "all",
        **extra: Any,
    ) -> Curve:
        """Everything at every ε, and the seconds that finding the step took."""
        measured = scan(
            self.model,
            direction,
            self.loss_fn,
            self.splits,
            scales=np.asarray(list(scales)),
            retrained=self.retrained,
            parameters=parameters,
            progress=False,
        )
        values = measured.to_dict()
        return {name: values[name] for name in KEPT} | {"seconds": seconds} | extra

    def point(self, step: Tensor, seconds: float, parameters: ParameterChoice = "all", **extra: Any) -> Curve:
        """A method without a scale: a curve of one point."""
        return self.curve(step, seconds, [1.0], parameters, **extra)

    def describe(self, removal: Removal, n: int, retrain_seconds: float) -> dict[str, Any]:
        """The request, and how the two models stand that every method is judged between."""
        return {
            "kind": removal.kind,
            "rate": removal.rate,
            "k": len(removal.forget),
            "n": n,
            "retrain_seconds": retrain_seconds,
            "retrained": accuracies(self.retrained, self.splits),
            "original": accuracies(self.model, self.splits),
        }

    def search(self, curvature: Curvature, direction: Tensor, data: Iterable[Any]) -> tuple[float, str]:
        """ε by the leave-k-out loss along the step, and why; 1 where that does not decide."""
        forget = list(self.splits["forgotten"])
        try:
            return loss_along_step(self.model, curvature, self.loss_fn, forget, direction, data, False).by_loss()
        except Undecided as undecided:
            return 1.0, f"undecided, so 1: {undecided}"


def timed(work: Callable[[], T], device: torch.device | None = None) -> tuple[T, float]:
    """Of a GPU the queue is drained before and after."""

    def now() -> float:
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    started = now()
    return work(), now() - started


def numbers(values: Sequence[float | None] | None) -> np.ndarray:
    return np.array([], dtype=float) if values is None else np.array([np.nan if v is None else v for v in values])


def value_at(curve: Curve, name: str, place: int) -> float:
    values = curve[name]
    return float("nan") if values is None or values[place] is None else float(values[place])


def differences(curve: Curve, split: str, goal: Mapping[str, float]) -> np.ndarray:
    """|accuracy − that of the retrained model| in points, at every ε."""
    return 100 * np.abs(numbers(curve["accuracy"][split]) - goal[split])


def accuracies(model: nn.Module, splits: Splits) -> dict[str, float]:
    """0 … 1, by split."""
    by_split = {}
    for split, batches in splits.items():
        pairs = [(logits_of(model, x, "model"), y.cpu().numpy()) for x, y in batches]
        logits, labels = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        by_split[split] = float(accuracy(logits, labels))
    return by_split


def mean_of(values: Iterable[float]) -> float:
    array = np.array(list(values), dtype=float)
    return float(np.nanmean(array)) if np.isfinite(array).any() else float("nan")


def spread_of(values: Iterable[float]) -> float:
    array = np.array(list(values), dtype=float)
    return float(np.nanstd(array)) if np.isfinite(array).any() else float("nan")
