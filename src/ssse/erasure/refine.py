"""Nearer to the minimum on what remains, where that can still be read."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ssse.curvature.conjugate_gradients import dot
from ssse.curvature.curvature import Curvature
from ssse.curvature.fit import bind_data
from ssse.curvature.matrix_free import MatrixFreeStructure
from ssse.curvature.settings import part_note
from ssse.erasure.descent import Descent, Ending, Point, descend
from ssse.erasure.directions import Newton, QuasiNewton
from ssse.erasure.request import check_form, matching_loss, matching_view
from ssse.erasure.retained_objective import RetainedObjective
from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.batches import check_repeatable, peek
from ssse.problem.fingerprint import Fingerprint
from ssse.problem.loaders import Data, as_batches
from ssse.problem.losses import NAMED, LossLike
from ssse.problem.problem import Problem
from ssse.system.memory import memory_budget
from ssse.system.progress import bar
from ssse.verdict import number

Method = Literal["newton", "quasi-newton"]

STALE = 1.1  # drift above which the stored curvature is no longer that of the refined model


@dataclass(frozen=True)
class Refinement:
    """A model, brought nearer to the minimum of L(θ) = (1/n) Σ ℓᵢ(θ) + (w/2)‖θ‖² over the samples that remain.

    Attributes:
        model: a new module; the one passed in is untouched. step: θ̂ − θ, shape (d,).
        curvature: for the next request, of the refined model; its rows are still those of the θ they were computed at.
        steps, passes: that were taken, and how often the data was read (line search included; what conjugate
            gradients read is not counted).
        ended: "tolerance", a further step would be shorter than that share of ‖θ‖; "rounding", no lower objective can
            be told from this one; "steps", as many as were asked for.
        objective_before, objective_after: L, never higher after. gradient_before, gradient_after: ‖∇L‖.
        method: "newton" for a model linear in θ whose features fit into memory, else "quasi-newton".
        drift: the factor, at least 1, between the stored curvature and the one met along the step; None if unknown.
        convex: whether L has one minimum, the one that a refit goes to: of a model linear in θ with a named loss.
    """

    model: nn.Module
    curvature: Curvature = field(repr=False)
    step: Tensor = field(repr=False)
    steps: int
    passes: int
    ended: Ending
    n: int
    objective_before: float
    objective_after: float
    gradient_before: float
    gradient_after: float
    relative_step: float
    method: Method
    drift: float | None
    convex: bool
    notes: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def converged(self) -> bool:
        """Whether the step that would come next is within the tolerance."""
        return self.ended == "tolerance"

    def __str__(self) -> str:
        lines = [
            f"refined: {_counted(self.steps, 'step')}, {_counted(self.passes, 'pass')} over {self.n} samples; "
            + _ENDINGS[self.ended],
            f"objective on what remains: {self.objective_before:.6g} → {self.objective_after:.6g}",
            f"‖∇L‖: {number(self.gradient_before)} → {number(self.gradient_after)}",
            f"relative to θ: {number(self.relative_step)}",
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


_ENDINGS: dict[Ending, str] = {
    "tolerance": "converged",
    "rounding": "no lower objective can be told from this one",
    "steps": "not converged yet",
}


def refine(
    model: nn.Module,
    curvature: Curvature,
    loss_fn: LossLike | None = None,
    retained: Data | None = None,
    *,
    steps: int = 10,
    tolerance: float | None = None,
    progress: bool = True,
) -> Refinement:
    """Bring an erased model nearer to the one that a refit on what remains would give.

        refinement = ssse.refine(erasure.model, erasure.curvature, loss_fn, retained_loader)

    The objective is L(θ) = (1/n) Σ ℓᵢ(θ) + (w/2)‖θ‖² over the samples that remain, w the curvature's weight decay. A
    step costs one pass over the data, and one more for each time that it must be shortened; none is taken that does not
    lower the objective. Of a model linear in θ with a named loss the steps are Newton's, by conjugate gradients with
    the stored factor as preconditioner, and the minimum is the refit. Of others they are those of L-BFGS, which begins
    from the stored C⁻¹. For a network this is fine-tuning on what remains: the objective says that D∖S is fitted,
    nothing says that S is forgotten.

    A model that nothing was erased from is polished in the same way, with its training data as `retained`.

    Args:
        model, curvature: as `ssse.erase` left them, or as they were fitted.
        loss_fn: as in `Curvature.fit`; a named one may be left out.
        retained: batches of all samples that remain, and of no others; read several times.
        steps: at most so many.
        tolerance: stop where a further step would be shorter than this share of ‖θ‖; 1e-8, in float32 1e-4.

    Raises:
        InvalidData: these are not the samples that the curvature stands for, or they can be read once only.
        ModelMismatch: the model is not the one the curvature belongs to.
    """
    started = time.perf_counter()
    _check_settings(curvature, steps, tolerance)
    if retained is None:
        raise InvalidSetting("Pass the samples that remain: retained=batches.")
    retained = as_batches(retained, curvature.label_key)
    if iter(retained) is retained:
        raise InvalidData(
            "refine reads the data that remains many times; pass a DataLoader or a list, not an iterator."
        )
    check_repeatable(retained)
    loss = matching_loss(curvature, loss_fn)
    view = matching_view(model, curvature)
    first, _ = peek(retained, view.device)
    if first is None:
        raise InvalidData("The data that remains is empty.")
    problem = Problem(view.working, loss, curvature.layout.names, first)
    check_form(curvature, problem)
    tolerance = _usual_tolerance(problem.dtype) if tolerance is None else tolerance

    convex = problem.linear is not None and problem.loss.name in NAMED
    with bar("refining", (steps + 1) * curvature.n, progress) as advance:
        newton = convex and _fits(problem, curvature)
        objective = RetainedObjective(problem, curvature, retained, keeps=newton, advance=advance)
        start = objective.first(problem.theta())
        directions = _newton(curvature, problem) if newton else _quasi_newton(curvature, problem, retained)
        found = descend(objective, directions, start, steps=steps, tolerance=tolerance)

    if problem.rounds:
        found = _as_kept(problem, objective, start, found, tolerance)
    drift = _drift(curvature, start, found)
    refined = problem.on(problem.with_theta(found.point.theta))
    step = found.point.theta - start.theta
    arrived = convex and found.ended == "tolerance" and (drift is None or drift <= STALE)
    return Refinement(
        model=refined.working.given,
        curvature=_curvature_after(curvature, refined, found, objective.mean_loss(found.point), arrived),
        step=step,
        steps=found.steps,
        passes=objective.passes,
        ended=found.ended,
        n=curvature.n,
        objective_before=start.value,
        objective_after=found.point.value,
        gradient_before=float(start.gradient.norm()),
        gradient_after=float(found.point.gradient.norm()),
        relative_step=float(step.norm() / start.theta.norm().clamp_min(torch.finfo(step.dtype).tiny)),
        method="newton" if newton else "quasi-newton",
        drift=drift,
        convex=convex,
        notes=_notes_on(curvature, problem, drift, convex),
        seconds=time.perf_counter() - started,
    )


def _check_settings(curvature: Curvature, steps: int, tolerance: float | None) -> None:
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise InvalidSetting(f"steps must be a whole number from 1 on, not {steps!r}.")
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise InvalidSetting(f"tolerance must be zero or positive, not {tolerance!r}.")
    if curvature.joint is not None and not curvature.joint.leave_out:
        raise InvalidSetting(
            "A joint stream with leave_out=False keeps the forgotten rows in its curvature, and a refined model is not "
            "part of such a stream. Fit a new curvature of this model on the data that remains, and refine with that."
        )


def _usual_tolerance(dtype: torch.dtype) -> float:
    return 1e-8 if dtype == torch.float64 else 1e-4


def _fits(problem: Problem, curvature: Curvature) -> bool:
    """Whether the features and the rows of all that remains can be held, as Newton's direction needs them."""
    assert problem.linear is not None
    inputs, outputs = problem.linear.inputs + problem.linear.bias, problem.linear.outputs
    size = torch.finfo(problem.dtype).bits // 8
    points = 3  # where it began, where it is, and the trial
    needed = curvature.n * (points * (inputs + outputs) + outputs**2) * size
    return needed <= 0.5 * memory_budget(problem.device, None)


def _newton(curvature: Curvature, problem: Problem) -> Newton:
    assert problem.linear is not None
    structure = curvature.structure
    factor = structure.preconditioner if isinstance(structure, MatrixFreeStructure) else structure
    precondition = torch.clone if factor is None else factor.solve
    ridge = curvature.n * curvature.weight_decay
    return Newton(problem.loss, problem.linear, ridge, precondition, _newton_tolerance(problem.dtype))


def _quasi_newton(curvature: Curvature, problem: Problem, retained: Iterable[Any]) -> QuasiNewton:
    """Of a matrix-free curvature the rows are those of what remains, at the θ to start from."""
    structure = curvature.structure
    if isinstance(structure, MatrixFreeStructure):
        structure = bind_data(structure, problem, curvature.kind, retained, curvature.group, curvature.n)
    return QuasiNewton(lambda v: curvature.n * structure.solve(v))


def _newton_tolerance(dtype: torch.dtype) -> float:
    """Of the residual of conjugate gradients."""
    return 1e-6 if dtype == torch.float64 else 1e-3


def _as_kept(problem: Problem, objective: RetainedObjective, start: Point, found: Descent, tolerance: float) -> Descent:
    """What is found as a model in half precision holds it, measured there; the start, where that is lower."""
    exact = found.point.theta
    kept = problem.rounded(exact)
    if torch.equal(kept, exact):
        return found
    point = objective(kept)
    if point.value > start.value:
        return Descent(start, 0, "rounding")
    near = float((kept - exact).norm()) <= tolerance * float(exact.norm())
    return Descent(point, found.steps, found.ended if near else "rounding")


def _drift(curvature: Curvature, start: Point, found: Descent) -> float | None:
    """How far off the stored curvature was along the whole step, as a factor of at least 1.

    The change y of the gradient is H times the step s, for the Hessian H on the way: C⁻¹y is s where C is H.
    """
    if not found.steps or curvature.structure.reads_data:
        return None
    moved, change = found.point.theta - start.theta, found.point.gradient - start.gradient
    met, stored = float(dot(moved, change)), float(dot(change, curvature.solve(change)))
    return max(stored / met, met / stored) if met > 0 and stored > 0 else math.inf


def _curvature_after(
    curvature: Curvature, refined: Problem, found: Descent, mean_loss: float, arrived: bool
) -> Curvature:
    """The same rows for the refined model; what was measured there is known again.

    A joint stream ends here, and goes on as a rebased one: the refined model is no sum of its requests.
    """
    structure = curvature.structure
    if isinstance(structure, MatrixFreeStructure):  # without data that it was given, of another θ
        structure = structure.to(refined.device)
    return replace(
        curvature,
        structure=structure,
        fingerprint=Fingerprint.of(refined),
        gradient=found.point.gradient,
        mean_loss=mean_loss,
        joint=None,
        doubted=not arrived,
    )


def _notes_on(curvature: Curvature, problem: Problem, drift: float | None, convex: bool) -> tuple[str, ...]:
    notes = []
    if problem.linear is not None and not convex:
        notes.append("The loss is one of your own: this is the refit's minimum only if it is convex.")
    if problem.linear is None:
        notes.append(
            "This is fine-tuning on what remains, by quasi-Newton steps: a lower objective says that the remaining "
            "samples are fitted, not that the forgotten ones left no trace."
        )
    if curvature.partial:
        notes.append(part_note(curvature.layout))
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in problem.model.modules()):
        notes.append("BatchNorm's running statistics still contain the forgotten samples.")
    if problem.rounds:
        notes.append("The refined model is kept in half precision; what is said of it is of the rounded one.")
    if drift is not None:
        notes.append(
            "The curvature's rows are still those of the model that they were computed at; along the way here it was "
            f"right to a factor of {drift:.2g}." + " Fit a new one on what remains." * (drift > STALE)
        )
    if curvature.decay_estimate is not None:
        notes.append(
            f"The weight decay {curvature.weight_decay:.3g} is not the one that the model was trained with, by its "
            f"gradient {curvature.decay_estimate:.3g}: this goes to the minimum of another objective. Fit again first."
        )
    if curvature.joint is not None:
        notes.append("The joint stream of requests ends here; the next ones go on from the refined model.")
    return tuple(notes)


def _counted(count: int, what: str) -> str:
    plural = "es" if what[-1] == "s" else "s"
    return f"{count} {what}{plural * (count != 1)}"
