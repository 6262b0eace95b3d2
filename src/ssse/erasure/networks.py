"""What is said of a network's step, by what was measured of it.

The step is Newton's for the tangent of the network at θ*. Whether the network is that tangent as far as the step goes
is seen on S and, better, on samples that should keep working (`ssse.erasure.tangent`). Limits were chosen on erasures
of small networks with retrained twins, and counted on others of other data (benchmarks/network_verdicts.py).
"""

from __future__ import annotations

from ssse.erasure.diagnostics import LARGE_STEP, Diagnostics

# Up to here the margins of S, and of the probe, moved as the tangent says.
TRUSTED_MARGINS = 0.2
TRUSTED_MARGINS_OF_PROBE = 0.3
# From here on, of a long step, the tangent says less of where the margins of S went than "nowhere" would.
BEYOND_TANGENT = 1.0


def distrust_network(measured: Diagnostics) -> list[str]:
    """Why a network's step is not vouched for, in words and numbers; none where the facts speak for it."""
    error, on_probe = measured.margin_error, measured.probe_margin_error
    if error is None:
        return ["The model is not linear in θ, and whether it follows its tangent along the step cannot be measured."]
    reasons = []
    if not error <= TRUSTED_MARGINS:
        reasons.append(
            f"The model is not linear in θ, and the margins of the forgotten samples moved by {error:.2g} of the way "
            f"otherwise than its tangent says, which the step was computed from (trusted up to {TRUSTED_MARGINS:g})."
        )
    if measured.probe_samples is None:
        reasons.append(
            "The model is not linear in θ, and what the step does to other samples than the forgotten ones was not "
            "looked at: pass a probe, samples that should keep working."
        )
    elif on_probe is not None and not on_probe <= TRUSTED_MARGINS_OF_PROBE:
        reasons.append(
            f"The model is not linear in θ, and the margins of the probe moved by {on_probe:.2g} of the way otherwise "
            f"than its tangent says (trusted up to {TRUSTED_MARGINS_OF_PROBE:g})."
        )
    return reasons


def beyond_tangent(measured: Diagnostics) -> list[str]:
    """Why the step cannot be right: it went where the tangent says nothing any more; none where it did not."""
    error, length = measured.margin_error, max(measured.relative_step or 0.0, measured.reach or 0.0)
    if error is None or error <= BEYOND_TANGENT or length <= LARGE_STEP:
        return []
    return [
        f"The step is {length:.3g} times as long as θ, and the margins of the forgotten samples are off by {error:.2g} "
        "times as much as they were to move: far past where the network is the tangent that it was computed from."
    ]
