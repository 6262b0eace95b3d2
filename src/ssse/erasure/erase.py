"""The update: one closed-form step away from the samples to forget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ssse.curvature.curvature import Curvature
from ssse.curvature.fit import bind_data
from ssse.curvature.matrix_free import MatrixFreeStructure
from ssse.erasure.bounds import check_override
from ssse.erasure.diagnostics import Diagnostics, doubts, judge, notes_on
from ssse.erasure.health import worsening
from ssse.erasure.networks import distrust_network
from ssse.erasure.outcome import Erasure, curvature_after, scores_after
from ssse.erasure.policy import Policy
from ssse.erasure.probe import look_at
from ssse.erasure.refusal import refusal_of
from ssse.erasure.request import Samples, check_settings, matching_view, read_matching
from ssse.erasure.seen_at_origin import Request, at_origin
from ssse.erasure.solving import (
    check_push,
    check_reweight,
    gradient_sum,
    refuse_impossible,
    solve_request,
)
from ssse.erasure.stages import Stages, showing
from ssse.erasure.tangent import Tangent
from ssse.erasure.trust import Step, measure_swings, measure_trust, trust_by_swing
from ssse.errors import InvalidData, InvalidSetting, Refused
from ssse.problem.batch_statistics import statistics_layers
from ssse.problem.batches import Batch
from ssse.problem.loaders import Data, as_batches
from ssse.problem.losses import LossLike
from ssse.problem.problem import Problem
from ssse.problem.sample_digests import digest_samples
from ssse.problem.view import ModelView
from ssse.system.digests import digest_bytes, digest_named
from ssse.system.group import current_group


def erase(
    model: nn.Module,
    curvature: Curvature,
    loss_fn: LossLike | None = None,
    forget: Data | None = None,
    *,
    scale: float | None = None,
    leave_out: bool = True,
    residual: bool = False,
    reweight: int = 0,
    push: float | None = None,
    policy: Policy = "rebase",
    data: Data | None = None,
    probe: Data | None = None,
    override: Collection[str] = (),
    progress: bool = True,
) -> Erasure:
    """Erase samples from a trained model, from its curvature and those samples alone.

    With g_S = Σ_{i∈S} (∇ℓᵢ(θ*) + wθ*), the new parameters are

        θ̂ = θ* + ε · (RᵀR − R_SᵀR_S + (n−k)λI)⁻¹ g_S     leave_out=True, curvature over D∖S
        θ̂ = θ* + ε · n/(n−k) · (RᵀR + nλI)⁻¹ g_S          leave_out=False, the paper's Definition 3.1

    Args:
        model: the model as it was when the curvature was fitted.
        loss_fn: as in `Curvature.fit`; a named one may be left out: `erase(model, curvature, forget=batches)`.
        forget: batches of the samples to forget, exactly as they were in the training data.
        scale: ε; if not given, the one that `ssse.calibrate` stored with the curvature, else 1.
        leave_out: subtract the rows of S from the curvature, which needs nothing but S.
        residual: also correct for θ* not being stationary: g_S − n∇L(θ*) instead of g_S.
        reweight: with rows="margin" of a network in structure="lowrank", at most so many of Newton's steps on the
            linearised problem of what remains, each with the weights p(1−p) at the margins that the last one left; 0:
            the one step. They need nothing but S, and a factor each.
        push: of a network, −Σ(1−pᵢ)^push ∇φᵢ + kwθ in the place of g_S, which is that of 1 where ℓ is logistic in a
            margin φ; at 0 every margin of S is pushed alike. Of a network that knows S by heart 1−p is next to nothing
            on most of it, and a long step along g_S moves the few samples that it knows least. How far to go the step
            does not tell: a scale has to be given, and the verdict is "caution". `ssse.erase_and_repair` chooses one.
        policy: for streams of requests. "rebase": the erased model becomes the new θ*; of the old one
            only what the curvature holds remains. "joint": θ* and the sum of removed gradients are kept, so any
            order and grouping of the same requests gives the same model (at the scale of the last).
        data: the training data, for structure="matrix_free" only; the forgotten samples among it.
        probe: batches of samples that should keep working, such as held-out ones of the classes that stay. They are
            looked at under both models, and a step that ruins them is refused; of a network the verdict "ok" needs
            them. If not given, those that the curvature keeps (`Curvature.with_probe`).
        override: bounds (`ssse.BOUNDS`) that are not to refuse the step; a refusal says which it breaks. The verdict is
            then "caution", with the reasons of the refusal first. Overriding one bound does not override another, and
            where there is no step to take (NaN, samples that were never there) it stays refused.
        progress: show a bar on stderr, where that is a terminal; with conjugate gradients their steps and residual.

    Interrupted at any moment (Ctrl-C), it leaves model and curvature as they were.

    Raises:
        Refused: the step must not be applied; carries the diagnostics. Nothing is changed.
        ModelMismatch: the model is not the one the curvature belongs to.
    """
    started = time.perf_counter()
    with current_group(curvature.device).together():
        check_settings(curvature, scale=scale, leave_out=leave_out, residual=residual, policy=policy)
        view = matching_view(model, curvature)
    with showing(progress) as stages:
        erasure = erase_from(
            view, curvature, loss_fn, forget,
            scale=scale, leave_out=leave_out, residual=residual, reweight=reweight, push=push, policy=policy,
            data=data, probe=probe, override=override, stages=stages,
        )  # fmt: skip
    return replace(erasure, diagnostics=replace(erasure.diagnostics, seconds=time.perf_counter() - started))


def erase_from(
    view: ModelView,
    curvature: Curvature,
    loss_fn: LossLike | None,
    forget: Data | None,
    *,
    scale: float | None = None,
    leave_out: bool = True,
    residual: bool = False,
    reweight: int = 0,
    push: float | None = None,
    policy: Policy = "rebase",
    data: Data | None = None,
    probe: Data | None = None,
    override: Collection[str] = (),
    stages: Stages | None = None,
) -> Erasure:
    """`erase`, of a model that `matching_view` found to be the curvature's: it is not hashed again."""
    started, stages = time.perf_counter(), stages or Stages()
    group = current_group(view.device)
    with group.together():
        overridden = check_override(override)
        check_reweight(curvature, reweight, leave_out, scale)
        if push is not None:
            check_push(push, curvature, scale, residual=residual, reweight=reweight, policy=policy)
        scale = check_settings(curvature, scale=scale, leave_out=leave_out, residual=residual, policy=policy)
        problem, samples = read_matching(view, curvature, loss_fn, forget)
    settings = (scale, leave_out, residual, reweight, push, policy, sorted(override))
    group.agree(
        lambda: {
            "request": digest_named(_digests_of(samples)),
            "choice of settings": settings,
            "curvature": f"{curvature.structure.kind} of {curvature.n} samples, λ = {curvature.damping!r}",
        }
    )
    if curvature.probe is not None and (held := curvature.probe.holds(samples.batches)):
        raise InvalidData(
            f"{held} of the samples to forget are in the probe that the curvature keeps, and would stay there. Give it "
            "another: curvature.with_probe(…)."
        )
    request = Request(at_origin(problem, curvature), curvature, samples)
    if leave_out:
        request.check_memory()
    if data is not None:
        stages.begin("reading the training data", curvature.samples_held)
        data = as_batches(data, curvature.label_key)
        curvature = _with_data(curvature, request.problem, data, stages.advance)

    stages.begin("rows of the samples to forget", samples.count)
    rows, gradient, loss, taken = request.measured(stages) if leave_out else (None, *request.slope(stages), None)
    origin = request.problem.theta()
    slope, gradient = gradient, gradient + samples.count * curvature.weight_decay * origin
    removed = gradient if curvature.joint is None else gradient + curvature.joint.removed_gradient
    right = removed - gradient_sum(curvature) if residual else removed
    if push is not None:
        right = samples.count * curvature.weight_decay * origin - request.push(stages, push)
    stages.begin("solving")
    missing = 0 if leave_out else request.missing()
    solved = solve_request(curvature, right, rows, samples.count, missing, stages, reweight)
    stages.begin("looking at the step")

    diagnostics = Diagnostics(
        notes=notes_on(curvature, problem, solved, samples),
        response="unknown" if curvature.linear is None else problem.loss.response,
        statistics=curvature.linear is None and bool(statistics_layers(problem.model)),
        k=samples.count,
        n=curvature.n,
        erased=curvature.erased,
        scale=scale,
        damping=curvature.damping,
        leave_out=leave_out,
        residual=residual,
        push=push,
        policy=policy,
        gradient_norm=None if curvature.gradient is None else float(curvature.gradient.norm()),
        forget_gradient_norm=float(gradient.norm()),
        decay_estimate=curvature.decay_estimate,
        solve_residual=None if solved.residual is None else _known(solved.residual),
        reweight_rounds=solved.rounds,
        reweight_gradient=solved.gradient,
        leverage_max=_known(float(solved.leverages[0])) if leave_out else None,
        leverage_sum=_known(solved.leverage_sum) if leave_out else None,
        leverages=tuple(v for v in solved.leverages.tolist() if not math.isnan(v)) if leave_out else (),
        loss_before=loss / samples.count if curvature.joint is None else _mean_loss(problem, samples.batches),
    )
    refuse_impossible(diagnostics, solved, curvature)

    group.spread(solved.solution, 0)  # equal but for rounding: now to the last bit, on whatever processes they are
    exact = origin + scale * solved.solution
    if not bool(torch.isfinite(exact).all()):
        raise Refused(diagnostics.refused("The step is NaN or infinite."))
    theta = problem.rounded(exact)  # all that follows is of the model that is handed back
    step = theta - problem.theta()
    if problem.rounds:
        diagnostics = replace(diagnostics, rounding=_relative(theta - exact, exact - origin))
        _refuse_lost(diagnostics, problem, theta, step)
    erased = problem.with_theta(theta)
    erased_problem = problem.on(erased)
    loss_after = _mean_loss(erased_problem, samples.batches)
    if not math.isfinite(loss_after):
        raise Refused(diagnostics.refused("The erased model's loss on the forgotten samples is NaN or infinite."))
    remaining = None if curvature.scores is None or taken is None else curvature.scores - taken
    swings = measure_swings(request.problem, erased_problem, samples.batches)
    trust = trust_by_swing(swings)
    if remaining is not None and rows is not None and swings is not None:
        u, ridge = scale * solved.solution.double(), curvature.ridge_without(samples.count)
        taken_step = Step(request.problem, erased_problem, samples.batches, u, scale * right.double(), ridge)
        trust = measure_trust(taken_step, swings, remaining, curvature.structure.rough_solve)
    diagnostics = replace(
        diagnostics,
        step_norm=float(step.norm()),
        relative_step=_relative(step, problem.theta()),
        reach=_relative(theta - origin, origin),
        loss_after=loss_after,
        swing=trust.swing,
        swing_max=trust.swing_max,
        strain=None if trust.strain is None else curvature.strain + trust.strain,
        stretch=trust.stretch,
        bend=trust.bend,
        residual_step=_residual_step(curvature, scale * solved.solution),
        predicted_change=float(slope.double() @ (theta - origin).double()) / samples.count,
        margin_error=_margin_error(request.problem, erased_problem, samples.batches, theta - origin),
        seconds=time.perf_counter() - started,
    )
    kept = None if curvature.probe is None else curvature.probe.batches
    looked_at = kept if probe is None else as_batches(probe, curvature.label_key)
    tangent = None if problem.linear is not None else Tangent(request.problem, erased_problem, theta - origin)
    health = None if looked_at is None else look_at(looked_at, problem, erased_problem, samples, curvature.n, tangent)
    if health is not None:
        error = None if tangent is None else tangent.error
        diagnostics = replace(diagnostics, **health.numbers(), probe_margin_error=error)
        if not health.finite:
            raise Refused(diagnostics.refused("The erased model's loss on the probe is NaN or infinite."))
    broken, advice = refusal_of(diagnostics, curvature, health)
    if broken.keys() - overridden:
        raise Refused(diagnostics.breaking(broken).refused(*broken.values(), *advice))
    reasons = [] if curvature.linear is not None else distrust_network(diagnostics)
    reasons += judge(diagnostics) + doubts(diagnostics, curvature) + ([] if solved.converged else [f"{solved.note}."])
    worse = [] if health is None else worsening(health)
    diagnostics = diagnostics.judged(reasons + ([] if "probe" in broken else worse))
    if health is not None:
        diagnostics = replace(diagnostics, probe_worse=bool(worse) or "probe" in broken)
    if broken:
        diagnostics = diagnostics.overriding(broken)
    after = curvature_after(curvature, erased_problem, samples.count, removed, origin, leave_out, policy)
    doubted = curvature.doubted or diagnostics.verdict != "ok"
    after = replace(after, doubted=doubted, **scores_after(curvature, remaining, trust, policy))
    request = replace(request, curvature=curvature)
    return Erasure(erased, step, solved.solution, diagnostics, [request], after, erased_problem, origin)


def _digests_of(samples: Samples) -> dict[str, str]:
    """Of each batch; what processes that work together must have in common."""
    return {str(i): digest_bytes(digest_samples(batch, b"").tobytes()) for i, batch in enumerate(samples.batches)}


def _with_data(
    curvature: Curvature, problem: Problem, data: Iterable[Any], advance: Callable[[int], None]
) -> Curvature:
    structure = curvature.structure
    if not isinstance(structure, MatrixFreeStructure):
        raise InvalidSetting('Only structure="matrix_free" reads the training data; leave data= out.')
    expected = curvature.samples_held
    bound = bind_data(structure, problem, curvature.kind, data, curvature.group, expected, curvature.mean_loss, advance)
    return replace(curvature, structure=bound)


def _refuse_lost(diagnostics: Diagnostics, problem: Problem, theta: Tensor, step: Tensor) -> None:
    """Of a model in half precision: what it cannot hold."""
    dtypes = " and ".join(sorted({str(value.dtype) for value in problem.stored_parameters().values()}))
    if not bool(torch.isfinite(theta).all()):
        raise Refused(diagnostics.refused(f"The step leads out of the range of {dtypes}, in which the model is kept."))
    if not bool(step.any()):
        raise Refused(
            diagnostics.refused(
                f"In {dtypes}, in which the model is kept, the step rounds to nothing: not one parameter changes, and "
                "nothing would be erased. Keep the model in float32 (model.float(), and a curvature of that), or "
                "gather more requests into one."
            )
        )


def _margin_error(before: Problem, after: Problem, batches: list[Batch], u: Tensor) -> float | None:
    """On S, of a network; a model linear in θ is its tangent."""
    if before.linear is not None:
        return None
    tangent = Tangent(before, after, u)
    for batch in batches:
        tangent.look(batch)
    return tangent.error


def _residual_step(curvature: Curvature, step: Tensor) -> float | None:
    """‖M⁻¹ n∇L(θ*)‖ over the length of the step: what the training of a linear model left of the way to its minimum."""
    if curvature.linear is None or curvature.gradient is None:
        return None
    left = curvature.structure.rough_solve(gradient_sum(curvature).to(step.dtype))
    return float(left.norm() / step.norm().clamp_min(torch.finfo(step.dtype).tiny))


def _mean_loss(problem: Problem, batches: list[Batch]) -> float:
    total = count = 0.0
    for x, y in batches:
        z, _ = problem.forward(x)
        total += float(problem.loss.values(z, y).sum(dtype=torch.float64))
        count += len(y)
    return total / count


def _relative(step: Tensor, theta: Tensor) -> float:
    return float(step.norm() / theta.norm().clamp_min(torch.finfo(step.dtype).tiny))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
