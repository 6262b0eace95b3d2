"""The system of a request, solved; and what cannot be solved, refused."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ssse.curvature.curvature import Curvature
from ssse.curvature.lowrank import LowRankStructure
from ssse.curvature.matrix_free import MatrixFreeStructure
from ssse.curvature.refinement import ACCEPTED_RESIDUAL
from ssse.curvature.reweighted import check_reweighting, reweight
from ssse.curvature.structure import LeftOut, Structure
from ssse.erasure.diagnostics import Diagnostics
from ssse.erasure.stages import Stages
from ssse.errors import InvalidSetting, Refused
from ssse.rows.held import StackedRows


def solve_request(
    curvature: Curvature, right: Tensor, rows: StackedRows | None, k: int, missing: int, stages: Stages, reweighted: int
) -> LeftOut:
    structure = curvature.structure
    if reweighted and rows is not None and isinstance(structure, LowRankStructure):
        return reweight(structure, rows, right, curvature.ridge_without(k), reweighted)
    if isinstance(structure, MatrixFreeStructure):
        structure = structure.watched(stages)
    if rows is not None:
        return structure.leave_out(rows, right, curvature.ridge_without(k))
    # Definition 3.1: n/(n−k) of the full curvature.
    share = samples_at_origin(curvature) / (curvature.n - k)
    if isinstance(structure, MatrixFreeStructure):
        solved = structure.leave_out(None, right, structure.ridge)  # with the solver's own account of its accuracy
        return replace(solved, solution=solved.solution * share)
    solution, residual = structure.solve_measured(right)
    return LeftOut(solution * share, torch.zeros(1), 0.0, "", missing=missing, residual=residual)


def check_reweight(curvature: Curvature, rounds: int, leave_out: bool, scale: float | None) -> None:
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 0:
        raise InvalidSetting(f"reweight is a whole number of rounds from 0 on, not {rounds!r}.")
    if rounds and not leave_out:
        raise InvalidSetting("reweight is of what remains without the samples: use it with leave_out=True.")
    if rounds and scale is None and curvature.calibrated is not None:
        raise InvalidSetting(
            f"The scale {curvature.calibrated.scale:.3g} that is stored with this curvature was measured for the one "
            "step, without reweight: pass a scale."
        )
    if rounds:
        check_reweighting(curvature.structure)


def check_push(
    push: float, curvature: Curvature, scale: float | None, *, residual: bool, reweight: int, policy: str
) -> None:
    check_power(push)
    if curvature.linear is not None:
        raise InvalidSetting(
            "push= is for networks, which know samples by heart; the step of a model linear in θ is Newton's as it is. "
            "Leave it out."
        )
    if residual or reweight or policy != "rebase":
        raise InvalidSetting("push= has a right-hand side of its own: leave out residual, reweight and policy.")
    if scale is None:
        raise InvalidSetting(
            "A step that pushes the margins of S does not tell how far to go: pass a scale, or let "
            "ssse.erase_and_repair choose one."
        )


def check_power(push: float) -> None:
    if isinstance(push, bool) or not isinstance(push, (int, float)) or not 0 <= push <= 1:
        raise InvalidSetting(f"push is a power of 1−p, a number from 0 (all alike) to 1 (the gradient), not {push!r}.")


def gradient_sum(curvature: Curvature) -> Tensor:
    """n∇L(θ*) over the data that the gradient was taken of."""
    assert curvature.gradient is not None
    return samples_at_origin(curvature) * curvature.gradient


def samples_at_origin(curvature: Curvature) -> int:
    """A joint stream counts from its first request on."""
    return curvature.n if curvature.joint is None else curvature.joint.n


def refuse_impossible(diagnostics: Diagnostics, solved: LeftOut, curvature: Curvature) -> None:
    if solved.missing:
        raise Refused(
            diagnostics.refused(
                f"{solved.missing} of the rows to forget are not among the curvature's rows: those samples were not in "
                "the training data, not bit for bit in this form (other preprocessing, other labels), or are erased "
                "already.",
            )
        )
    if solved.indefinite:
        largest = diagnostics.leverage_max
        leverage = "" if largest is None or largest < 1 else f" (largest leverage {largest:.4g}, must be below 1)"
        drifted = curvature.erased > 0 and curvature.joint is None
        stream = " Since this model was rebased, its rows have moved from those stored: fit a new curvature." * drifted
        raise Refused(
            diagnostics.refused(
                f"The samples carry more curvature in '{solved.where}' than the training data as a whole{leverage}. "
                f"They were not in the training data, not in this form, or the curvature belongs to another θ.{stream}",
            )
        )
    structure, accepted = curvature.structure, ACCEPTED_RESIDUAL
    if isinstance(structure, MatrixFreeStructure):  # a coarser one is what somebody asked for
        accepted = max(accepted, 2 * (structure.tolerance or 0.0))
    if solved.residual is not None and solved.residual > accepted:
        raise Refused(
            diagnostics.refused(
                f"The system of the step is not solved: ‖b − Mu‖ is {solved.residual:.1e} of ‖b‖, more than "
                f"{accepted:.0e}. {_how_to_solve(structure)}"
            )
        )


def _how_to_solve(structure: Structure) -> str:
    if isinstance(structure, MatrixFreeStructure):
        return f"Allow more than {structure.max_iterations} steps, or use a larger damping."
    if isinstance(structure, LowRankStructure):
        dtype, finer = structure.kernel_dtype, 'structure=ssse.LowRank(kernel="float64")'
    else:
        dtype, finer = next(iter(structure.state().values())).dtype, "dtype=torch.float64"
    return "Use a larger damping." if dtype == torch.float64 else f"Fit with {finer}, or use a larger damping."
