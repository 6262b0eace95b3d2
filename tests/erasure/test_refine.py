"""Refining: to the refit where the objective is convex, down in every case, and of what remains only."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ssse
from ssse.errors import InvalidData, InvalidSetting, ModelMismatch, NotPositiveDefinite, PrecisionLost
from ssse.metrics.objective import objective
from ssse.problem.losses import LossLike
from tests.support import dense, problems
from tests.support.sizes import fuzzed

DECAY = 1e-2
STRUCTURES = ["dense", "lowrank", ssse.LowRank(rank=6), "matrix_free", "diagonal", "recurrence"]


def fit(sample: problems.Sample, **options) -> ssse.Curvature:
    settings = {"weight_decay": DECAY, "structure": "dense", "progress": False, **options}
    return ssse.Curvature.fit(sample.model, sample.loss, sample.data, **settings)


def summed_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """As a function of the user's own: nothing says that it is convex."""
    return F.cross_entropy(z, y, reduction="sum")


@dataclass
class Case:
    """A softmax model at its minimum, some samples to forget, and the minimum without them."""

    model: nn.Linear
    x: Tensor
    y: Tensor
    forgotten: Tensor
    decay: float
    refit: Tensor

    @property
    def retained(self) -> list[tuple[Tensor, Tensor]]:
        return [(self.x[~self.forgotten], self.y[~self.forgotten])]

    def erased(self, loss: LossLike = "cross_entropy") -> ssse.Erasure:
        options = {"weight_decay": self.decay, "structure": "dense", "blocks": "one", "rows": "expected"}
        curvature = ssse.Curvature.fit(self.model, loss, [(self.x, self.y)], **options)
        forget = [(self.x[self.forgotten], self.y[self.forgotten])]
        return ssse.erase(
            self.model, curvature, loss, forget, override=ssse.BOUNDS
        )  # the worse the start, the better the test

    def distance(self, model: nn.Module) -> float:
        """From the refit, as a share of the way there."""
        return float((dense.theta(model) - self.refit).norm() / (dense.theta(self.model) - self.refit).norm())


def table(name: str) -> tuple[Tensor, Tensor]:
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        x = x.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16) / 16  # pooled
    else:
        x, y = map(np.asarray, {"cancer": load_breast_cancer, "wine": load_wine}[name](return_X_y=True))
        x = (x - x.mean(0)) / x.std(0)
    return torch.tensor(np.column_stack([x, np.ones(len(x))])), torch.tensor(y).long()


def make(name: str, what: str, decay: float) -> Case:
    x, y = table(name)
    classes, order = int(y.max()) + 1, torch.Generator().manual_seed(0)
    if what == "class":
        forgotten = y == 1
    elif what == "half of a class":
        forgotten = (y == 0) & (torch.rand(len(y), generator=order) < 0.5)
    else:
        forgotten = torch.zeros(len(y), dtype=torch.bool)
        forgotten[torch.randperm(len(y), generator=order)[:30]] = True
        y = torch.where(forgotten, (y + 1) % classes, y)
    model = nn.Linear(x.shape[1], classes, bias=False).double().eval()
    model.weight.data = dense.softmax_minimum(x, y, classes, decay)
    refit = dense.softmax_minimum(x[~forgotten], y[~forgotten], classes, decay).reshape(-1)
    return Case(model, x, y, forgotten, decay, refit)


CASES = [
    ("digits", "class", 1e-3),
    ("digits", "mislabelled", 1e-3),
    ("cancer", "half of a class", 1e-3),
    ("cancer", "half of a class", 1e-5),
    ("cancer", "mislabelled", 1e-3),
    ("wine", "class", 1e-3),
    ("wine", "half of a class", 1e-5),
    ("wine", "mislabelled", 1e-3),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {case[1]}, {case[2]:g}")
def test_a_softmax_model_goes_to_its_refit(case):
    made = make(*case)
    erasure = made.erased()
    one, all_of_them = (
        ssse.refine(erasure.model, erasure.curvature, retained=made.retained, steps=steps, progress=False)
        for steps in (1, 30)
    )
    assert all_of_them.objective_after < one.objective_after < one.objective_before
    assert (one.steps, one.ended) == (1, "steps")
    assert all_of_them.ended != "steps"  # one case is at the edge of what float64 can tell
    assert all_of_them.method == "newton"
    assert made.distance(all_of_them.model) < 1e-6
    assert float((dense.theta(all_of_them.model) - made.refit).norm() / made.refit.norm()) < 1e-6


def test_a_whole_class_takes_three_steps():
    made = make("digits", "class", 1e-3)
    erasure = made.erased()
    refined = ssse.refine(erasure.model, erasure.curvature, retained=made.retained, steps=3, progress=False)
    assert made.distance(refined.model) < 0.1 < made.distance(erasure.model)
    assert refined.passes == 4  # none was shortened


def test_without_newtons_direction_it_goes_there_too():
    """A loss of the user's own: L-BFGS from the stored factor."""
    made = make("wine", "half of a class", 1e-2)
    erasure = made.erased(summed_cross_entropy)
    refined = ssse.refine(
        erasure.model, erasure.curvature, summed_cross_entropy, made.retained, steps=100, progress=False
    )
    assert refined.method == "quasi-newton"
    assert not refined.convex
    assert made.distance(refined.model) < 1e-6
    assert refined.converged


def test_features_that_do_not_fit_are_not_kept(monkeypatch):
    monkeypatch.setattr("ssse.erasure.refine.memory_budget", lambda device, budget: 1000)
    made = make("wine", "half of a class", 1e-3)
    erasure = made.erased()
    refined = ssse.refine(erasure.model, erasure.curvature, retained=made.retained, steps=100, progress=False)
    assert refined.method == "quasi-newton"
    assert refined.convex
    assert made.distance(refined.model) < 1e-6


@pytest.mark.parametrize("loss", ["cross_entropy", summed_cross_entropy], ids=["named", "own"])
@pytest.mark.parametrize("factor", [30.0, 1e4])
def test_from_a_destroyed_model_it_still_goes_down(loss, factor):
    sample = problems.linear("cross_entropy", n=60)
    with torch.no_grad():
        sample.model.get_parameter("weight").copy_(
            factor * torch.randn(3, 5, generator=torch.Generator().manual_seed(3))
        )
    options = {"weight_decay": DECAY, "structure": "dense", "rows": "empirical"}
    curvature = ssse.Curvature.fit(sample.model, loss, sample.data, **options)
    refined = ssse.refine(sample.model, curvature, loss, sample.data, steps=300, progress=False)
    lowest = objective(problems.converged(problems.linear("cross_entropy", n=60), DECAY).model, "cross_entropy",
                       sample.data, weight_decay=DECAY).loss  # fmt: skip
    assert refined.objective_after < 1e-3 * refined.objective_before + 1.01 * lowest


@given(
    loss=st.sampled_from(["cross_entropy", "binary_cross_entropy", "mse", "own"]),
    seed=st.integers(0, 10**6),
    n=st.integers(2, 25),
    p=st.integers(1, 6),
    bias=st.booleans(),
    decay=st.sampled_from([0.0, 1e-6, 1e-2, 10.0]),
    damping=st.sampled_from([1e-6, 1e-2, 10.0]),
    factor=st.sampled_from([0.0, 1.0, 100.0, 1e8]),
    steps=st.integers(1, 8),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    rows=st.sampled_from(["expected", "empirical"]),
    structure=st.sampled_from(["lowrank", "diagonal", ssse.MatrixFree(preconditioner="none")]),
)
@fuzzed(30, 1500)
def test_it_never_ends_above_where_it_began(
    loss, seed, n, p, bias, decay, damping, factor, steps, dtype, rows, structure
):
    sample = problems.linear("cross_entropy" if loss == "own" else loss, bias, n, p, 3, seed, dtype)
    with torch.no_grad():
        sample.model.weight *= factor
    used = summed_cross_entropy if loss == "own" else loss
    options = {"weight_decay": decay, "damping": damping, "rows": rows, "structure": structure, "progress": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ssse.DoubtfulSetting)  # any decay will do
            curvature = ssse.Curvature.fit(sample.model, used, sample.data, **options)
    except (PrecisionLost, NotPositiveDefinite, InvalidSetting):
        return  # float32 has its limits; a saturated loss of one's own has no curvature
    try:
        refined = ssse.refine(sample.model, curvature, used, sample.data, steps=steps, progress=False)
    except PrecisionLost:
        return  # the stored factor has no digits left
    assert refined.objective_after <= refined.objective_before
    there = objective(refined.model, used, sample.data, weight_decay=decay)
    room = 1e-12 if dtype == torch.float64 else 1e-4
    assert there.loss == pytest.approx(refined.objective_after, rel=room, abs=room)
    assert there.loss <= refined.objective_before * (1 + room) + room


LINEAR, NETWORK = problems.linear("cross_entropy"), problems.mlp()
WAYS = [(way, sample) for way in STRUCTURES for sample in (LINEAR, NETWORK)]


@pytest.mark.parametrize(
    ("structure", "sample"),
    [*WAYS, ("lowrank", problems.tied()), ("dense", problems.conv())],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_every_structure_leads_down(structure, sample):
    curvature = fit(sample, structure=structure, rows="empirical" if structure == "recurrence" else "auto")
    before, start = copy.deepcopy(sample.model), dense.theta(sample.model)
    refined = ssse.refine(sample.model, curvature, retained=sample.data, steps=5, progress=False)
    assert refined.objective_after < 0.99 * refined.objective_before
    torch.testing.assert_close(dense.theta(refined.model) - start, refined.step)
    for ours, theirs in zip(sample.model.parameters(), before.parameters(), strict=True):  # it is untouched
        assert torch.equal(ours, theirs)
        assert ours.grad is None
        assert ours.requires_grad
    assert all(parameter.requires_grad for parameter in refined.model.parameters())


@pytest.mark.parametrize("sample", [problems.linear("mse"), problems.mlp()], ids=lambda s: s.name)
def test_its_numbers_are_those_of_the_dense_truth(sample):
    curvature = fit(sample)
    refined = ssse.refine(sample.model, curvature, retained=sample.data, steps=2, progress=False)
    for model, value, norm in (
        (sample.model, refined.objective_before, refined.gradient_before),
        (refined.model, refined.objective_after, refined.gradient_after),
    ):
        theta, n = dense.theta(model), len(sample.x)
        loss = float(dense.LOSSES[sample.loss](model(sample.x), sample.y).detach()) / n
        slope = dense.gradient(model, dense.LOSSES[sample.loss], sample.x, sample.y) / n + DECAY * theta
        assert value == pytest.approx(loss + DECAY / 2 * float(theta @ theta), rel=1e-12)
        assert norm == pytest.approx(float(slope.norm()), rel=1e-9)
    assert refined.curvature.gradient is not None
    torch.testing.assert_close(refined.curvature.gradient, slope)
    assert refined.curvature.mean_loss == pytest.approx(loss, rel=1e-9)


def test_least_squares_takes_one_step():
    sample = problems.linear("mse", n=60)
    curvature = fit(sample)
    refined = ssse.refine(sample.model, curvature, retained=sample.data, progress=False)
    assert refined.converged
    assert refined.passes <= 3
    assert refined.gradient_after < 1e-6 * refined.gradient_before


def test_the_next_request_goes_on_from_it(tmp_path):
    made = make("wine", "half of a class", 1e-2)
    erasure = made.erased()
    refined = ssse.refine(erasure.model, erasure.curvature, retained=made.retained, progress=False)
    after = refined.curvature
    assert (after.n, after.erased) == (erasure.curvature.n, erasure.curvature.erased)
    after.save(tmp_path / "curvature")
    x, y = made.retained[0]
    keep = torch.ones(len(y), dtype=torch.bool)
    keep[:3] = False
    second = ssse.erase(refined.model, ssse.Curvature.load(tmp_path / "curvature"), forget=[(x[:3], y[:3])])
    assert second.diagnostics.gradient_norm == pytest.approx(refined.gradient_after)
    again = ssse.refine(second.model, second.curvature, retained=[(x[keep], y[keep])], progress=False)
    wanted = dense.softmax_minimum(x[keep], y[keep], 3, 1e-2)
    assert float((dense.theta(again.model) - wanted.reshape(-1)).norm() / wanted.norm()) < 1e-7
    with pytest.raises(ModelMismatch, match="not those the curvature was fitted at"):
        ssse.refine(made.model, after, retained=made.retained, progress=False)


def test_doubt_ends_at_the_minimum_of_a_convex_model_alone():
    """And only where the stored curvature is still the one that is met."""
    near, far, network = problems.linear("mse", n=60), make("digits", "class", 1e-3), problems.mlp()
    for sample in (near, network):
        doubted = replace(fit(sample), doubted=True)
        refined = ssse.refine(sample.model, doubted, retained=sample.data, steps=100, progress=False)
        assert refined.curvature.doubted is (sample is network)
        one = ssse.refine(sample.model, doubted, retained=sample.data, steps=1, tolerance=0, progress=False)
        assert one.curvature.doubted
        assert any("fine-tuning" in note for note in refined.notes) is (sample is network)
    erasure = far.erased()
    refined = ssse.refine(erasure.model, erasure.curvature, retained=far.retained, progress=False)
    assert refined.converged
    assert refined.drift is not None
    assert refined.drift > 2
    assert refined.curvature.doubted
    assert "Fit a new one" in str(refined)


def test_a_joint_stream_goes_on_as_a_rebased_one():
    sample = problems.linear("cross_entropy", n=60)
    curvature = fit(sample)
    erasure = ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 5)), policy="joint")
    refined = ssse.refine(erasure.model, erasure.curvature, retained=sample.part(slice(5, 60)), progress=False)
    assert refined.converged
    assert refined.curvature.joint is None
    assert any("joint" in note for note in refined.notes)
    ssse.erase(refined.model, refined.curvature, forget=sample.part(slice(5, 8)))
    papers = ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 5)), policy="joint", leave_out=False)
    with pytest.raises(InvalidSetting, match="keeps the forgotten rows"):
        ssse.refine(papers.model, papers.curvature, retained=sample.part(slice(5, 60)), progress=False)


@pytest.mark.parametrize("make_sample", [problems.mlp, lambda: problems.linear("cross_entropy", n=30)])
def test_how_the_data_is_cut_does_not_matter(make_sample):
    sample = make_sample()
    curvature = replace(fit(sample), group=7)
    whole = ssse.refine(sample.model, curvature, retained=sample.data, steps=3, progress=False)
    loader = DataLoader(TensorDataset(sample.x, sample.y), batch_size=4)
    parts = ssse.refine(sample.model, curvature, sample.loss, loader, steps=3, progress=False)
    assert torch.equal(whole.step, parts.step)
    shuffled = DataLoader(TensorDataset(sample.x, sample.y), batch_size=4, shuffle=True)  # each pass in another order
    mixed = ssse.refine(sample.model, curvature, retained=shuffled, steps=3, progress=False)
    torch.testing.assert_close(mixed.step, whole.step, rtol=1e-4, atol=1e-6)


def test_only_theta_moves():
    """The head of a network is a linear model; the rest of it is not even differentiated."""
    sample = problems.mlp(n=60)
    curvature = fit(sample, parameters="head")
    refined = ssse.refine(sample.model, curvature, retained=sample.data, progress=False)
    assert refined.converged
    assert refined.method == "newton"
    old, new = sample.model.state_dict(), refined.model.state_dict()
    assert torch.equal(old["0.weight"], new["0.weight"])
    assert not torch.equal(old["2.weight"], new["2.weight"])
    assert any(note.startswith("Only 2.weight") for note in refined.notes)


def test_in_float32_it_ends_where_nothing_lower_can_be_seen():
    sample = problems.linear("cross_entropy", n=60, dtype=torch.float32)
    refined = ssse.refine(sample.model, fit(sample), retained=sample.data, steps=300, tolerance=0, progress=False)
    assert refined.ended == "rounding"  # and not after all steps, whatever the last digits are here
    assert refined.gradient_after < 1e-4 * refined.gradient_before
    assert ssse.refine(sample.model, fit(sample), retained=sample.data, progress=False).converged


def test_at_the_minimum_nothing_moves():
    sample = problems.converged(problems.linear("cross_entropy", n=60), DECAY)
    refined = ssse.refine(sample.model, fit(sample), retained=sample.data, tolerance=1e-6, progress=False)
    assert (refined.steps, refined.passes, refined.drift) == (0, 1, None)
    assert refined.converged
    assert torch.equal(dense.theta(refined.model), dense.theta(sample.model))


class Shrinking:
    """Two batches when first read, one from the second time on."""

    def __init__(self, sample: problems.Sample):
        self.sample, self.reads = sample, 0

    def __iter__(self):
        self.reads += 1
        yield from [*self.sample.part(slice(0, 20)), *self.sample.part(slice(20, None))][: 2 if self.reads < 3 else 1]


def test_what_is_refused():
    sample = problems.linear("cross_entropy", n=60)
    curvature = fit(sample, structure="lowrank")
    erasure = ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 5)))
    retained = sample.part(slice(5, 60))

    def refused(error: type[Exception], match: str, data=retained, **options) -> None:
        with pytest.raises(error, match=match):
            ssse.refine(erasure.model, erasure.curvature, retained=data, progress=False, **options)

    refused(InvalidData, r"holds 60 samples; this curvature stands for 55\. The forgotten ones", sample.data)
    refused(InvalidData, "holds 40 samples; this curvature stands for 55. Pass", sample.part(slice(20, 60)))
    refused(InvalidData, "2 of these 55 samples are not among", sample.part(slice(3, 58)))
    refused(InvalidData, "not an iterator", iter(retained))
    refused(InvalidData, "is empty", [])
    refused(InvalidData, "Labels must lie in", [(sample.x[5:], sample.y[5:] + 2)])
    refused(InvalidSetting, "samples that remain", None)
    refused(InvalidSetting, "steps must be", steps=0)
    refused(InvalidSetting, "steps must be", steps=2.5)
    refused(InvalidSetting, "tolerance must be", tolerance=-1)
    refused(InvalidSetting, "tolerance must be", tolerance=float("nan"))
    refused(ModelMismatch, "of the loss 'cross_entropy'", loss_fn="mse")
    with pytest.raises(ModelMismatch, match="parameter values"):
        ssse.refine(sample.model, erasure.curvature, retained=retained, progress=False)
    with pytest.raises(InvalidData, match="when read again"):
        ssse.refine(sample.model, fit(sample), retained=Shrinking(sample), progress=False)
    other = problems.linear("cross_entropy", n=60, seed=1)
    with pytest.raises(InvalidData, match="its mean loss is"):
        ssse.refine(sample.model, fit(sample), retained=other.data, progress=False)
