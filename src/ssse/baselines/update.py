"""What every baseline starts from, a checked request, and what it gives, an `Updated`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ssse.curvature.curvature import Curvature
from ssse.curvature.diagonal import DiagonalStructure
from ssse.erasure.request import matching_view, read_matching, read_samples
from ssse.erasure.retained import retained_batches
from ssse.errors import Diverged, InvalidData, InvalidSetting
from ssse.problem.batches import Batch
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike, as_loss
from ssse.problem.problem import Problem
from ssse.problem.training_mode import refuse_training_mode
from ssse.problem.view import ModelView, ParameterChoice
from ssse.rows.kinds import RowKind, measure, measure_held

GROUP = 256  # samples at a time where no curvature says how many fit


@dataclass(frozen=True)
class Updated:
    """A model without some samples, by one of the methods that SSSE is compared with.

    Attributes:
        model: a new module; the one passed in is untouched. step: θ̂ − θ, shape (d,).
        direction: the step at scale 1, where the method is linear in a scale: θ̂(ε) = θ + ε·direction.
        method, reference: its name and where it comes from. notes: what it has to say about itself.
    """

    model: nn.Module
    step: Tensor
    direction: Tensor | None
    method: str
    reference: str
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Request:
    """The model and the samples to forget, read and checked."""

    problem: Problem
    curvature: Curvature | None
    batches: list[Batch]
    count: int
    started: float
    label_key: str | None = None

    def retained(self, data: Data, group: int = GROUP) -> tuple[list[Batch], int]:
        """D∖S and n, the number of samples in D."""
        kept = retained_batches(data, self.batches, self.problem.device, group, self.label_key)
        n = self.count + sum(len(y) for _, y in kept)
        if self.curvature is not None and n != self.curvature.n:
            raise InvalidData(
                f"The training data holds {n} samples; this curvature stands for {self.curvature.n}. Pass the data it "
                "was fitted on, less what was erased since."
            )
        return kept, n

    def squares(self, kind: RowKind, dtype: torch.dtype) -> Tensor:
        """The diagonal of R_SᵀR_S, shape (d,)."""
        total = torch.zeros(self.problem.layout.dim, dtype=dtype, device=self.problem.device)
        for batch in self.batches:
            total += measure_held(self.problem, kind, batch)[0].to(dtype).squares()
        return total

    def answer(
        self,
        theta: Tensor,
        method: str,
        reference: str,
        *,
        buffers: Mapping[str, Tensor] | None = None,
        direction: Tensor | None = None,
        notes: Iterable[str] = (),
    ) -> Updated:
        """θ̂ in a copy of the model, with the buffers (running statistics) that belong to it, where it has new ones."""
        if not bool(torch.isfinite(theta).all()):
            raise Diverged(
                f"The step of {method} is NaN or infinite; nothing was changed. Use a smaller scale, noise or learning "
                "rate, or a larger damping."
            )
        step = self.problem.rounded(theta) - self.problem.theta()
        model = self.problem.with_theta(theta, buffers)
        return Updated(model, step, direction, method, reference, tuple(notes), time.perf_counter() - self.started)


def read_request(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    parameters: ParameterChoice = "all",
    label_key: str | None = None,
) -> Request:
    """Check the model against its curvature, where there is one, and read the samples to forget.

    θ is what the curvature is of, and labels are where it says; without one, `parameters` and `label_key` say.
    """
    started = time.perf_counter()
    if curvature is None:
        as_loss(loss_fn)  # an unknown one is refused before the samples are read
        view = ModelView(model, parameters)
        refuse_training_mode(view.model)
        samples = read_samples(forget, view.device, None, GROUP, label_key)
        problem = Problem(view.working, loss_fn, parameters, samples.batches[0])
    else:
        if parameters != "all":
            raise InvalidSetting(
                f"parameters={parameters!r} and a curvature: the curvature already says which parameters can change, "
                f"{', '.join(curvature.layout.names)}. Leave parameters out, or pass curvature=None."
            )
        if curvature.joint is not None:
            raise InvalidSetting(
                "This curvature belongs to a joint stream, whose θ* is not the model's θ. Baselines start from the "
                "model they are given: fit a curvature on it, or pass curvature=None where the method allows."
            )
        problem, samples = read_matching(matching_view(model, curvature), curvature, loss_fn, forget)
    key = label_key if curvature is None else curvature.label_key
    return Request(problem, curvature, samples.batches, samples.count, started, key)


def gradient_sum(problem: Problem, batches: Iterable[Batch]) -> Tensor:
    """Σ ∇ℓᵢ, added up in float64."""
    total = torch.zeros(problem.layout.dim, dtype=torch.float64, device=problem.device)
    for batch in batches:
        total += measure(problem, RowKind("empirical"), batch).gradient
    return total.to(problem.dtype)


def forget_gradient(request: Request, weight_decay: float) -> Tensor:
    """g_S = Σ_{i∈S} (∇ℓᵢ(θ) + wθ)."""
    problem = request.problem
    return gradient_sum(problem, request.batches) + request.count * weight_decay * problem.theta()


def decay_of(curvature: Curvature | None, weight_decay: float | None, otherwise: float = 0.0) -> float:
    """w as asked for; else that of the curvature; else none, or what is usual."""
    if weight_decay is None:
        return otherwise if curvature is None else curvature.weight_decay
    if not 0 <= weight_decay < math.inf:
        raise InvalidSetting(f"weight_decay must be zero or positive, not {weight_decay}.")
    return weight_decay


def check_positive(value: float, name: str) -> None:
    if not 0 < value < math.inf:
        raise InvalidSetting(f"{name} must be a positive number, not {value}.")


def check_whole(value: int, name: str) -> None:
    if value < 1:
        raise InvalidSetting(f"{name} must be at least 1, not {value}.")


def diagonal_of(
    curvature: Curvature | None, method: str, rows: str | None = None
) -> tuple[Curvature, DiagonalStructure]:
    """The curvature and its diagonal, where it is one; `rows` says of what kind it must be."""
    repair = "structure='diagonal'" + (f", rows='{rows}'" if rows else "")
    if curvature is None:
        raise InvalidSetting(f"{method} needs a curvature; fit one with {repair}.")
    structure, kind = curvature.structure, curvature.kind
    if isinstance(structure, DiagonalStructure) and rows in (None, kind.name) and (rows is None or kind.per_batch == 1):
        return curvature, structure
    many = f" of mini-batches of {kind.per_batch}" if kind.per_batch > 1 else ""
    single = ", rows_per_batch=1" if many and rows == kind.name else ""
    raise InvalidSetting(
        f"{method} needs a curvature with {repair}{single}; this one has structure='{structure.kind}', "
        f"rows='{kind.name}'{many}. Fit with {repair}{single}."
    )
