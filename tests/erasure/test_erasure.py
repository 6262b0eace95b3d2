"""The update against the dense truth, streams of requests, and what an erasure says about itself."""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import json
import weakref

import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

import ssse
from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.fingerprint import Fingerprint
from ssse.problem.view import ModelView
from tests.support import dense, problems

DAMPING, DECAY = 1e-2, 3e-2
CASES = [
    problems.linear("cross_entropy"),
    problems.linear("binary_cross_entropy", bias=False),
    problems.linear("mse"),
    problems.mlp(),
    problems.conv(),
]
every_case = pytest.mark.parametrize("sample", CASES, ids=lambda s: s.name)
every_kind = pytest.mark.parametrize("kind", ["empirical", "expected"])
of_every_kind = pytest.mark.parametrize(
    ("sample", "kind"),
    [(sample, kind) for sample in CASES for kind in dense.ROWS if (sample.loss, kind) != ("mse", "margin")],
    ids=lambda case: getattr(case, "name", case),
)


def fit(sample: problems.Sample, **options) -> ssse.Curvature:
    settings = {"damping": DAMPING, "weight_decay": DECAY, "structure": "dense", "blocks": "one", **options}
    return ssse.Curvature.fit(sample.model, sample.loss, sample.data, **settings)


def assert_near(found: Tensor, wanted: Tensor, tolerance: float = 1e-9) -> None:
    assert float((found - wanted).norm() / wanted.norm()) < tolerance


@of_every_kind
@pytest.mark.parametrize("leave_out", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_step_is_the_one_of_the_formula(sample, kind, leave_out, scale):
    forget, n = slice(3, 8), len(sample.x)
    make = dense.ROWS[kind]
    rows = make(sample.model, sample.loss, sample.x, sample.y)
    rows_forget = make(sample.model, sample.loss, sample.x[forget], sample.y[forget])
    batch = (sample.x[forget], sample.y[forget])
    wanted = dense.erased(sample.model, sample.loss, rows, rows_forget, batch, n, DAMPING, DECAY, scale, leave_out)
    start = dense.theta(sample.model)
    how = {
        "scale": scale,
        "leave_out": leave_out,
        "override": ssse.BOUNDS,
    }  # nobody trained these models: the formula is tested
    erasure = ssse.erase(sample.model, fit(sample, rows=kind), sample.loss, [batch], **how)
    assert_near(dense.theta(erasure.model) - start, wanted - start)
    assert_near(erasure.step, wanted - start)
    assert_near(scale * erasure.direction, wanted - start)
    assert torch.equal(dense.theta(sample.model), start)  # the model passed in is untouched


def test_the_papers_formula_literally():
    """θ* + ε/(n−k) · F̂⁻¹ Σ∇ℓ with F̂ from the recurrence, regulariser folded into the loss' gradient."""
    sample, k = problems.linear("cross_entropy", bias=False), 4
    n = len(sample.x)
    inverse = torch.eye(15, dtype=torch.float64) / DAMPING
    for g in dense.empirical_rows(sample.model, sample.loss, sample.x, sample.y):
        inverse = inverse - torch.outer(inverse @ g, g @ inverse) / (n + g @ inverse @ g)
    start = dense.theta(sample.model)
    g_forget = sum(dense.empirical_rows(sample.model, sample.loss, sample.x[:k], sample.y[:k])) + k * DECAY * start
    wanted = start + 0.7 / (n - k) * inverse @ g_forget
    curvature = fit(sample, rows="empirical", structure="recurrence")
    erasure = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, k)), scale=0.7, leave_out=False)
    assert_near(dense.theta(erasure.model) - start, wanted - start)


def test_leave_out_with_empirical_rows_is_the_closed_form_of_the_design():
    """With one empirical row a sample, w = 0 and N = RᵀR + (n−k)λI: θ̂ = θ* + ε · N⁻¹R_Sᵀ(I − R_SN⁻¹R_Sᵀ)⁻¹𝟏.

    The leverages are those under M = RᵀR + nλI."""
    sample, k = problems.mlp(), 5
    rows = dense.empirical_rows(sample.model, sample.loss, sample.x, sample.y)
    eye = torch.eye(rows.shape[1], dtype=torch.float64)
    z = torch.linalg.solve(rows.T @ rows + (len(rows) - k) * DAMPING * eye, rows[:k].T)
    gap = torch.eye(k, dtype=torch.float64) - rows[:k] @ z
    wanted = z @ torch.linalg.solve(gap, torch.ones(k, dtype=torch.float64))
    curvature = fit(sample, rows="empirical", weight_decay=0.0)
    erasure = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, k)), override=ssse.BOUNDS)
    assert_near(erasure.step, wanted)
    leverages = torch.tensor(erasure.diagnostics.leverages, dtype=torch.float64)
    kernel = rows[:k] @ torch.linalg.solve(rows.T @ rows + len(rows) * DAMPING * eye, rows[:k].T)
    assert_near(leverages, torch.linalg.eigvalsh(kernel).flip(0))


@pytest.mark.parametrize("structure", ["dense", "lowrank", "recurrence", ssse.MatrixFree(tolerance=1e-14)], ids=str)
def test_least_squares_without_a_third_of_the_data_is_the_refit(structure):
    """load_diabetes: the step of a ridge regression is exact, whatever leaves."""
    x, y = (torch.tensor(part) for part in load_diabetes(return_X_y=True))
    x, y = x / x.std(0), ((y - y.mean()) / y.std())[:, None]
    gone = torch.zeros(len(x), dtype=torch.bool)
    gone[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: len(x) * 3 // 10]] = True

    def trained(x: Tensor, y: Tensor) -> Tensor:
        return torch.linalg.solve(x.T @ x + len(x) * DECAY * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)[:, 0]

    model = nn.Linear(x.shape[1], 1, bias=False).double().eval()
    nn.utils.vector_to_parameters(trained(x, y), model.parameters())
    curvature = ssse.Curvature.fit(model, "mse", [(x, y)], weight_decay=DECAY, structure=structure)
    erasure = ssse.erase(model, curvature, "mse", [(x[gone], y[gone])])
    refit = trained(x[~gone], y[~gone])
    assert float((dense.theta(erasure.model) - refit).norm() / (dense.theta(model) - refit).norm()) < 1e-9
    assert erasure.curvature.damping == pytest.approx(DECAY)


def test_a_tenth_of_the_digits_leaves_a_hundredth_of_the_distance():
    """With the damping nλ instead of (n−k)λ it was 0.08."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16), torch.tensor(labels)
    sample = problems.converged(problems.Sample("digits", nn.Linear(64, 10).double(), "cross_entropy", x, y), DECAY)
    gone = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: len(x) // 10]
    kept = torch.ones(len(x), dtype=torch.bool)
    kept[gone] = False
    rest = problems.Sample("rest", nn.Linear(64, 10).double(), "cross_entropy", x[kept], y[kept])
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, weight_decay=DECAY, rows="expected")
    erasure = ssse.erase(sample.model, curvature, sample.loss, sample.part(gone))
    refit = dense.theta(problems.converged(rest, DECAY).model)
    assert float((dense.theta(erasure.model) - refit).norm() / (dense.theta(sample.model) - refit).norm()) < 0.02


@pytest.mark.parametrize("structure", [{"structure": "dense", "blocks": "one"}, {"structure": "lowrank"}])
@every_kind
def test_joint_streams_in_any_order_and_grouping_give_one_model(structure, kind):
    sample = problems.mlp()
    curvature = ssse.Curvature.fit(
        sample.model, sample.loss, sample.data, damping=DAMPING, weight_decay=DECAY, rows=kind, **structure
    )
    requests = [slice(0, 2), slice(2, 3), slice(5, 8)]
    everything = torch.cat([torch.arange(30)[part] for part in requests])
    for leave_out in (True, False):
        options = {"leave_out": leave_out, "scale": 0.8, "policy": "joint", "override": ssse.BOUNDS}
        wanted = ssse.erase(sample.model, curvature, sample.loss, sample.part(everything), **options)
        for order in itertools.permutations(requests):
            model, current = sample.model, curvature
            for part in order:
                erasure = ssse.erase(model, current, sample.loss, sample.part(part), **options)
                model, current = erasure.model, erasure.curvature
            assert current.n == 30 - 6
            assert current.erased == 6
            assert current.damping == pytest.approx(DAMPING)
            assert_near(dense.theta(model), dense.theta(wanted.model), 1e-8)


def test_joint_streams_with_residual_correct_it_once():
    sample = problems.linear("cross_entropy")
    curvature = fit(sample)
    options = {"policy": "joint", "residual": True}
    wanted = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 5)), **options)
    first = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), **options)
    second = ssse.erase(first.model, first.curvature, sample.loss, sample.part(slice(2, 5)), **options)
    assert_near(dense.theta(second.model), dense.theta(wanted.model), 1e-8)


def test_rebase_goes_on_from_the_erased_model_with_what_remains():
    sample = problems.linear("cross_entropy")
    first = ssse.erase(sample.model, fit(sample), sample.loss, sample.part(slice(0, 3)))
    after = first.curvature
    assert (after.n, after.erased, after.joint, after.gradient) == (37, 3, None, None)
    assert after.structure.ridge == pytest.approx(37 * DAMPING)
    assert after.damping == pytest.approx(DAMPING)  # λ stays
    second = ssse.erase(first.model, after, sample.loss, sample.part(slice(3, 6)))
    # By hand: rows of D at θ*, less S₁ at θ*, less S₂ at θ₁.
    rows = dense.expected_rows(sample.model, sample.loss, sample.x[3:], sample.y[3:])
    gone = dense.expected_rows(first.model, sample.loss, sample.x[3:6], sample.y[3:6])
    m = rows.T @ rows - gone.T @ gone + 34 * DAMPING * torch.eye(18, dtype=torch.float64)
    start = dense.theta(first.model)
    g = dense.gradient(first.model, dense.LOSSES[sample.loss], sample.x[3:6], sample.y[3:6]) + 3 * DECAY * start
    assert_near(second.step, torch.linalg.solve(m, g))


def test_a_stream_that_an_earlier_version_began_goes_on(tmp_path):
    """Up to 0.2 the damping nλ stayed where samples left: λ was then larger, and is kept as it came."""
    sample = problems.linear("cross_entropy")
    first = ssse.erase(sample.model, fit(sample), sample.loss, sample.part(slice(0, 3)))
    structure = first.curvature.structure.with_ridge(40 * DAMPING)
    dataclasses.replace(first.curvature, structure=structure).save(tmp_path / "before")
    before = ssse.Curvature.load(tmp_path / "before")
    assert before.damping == pytest.approx(DAMPING * 40 / 37)
    second = ssse.erase(first.model, before, sample.loss, sample.part(slice(3, 6)))
    same = ssse.erase(
        first.model, first.curvature.with_damping(DAMPING * 40 / 37), sample.loss, sample.part(slice(3, 6))
    )
    assert_near(second.step, same.step, 1e-10)
    assert second.curvature.damping == pytest.approx(before.damping)


def test_the_damping_is_held_against_the_weight_decay_throughout_a_stream():
    """After half of the data has left as well: λ stays, and is neither w nor near it only where it was not before."""
    sample = problems.converged(problems.linear("cross_entropy", n=60), DECAY)
    for damping, doubted in ((DECAY, False), (3 * DECAY, True)):
        model, current = sample.model, fit(sample, damping=damping)
        for part in (slice(0, 20), slice(20, 40)):
            erasure = ssse.erase(model, current, sample.loss, sample.part(part), policy="joint", override=["share"])
            model, current = erasure.model, erasure.curvature
            assert any("is not the weight decay" in reason for reason in erasure.diagnostics.reasons) == doubted
        assert current.damping == pytest.approx(damping)


def test_a_stream_survives_the_disk(tmp_path):
    sample = problems.linear("cross_entropy")
    for policy in ("rebase", "joint"):
        first = ssse.erase(sample.model, fit(sample), sample.loss, sample.part(slice(0, 3)), policy=policy)
        first.curvature.save(tmp_path / policy)
        loaded = ssse.Curvature.load(tmp_path / policy)
        forget = sample.part(slice(3, 6))
        direct = ssse.erase(first.model, first.curvature, sample.loss, forget, policy=policy)
        again = ssse.erase(first.model, loaded, sample.loss, forget, policy=policy)
        assert_near(again.step, direct.step, 1e-12)


def test_residual_moves_a_model_that_was_not_trained_to_the_end():
    sample = problems.linear("cross_entropy")
    curvature, k, n = fit(sample), 4, 40
    start = dense.theta(sample.model)
    total = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x, sample.y) + n * DECAY * start
    torch.testing.assert_close(curvature.gradient, total / n)
    rest = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x[k:], sample.y[k:]) + (n - k) * DECAY * start
    rows = dense.expected_rows(sample.model, sample.loss, sample.x[k:], sample.y[k:])
    m = rows.T @ rows + (n - k) * DAMPING * torch.eye(18, dtype=torch.float64)
    erasure = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, k)), residual=True)
    assert_near(erasure.step, -torch.linalg.solve(m, rest))  # one Newton step on the leave-k-out loss
    plain = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, k)))
    assert any("not stationary" in reason for reason in plain.diagnostics.reasons)
    assert not any("not stationary" in reason for reason in erasure.diagnostics.reasons)


def test_matrix_free_erases_like_dense_and_needs_the_data_only_then(tmp_path):
    for sample in (problems.linear("cross_entropy"), problems.mlp(), problems.conv()):
        forget = sample.part(slice(0, 5))
        wanted = ssse.erase(sample.model, fit(sample, rows="expected"), sample.loss, forget, override=ssse.BOUNDS)
        free = fit(sample, rows="expected", structure=ssse.MatrixFree(tolerance=1e-12), blocks="auto")
        erasure = ssse.erase(sample.model, free, sample.loss, forget, override=ssse.BOUNDS)
        assert_near(erasure.step, wanted.step, 1e-8)
        free.save(tmp_path / sample.name)
        loaded = ssse.Curvature.load(tmp_path / sample.name)
        again = ssse.erase(sample.model, loaded, sample.loss, forget, data=sample.data, override=ssse.BOUNDS)
        assert_near(again.step, wanted.step, 1e-8)


def test_every_order_of_the_forget_set_gives_the_same_step():
    sample = problems.conv()
    curvature = fit(sample)
    one = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 6)), override=ssse.BOUNDS)
    reverse = [(sample.x[i : i + 1], sample.y[i : i + 1]) for i in reversed(range(6))]
    assert_near(ssse.erase(sample.model, curvature, sample.loss, reverse, override=ssse.BOUNDS).step, one.step, 1e-10)


def test_only_the_head_moves_when_only_the_head_is_asked_for():
    sample = problems.conv()
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=DAMPING, parameters="head")
    erasure = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 4)), override=ssse.BOUNDS)
    before, after = sample.model.state_dict(), erasure.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}
    notes = " ".join(erasure.diagnostics.notes)
    assert "head.weight, head.bias" in notes
    assert "BatchNorm" in notes


def test_modes_flags_and_buffers_survive():
    sample = problems.conv()
    sample.model.conv.requires_grad_(False)  # type: ignore[union-attr]
    before = {name: value.clone() for name, value in sample.model.state_dict().items()}
    flags = [(name, p.requires_grad) for name, p in sample.model.named_parameters()]
    erasure = ssse.erase(
        sample.model,
        ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=DAMPING),
        sample.loss,
        sample.part(slice(0, 2)),
    )
    assert all(torch.equal(before[name], value) for name, value in sample.model.state_dict().items())
    assert [(name, p.requires_grad) for name, p in sample.model.named_parameters()] == flags
    assert [(name, p.requires_grad) for name, p in erasure.model.named_parameters()] == flags
    assert not any(module.training for module in erasure.model.modules())
    assert all(p.grad is None for p in sample.model.parameters())
    assert not sample.model.head._forward_pre_hooks  # type: ignore[union-attr]


def test_diagnostics_are_measured_and_readable():
    sample = problems.converged(problems.linear("cross_entropy", n=60), DECAY)
    erasure = ssse.erase(sample.model, fit(sample, damping=DECAY), sample.loss, sample.part(slice(0, 2)))
    found = erasure.diagnostics
    assert found.verdict == "ok"
    assert found.reasons == ()
    assert (found.k, found.n) == (2, 60)
    assert found.step_norm == pytest.approx(float(erasure.step.norm()))
    loss = torch.nn.functional.cross_entropy
    with torch.no_grad():
        assert found.loss_before == pytest.approx(float(loss(sample.model(sample.x[:2]), sample.y[:2])))
        assert found.loss_after == pytest.approx(float(loss(erasure.model(sample.x[:2]), sample.y[:2])))
    g = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x[:2], sample.y[:2])
    assert found.predicted_change == pytest.approx(float(g @ erasure.step) / 2)
    assert found.gradient_norm is not None
    assert found.gradient_norm < 1e-8
    assert json.loads(json.dumps(found.to_dict()))["verdict"] == "ok"
    assert "verdict: ok" in str(found)


def test_caution_when_a_large_part_goes():
    sample = problems.converged(problems.linear("cross_entropy", n=60), DECAY)
    most = ssse.erase(sample.model, fit(sample), sample.loss, sample.part(slice(0, 20))).diagnostics
    assert most.verdict == "caution"
    assert any("times as far as one step is trusted to" in reason for reason in most.reasons)


def test_caution_when_conjugate_gradients_stop_early():
    """Near the tolerance that was asked for; far from any, what they have is not the solution."""
    sample, forget = problems.mlp(), problems.mlp().part(slice(0, 2))

    def stopped(steps: int) -> ssse.Curvature:
        wanted = ssse.MatrixFree("none", tolerance=1e-13, max_iterations=steps)
        return fit(sample, structure=wanted, blocks="auto", damping=0.1)

    steps = next(k for k in range(1, 60) if residual_after(sample, stopped(k), forget) < 1e-3)
    found = ssse.erase(sample.model, stopped(steps), sample.loss, forget).diagnostics
    assert found.verdict == "caution"
    assert found.solve_residual is not None
    assert 1e-12 < found.solve_residual < 1e-3
    assert any(f"{steps} steps of conjugate gradients" in reason for reason in found.reasons)
    with pytest.raises(ssse.Refused, match=r"not solved: .* of ‖b‖, more than 1e-03. Allow more than 1 steps"):
        ssse.erase(sample.model, stopped(1), sample.loss, forget)


def residual_after(sample: problems.Sample, curvature: ssse.Curvature, forget: list) -> float:
    try:
        return ssse.erase(sample.model, curvature, sample.loss, forget).diagnostics.solve_residual or 0.0
    except ssse.Refused as refused:
        return refused.diagnostics.to_dict()["solve_residual"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rows": "empirical"}, "the scale ε must be chosen"),
        ({"rows": "sampled"}, "the scale ε must be chosen"),
        ({"rows": "margin"}, "Margin rows leave out how the classes but a sample's own share what is left"),
        ({"structure": "diagonal", "blocks": "auto"}, "keeps only a part of the curvature"),
        ({"structure": ssse.LowRank(rank=5), "blocks": "auto"}, "keeps only a part of the curvature"),
        ({"blocks": "output"}, "between its 3 blocks is left out"),
        ({"structure": "lowrank", "blocks": "output"}, "between its 3 blocks is left out"),
        ({"damping": 1e-6}, "is not the weight decay"),
        ({"damping": 1.0}, "is not the weight decay"),
        ({"weight_decay": 0.0}, "curvature that the training did not have"),
    ],
)
@pytest.mark.filterwarnings("ignore::ssse.DoubtfulSetting")  # of the weight decay that is not given
def test_ok_is_said_of_the_newton_step_alone(options, reason):
    sample = problems.converged(problems.linear("cross_entropy", n=60), DECAY)
    forget = sample.part(slice(0, 2))
    assert ssse.erase(sample.model, fit(sample, damping=DECAY), sample.loss, forget).diagnostics.verdict == "ok"
    curvature = fit(sample, **{"damping": DECAY, **options})
    found = ssse.erase(
        sample.model, curvature, sample.loss, forget, override=ssse.BOUNDS
    ).diagnostics  # some go too far
    assert found.verdict == "caution"
    assert any(reason in line for line in found.reasons), found.reasons


def test_margin_rows_of_two_classes_or_attributes_are_the_newton_step_too():
    for sample in (problems.linear("cross_entropy", n=60, c=2), problems.linear("binary_cross_entropy", n=60)):
        sample = problems.converged(sample, DECAY)
        found = ssse.erase(sample.model, fit(sample, damping=DECAY, rows="margin"), sample.loss, sample.part(slice(2)))
        assert not [line for line in found.diagnostics.reasons if "argin" in line or "scale" in line]
        other = ssse.erase(sample.model, fit(sample, damping=DECAY), sample.loss, sample.part(slice(2)))
        assert found.diagnostics.verdict == other.diagnostics.verdict
        assert_near(found.step, other.step)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"scale": 1.5}, "The scale is 1.5"), ({"leave_out": False}, "the forgotten samples included")],
)
def test_ok_is_not_said_of_another_scale_or_of_the_curvature_over_d(options, reason):
    sample = problems.converged(problems.linear("cross_entropy", n=60), DECAY)
    curvature = fit(sample, damping=DECAY)
    found = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), **options).diagnostics
    assert found.verdict == "caution"
    assert any(reason in line for line in found.reasons), found.reasons


def test_ok_for_blocks_that_do_not_interact_and_caution_for_networks():
    sample = problems.converged(problems.linear("binary_cross_entropy", n=60), DECAY)
    curvature = fit(sample, damping=DECAY, blocks="output")
    assert ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2))).diagnostics.verdict == "ok"
    network = problems.mlp()
    found = ssse.erase(network.model, fit(network, damping=DECAY), network.loss, network.part(slice(0, 2))).diagnostics
    assert any("not linear in θ" in reason for reason in found.reasons)  # nobody looked at anything but S


def test_many_small_requests_are_judged_by_their_sum():
    sample = problems.converged(problems.linear("cross_entropy", n=60), DECAY)
    model, curvature, verdicts = sample.model, fit(sample, damping=DECAY), []
    for i in range(5):
        erasure = ssse.erase(model, curvature, sample.loss, sample.part(slice(2 * i, 2 * i + 2)), policy="joint")
        model, curvature = erasure.model, erasure.curvature
        verdicts.append(erasure.diagnostics.verdict)
    assert verdicts[0] == "ok"
    assert verdicts[-1] == "caution"


def test_a_joint_stream_after_a_rebase_counts_from_there():
    sample = problems.linear("cross_entropy")
    first = ssse.erase(sample.model, fit(sample), sample.loss, sample.part(slice(0, 16)), leave_out=False)
    options = {"leave_out": False, "policy": "joint"}
    together = ssse.erase(first.model, first.curvature, sample.loss, sample.part(slice(20, 24)), **options)
    one = ssse.erase(first.model, first.curvature, sample.loss, sample.part(slice(20, 22)), **options)
    two = ssse.erase(one.model, one.curvature, sample.loss, sample.part(slice(22, 24)), **options)
    assert_near(dense.theta(two.model), dense.theta(together.model), 1e-8)
    with pytest.raises(InvalidSetting, match="keeps the forgotten rows in its curvature"):
        ssse.erase(one.model, one.curvature, sample.loss, sample.part(slice(22, 24)), leave_out=False)


def test_a_joint_matrix_free_stream_over_d_survives_the_disk(tmp_path):
    sample = problems.linear("cross_entropy")
    free = fit(sample, structure=ssse.MatrixFree(tolerance=1e-12), blocks="auto")
    options = {"leave_out": False, "policy": "joint"}
    together = ssse.erase(sample.model, free, sample.loss, sample.part(slice(0, 4)), **options)
    one = ssse.erase(sample.model, free, sample.loss, sample.part(slice(0, 2)), **options)
    one.curvature.save(tmp_path / "stream")
    loaded = ssse.Curvature.load(tmp_path / "stream")
    forget = sample.part(slice(2, 4))
    two = ssse.erase(one.model, loaded, sample.loss, forget, data=sample.data, **options)
    assert_near(dense.theta(two.model), dense.theta(together.model), 1e-8)
    with pytest.raises(InvalidData, match="holds 38 samples; this curvature stands for 40"):
        ssse.erase(one.model, loaded, sample.loss, forget, data=sample.part(slice(2, None)), **options)


def test_an_erasure_lets_go_of_the_samples_once_its_curvature_is_made():
    sample = problems.linear("cross_entropy")
    x, y = sample.x[:3].clone(), sample.y[:3].clone()
    held = weakref.ref(x)
    erasure = ssse.erase(sample.model, fit(sample), sample.loss, [(x, y)])
    del x
    assert held() is not None
    first = erasure.curvature
    gc.collect()
    assert held() is None
    assert erasure.curvature is first


def test_fitting_a_part_of_a_network_keeps_no_graph():
    sample = problems.conv()  # every parameter asks for gradients, two are in θ
    names = ["conv.weight", "norm.bias"]
    for structure in ("dense", "matrix_free"):
        for rows in ("empirical", "expected"):
            curvature = fit(sample, rows=rows, parameters=names, structure=structure, blocks="auto")
            assert not any(t.requires_grad for t in curvature.structure.state().values())
            erasure = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), override=ssse.BOUNDS)
            assert not erasure.direction.requires_grad


def test_a_matrix_free_curvature_stays_at_its_own_theta():
    sample = problems.mlp()
    free = fit(sample, structure=ssse.MatrixFree(tolerance=1e-12), blocks="auto")
    pristine = copy.deepcopy(sample.model)
    wanted = ssse.erase(pristine, free, sample.loss, sample.part(slice(0, 3)), override=ssse.BOUNDS)
    with torch.no_grad():
        for parameter in sample.model.parameters():
            parameter.mul_(3)
    again = ssse.erase(pristine, free, sample.loss, sample.part(slice(0, 3)), override=ssse.BOUNDS)
    assert torch.equal(again.step, wanted.step)


@pytest.mark.parametrize("policy", ["rebase", "joint"])
def test_no_step_is_vouched_for_that_starts_from_one_that_was_not(policy, tmp_path):
    """After a rebase ‖∇L‖ is not known any more; what was wrong with θ* must not be forgotten with it."""
    sample = problems.linear("cross_entropy", n=200)  # not trained at all
    first = ssse.erase(sample.model, fit(sample, damping=DECAY), sample.loss, sample.part(slice(0, 1)), policy=policy)
    assert "not stationary" in " ".join(first.diagnostics.reasons)
    first.curvature.save(tmp_path / "curvature")
    kept = ssse.Curvature.load(tmp_path / "curvature")
    second = ssse.erase(first.model, kept, sample.loss, sample.part(slice(1, 2)), policy=policy)
    assert second.diagnostics.verdict == "caution"
    assert "An earlier step since the fit" in " ".join(second.diagnostics.reasons)


def test_a_head_whose_features_were_trained_too_is_not_vouched_for():
    sample = problems.converged(problems.mlp(n=60), DECAY)
    forget = sample.part(slice(0, 1))
    found = ssse.erase(sample.model, fit(sample, damping=DECAY, parameters="head"), sample.loss, forget).diagnostics
    assert "Only a part of the trained parameters" in " ".join(found.reasons)
    for name, parameter in sample.model.named_parameters():
        parameter.requires_grad_(name.startswith("2."))  # frozen: trained elsewhere, on other data
    frozen = ssse.erase(sample.model, fit(sample, damping=DECAY), sample.loss, forget).diagnostics
    assert "Only a part" not in " ".join(frozen.reasons)


@pytest.mark.parametrize("policy", ["rebase", "joint"])
@pytest.mark.parametrize("make", [problems.tied, problems.conv], ids=["tied", "buffers"])
def test_a_second_request_finds_the_model_that_the_first_one_made(make, policy):
    """Of tied weights a second name is in the state of the model, outside θ, and moves with it."""
    sample, how = make(), {"policy": policy, "scale": 1e-3}  # a short step: of a longer one the rows would move too far
    first = ssse.erase(sample.model, fit(sample, blocks="auto"), sample.loss, sample.part(slice(0, 2)), **how)
    assert first.curvature.fingerprint == Fingerprint.of(ModelView(first.model))
    second = ssse.erase(first.model, first.curvature, sample.loss, sample.part(slice(2, 4)), **how)
    assert second.diagnostics.erased == 2


def test_a_named_loss_need_not_be_given_again():
    sample = problems.linear("cross_entropy")
    curvature, forget = fit(sample), sample.part(slice(0, 2))
    assert torch.equal(
        ssse.erase(sample.model, curvature, forget=forget).step,
        ssse.erase(sample.model, curvature, sample.loss, forget).step,
    )
    own = ssse.Curvature.fit(sample.model, lambda z, y: torch.logsumexp(z, 1).sum(), sample.data, damping=0.1)
    with pytest.raises(InvalidSetting, match=r"a loss of your own.*pass it as loss_fn"):
        ssse.erase(sample.model, own, forget=forget)
    with pytest.raises(InvalidSetting, match="Pass the samples to forget: forget="):
        ssse.erase(sample.model, curvature)
