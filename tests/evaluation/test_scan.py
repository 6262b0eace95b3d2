"""The model along a step, against the same model built the slow way at every ε."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import ssse
from ssse import metrics
from ssse.curvature.dense import DenseStructure
from ssse.evaluation.step_path import StepPath
from ssse.problem.problem import Problem
from ssse.problem.wrappers import copied
from tests.support import dense, problems
from tests.support.patches import Forbidden
from tests.support.refusals import fit, snapshot

SCALES = (0.05, 0.4, 1.0, 3.0, 20.0)
S = slice(0, 12)


@dataclass
class Subject:
    """A model, a step that leads away from it, a model to compare with, and data in three splits."""

    name: str
    sample: problems.Sample
    parameters: str = "all"

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        problem = Problem(self.sample.model, self.sample.loss, self.parameters, self.sample.data[0])
        self.names = problem.layout.names
        self.direction = torch.randn(problem.layout.dim, generator=generator, dtype=torch.float64)
        self.retrained = copy.deepcopy(self.sample.model)
        with torch.no_grad():
            for parameter in self.retrained.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.7)
        if self.sample.loss == "binary_cross_entropy":
            self.sample.y[S, -1] = 1  # what all of S have
        half = len(self.sample.x) // 2
        self.splits = {
            "forgotten": self.sample.part(S),
            "test_same": self.sample.part(slice(half, None)),
            "retained": [(self.sample.x[12 + i :: 3], self.sample.y[12 + i :: 3]) for i in range(3)],
        }

    def scan(self, **options) -> ssse.Scan:
        settings = {"scales": SCALES, "retrained": self.retrained, "parameters": self.names, "progress": False}
        settings |= {"splits": self.splits, "direction": self.direction, **options}
        return ssse.scan(self.sample.model, loss_fn=self.sample.loss, **settings)

    def path(self) -> StepPath:
        problem = Problem(self.sample.model, self.sample.loss, self.names, self.sample.data[0])
        return StepPath(problem, self.direction)

    def moved(self, scale: float) -> nn.Module:
        """θ + εu, parameter by parameter."""
        model, start = copy.deepcopy(self.sample.model), 0
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in self.names:
                    part = self.direction[start : start + parameter.numel()]
                    parameter += scale * part.view(parameter.shape)
                    start += parameter.numel()
        assert start == len(self.direction)
        return model


SUBJECTS = [
    Subject("softmax", problems.linear("cross_entropy")),
    Subject("softmax-no-bias", problems.linear("cross_entropy", bias=False)),
    Subject("attributes", problems.linear("binary_cross_entropy")),
    Subject("head", problems.mlp(), "head"),
    Subject("head-attributes", problems.mlp("binary_cross_entropy", seed=3), "head"),
    Subject("mlp", problems.mlp()),
    Subject("mlp-attributes", problems.mlp("binary_cross_entropy", seed=4)),
    Subject("conv", problems.conv(n=30)),
]
NETWORKS = ("mlp", "mlp-attributes", "conv")
every_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)


@torch.no_grad()
def outputs(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    return torch.cat([model(x) for x, _ in data]).numpy(), torch.cat([y for _, y in data]).numpy()


# ------------------------------------------------------------------------------------- the slow way


@every_subject
def test_logits_are_those_of_the_moved_model(subject):
    path = subject.path()
    assert (path.problem.linear is None) == (subject.name in NETWORKS)
    found = list(path.logits(subject.sample.x, (0.0, *SCALES)))
    for scale, logits in zip((0.0, *SCALES), found, strict=True):
        wanted, _ = outputs(subject.moved(scale), subject.sample.data)
        assert logits.dtype == np.float64
        np.testing.assert_allclose(logits, wanted, rtol=1e-10, atol=1e-10)


@every_subject
def test_every_measure_is_that_of_the_moved_model(subject):
    found = subject.scan()
    classes = subject.sample.loss == "cross_entropy"
    task = "classes" if classes else "attributes"
    original, retrained = subject.sample.model, subject.retrained
    on_s = {name: outputs(model, subject.splits["forgotten"])[0] for name, model in [("*", original), ("-", retrained)]}
    assert found.ratio_name == ("δ" if classes else "γ")
    assert found.chance == (1 / on_s["*"].shape[1] if classes else 0.5)
    assert found.counts == {split: sum(len(y) for _, y in data) for split, data in subject.splits.items()}
    columns = ("ratio", "divergence", "distance", "attack", "recognised", "mean_gap")
    wanted: dict[str, list[float]] = {name: [] for name in columns}
    accuracy: dict[str, list[float]] = {split: [] for split in subject.splits}
    for scale in (0.0, *SCALES):
        model = subject.moved(scale)
        logits, labels = outputs(model, subject.splits["forgotten"])
        held, held_labels = outputs(model, subject.splits["test_same"])
        ratio = metrics.normalized_confusion_distance if classes else metrics.similarity_ratio
        wanted["ratio"].append(ratio(logits, on_s["*"], on_s["-"], labels))
        wanted["divergence"].append(metrics.divergences(logits, [on_s["-"]], labels).mean())
        wanted["distance"].append(metrics.normalized_parameter_distance(model, original, retrained))
        phi = metrics.confidences(logits, labels, task), metrics.confidences(held, held_labels, task)
        wanted["attack"].append(metrics.threshold_attack(*phi).auc)
        wanted["recognised"].append((logits.argmax(1) == labels).mean() if classes else (logits[:, -1] > 0).mean())
        gaps = []
        for split, data in subject.splits.items():
            accuracy[split].append(metrics.accuracy(*outputs(model, data)))
            gaps.append(abs(accuracy[split][-1] - metrics.accuracy(*outputs(retrained, data))))
        wanted["mean_gap"].append(100 * float(np.mean(gaps)))
        if scale == 0:
            assert found.original_p == pytest.approx(metrics.threshold_attack(*phi).p_value, rel=1e-10)
    for name, values in wanted.items():
        np.testing.assert_allclose(getattr(found, name), values[1:], rtol=1e-10, atol=1e-10, err_msg=name)
        assert len(set(values[1:])) > 1 or name == "recognised", f"{name} says nothing"
    assert found.original_attack == pytest.approx(wanted["attack"][0], abs=1e-12)
    assert found.original_divergence == pytest.approx(wanted["divergence"][0], rel=1e-10)
    assert found.retrained is not None
    for split, values in accuracy.items():
        np.testing.assert_allclose(found.accuracy[split], values[1:], rtol=1e-12, err_msg=split)
        assert found.retrained[split] == pytest.approx(metrics.accuracy(*outputs(retrained, subject.splits[split])))


def test_what_is_not_given_is_not_measured():
    subject = SUBJECTS[0]
    found = subject.scan(retrained=None, splits={"retained": subject.splits["retained"]})
    missing = ("ratio", "divergence", "distance", "attack", "recognised", "mean_gap", "retrained", "original_attack")
    assert all(getattr(found, name) is None for name in missing)
    alone = subject.scan(splits={"forgotten": subject.splits["forgotten"]})
    assert alone.attack is None
    assert alone.ratio is not None


def test_a_retrained_function_has_no_parameters_to_be_near_to():
    subject = SUBJECTS[0]
    module, function = subject.scan(), subject.scan(retrained=lambda x: subject.retrained(x))
    assert function.distance is None
    assert np.array_equal(function.ratio, module.ratio)  # type: ignore[arg-type]
    other = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double().eval()
    assert subject.scan(retrained=other).distance is None


def test_the_distance_is_exact_where_the_step_ends_at_the_retrained_model():
    subject = Subject("softmax", problems.linear("cross_entropy", seed=2))
    step = dense.theta(subject.retrained) - dense.theta(subject.sample.model)
    found = subject.scan(direction=step, scales=(0.5, 1.0, 2.0))
    assert found.distance == pytest.approx([0.5, 0.0, 1 / 3], abs=1e-7)  # cancels: half of the digits
    assert found.ratio is not None
    assert found.ratio[1] == 0.0


def test_a_shuffling_loader_and_any_cut_of_the_data_see_the_same():
    subject = SUBJECTS[2]
    shuffled = {
        split: DataLoader(TensorDataset(*map(torch.cat, zip(*data, strict=True))), batch_size=7, shuffle=True)
        for split, data in subject.splits.items()
    }
    found, wanted = subject.scan(splits=shuffled).to_dict(), subject.scan().to_dict()
    for name in ("ratio", "divergence", "distance", "attack", "recognised", "mean_gap"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-12, err_msg=name)
    for split in subject.splits:
        np.testing.assert_allclose(found["accuracy"][split], wanted["accuracy"][split], rtol=1e-12)


def test_mapping_batches_are_read():
    subject = SUBJECTS[0]
    splits = {
        split: [{"input": x, "labels": y} for x, y in data] for split, data in subject.splits.items() if split != "test"
    }
    assert subject.scan(splits=splits).to_dict() == subject.scan().to_dict()


def test_an_attribute_that_s_has_alone_has_no_ratio_but_all_the_rest():
    """One logit, and S is all of one kind: no AUC on S, so no γ."""
    found = Subject("one logit", problems.linear("binary_cross_entropy", c=1)).scan()
    assert found.ratio is None
    assert found.divergence is not None
    assert found.distance is not None
    np.testing.assert_allclose(found.recognised, found.accuracy["forgotten"])  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- what it costs


@pytest.mark.parametrize("name", ["softmax", "attributes", "head", "mlp", "conv"])
def test_forward_passes(name):
    """Fifty ε: one pass for a model linear in θ, one an ε (and one for ε = 0) for a network; and a small probe."""
    subject = copy.deepcopy(next(s for s in SUBJECTS if s.name == name))
    seen: list[int] = []
    subject.sample.model.register_forward_hook(lambda _, __, output: seen.append(len(output)))  # copies keep it
    x, y = torch.cat([subject.sample.x] * 20), torch.cat([subject.sample.y] * 20)
    splits = {"retained": [(x, y)], "forgotten": subject.splits["forgotten"], "test": subject.splits["test_same"]}
    samples = len(x) + sum(len(part[1]) for split in ("forgotten", "test") for part in splits[split])
    scales = np.geomspace(0.1, 10, 50)
    found = subject.scan(splits=splits, scales=scales, retrained=None)
    allowed = 1 if name not in NETWORKS else len(scales) + 1
    assert found.passes == allowed * samples
    assert samples <= sum(seen) - (allowed - 1) * samples <= samples + 5 * 32


SOLVERS = [  # where the package solves: what is patched, and the module that looks it up
    *((DenseStructure, name, "ssse.erasure.solving") for name in ("solve_measured", "leave_out")),
    (DenseStructure, "remove", "ssse.erasure.outcome"),
    (ssse.Curvature, "solve", "ssse.curvature.curvature"),
    (torch.linalg, "cholesky_ex", "ssse.curvature.gram"),
    (torch.linalg, "solve_triangular", "ssse.curvature.gram"),
    (torch.linalg, "cholesky_ex", "ssse.curvature.dual"),
    (torch.linalg, "eigh", "ssse.curvature.truncated"),
    (torch.linalg, "qr", "ssse.curvature.truncated"),
]


def test_nothing_is_solved_and_nothing_fitted(monkeypatch):
    sample = problems.linear("cross_entropy")
    curvature = fit(sample)
    for home, name, by in SOLVERS:
        monkeypatch.setattr(home, name, Forbidden("a scan must not solve", by=by))
    for subject in SUBJECTS:
        subject.scan()
    with pytest.raises(pytest.fail.Exception, match="must not solve"):  # and who does solve is found out
        ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)))
    with pytest.raises(pytest.fail.Exception, match="must not solve"):
        fit(sample)


def test_a_model_linear_in_theta_is_not_copied(monkeypatch):
    subject, copies = SUBJECTS[3], []
    monkeypatch.setattr("ssse.evaluation.step_path.copied", lambda model: copies.append(model) or copied(model))
    subject.scan(retrained=None)
    assert copies == []
    SUBJECTS[5].scan(retrained=None)
    assert len(copies) == 1


@every_subject
def test_models_and_random_numbers_stay_as_they_are(subject):
    first = next(iter(subject.sample.model.parameters()))
    first.grad = torch.ones_like(first)  # somebody's, not to be touched
    before = [snapshot(subject.sample.model), snapshot(subject.retrained), subject.direction.clone()]
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]  # noqa: NPY002
    subject.scan()
    assert [snapshot(subject.sample.model), snapshot(subject.retrained)] == before[:2]
    assert torch.equal(subject.direction, before[2])
    assert torch.equal(first.grad, torch.ones_like(first))
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state[1:]  # type: ignore[index,union-attr]  # noqa: NPY002
    first.grad = None


def test_a_direction_that_is_part_of_a_graph_is_only_read():
    subject = SUBJECTS[0]
    attached = (1.0 * subject.direction).requires_grad_()
    assert subject.scan(direction=attached).to_dict() == subject.scan().to_dict()
    assert attached.grad is None


# ------------------------------------------------------------------------------------------ derivatives


@every_subject
def test_derivatives_along_the_step_are_those_of_the_dense_gradient_and_hessian(subject):
    sample, path = subject.sample, subject.path()
    named = dict(sample.model.named_parameters())
    sizes = [named[name].numel() for name in subject.names]
    theta = dense.flat([named[name] for name in subject.names])

    def loss(vector: Tensor) -> Tensor:
        parts = zip(subject.names, vector.split(sizes), strict=True)
        moved = {name: part.view(named[name].shape) for name, part in parts}
        return dense.LOSSES[sample.loss](functional_call(sample.model, moved, (sample.x,)), sample.y)

    gradient = torch.autograd.functional.jacobian(loss, theta)
    hessian = torch.autograd.functional.hessian(loss, theta)
    u = subject.direction
    assert path.derivative(sample.data[0]) == pytest.approx(float(gradient @ u), rel=1e-9)  # type: ignore[operator]
    assert path.second_derivative(sample.data[0]) == pytest.approx(float(u @ hessian @ u), rel=1e-9)  # type: ignore[operator]


def test_derivatives_of_squared_error_and_of_a_loss_that_does_not_bend():
    sample = problems.linear("mse")
    u = torch.randn(18, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    change = sample.x @ u[:15].view(3, 5).T + u[15:]
    path = StepPath(Problem(sample.model, "mse", "all", sample.data[0]), u)
    assert path.second_derivative(sample.data[0]) == pytest.approx(float(change.square().sum()), rel=1e-12)
    straight = StepPath(Problem(sample.model, lambda z, y: (z * y).sum(), "all", sample.data[0]), u)
    assert straight.second_derivative(sample.data[0]) == 0.0
    assert straight.derivative(sample.data[0]) == pytest.approx(float((change * sample.y).sum()), rel=1e-12)


# --------------------------------------------------------------------------------------------- overflow


@pytest.mark.parametrize("name", ["softmax", "attributes", "mlp", "mlp-attributes", "conv"])
def test_overflow_is_nan_there_and_nowhere_else(name):
    subject = next(s for s in SUBJECTS if s.name == name)
    found, wanted = subject.scan(scales=(0.05, 1.0, 1.7e308)), subject.scan(scales=(0.05, 1.0))
    for measure in ("ratio", "divergence", "attack", "recognised", "mean_gap"):
        values = getattr(found, measure)
        assert np.isnan(values[-1]), measure
        np.testing.assert_allclose(values[:-1], getattr(wanted, measure), rtol=1e-10, err_msg=measure)
    for split, values in found.accuracy.items():
        assert np.isnan(values[-1])
        np.testing.assert_allclose(values[:-1], wanted.accuracy[split], rtol=1e-12)
    curve = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert curve["ratio"][-1] is None
    assert curve["ratio"][:-1] == pytest.approx(wanted.ratio.tolist())  # type: ignore[union-attr]


@pytest.mark.parametrize("retrained", [True, False])
def test_the_curve_comes_back_from_json(retrained):
    subject = SUBJECTS[0]
    found = subject.scan(scales=(0.05, 1.0, 1.7e308), **({} if retrained else {"retrained": None}))
    stored = json.dumps(found.to_dict())
    again = ssse.Scan.from_dict(json.loads(stored))
    assert json.dumps(again.to_dict()) == stored
    assert np.isnan(again.accuracy["retained"][-1])
    assert (again.ratio is None) == (not retrained)
    np.testing.assert_array_equal(again.scales, found.scales)


def test_a_network_that_says_the_same_of_everything_has_no_ratio_there():
    """Every unit dead at a large ε: the AUC of constant scores means nothing, and the rest of the scan goes on."""
    sample = problems.mlp("binary_cross_entropy")
    sample.model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    subject = Subject("dead", sample)
    subject.direction = torch.zeros_like(subject.direction)
    subject.direction[24:30] = -1.0  # the hidden biases
    found = subject.scan(scales=(0.1, 0.5, 1e3))
    assert found.ratio is not None
    assert np.isfinite(found.ratio).tolist() == [True, True, False]
    assert np.isfinite(found.accuracy["forgotten"]).all()


def test_float32_agrees_with_float64_as_far_as_it_can():
    exact = SUBJECTS[0]
    rounded = Subject("float32", problems.linear("cross_entropy", dtype=torch.float32))
    rounded.sample.model.load_state_dict({k: v.float() for k, v in exact.sample.model.state_dict().items()})
    rounded.direction = exact.direction  # float64: cast to the model's own
    path = StepPath(Problem(rounded.sample.model, "cross_entropy", "all", rounded.sample.data[0]), rounded.direction)
    for found, wanted in zip(
        path.logits(exact.sample.x.float(), SCALES), exact.path().logits(exact.sample.x, SCALES), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("policy", ["rebase", "joint"])
@pytest.mark.parametrize("subject", [SUBJECTS[0], SUBJECTS[2], SUBJECTS[3], SUBJECTS[5]], ids=lambda s: s.name)
def test_the_scan_of_an_erasure_is_that_of_its_step(subject, policy):
    """Also where its curvature was asked for, its model was trained on, or the original was overwritten."""
    sample = subject.sample
    model = copy.deepcopy(sample.model)
    curvature = ssse.Curvature.fit(model, sample.loss, sample.data, damping=0.1, parameters=subject.names)
    erasure = ssse.erase(model, curvature, sample.loss, subject.splits["forgotten"], scale=0.5, policy=policy)
    wanted = subject.scan(direction=erasure.direction).to_dict()
    assert erasure.curvature is not None
    with torch.no_grad():
        for parameter in (*model.parameters(), *erasure.model.parameters()):
            if len(subject.names) == len(list(model.parameters())):  # what is not chosen belongs to both
                parameter.zero_()
    found = erasure.scan(subject.splits, scales=SCALES, retrained=subject.retrained, progress=False)
    assert found.to_dict() == wanted
    assert len(erasure.scan(subject.splits, progress=False).scales) == 49


def test_the_scan_of_a_joint_stream_starts_where_the_stream_did():
    subject = SUBJECTS[0]
    sample, forget = subject.sample, subject.sample.part(S)
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=0.1)
    first = ssse.erase(sample.model, curvature, sample.loss, [(x[:5], y[:5]) for x, y in forget], policy="joint")
    second = ssse.erase(first.model, first.curvature, sample.loss, [(x[5:], y[5:]) for x, y in forget], policy="joint")
    found = second.scan(subject.splits, scales=1.0, progress=False)
    assert found.to_dict() == subject.scan(direction=second.direction, scales=1.0, retrained=None).to_dict()
    logits, labels = outputs(second.model, subject.splits["retained"])
    assert found.accuracy["retained"][0] == pytest.approx(metrics.accuracy(logits, labels))
