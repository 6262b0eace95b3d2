"""The methods that are compared, each as it is called for one request, and what it reads for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from ssse import baselines
from ssse.calibration.calibrate import calibrate
from ssse.calibration.criteria import Undecided
from ssse.comparison.clock import Clock
from ssse.curvature.curvature import Curvature
from ssse.erasure.erase import erase
from ssse.erasure.refine import refine
from ssse.problem.losses import LossLike
from ssse.problem.view import ParameterChoice


@dataclass(frozen=True)
class Answer:
    """`seconds`: of the request. `once`: before it, after training: a curvature. None where there is nothing such."""

    model: nn.Module
    seconds: float
    once: float | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Job:
    """What all methods get. `data`: batches of D, S among them. `retrained`: the first of them, or None."""

    model: nn.Module
    loss_fn: LossLike
    retained: Iterable[Any]
    forget: Iterable[Any]
    data: Iterable[Any]
    weight_decay: float
    parameters: ParameterChoice
    retrained: nn.Module | None
    clock: Clock

    @cached_property
    def ours(self) -> tuple[Curvature, float]:
        """Our curvature, and the seconds that it took; methods that share it share the seconds."""
        return self.fit()

    @cached_property
    def diagonal(self) -> tuple[Curvature, float]:
        return self.fit(rows="empirical", structure="diagonal")

    def fit(self, **choice: Any) -> tuple[Curvature, float]:
        with self.clock as taken:
            curvature = Curvature.fit(
                self.model,
                self.loss_fn,
                self.data,
                weight_decay=self.weight_decay,
                parameters=self.parameters,
                progress=False,
                **choice,
            )
        return curvature, taken.seconds

    @property
    def request(self) -> tuple[nn.Module, LossLike, Iterable[Any]]:
        return self.model, self.loss_fn, self.forget


@dataclass(frozen=True)
class Method:
    """`reads_data`: whether a request reads the training data that stays. `answer`: takes the job and own settings."""

    name: str
    reads_data: bool
    answer: Callable[..., Answer]


def _step(job: Job, **settings: Any) -> Answer:
    curvature, once = job.ours
    with job.clock as taken:
        done = erase(job.model, curvature, job.loss_fn, job.forget, progress=False, **settings)
    verdict = done.diagnostics
    because = f": {' '.join(verdict.reasons)}" if verdict.reasons else ""
    return Answer(done.model, taken.seconds, once, (f"its verdict is {verdict.verdict}{because}",))


def _refined(job: Job, **settings: Any) -> Answer:
    curvature, once = job.ours
    with job.clock as taken:
        done = erase(job.model, curvature, job.loss_fn, job.forget, progress=False)
        refined = refine(done.model, done.curvature, job.loss_fn, job.retained, progress=False, **settings)
    return Answer(refined.model, taken.seconds, once, (f"{refined.passes} passes over D∖S", *refined.notes))


def _of_the_paper(job: Job, scale: float | None = None, **settings: Any) -> Answer:
    """Empirical rows, nothing left out. ε as the paper has it, by looking at a retrained model, where there is one."""
    curvature, once = job.fit(rows="empirical", **settings)
    note = "ε as it was given"
    if scale is None and job.retrained is not None:
        try:
            chosen = calibrate(
                job.model,
                curvature,
                job.loss_fn,
                job.forget,
                retrained=job.retrained,
                leave_out=False,
                criterion="divergence",
                progress=False,
            )
            scale, note = chosen.scale, f"ε = {chosen.scale:.3g}: chosen by looking at the retrained model"
        except Undecided as error:
            scale, note = 1.0, f"ε = 1, for the retrained model does not decide: {error}"
    elif scale is None:
        scale, note = 1.0, "ε = 1, for there is no retrained model to choose it by"
    with job.clock as taken:
        done = erase(job.model, curvature, job.loss_fn, job.forget, scale=scale, leave_out=False, progress=False)
    return Answer(done.model, taken.seconds, once, (note,))


def _baseline(function: Callable[..., baselines.Updated], reads_data: bool) -> Callable[..., Answer]:
    def answer(job: Job, **settings: Any) -> Answer:
        given: dict[str, Any] = {"parameters": job.parameters}
        if function is not baselines.influence_unlearning:
            given["weight_decay"] = job.weight_decay
        if reads_data:
            given["data"] = job.data
        model, loss, forget = job.request
        with job.clock as taken:
            done = function(model, None, loss, forget, **given, **{**QUIET.get(function.__name__, {}), **settings})
        return Answer(done.model, taken.seconds)

    return answer


def _of_diagonal(function: Callable[..., baselines.Updated]) -> Callable[..., Answer]:
    def answer(job: Job, **settings: Any) -> Answer:
        curvature, once = job.diagonal
        model, loss, forget = job.request
        with job.clock as taken:
            done = function(model, curvature, loss, forget, **settings)
        return Answer(done.model, taken.seconds, once)

    return answer


QUIET: Mapping[str, Mapping[str, Any]] = {
    name: {"progress": False} for name in ("fine_tuning", "neggrad_plus", "random_labels", "salun", "scrub")
}
METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("SSSE", False, _step),
        Method("SSSE, refined", True, _refined),
        Method("SSSE of the paper", False, _of_the_paper),
        Method("gradient ascent", False, _baseline(baselines.gradient_ascent, False)),
        Method("fine-tuning", True, _baseline(baselines.fine_tuning, True)),
        Method("NegGrad+", True, _baseline(baselines.neggrad_plus, True)),
        Method("random labels", True, _baseline(baselines.random_labels, True)),
        Method("SalUn", True, _baseline(baselines.salun, True)),
        Method("SCRUB", True, _baseline(baselines.scrub, True)),
        Method("influence functions", True, _baseline(baselines.influence, True)),
        Method("IU", True, _baseline(baselines.influence_unlearning, True)),
        Method("SSD", False, _of_diagonal(baselines.selective_synaptic_dampening)),
        Method("diagonal SSSE", False, _of_diagonal(baselines.diagonal_ssse)),
    )
}
USUAL = (
    "SSSE",
    "SSSE, refined",
    "SSSE of the paper",
    "gradient ascent",
    "fine-tuning",
    "NegGrad+",
    "influence functions",
    "SSD",
)
