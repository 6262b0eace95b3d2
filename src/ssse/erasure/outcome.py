"""One request, answered: the model, and the curvature for the next one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ssse.curvature.curvature import Curvature, JointState
from ssse.erasure.diagnostics import Diagnostics
from ssse.erasure.seen_at_origin import Request
from ssse.erasure.solving import samples_at_origin
from ssse.erasure.trust import Trust
from ssse.errors import InvalidSetting
from ssse.problem.fingerprint import Fingerprint
from ssse.problem.problem import Problem
from ssse.problem.weighted_loss import unweighted
from ssse.rows.score_sums import ScoreSums

if TYPE_CHECKING:
    from ssse.evaluation.outputs import Model
    from ssse.evaluation.scan import Scan
    from ssse.evaluation.splits import SplitData


@dataclass(frozen=True)
class Erasure:
    """One request, answered.

    Attributes:
        model: a new module; the one passed in is untouched. step: θ̂ − θ, shape (d,).
        direction: the step at scale 1, from the θ* of the curvature: θ̂(ε) = θ* + ε·direction.
        diagnostics: numbers, verdict and reasons.
    """

    model: nn.Module
    step: Tensor
    direction: Tensor
    diagnostics: Diagnostics
    _pending: list[Request] = field(repr=False)
    _after: Curvature = field(repr=False)
    _erased: Problem = field(repr=False)
    _origin: Tensor = field(repr=False)  # θ*, which the scale counts from

    @property
    def reach(self) -> float:
        """The length of the step at scale 1 over ‖θ*‖."""
        return float(self.direction.norm() / self._origin.norm())

    def at(self, scale: float) -> nn.Module:
        """The model at another scale of this step, without solving again: θ* + ε·direction, a copy. It is not judged:
        look at it with `scan` or `evaluate`.
        """
        if not math.isfinite(scale):
            raise InvalidSetting(f"scale must be a number, not {scale!r}.")
        return self._erased.with_theta(self._origin + scale * self.direction)

    @cached_property
    def curvature(self) -> Curvature:
        """The curvature for the next request, from which the forgotten rows are gone.

        Made when first asked for (it refactorises every block). Until then this object still refers to
        the forgotten samples, afterwards no longer. With policy="joint" their gradients stay, summed, and
        with leave_out=False also their rows: that is what makes the order of requests irrelevant.
        """
        request = self._pending[0]
        if request.curvature.kind.per_batch > 1:
            raise InvalidSetting(
                "Rows of mini-batches mix samples, so the forgotten ones cannot leave this curvature. Fit a new one "
                "on the data that remains, or fit with rows_per_batch=1."
            )
        joint, after = self._after.joint, self._after
        if joint is None or joint.leave_out:  # else the update over D needs D's curvature as it is
            ridge = request.curvature.ridge_without(request.samples.count)
            after = replace(after, structure=request.curvature.structure.remove(request.rows(), ridge))
        self._pending.clear()
        return after

    def scan(
        self,
        splits: SplitData,
        *,
        scales: float | Iterable[float] | None = None,
        retrained: Model | None = None,
        progress: bool = True,
    ) -> Scan:
        """Measure the model at other scales of this step, without solving again: `ssse.scan` from θ* along `direction`.

        Args: splits, retrained: as in `ssse.scan`. scales: the values of ε; None: from 0.01 to 100.
        """
        from ssse.evaluation.scan import DEFAULT_SCALES, scan  # with scipy.stats, which erasing does not need

        return scan(
            self._erased.with_theta(self._origin),
            self.direction,
            unweighted(self._erased.loss),
            splits,
            scales=DEFAULT_SCALES if scales is None else scales,
            retrained=retrained,
            parameters=self._erased.layout.names,
            label_key=self._after.label_key,
            progress=progress,
        )


def curvature_after(
    curvature: Curvature,
    erased: Problem,
    k: int,
    removed: Tensor,
    origin: Tensor,
    leave_out: bool,
    policy: str,
) -> Curvature:
    """All of the next curvature but its structure, which is made when asked for."""
    joint = policy == "joint"
    return replace(
        curvature,
        layout=erased.layout,  # of an earlier version's fit the names may have been those in a wrapper
        fingerprint=Fingerprint.of(erased),  # the rest too: of tied weights a second name moves with θ
        n=curvature.n - k,
        erased=curvature.erased + k,
        gradient=curvature.gradient if joint else None,
        mean_loss=None,
        joint=JointState(origin, removed, leave_out, samples_at_origin(curvature)) if joint else None,
    )


def scores_after(curvature: Curvature, remaining: ScoreSums | None, trust: Trust, policy: str) -> dict[str, Any]:
    """The sums for the next request: a joint stream goes on from the θ that it began at."""
    if policy == "joint":
        return {"scores": remaining}
    return {"scores": trust.after, "strain": curvature.strain + (trust.strain or 0.0)}
