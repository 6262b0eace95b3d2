"""Steps that cannot be right, and are not taken unless somebody says so."""

from __future__ import annotations

from ssse.curvature.curvature import Curvature
from ssse.curvature.decay import as_setting
from ssse.erasure.diagnostics import LARGE_RESIDUAL, Diagnostics
from ssse.erasure.health import Health, ruin
from ssse.erasure.networks import beyond_tangent
from ssse.problem.token_losses import TOKEN_LOSSES
from ssse.verdict import TRUSTED_LEVERAGE, Bound, too_many_at_once

# Past these, the step cannot be right and is not taken. Chosen on steps of softmax regressions and small networks on
# digits, wine, breast cancer and iris, trained to the end or stopped early, from one sample to a whole class, with the
# right weight decay and with one up to 1,000 times too small or too large: no step of the right decay is refused that
# came nearer to the retrained model, or lowered the objective, and left the model of use. The longest of those, where
# one class of three went, was 2.9 times as long as θ; where less than that went, 1.3 times.
IMPOSSIBLE_STEP = 3.0
IMPOSSIBLE_STEP_OF_FEW = 1.5
FEW = 0.3  # of the samples: no class of two, and hardly one of three
# Where few go, steps as long as θ itself are not honest either if the loss on S explodes; or, of a linear model, if θ*
# is no minimum of the objective that the curvature was told of (networks never quite are).
LONG_STEP = 1.0
EXPLODING_FACTOR = 10.0
# Where there was little to learn, θ is next to nothing and no measure of a step: of linear models at their minimum
# whose labels hardly depend on the inputs, steps many times as long as θ are right if they move scores by less.
SHORT_SWING = 4.0
EXACT_RESIDUAL = 0.1  # up to here a least-squares model is at its minimum, where its step is exact at any length
CANNOT_BE_RIGHT = (
    "Such a step cannot be right. Is the weight decay the one of the training objective (1/n) Σ loss + (w/2)‖θ‖², and "
    "the model trained to the end?"
)
OF_TOKENS = (
    "A training that took the mean over all tokens of a batch had, for this loss, its weight decay times the mean "
    "number of labels a sequence."
)

# A linear model whose forgotten samples hold nearly all of the curvature of a direction, and move far along it: what
# stays says nothing of how far is too far there. Nearly all steps that left the objective on what stays higher than
# doing nothing would have were such steps (benchmarks/verdicts.py).
BLIND_SWING = 2.0
WRONG_DECAY = 10.0  # the factor from which on a decay that the gradient contradicts is not worth a step
# A network is never quite stationary. Of 96 small ones on digits (two widths, tanh and ReLU, 5 and 40 epochs, decays of
# 1e-4 to 1e-2) none that SGD or Adam had trained contradicted its own decay, and those of AdamW, whose decay is another
# thing, by a factor of 9 at most: this is three times that.
WRONG_DECAY_OF_NETWORK = 30.0


def refusal_of(
    measured: Diagnostics, curvature: Curvature, health: Health | None
) -> tuple[dict[Bound, str], list[str]]:
    """Which bounds the step breaks, with the reasons; and what to do about it. Nothing if it may be taken."""
    found: dict[Bound, list[str]] = {
        "stationarity": contradicted(measured, curvature),
        "share": [many] if (many := too_many_at_once(measured.k, measured.n)) else [],
        "step": impossible(measured, curvature) or beyond_tangent(measured),
        "leverage": blind(measured, curvature),
        "probe": [] if health is None else ruin(health),
    }
    broken: dict[Bound, str] = {bound: " ".join(reasons) for bound, reasons in found.items() if reasons}
    wrong = broken.keys() & {"step", "probe"} and not broken.keys() & {"stationarity", "share"}
    summed = curvature.loss in TOKEN_LOSSES and not curvature.loss.endswith("_mean")
    return broken, [CANNOT_BE_RIGHT, *([OF_TOKENS] if summed else [])] if wrong else []


def impossible(measured: Diagnostics, curvature: Curvature) -> list[str]:
    """Why the step cannot be right, in words and numbers; none if it can."""
    moved, imbalance = max(measured.relative_step or 0.0, measured.reach or 0.0), measured.imbalance
    linear = curvature.linear is not None
    if linear and curvature.loss == "mse" and imbalance is not None and imbalance <= EXACT_RESIDUAL:
        return []
    stationary = imbalance is not None and imbalance <= LARGE_RESIDUAL
    if linear and stationary and measured.swing is not None and measured.swing <= SHORT_SWING:
        return []
    length = f"The step is {moved:.3g} times as long as θ"
    few = measured.k + measured.erased <= FEW * (measured.n + measured.erased)  # `reach` is of all of them
    few = few and not measured.residual  # whose step also makes up for what the training left
    if moved > (IMPOSSIBLE_STEP_OF_FEW if few else IMPOSSIBLE_STEP):
        return [f"{length}."]
    if moved <= LONG_STEP or not few:
        return []
    if linear and imbalance is not None and imbalance > LARGE_RESIDUAL:
        return [f"{length}, from a θ* that is not stationary: n‖∇L(θ*)‖ is {imbalance:.2g} times the gradient removed."]
    if measured.predicted_change and measured.loss_after is not None and measured.loss_before is not None:
        ratio = (measured.loss_after - measured.loss_before) / measured.predicted_change
        if ratio > EXPLODING_FACTOR:
            return [
                f"{length}, and the mean loss on the forgotten samples went from {measured.loss_before:.3g} to "
                f"{measured.loss_after:.3g}, {ratio:.2g} times as far as the linear model predicts."
            ]
    return []


def contradicted(measured: Diagnostics, curvature: Curvature) -> list[str]:
    """Why a model has another objective than it was said to have; none if it may be that one."""
    estimate = measured.decay_estimate
    if estimate is None:
        return []
    most = WRONG_DECAY if curvature.linear is not None else WRONG_DECAY_OF_NETWORK
    if 1 / most <= estimate / curvature.damping <= most:
        return []
    return [
        f"By its gradient θ* was trained with a weight decay of {estimate:.3g}, and the damping is "
        f"{curvature.damping:.3g}: every step is then wrong by as much. Fit again with {as_setting(estimate)}."
    ]


def blind(measured: Diagnostics, curvature: Curvature) -> list[str]:
    """Why what stays does not hold the step of a linear model, in words and numbers; none if it does."""
    leverage, swing = measured.leverage_max, measured.swing_max
    if curvature.linear is None or leverage is None or swing is None:
        return []
    if leverage <= TRUSTED_LEVERAGE or swing <= BLIND_SWING:
        return []
    return [
        f"The samples alone determine {leverage:.1%} of a direction of θ (largest leverage), and their scores would "
        f"move by up to {swing:.2g}: what remains hardly holds the step there, and it may do more harm than good. "
        "Retrain, or override the bound and refine with the data that remains."
    ]
