"""Fisher forgetting: noise, the larger the less a parameter matters to what remains."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ssse.baselines.update import Request, Updated, diagonal_of, read_request
from ssse.curvature.curvature import Curvature
from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.labels import label_values
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike

REFERENCE = "Golatkar, Achille & Soatto 2020, 'Eternal Sunshine of the Spotless Net: Selective Forgetting'"
RULES = ("notebook", "paper")

# The constants of the notebook that the authors published; none of them is in the paper.
ALPHA = 1e-6  # in their experiments; the function's own default is 3e-6
FLOOR = 1e-8  # added to F
LARGEST_VARIANCE = 1e3  # of any parameter, before α
LARGEST_LAST_VARIANCE = 1e2  # of the last layer's, before α
CLASS_VARIANCE = 1e-4  # of the forgotten class's row, after α
BOOST = 10.0  # of the last layer's variance, and of one-dimensional parameters'


def scrubbing(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    noise: float | None = None,
    rule: str = "notebook",
    seed: int = 0,
    forgotten_class: int | None = None,
) -> Updated:
    """Add noise shaped by the diagonal Fisher matrix over D∖S.

    F = (diag(RᵀR) − diag(R_SᵀR_S)) / (n−k) with expected rows, from the curvature and S alone; ξ ~ N(0, I).

    rule="paper":     θ̂ = θ + (λσ²)^¼ · (F + 10⁻⁸)^(−¼) · ξ        noise = (λσ²)^¼; 10⁻⁸ is ours, for F = 0

    rule="notebook":  θ̂ = μ + √v · ξ,  μ = θ                        noise = α, 10⁻⁶ if not given
        v = α · min(1/(F + 10⁻⁸), 10³), in the last layer min(…, 10²)
        v ← its mean over dimension 1, where a parameter has one
        forgotten_class = c: in the last layer μ_c = 0 and v_c = 10⁻⁴
        v ← 10·v in the last layer, and in one-dimensional parameters (BatchNorm, biases)

    The notebook's noise has the standard deviation F^(−½), the paper's F^(−¼): they are two methods. The
    "last layer" is, as there, every parameter whose first dimension is the number of classes, which
    may also be true of a hidden one; its bias is enlarged once, not twice.

    Args:
        curvature: with structure="diagonal", rows="expected".
        noise: 0 leaves θ bit for bit as it is, but for μ_c = 0, whose v_c is then 0 as well.
        seed: of ξ, drawn on the CPU: the same on every device. Nothing else is drawn from.
        forgotten_class: rule="notebook" only, where S is the whole of one class.
    """
    held, diagonal = diagonal_of(curvature, "scrubbing", rows="expected")
    strength = _check_noise(noise, rule, forgotten_class)
    request = read_request(model, held, loss_fn, forget)
    problem = request.problem
    fisher = _remaining(diagonal.squares, request.squares(held.kind, diagonal.squares.dtype))
    fisher = (fisher / (held.n - request.count)).to(problem.dtype)
    mean = problem.theta()
    if rule == "paper":
        deviation = strength * (fisher + FLOOR) ** -0.25
    else:
        mean, deviation = _notebook(request, mean, fisher, strength, forgotten_class)
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(len(mean), generator=generator, dtype=torch.float64).to(mean)
    theta = torch.where(deviation > 0, mean + deviation * draw, mean)  # −0 + 0 would be another number
    notes = [f"standard deviation of the noise: median {float(deviation.median()):.3g}, largest {deviation.max():.3g}"]
    if held.erased:
        notes.append(f"F was measured before {held.erased} samples were erased, at the θ of then")
    return request.answer(theta, "scrubbing", REFERENCE, notes=notes)


def _check_noise(noise: float | None, rule: str, forgotten_class: int | None) -> float:
    if rule not in RULES:
        raise InvalidSetting(f"rule must be one of {', '.join(RULES)}, not {rule!r}.")
    if rule == "paper" and forgotten_class is not None:
        raise InvalidSetting("forgotten_class is a special case of rule='notebook'; the paper's rule has none.")
    if noise is None:
        if rule == "paper":
            raise InvalidSetting("rule='paper' needs noise=(λσ²)^¼, for instance 1e-3; the paper gives no one value.")
        return ALPHA
    if not 0 <= noise < math.inf:
        raise InvalidSetting(f"noise must be zero or positive, not {noise}.")
    return noise


def _remaining(squares: Tensor, removed: Tensor) -> Tensor:
    """diag(RᵀR) − diag(R_SᵀR_S), which rounding may leave just below zero, and another data set far below."""
    remaining = squares - removed
    slack = 100 * torch.finfo(squares.dtype).eps * squares
    if bool((remaining < -slack).any()):
        share = float((removed / squares.clamp_min(torch.finfo(squares.dtype).tiny)).max())
        raise InvalidData(
            f"The samples to forget hold {share:.4g} times the squared rows of the whole curvature in one parameter: "
            "they were not in the training data, or not in this form."
        )
    return remaining.clamp_min(0)


def _notebook(
    request: Request, mean: Tensor, fisher: Tensor, alpha: float, forgotten_class: int | None
) -> tuple[Tensor, Tensor]:
    """μ and √v, flat."""
    layout, classes = request.problem.layout, request.problem.outputs
    means = {name: value.clone() for name, value in layout.unflatten(mean).items()}
    variances: dict[str, Tensor] = {}
    rows = 0
    for name, value in layout.unflatten(fisher).items():
        last = value.shape[:1] == (classes,)
        limit = LARGEST_LAST_VARIANCE if last else LARGEST_VARIANCE
        variance = alpha * (1 / (value + FLOOR)).clamp(max=limit)
        if value.dim() > 1:
            variance = variance.mean(1, keepdim=True).expand_as(value).clone()
        if last and forgotten_class is not None:
            _check_class(forgotten_class, request)
            means[name][forgotten_class] = 0
            variance[forgotten_class] = CLASS_VARIANCE if alpha > 0 else 0.0
            rows += 1
        variances[name] = BOOST * variance if last or value.dim() < 2 else variance
    if forgotten_class is not None and not rows:
        raise InvalidSetting(
            f"forgotten_class={forgotten_class}, but none of {', '.join(layout.names)} has {classes} rows, one a "
            "class. Fit a curvature that includes the last layer."
        )
    return layout.flatten(means), layout.flatten(variances).sqrt()


def _check_class(forgotten_class: int, request: Request) -> None:
    classes = request.problem.outputs
    if not 0 <= forgotten_class < classes:
        raise InvalidSetting(f"forgotten_class must lie in 0 … {classes - 1}, not {forgotten_class}.")
    for _, labels in request.batches:
        y = label_values(labels)
        if y.dim() == 1 and not y.is_floating_point() and bool((y != forgotten_class).any()):
            raise InvalidData(
                f"forgotten_class={forgotten_class} takes the samples to forget for the whole of that class, but some "
                f"have the label {int(y[y != forgotten_class][0])}. Leave forgotten_class out."
            )
