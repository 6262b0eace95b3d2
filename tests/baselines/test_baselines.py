"""Every baseline against a plain loop in float64; what they refuse is in test_bad_baselines.py."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse import baselines
from ssse.curvature.diagonal import DiagonalStructure
from ssse.erasure.retained import retained_batches
from ssse.errors import InvalidData, InvalidModel, InvalidSetting, ModelMismatch, NotPositiveDefinite
from tests.support import dense, problems
from tests.support.refusals import refused, snapshot

DAMPING, DECAY, CPU = 1e-2, 3e-2, torch.device("cpu")
S, REST = slice(3, 8), torch.tensor([0, 1, 2, *range(8, 16)])
NETWORKS = [problems.mlp(n=16), problems.conv()]
LINEAR = [problems.linear("cross_entropy", n=16), problems.linear("binary_cross_entropy", n=16)]
every_sample = pytest.mark.parametrize("sample", [*LINEAR, *NETWORKS], ids=lambda s: s.name)
every_network = pytest.mark.parametrize("sample", NETWORKS, ids=lambda s: s.name)


def fit(sample: problems.Sample, **options) -> ssse.Curvature:
    settings = {"damping": DAMPING, "weight_decay": DECAY, "structure": "diagonal", "rows": "expected", **options}
    return ssse.Curvature.fit(sample.model, sample.loss, sample.data, progress=False, **settings)


def call(method: str, sample: problems.Sample, curvature: ssse.Curvature | None, **options) -> baselines.Updated:
    return getattr(baselines, method)(sample.model, curvature, sample.loss, sample.part(S), **options)


def assert_near(found: Tensor | None, wanted: Tensor, tolerance: float = 1e-10) -> None:
    assert found is not None
    assert float((found - wanted).norm() / wanted.norm()) < tolerance


OTHERS = ("Tuned", "Updated", "tune")  # names in the package that are no methods


def retrain_by_copy(batches) -> nn.Module:
    return problems.mlp(n=16, seed=5).model.train()


def every_method(sample: problems.Sample) -> dict[str, tuple[ssse.Curvature | None, dict]]:
    """Curvature and options of one ordinary call of each."""
    return {
        "retrain": (None, {"train": retrain_by_copy, "data": sample.data}),
        "fine_tuning": (None, {"data": sample.data, "batch_size": 4}),
        "gradient_ascent": (None, {}),
        "gradient_ascent_until": (None, {"stop_accuracy": 0.2, "learning_rate": 0.1}),
        "neggrad_plus": (None, {"data": sample.data, "batch_size": 4}),
        "random_labels": (None, {"data": sample.data, "batch_size": 4}),
        "salun": (None, {"data": sample.data, "batch_size": 4}),
        "scrub": (None, {"data": sample.data, "batch_size": 4}),
        "influence": (fit(sample), {"data": sample.data, "damping": 2.0, "scale": 0.5}),
        "influence_unlearning": (None, {"data": sample.data}),
        "diagonal_ssse": (fit(sample), {}),
        "scrubbing": (fit(sample), {}),
        "selective_synaptic_dampening": (fit(sample, rows="empirical"), {"selection": 1.0}),
    }


@pytest.mark.parametrize("method", [name for name in baselines.__all__ if name not in OTHERS])
def test_every_method_leaves_the_model_alone_and_says_what_it_did(method):
    sample = problems.mlp(n=16)
    sample.model.get_parameter("0.bias").requires_grad_(False)  # frozen: outside θ, and not to be changed
    curvature, options = every_method(sample)[method]
    before, random = snapshot(sample.model), torch.get_rng_state() if method != "retrain" else None
    updated = call(method, sample, curvature, **options)
    assert snapshot(sample.model) == before
    assert random is None or torch.equal(torch.get_rng_state(), random)
    assert updated.method == method
    assert updated.reference
    assert updated.seconds > 0
    assert updated.model is not sample.model
    assert not any(module.training for module in updated.model.modules())
    if method != "retrain":
        assert [p.requires_grad for p in updated.model.parameters()] == [True, False, True, True]
        assert torch.equal(updated.model.get_parameter("0.bias"), sample.model.get_parameter("0.bias"))
        assert_near(dense.theta(updated.model) - dense.theta(sample.model), updated.step, 1e-15)
    linear = {"gradient_ascent": 0.1, "influence": 0.5, "influence_unlearning": 1.0, "diagonal_ssse": 1.0}
    assert (updated.direction is not None) == (method in linear)
    if updated.direction is not None:
        assert_near(linear[method] * updated.direction, updated.step, 1e-12)


@pytest.mark.parametrize("twice", [False, True])
def test_what_is_retained(twice):
    sample = problems.linear("cross_entropy", n=12)
    index = torch.tensor([0, 4, 1, 4, 2, 3]) if twice else torch.arange(6)
    x, y = sample.x[index], sample.y[index]
    kept = retained_batches([(x[:4], y[:4]), (x[4:], y[4:])], [(sample.x[4:5], sample.y[4:5])], CPU, group=3)
    wanted = torch.tensor([0, 1, 4, 2, 3]) if twice else torch.tensor([0, 1, 2, 3, 5])  # the first of two goes
    assert [len(labels) for _, labels in kept] == [3, 2]
    assert torch.equal(torch.cat([inputs for inputs, _ in kept]), sample.x[wanted])  # type: ignore[misc]
    mapping = [{"a": x, "b": 2 * x, "y": y}]
    (inputs, _), *_ = retained_batches(mapping, [{"a": x[:1], "b": 2 * x[:1], "y": y[:1]}], CPU)
    assert isinstance(inputs, dict)
    assert torch.equal(inputs["b"], 2 * x[1:])
    with refused(InvalidData, "2 of the 3 samples to forget are not in the training data"):
        retained_batches([(x, y)], [(x[[0, 1, 1]], torch.stack([y[0], y[1] + 7, y[1] + 7]))], CPU)
    with refused(InvalidData, "Nothing remains"):
        retained_batches([(x, y)], [(x, y)], CPU)


def test_retrain_calls_the_users_function_with_what_remains_in_order():
    sample, seen, new = NETWORKS[0], [], problems.mlp(n=16, seed=1).model.train()
    updated = call("retrain", sample, None, train=lambda batches: seen.extend(batches) or new, data=sample.data)
    assert torch.equal(torch.cat([x for x, _ in seen]), sample.x[REST])
    assert torch.equal(torch.cat([y for _, y in seen]), sample.y[REST])
    assert updated.model is new
    assert torch.equal(updated.step, dense.theta(new) - dense.theta(sample.model))
    wrong = problems.linear("cross_entropy").model
    diverged = copy.deepcopy(sample.model)
    nn.init.constant_(diverged.get_parameter("2.bias"), float("nan"))
    for answer, error, message in [
        (3, InvalidModel, "must return the trained nn.Module; it returned a int"),
        (sample.model, InvalidModel, "the very model that was passed in.*Build a new module"),
        (wrong, ModelMismatch, r"'0.weight' is \(6, 4\) in the model and absent in the retrained"),
        (diverged, InvalidModel, "its training diverged"),
    ]:
        with refused(error, message, sample.model):
            call("retrain", sample, None, train=lambda batches, answer=answer: answer, data=sample.data)


@every_sample
def test_gradient_ascent_is_ssse_with_one_number_for_its_curvature(sample):
    n, k, number, scale = len(sample.x), 5, 7.0, 0.6
    curvature = fit(sample)
    flat = DiagonalStructure(torch.full((curvature.layout.dim,), number, dtype=torch.float64), n * DAMPING)
    wanted = ssse.erase(
        sample.model, replace(curvature, structure=flat), sample.loss, sample.part(S), scale=scale, leave_out=False
    )
    rate = scale * n * k / ((n - k) * (number + n * DAMPING))
    found = call("gradient_ascent", sample, curvature, scale=rate)
    assert_near(found.step, wanted.step, 1e-12)
    loop = dense.empirical_rows(sample.model, sample.loss, sample.x[S], sample.y[S]).mean(0)
    assert_near(call("gradient_ascent", sample, None, scale=0.2).step, 0.2 * loop)  # no decay without a curvature
    explicit = call("gradient_ascent", sample, curvature, scale=1.0, weight_decay=0.5)
    assert_near(explicit.step, loop + 0.5 * dense.theta(sample.model))
    head = call("gradient_ascent", sample, None, parameters="head").model
    changed = {name for name, p in head.named_parameters() if not torch.equal(p, sample.model.get_parameter(name))}
    assert changed == {name for name, _ in list(sample.model.named_parameters())[-2:]}


def hessian(model: nn.Module, loss: str, x: Tensor, y: Tensor) -> Tensor:
    """Row by row, by differentiating each entry of the gradient."""
    parameters = dense.trainable(model)
    slope = torch.autograd.grad(dense.LOSSES[loss](model(x), y), parameters, create_graph=True)
    entries = torch.cat([part.reshape(-1) for part in slope])
    return torch.stack([dense.flat(torch.autograd.grad(entry, parameters, retain_graph=True)) for entry in entries])


@every_sample
@pytest.mark.parametrize("leave_out", [False, True])
def test_influence_is_the_newton_step_of_the_dense_hessian(sample, leave_out):
    n, k, start = len(sample.x), 5, dense.theta(sample.model)
    index = REST if leave_out else slice(None)
    matrix = hessian(sample.model, sample.loss, sample.x[index], sample.y[index])
    right = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x[S], sample.y[S]) + k * DECAY * start
    seen = n - k if leave_out else n
    solution = torch.linalg.solve(matrix + seen * 1.4 * torch.eye(len(start), dtype=torch.float64), right)
    wanted = 0.7 * solution * (1 if leave_out else n / (n - k))
    options = {"data": sample.data, "leave_out": leave_out, "scale": 0.7, "damping": 1.4, "weight_decay": DECAY}
    assert_near(call("influence", sample, None, **options).step, wanted, 1e-8)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy"])
@pytest.mark.parametrize("stationary", [False, True])
def test_on_linear_models_influence_over_the_rest_is_ssse_with_expected_rows(loss, stationary):
    sample = problems.linear(loss)
    sample = problems.converged(sample, DECAY) if stationary else sample
    curvature = fit(sample, structure="dense", blocks="one")
    wanted = ssse.erase(sample.model, curvature, loss, sample.part(S), scale=1.0)
    found = call("influence", sample, curvature, data=sample.data, leave_out=True)
    assert_near(found.step, wanted.step, 1e-8)
    assert "relative residual" in found.notes[0]
    assert "not below" not in found.notes[0]


def test_on_ridge_regression_influence_over_the_rest_is_exact_retraining():
    sample = problems.linear("mse", bias=False, n=16)

    def trained(x: Tensor, y: Tensor) -> Tensor:
        return torch.linalg.solve(x.T @ x + len(x) * DECAY * torch.eye(5, dtype=x.dtype), x.T @ y).T.reshape(-1)

    start = trained(sample.x, sample.y)
    nn.utils.vector_to_parameters(start, sample.model.parameters())
    wanted = trained(sample.x[REST], sample.y[REST]) - start
    options = {"data": sample.data, "leave_out": True, "weight_decay": DECAY}
    assert_near(call("influence", sample, None, damping=DECAY, **options).step, wanted, 1e-9)
    apart = call("influence", sample, None, damping=DECAY * 16 / 11, **options).step - wanted
    assert float(apart.norm() / wanted.norm()) > 1e-4


def test_influence_says_where_it_fails():
    sample = problems.mlp(n=16)
    smallest = float(torch.linalg.eigvalsh(hessian(sample.model, sample.loss, sample.x, sample.y))[0]) / 16
    assert smallest < -1e-2
    match = r"with curvature -0\.\d+ a sample, damping 0.0001 included. Use a damping above 0\.\d+, or .*matrix_free"
    with refused(NotPositiveDefinite, match, sample.model):
        call("influence", sample, None, data=sample.data, damping=1e-4)
    linear = problems.linear("cross_entropy")
    note = call("influence", linear, None, data=linear.data, damping=1e-4, max_iterations=2).notes[0]
    assert note.startswith("2 steps")
    assert "not below the tolerance 1e-10: raise max_iterations" in note


def deviations(sample: problems.Sample, rule: str, noise: float) -> Tensor:
    """Of scrubbing's noise, parameter by parameter and number by number."""
    classes = len(sample.model(sample.x)[0])
    squares = sum(row**2 for row in dense.expected_rows(sample.model, sample.loss, sample.x[REST], sample.y[REST]))
    sizes = [p.numel() for p in sample.model.parameters()]
    out = []
    for p, fisher in zip(sample.model.parameters(), (squares / len(REST)).split(sizes), strict=True):  # type: ignore
        if rule == "paper":
            out.append(noise / (fisher + 1e-8) ** 0.25)
            continue
        last = p.shape[0] == classes
        variance = torch.tensor([noise * min(1 / (f + 1e-8), 1e2 if last else 1e3) for f in fisher.tolist()])
        variance = variance.view(p.shape)
        if p.dim() > 1:
            variance = torch.stack([part.mean(0).expand_as(part) for part in variance])
        out.append((variance * (10 if last or p.dim() == 1 else 1)).reshape(-1).sqrt())
    return torch.cat(out).double()


@every_network
@pytest.mark.parametrize("rule", ["paper", "notebook"])
def test_scrubbing_draws_what_the_rule_says(sample, rule):
    sample = replace(sample, model=copy.deepcopy(sample.model))
    next(sample.model.parameters()).data.view(-1)[0] = -0.0  # must not become +0 where nothing is added
    curvature, noise = fit(sample), 1e-3
    found = call("scrubbing", sample, curvature, noise=noise, rule=rule, seed=4)
    other = call("scrubbing", sample, curvature, noise=noise, rule="paper", seed=4)
    draw = found.step / deviations(sample, rule, noise)
    assert_near(draw, other.step / deviations(sample, "paper", noise), 1e-6)  # one seed, one ξ
    assert torch.equal(call("scrubbing", sample, curvature, noise=noise, rule=rule, seed=4).step, found.step)
    assert not torch.equal(call("scrubbing", sample, curvature, noise=noise, rule=rule, seed=5).step, found.step)
    assert snapshot(call("scrubbing", sample, curvature, noise=0.0, rule=rule).model) == snapshot(sample.model)


def test_scrubbings_noise_is_standard_normal_in_units_of_its_deviation():
    """Seed 0, d = 30,010: the mean within 4/√d, the variance within 4·√(2/d), three in a thousand beyond 3."""
    sample = problems.linear("cross_entropy", n=16, p=3000, c=10)
    for rule, noise in [("paper", 0.2), ("notebook", 1e-6)]:
        found = call("scrubbing", sample, fit(sample), rule=rule, noise=None if rule == "notebook" else noise)
        draw = found.step / deviations(sample, rule, noise)
        assert abs(float(draw.mean())) < 4 / len(draw) ** 0.5
        assert abs(float(draw.var()) - 1) < 4 * (2 / len(draw)) ** 0.5
        assert 0.0015 < float((draw.abs() > 3).double().mean()) < 0.004


def test_scrubbing_a_whole_class_empties_its_row():
    sample, label = problems.conv(), 2
    inside = sample.y == label
    curvature, forget = fit(sample), sample.part(inside.nonzero()[:, 0])

    def scrub(forgotten_class: int, noise: float) -> nn.Module:
        options = {"noise": noise, "forgotten_class": forgotten_class}
        return baselines.scrubbing(sample.model, curvature, sample.loss, forget, **options).model

    quiet, plain = scrub(label, 0.0), sample.model
    assert not quiet.head.weight[label].any()  # type: ignore[union-attr, index]
    assert not quiet.head.bias[label].any()  # type: ignore[union-attr, index]
    quiet.head.weight.data[label] = plain.head.weight[label]  # type: ignore[union-attr, index]
    quiet.head.bias.data[label] = plain.head.bias[label]  # type: ignore[union-attr, index]
    assert snapshot(quiet) == snapshot(plain)
    loud = scrub(label, 1e-12).head.weight[label].detach()  # type: ignore[union-attr, index]
    assert 0.3 < float(loud.std()) / (10 * 1e-4) ** 0.5 < 2  # its variance does not depend on α
    with refused(InvalidData, r"forgotten_class=1 .* some have the label 2", sample.model):
        scrub(1, 1e-6)
    with refused(InvalidSetting, r"must lie in 0 … 3, not 4", sample.model):
        scrub(4, 1e-6)


@every_sample
@pytest.mark.parametrize("leave_out", [False, True])
def test_diagonal_ssse_divides_entry_by_entry(sample, leave_out):
    n, k, start = len(sample.x), 5, dense.theta(sample.model)
    rows = dense.expected_rows(sample.model, sample.loss, sample.x[REST if leave_out else slice(None)], sample.y)
    squares = torch.stack([row**2 for row in rows]).sum(0)
    g = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x[S], sample.y[S]) + k * DECAY * start
    wanted = 0.4 * g / (squares + (n - k) * DAMPING) if leave_out else 0.4 * n / (n - k) * g / (squares + n * DAMPING)
    assert_near(call("diagonal_ssse", sample, fit(sample), scale=0.4, leave_out=leave_out).step, wanted)


@pytest.mark.parametrize("dampening", [1.0, 4.0])
@every_sample
def test_dampening_against_a_loop(sample, dampening):
    rows = dense.empirical_rows(sample.model, sample.loss, sample.x, sample.y)
    wanted, touched = dense.theta(sample.model).clone(), 0
    for j in range(len(wanted)):
        of_all, of_forgotten = float((rows[:, j] ** 2).mean()), float((rows[S, j] ** 2).mean())
        if of_forgotten > 1.2 * of_all:
            wanted[j] *= min(dampening * of_all / of_forgotten, 1.0)
            touched += 1
    assert 0 < touched < len(wanted)
    options = {"selection": 1.2, "dampening": dampening}
    found = call("selective_synaptic_dampening", sample, fit(sample, rows="empirical"), **options)
    assert_near(dense.theta(found.model), wanted)
    assert found.notes == (f"{touched} of {len(wanted)} parameters were dampened",)
    assert bool(found.step.any()) == (dampening == 1)  # I_S/I_D ≤ n/k = 3.2, so at 4 no factor is below 1


def test_fine_tuning_on_a_convex_problem_reaches_the_retrained_model():
    sample = problems.converged(problems.linear("cross_entropy"), DECAY)
    kept = torch.tensor([i for i in range(40) if not 3 <= i < 8])
    anew = problems.Sample("", copy.deepcopy(sample.model), sample.loss, sample.x[kept], sample.y[kept])
    wanted = dense.theta(problems.converged(anew, DECAY).model)
    options = {"data": sample.data, "weight_decay": DECAY, "epochs": 300, "learning_rate": 0.1}
    found = call("fine_tuning", sample, None, **options)
    left = (dense.theta(found.model) - wanted).norm() / (dense.theta(sample.model) - wanted).norm()
    assert float(left) < 1e-4
    assert found.notes[0].startswith("300 steps over 35 samples")


@every_network
def test_fine_tuning_is_sgd_on_the_rest_and_depends_on_the_seed_alone(sample):
    options = {"data": sample.data, "learning_rate": 0.05, "epochs": 3, "progress": False}
    found = call("fine_tuning", sample, fit(sample), **options)  # one batch: each epoch is one full step
    model, velocity = copy.deepcopy(sample.model), 0.0
    for _ in range(3):
        slope = dense.gradient(model, dense.LOSSES[sample.loss], sample.x[REST], sample.y[REST]) / len(REST)
        velocity = 0.9 * velocity + slope + DECAY * dense.theta(model)
        nn.utils.vector_to_parameters(dense.theta(model) - 0.05 * velocity, model.parameters())
    assert_near(found.step, dense.theta(model) - dense.theta(sample.model))
    small = [call("fine_tuning", sample, None, batch_size=3, seed=seed, **options).step for seed in (1, 1, 2)]
    assert torch.equal(small[0], small[1])
    assert not torch.equal(small[0], small[2])
    before = snapshot(sample.model)
    head = call("fine_tuning", sample, None, parameters="head", **options)
    assert snapshot(sample.model) == before  # nor has what is outside θ been given a gradient
    assert len(head.step) == sum(p.numel() for p in list(sample.model.parameters())[-2:])


@every_sample
@pytest.mark.parametrize("samples", [6, 1000])
def test_influence_unlearning_is_the_dense_woodfisher_step(sample, samples):
    n, k, damping = len(sample.x), 5, 0.3
    rows = dense.empirical_rows(sample.model, sample.loss, sample.x, sample.y)
    v = rows[S].sum(0) / n - k / (n * (n - k)) * rows[REST].sum(0)
    drawn = rows[REST][torch.randperm(n - k, generator=torch.Generator().manual_seed(2))[:samples]]
    wanted = 0.5 * torch.linalg.solve(dense.gram(drawn, len(drawn), damping), v)
    options = {"data": sample.data, "samples": samples, "damping": damping, "seed": 2, "scale": 0.5}
    assert_near(call("influence_unlearning", sample, None, **options).step, wanted)


def test_the_recurrence_that_others_publish_inverts_nothing():
    """Its second vector is the first gradient for ever, up to length; so is what it adds to v."""
    sample = problems.converged(problems.linear("cross_entropy", n=16), DECAY)
    rows = dense.empirical_rows(sample.model, sample.loss, sample.x, sample.y)
    start, rest = dense.theta(sample.model), rows[REST]
    v = rows[S].sum(0) / 16 - 5 / (16 * 11) * rest.sum(0)
    assert_near(v, (rows[S].sum(0) + 5 * DECAY * start) / 11, 1e-6)  # at a stationary point, g_S/(n−k)
    wrong, stuck = v.clone(), rest[0].clone()
    for g in rest[1:]:
        overlap = stuck @ g
        wrong = wrong - (wrong @ g) / (len(rest) + overlap) * stuck
        stuck = stuck * (1 - overlap / (len(rest) + overlap))
    right = call("influence_unlearning", sample, None, data=sample.data).step
    cosine = torch.nn.functional.cosine_similarity
    assert float(cosine(wrong - v, rest[0], dim=0).abs()) > 1 - 1e-12
    assert float(cosine(right - v, rest[0], dim=0).abs()) < 0.9
    exact = torch.linalg.solve(dense.gram(rest, len(rest), 1.0), v)
    assert_near(right, exact)
    assert float((wrong - exact).norm() / (v - exact).norm()) > 0.5  # most of the correction is not there
