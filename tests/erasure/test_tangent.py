"""Whether a network follows its tangent along a step: measured against plain backward passes, and what follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.erasure.diagnostics import Diagnostics
from ssse.erasure.networks import TRUSTED_MARGINS, TRUSTED_MARGINS_OF_PROBE, beyond_tangent, distrust_network
from ssse.errors import InvalidData
from tests.support import dense, problems
from tests.support.refusals import refused

DECAY = 1e-2


class Unseen(nn.Module):
    """Linear in θ, in a form that is not recognised as such."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def unseen(loss: str, c: int = 2) -> problems.Sample:
    sample = problems.linear(loss, n=80, c=c)
    sample.model = Unseen(sample.x.shape[1], c).eval()
    return problems.converged(sample, DECAY)


def fit(sample: problems.Sample, **options: Any) -> ssse.Curvature:
    return ssse.Curvature.fit(sample.model, sample.loss, sample.data, weight_decay=DECAY, progress=False, **options)


def margins(z: Tensor, y: Tensor, loss: str) -> Tensor:
    """By their definition, of one sample."""
    if loss == "cross_entropy":
        p = z.softmax(0)[y]
        return (p / (1 - p)).log().reshape(1)
    return (2 * y - 1) * z if loss == "binary_cross_entropy" else z


def wanted_error(before: nn.Module, after: nn.Module, x: Tensor, y: Tensor, loss: str) -> float:
    u, missed, moved = dense.theta(after) - dense.theta(before), 0.0, 0.0
    for i in range(len(x)):
        phi, now = (margins(model(x[i : i + 1])[0], y[i], loss) for model in (before, after))
        for j in range(len(phi)):
            parts = torch.autograd.grad(phi[j], list(before.parameters()), retain_graph=True)
            along = torch.cat([part.reshape(-1) for part in parts]) @ u
            missed += float((now[j] - phi[j] - along).detach() ** 2)
            moved += float(along**2)
    return (missed / moved) ** 0.5


@pytest.mark.parametrize("leave_out", [True, False])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy", "mse"])
def test_the_errors_are_those_of_plain_backward_passes(loss, leave_out):
    sample = problems.converged(problems.mlp(loss), DECAY)
    forget, probe = sample.part(slice(0, 3)), sample.part(slice(20, 30))
    made = ssse.erase(
        sample.model, fit(sample), forget=forget, probe=probe, leave_out=leave_out, override=ssse.BOUNDS, progress=False
    )
    found = made.diagnostics
    wanted = [wanted_error(sample.model, made.model, *batch, loss) for batch in (forget[0], probe[0])]
    assert wanted[0] > 1e-3  # a network is not its tangent
    assert [found.margin_error, found.probe_margin_error] == pytest.approx(wanted, rel=1e-6)


def test_weights_of_samples_move_no_margin():
    sample = problems.converged(problems.mlp(), DECAY)
    weighted = [(sample.x, sample.y, torch.full((30,), 2.0, dtype=torch.float64))]
    errors = []
    for data, k in ((sample.data, 1), (weighted, 2)):
        curvature = ssse.Curvature.fit(sample.model, sample.loss, data, damping=k * DECAY, weight_decay=k * DECAY)
        forget = [tuple(part[:3] for part in data[0])]
        errors.append(ssse.erase(sample.model, curvature, forget=forget, override=ssse.BOUNDS).diagnostics.margin_error)
    assert errors[0] == pytest.approx(errors[1], rel=1e-6)


def test_a_linear_model_is_its_tangent_and_nothing_is_measured():
    sample = problems.converged(problems.linear("cross_entropy"), DECAY)
    found = ssse.erase(sample.model, fit(sample), forget=sample.part(slice(0, 2)), probe=sample.data).diagnostics
    assert (found.margin_error, found.probe_margin_error) == (None, None)


def test_what_rounding_does_is_not_counted():
    sample = problems.mlp(n=60, dtype=torch.float32)
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=1e5, progress=False)
    found = ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 1))).diagnostics
    assert found.relative_step is not None
    assert found.relative_step < 1e-6  # scores move by less than their last places
    assert found.margin_error is not None
    assert found.margin_error < 0.1


@pytest.mark.parametrize("loss", ["binary_cross_entropy", "mse"])
def test_a_network_that_is_linear_in_theta_is_trusted_where_the_probe_was_looked_at(loss):
    sample = unseen(loss)
    curvature = fit(sample)
    assert curvature.linear is None
    forget, probe = sample.part(slice(0, 2)), sample.part(slice(40, 80))
    found = ssse.erase(sample.model, curvature, forget=forget, probe=probe).diagnostics
    assert max(found.margin_error or 0, found.probe_margin_error or 0) < 1e-9
    assert found.verdict == "ok", found.reasons
    alone = ssse.erase(sample.model, curvature, forget=forget).diagnostics
    assert alone.verdict == "caution"
    assert ["pass a probe" in reason for reason in alone.reasons] == [True]


def test_a_step_twenty_times_too_long_is_seen_by_its_margins():
    sample = problems.converged(problems.mlp(n=60), DECAY)
    curvature, forget, probe = fit(sample), sample.part(slice(0, 2)), sample.part(slice(30, 60))
    errors = []
    for scale in (1.0, 20.0):
        found = ssse.erase(
            sample.model, curvature, forget=forget, probe=probe, scale=scale, override=ssse.BOUNDS
        ).diagnostics
        errors.append(found.margin_error)
    assert errors[1] > 5 * errors[0]
    assert found.verdict == "caution"
    assert any("margins of the forgotten samples moved" in reason for reason in found.reasons)


def measured(**facts: Any) -> Diagnostics:
    """A step that everything speaks for, but for these facts."""
    known: dict[str, Any] = {
        "margin_error": 0.01,
        "probe_margin_error": 0.01,
        "probe_samples": 50,
        "relative_step": 0.1,
    }
    return Diagnostics(
        k=1, n=100, erased=0, policy="rebase", scale=1.0, damping=DECAY, leave_out=True, residual=False,
        gradient_norm=0.0, forget_gradient_norm=1.0, **{**known, **facts},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, None),
        (
            {"margin_error": 1.01 * TRUSTED_MARGINS},
            "margins of the forgotten samples moved by 0.2 of the way otherwise",
        ),
        ({"margin_error": float("inf")}, "margins of the forgotten samples moved by inf"),
        ({"margin_error": float("nan")}, "margins of the forgotten samples moved by nan"),
        ({"margin_error": None}, "cannot be measured"),
        ({"probe_margin_error": 1.01 * TRUSTED_MARGINS_OF_PROBE}, "margins of the probe moved by 0.3 of the way"),
        ({"probe_samples": None, "probe_margin_error": None}, "pass a probe"),
    ],
)
def test_each_fact_alone_is_a_reason(facts, why):
    reasons = distrust_network(measured(**facts))
    assert len(reasons) == (why is not None)
    assert all(why in reason for reason in reasons)


@pytest.mark.parametrize(("error", "length", "refused"), [(1.1, 0.6, True), (1.1, 0.4, False), (0.9, 0.6, False)])
def test_a_long_step_past_the_tangent_cannot_be_right(error, length, refused):
    found = beyond_tangent(measured(margin_error=error, relative_step=length))
    assert bool(found) is refused


def test_a_step_past_the_tangent_is_refused_and_can_be_overridden():
    sample = problems.mlp()
    curvature, forget = fit(sample, rows="expected"), sample.part(slice(0, 2))
    scale = 1.3 / ssse.erase(sample.model, curvature, forget=forget, override=("step",)).reach
    with pytest.raises(
        ssse.Refused, match=r"1\.3 times as long as θ.*far past where the network is the tangent"
    ) as caught:
        ssse.erase(sample.model, curvature, forget=forget, scale=scale)
    assert caught.value.diagnostics.broken == ("step",)
    found = ssse.erase(sample.model, curvature, forget=forget, scale=scale, override=("step",)).diagnostics
    assert (found.verdict, found.overridden) == ("caution", ("step",))


def test_a_probe_is_handed_over_once_and_looked_at_by_every_request(tmp_path):
    sample = unseen("binary_cross_entropy")
    probe = sample.part(slice(40, 80))
    fit(sample).with_probe(probe).save(tmp_path / "kept")
    model, curvature = sample.model, ssse.Curvature.load(tmp_path / "kept")
    for i in range(2):
        forget = sample.part(slice(2 * i, 2 * i + 2))
        kept = ssse.erase(model, curvature, forget=forget)
        given = ssse.erase(model, replace(curvature, probe=None), forget=forget, probe=probe)
        assert kept.diagnostics.probe_samples == 40
        assert replace(kept.diagnostics, seconds=None) == replace(given.diagnostics, seconds=None)
        another = ssse.erase(model, curvature, forget=forget, probe=sample.part(slice(70, 80)))
        assert another.diagnostics.probe_samples == 10  # what is passed goes before what is kept
        model, curvature = kept.model, kept.curvature


@pytest.mark.parametrize("form", ["tensor", "several", "names"])
def test_a_kept_probe_is_stored_in_the_form_it_had(tmp_path, form):
    x, y = torch.arange(12.0).view(6, 2), torch.arange(6)
    inputs = {"tensor": x, "several": (x, x + 1), "names": {"a": x, "b": x + 1}}[form]
    batches = [(inputs, y), (inputs, y + 1)]
    sample = unseen("mse")
    fit(sample).with_probe(batches).save(tmp_path / "kept")
    x.zero_()  # theirs; ours is a copy
    found = ssse.Curvature.load(tmp_path / "kept").probe
    assert found is not None
    assert found.count == 12
    got, labels = found.batches[1]
    assert torch.equal(labels, y + 1)
    assert type(got) is type(inputs)
    values = list(got.values()) if isinstance(got, dict) else list(got) if isinstance(got, tuple) else [got]
    assert [float(value.sum()) for value in values] == [66.0, 78.0][: len(values)]


def test_a_probe_that_is_empty_is_not_kept():
    sample = unseen("mse")
    with pytest.raises(InvalidData, match="The probe is empty; there is nothing to keep"):
        fit(sample).with_probe([])


def test_what_is_to_be_forgotten_may_not_be_kept_as_a_probe():
    sample = unseen("mse")
    curvature = fit(sample).with_probe(sample.part(slice(38, 80)))
    with refused(InvalidData, "2 of the samples to forget are in the probe that the curvature keeps", sample.model):
        ssse.erase(sample.model, curvature, forget=sample.part(slice(35, 40)))
