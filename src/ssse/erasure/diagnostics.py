"""What an erasure has to say about itself: numbers, a verdict, and the reasons in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ssse.curvature.curvature import Curvature
from ssse.curvature.settings import part_note
from ssse.curvature.structure import LeftOut
from ssse.erasure.copies import note_on_copies
from ssse.erasure.request import Samples
from ssse.problem.batch_statistics import statistics_layers
from ssse.problem.losses import NAMED, Response
from ssse.problem.problem import Problem
from ssse.verdict import TRUSTED_LEVERAGE, Assessment, distrust, number

UNCOUPLED = ("binary_cross_entropy", "mse")  # losses whose outputs do not interact

# Past these, one step is still taken but no longer vouched for.
LARGE_FRACTION = 0.10
LARGE_LEVERAGE = TRUSTED_LEVERAGE
LARGE_STEP = 0.50
LARGE_RESIDUAL = 0.50
LARGE_RESIDUAL_STEP = 0.20
LARGE_CORRECTION = 0.50
LINEARISATION_FACTOR = 3.0
# Of a network with BatchNorm. All airplanes erased from a ResNet-20: with the statistics it had, 98 % of them are still
# right and the gap to a retrained network is 49 points; with statistics estimated anew, 0.3 % and half a point.
LARGE_STEP_OF_STATISTICS = 0.10
# Of 240 steps of softmax regressions and small networks on digits, kept in bfloat16 and float16, 1 to 100 samples at a
# time: up to here the loss on S changes by what it should to within 8 %, and the objective on what stays gains nearly
# all that the exact step gains; from 0.2 to 0.3 a third of that is gone, and past 0.5 mostly all.
LARGE_ROUNDING = 0.2


@dataclass(frozen=True, kw_only=True)
class Diagnostics(Assessment):
    """Measured while erasing.

    Attributes:
        gradient_norm: ‖∇L(θ*)‖ of the training objective; None where it is no longer known.
        forget_gradient_norm: ‖g_S‖.
        leverage_sum: of all leverages of S, the number of parameters that S pays for. leverages: the largest first.
        predicted_change: of the mean loss on S, to first order.
        response: how the curvature of the loss answers a change of scores; of models not linear in θ, "unknown".
        swing_max: how far the scores of any sample of S move.
        residual_step: ‖M⁻¹ n∇L(θ*)‖ of a linear model, over the length of the step: how far from its minimum it was.
        reach: ‖θ̂−θ*‖/‖θ*‖, as `relative_step`, but from where a joint stream began.
        decay_estimate: ŵ as the gradient tells it, where it contradicts the weight decay given; otherwise None.
        rounding: of a model in half precision, how far the model that is handed back is from the one that was computed,
            over the length of the step from θ*; None of others.
        statistics: whether BatchNorm layers hold statistics of what the step changes.
        solve_residual: ‖b − Mu‖/‖b‖ of the system that the step u solves, measured with products in float64 (of
            conjugate gradients in the model's precision) before u is rounded to the model's precision; None where M is
            not at hand to multiply with ("recurrence").
        push: the power of 1−p that the step pushes the margins of S by (`push=`); None: along the gradient.
        reweight_rounds: Newton's steps on the linearised problem that were taken (`reweight=`); 0 is the one step.
        reweight_gradient: what they left of the gradient of that problem, over what it was at θ*; None without them.
        margin_error: of a network, ‖φ(θ̂) − φ(θ*) − ∇φ·u‖/‖∇φ·u‖ over the margins φ of S (`ssse.erasure.tangent`): by
            how much they moved otherwise than its tangent at θ* says; None where it is not known.
        probe_margin_error: the same over the samples of the probe.
        verdict: "ok" means that the step is Newton's for a model linear in θ and that its measures agree; of a network
            that it is Newton's for its tangent, which was seen to hold (`ssse.erasure.networks`).

    The others are as of `Assessment`.
    """

    scale: float
    damping: float
    leave_out: bool
    residual: bool
    gradient_norm: float | None
    forget_gradient_norm: float
    leverage_sum: float | None = None
    leverages: tuple[float, ...] = field(default=(), repr=False)
    predicted_change: float | None = None
    response: Response = "unknown"
    reach: float | None = None
    residual_step: float | None = None
    swing_max: float | None = None
    decay_estimate: float | None = None
    rounding: float | None = None
    statistics: bool = False
    solve_residual: float | None = None
    push: float | None = None
    reweight_rounds: int = 0
    reweight_gradient: float | None = None
    margin_error: float | None = None
    probe_margin_error: float | None = None

    @property
    def imbalance(self) -> float | None:
        """n‖∇L(θ*)‖/‖g_S‖: 0 at a minimum of the objective that the curvature was told of."""
        if self.gradient_norm is None:
            return None
        return self.n * self.gradient_norm / max(self.forget_gradient_norm, 1e-300)

    def shown(self) -> Mapping[str, str]:
        known = dict(super().shown())
        loss = known.pop("loss on S")
        return {
            "forgotten": known.pop("forgotten"),
            "ε, λ": f"{number(self.scale)}, {number(self.damping)}",
            **known,
            "‖∇L(θ*)‖": number(self.gradient_norm),
            **({} if self.solve_residual is None else {"residual of the solve": f"{self.solve_residual:.1e}"}),
            **({"re-weighted": self._reweighted()} if self.reweight_rounds else {}),
            **({} if self.margin_error is None else {"margins off the tangent": self._off_tangent()}),
            **({} if self.rounding is None else {"rounding": f"{self.rounding:.1%} of the step"}),
            "loss on S": loss,
        }

    def _off_tangent(self) -> str:
        probe = "" if self.probe_margin_error is None else f", {number(self.probe_margin_error)} on the probe"
        return f"{number(self.margin_error)} of the way on S{probe}"

    def _reweighted(self) -> str:
        times = "once" if self.reweight_rounds == 1 else f"{self.reweight_rounds} times"
        left = "" if self.reweight_gradient is None else f", {self.reweight_gradient:.1e} of the gradient left"
        return f"{times}{left}"


def judge(measured: Diagnostics) -> list[str]:
    """Reasons for caution, in words and numbers; none if the step is one we vouch for."""
    reasons = _not_local(measured)
    if measured.push is not None:
        reasons.append(
            "The step pushes the margins of S as far as its scale says, and nothing here tells whether that is far "
            "enough or too far: ssse.erase_and_repair looks."
        )
    if measured.statistics and (measured.relative_step or 0.0) > LARGE_STEP_OF_STATISTICS:
        reasons.append(
            f"The step is {measured.relative_step:.2f} times as long as θ, and BatchNorm's statistics are those from "
            "before it: this model must not be used, or judged, before ssse.repair (with the data that stays) or "
            "ssse.recalibrate (with any of the same kind)."
        )
    if measured.rounding is not None and measured.rounding > LARGE_ROUNDING:
        reasons.append(
            f"The model is kept in half precision, and rounding to it changes the step by {measured.rounding:.0%} of "
            "its length. Keep it in float32, or gather more requests into one."
        )
    if measured.decay_estimate is not None:
        reasons.append(
            f"θ* was not trained with the weight decay that the curvature was told of, by its gradient rather with "
            f"{measured.decay_estimate:.3g}. Fit again with that one."
        )
    elif measured.residual and measured.residual_step is not None and measured.residual_step > LARGE_CORRECTION:
        reasons.append(
            f"What the training left, which residual corrects for, is {measured.residual_step:.2g} of the step: if the "
            "objective is not the one that was trained on (another weight decay?), that goes somewhere else."
        )
    elif not measured.residual and (reason := _not_stationary(measured)):
        reasons.append(f"{reason} Train further, or correct for it (residual).")
    return reasons


def _not_stationary(measured: Diagnostics) -> str:
    """What is left to train counts by the step it would take; where that is not known, by its gradient."""
    left, ratio = measured.residual_step, measured.imbalance
    if left is not None:
        far = f"it is {left:.2g} times as far from its minimum as the step is long."
        return f"θ* is not stationary: {far}" if left > LARGE_RESIDUAL_STEP else ""
    if ratio is None or ratio <= LARGE_RESIDUAL:
        return ""
    return f"θ* is not stationary: n‖∇L(θ*)‖ is {ratio:.2g} times the gradient that is removed."


def _not_local(measured: Diagnostics) -> list[str]:
    """Why the curvature may not be the same where the step ends."""
    if measured.response == "constant":
        return []
    reasons = []
    total, gone = measured.n + measured.erased, measured.k + measured.erased
    if measured.strain is not None:
        reasons = distrust(measured)
        if measured.erased and gone > LARGE_FRACTION * total:
            reasons.append(_too_many(gone, total))
        return reasons
    if gone > LARGE_FRACTION * total:
        reasons.append(_too_many(gone, total))
    if measured.leverage_max is not None and measured.leverage_max > LARGE_LEVERAGE:
        reasons.append(
            f"The samples alone determine {measured.leverage_max:.1%} of a direction of θ (largest leverage): "
            "where a whole class goes, the step at scale 1 usually falls short."
        )
    if measured.relative_step is not None and measured.relative_step > LARGE_STEP:
        reasons.append(f"The step is {measured.relative_step:.2f} times as long as θ: too far for a local model.")
    if measured.predicted_change and measured.loss_after is not None and measured.loss_before is not None:
        ratio = (measured.loss_after - measured.loss_before) / measured.predicted_change
        if not 1 / LINEARISATION_FACTOR < ratio < LINEARISATION_FACTOR:
            reasons.append(
                f"The loss on the forgotten samples changed {ratio:.2g} times as much as the linear model predicts."
            )
    return reasons


def _too_many(gone: int, total: int) -> str:
    return (
        f"{gone / total:.1%} of the training data is forgotten by now, more than the {LARGE_FRACTION:.0%} up to which "
        "one step is vouched for."
    )


def doubts(measured: Diagnostics, curvature: Curvature) -> list[str]:
    """Why even a perfectly computed step is not the Newton step, on the leave-k-out loss, of a model linear in θ or of
    a network's tangent."""
    reasons = []
    own = curvature.loss not in NAMED if curvature.linear is None else measured.response == "unknown"
    if own:
        reasons.append("The loss is a function of your own: how its curvature changes along the step is not known.")
    elif curvature.linear is not None and curvature.scores is None and measured.response != "constant":
        reasons.append(
            "This curvature was fitted by an earlier version, or is of rows of mini-batches: how far the samples that "
            "stay move is not known. Fit it again."
        )
    if curvature.partial:
        reasons.append(
            "Only a part of the trained parameters can change; the rest were trained with the forgotten samples too."
        )
    if curvature.doubted:
        reasons.append("An earlier step since the fit was not vouched for, and this one starts from its result.")
    calibrated = measured.scale == curvature.scale
    kind = curvature.kind
    if not kind.natural(curvature.loss) and not calibrated:
        reasons.append(
            f"With {kind.name} rows the scale ε must be chosen by a measurement: 1 is right for expected and margin "
            "rows alone."
        )
    elif not kind.natural(curvature.loss):
        reasons.append(f"The scale {measured.scale:.3g} is one that was measured, {_source(curvature)}.")
    elif measured.scale != 1:
        how = f" ({_source(curvature)})" if calibrated else ""
        reasons.append(f"The scale is {measured.scale:.3g}{how}; with {kind.name} rows the Newton step is at 1.")
    outputs = 0 if curvature.linear is None else curvature.linear.outputs
    if kind.name == "margin" and curvature.loss == "cross_entropy" and outputs > 2:
        reasons.append(
            "Margin rows leave out how the classes but a sample's own share what is left: with more than two classes "
            "that is less than the Hessian. Expected rows are all of it."
        )
    if not measured.leave_out:
        reasons.append("The curvature is that of all the data, the forgotten samples included (leave_out=False).")
    structure = curvature.structure
    coupled = curvature.linear is not None and curvature.linear.outputs > 1 and curvature.loss not in UNCOUPLED
    whole = 1 if coupled or curvature.linear is None else curvature.linear.outputs
    if len(structure.blocks) > whole:
        reasons.append(f"The curvature between its {len(structure.blocks)} blocks is left out.")
    if not structure.complete:
        reasons.append(f"Structure '{structure.kind}' keeps only a part of the curvature.")
    decay, damping = curvature.weight_decay, curvature.damping
    if not 0.5 * decay <= damping <= 2 * decay:
        reasons.append(
            f"The damping {damping:.2g} is not the weight decay {decay:.2g} that the curvature was told of: it is "
            "curvature that the training did not have."
        )
    return reasons


def _source(curvature: Curvature) -> str:
    return "" if curvature.calibrated is None else curvature.calibrated.source


def notes_on(curvature: Curvature, problem: Problem, solved: LeftOut, samples: Samples) -> tuple[str, ...]:
    notes = []
    if curvature.partial:
        notes.append(part_note(curvature.layout))
    if statistics_layers(problem.model):
        notes.append("BatchNorm's running statistics still contain the forgotten samples.")
    if curvature.structure.reads_data:
        notes.append("The leverage is a lower bound, from the directions that the solver tried.")
    if solved.note:
        notes.append(solved.note + ".")
    notes.extend(note_on_copies(curvature, samples))
    if curvature.gradient is None:
        notes.append("‖∇L(θ*)‖ is not known after a rebase.")
    return tuple(notes)
