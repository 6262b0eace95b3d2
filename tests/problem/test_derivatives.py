"""How derivatives are taken: which way is chosen for what, what is seen to be wrong, and what is refused."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.errors import InvalidModel
from ssse.problem.cores import DenseCores
from ssse.problem.derivatives.choice import PRODUCT_WAYS, ROW_WAYS, row_ways
from ssse.problem.derivatives.layerwise import Layerwise
from ssse.problem.derivatives.loop import Loop
from ssse.problem.derivatives.products import DoubleBackward, ForwardMode
from ssse.problem.derivatives.settings import kernels
from ssse.problem.derivatives.trial import check_rows, check_times, first_that_agrees
from ssse.problem.derivatives.vectorised import Vectorised
from ssse.problem.derivatives.ways import ProductWay, RowWay
from ssse.problem.problem import Problem
from tests.support.zoo import CLASSES, WIDTH, WORDS, Checkpointed, Tied, animal, small_network, tokens, vectors

Y = torch.arange(10) % CLASSES


def problem_of(model: nn.Module, x: Tensor) -> Problem:
    return Problem(model.eval(), "cross_entropy", "all", (x, Y))


def rows_by(way: RowWay, problem: Problem, x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    cores = torch.randn(len(x), 3, problem.outputs, generator=generator, dtype=problem.dtype)
    return way.rows(problem, x, lambda _, which: DenseCores(cores[which]))[0]


@pytest.mark.parametrize(
    ("name", "rows", "products"),
    [
        ("mlp", Vectorised(), ForwardMode()),
        ("resnet", Vectorised(), ForwardMode()),
        ("own function", Layerwise(), DoubleBackward()),
        ("sparse embedding", Layerwise(), ForwardMode()),
        ("control flow on data", Loop(), ForwardMode()),
        ("traced", Loop(), DoubleBackward()),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_the_first_way_that_works_is_taken(name, rows, products):
    creature = animal(name)
    problem = Problem(creature.model, "cross_entropy", "all", (creature.x, creature.y))
    assert problem.derivatives.row_way is None  # nothing is tried before it is asked for
    assert problem.derivatives.choose_rows(problem, creature.x) == rows
    assert problem.derivatives.choose_products(problem, creature.x) == products
    assert problem.derivatives.in_words == ("" if rows == Vectorised() else str(rows))
    assert len(problem.derivatives.notes) == (rows != ROW_WAYS[0]) + (products != PRODUCT_WAYS[0])


@pytest.mark.parametrize(
    ("name", "chosen", "first"),
    [("resnet", "all", Layerwise()), ("resnet", "head", Vectorised()), ("mlp", "all", Vectorised())],
)
def test_on_a_gpu_convolutions_are_tried_layer_by_layer_first(name, chosen, first):
    creature = animal(name)
    problem = Problem(creature.model, "cross_entropy", chosen, (creature.x, creature.y))
    assert row_ways(problem) == ROW_WAYS
    problem.device = torch.device("cuda")  # nothing is computed
    assert row_ways(problem)[0] == first
    assert sorted(map(str, row_ways(problem))) == sorted(map(str, ROW_WAYS))


def test_a_linear_model_tries_nothing():
    x = vectors()
    model = nn.Linear(WIDTH, CLASSES)
    problem = problem_of(model, x)
    ssse.Curvature.fit(model, "cross_entropy", [(x, Y)], damping=0.1, progress=False)
    assert problem.linear is not None
    assert problem.derivatives.row_way is None


class Layers(nn.Module):
    """Every rule of the layerwise way, in float64: a layer called twice, and one that sees parts of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=1)
        self.bags = nn.ModuleList(nn.EmbeddingBag(WORDS, WIDTH, mode=mode, padding_idx=2) for mode in ("sum", "mean"))
        self.norm, self.group = nn.LayerNorm(WIDTH), nn.GroupNorm(2, WIDTH)
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.places = nn.Embedding(5, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids) + self.places(torch.arange(5, device=ids.device)[None])  # one look-up for all samples
        h = self.twice(self.norm(h)).relu()
        h = self.conv(self.twice(h).mT).mT
        h = self.group(h.reshape(-1, WIDTH)).relu_().view(h.shape).mean(1)
        for bag in self.bags:
            h = h + bag(ids).tanh()
        return self.head(h)


def test_layer_by_layer_is_the_loop():
    torch.manual_seed(0)
    ids = tokens()
    problem = problem_of(Layers().double(), ids)
    torch.testing.assert_close(rows_by(Layerwise(), problem, ids), rows_by(Loop(), problem, ids), rtol=1e-9, atol=1e-12)


class Convolution(nn.Module):
    """As transformers has it: a linear layer whose weight is (inputs, outputs)."""

    def __init__(self) -> None:
        super().__init__()
        self.nf = CLASSES
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, CLASSES)), nn.Parameter(torch.randn(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, WIDTH), self.weight).view(*x.shape[:-1], CLASSES)


Convolution.__name__ = "Conv1D"


def test_the_transposed_linear_layer_of_transformers():
    x = vectors()
    problem = problem_of(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), Convolution()), x)
    torch.testing.assert_close(rows_by(Layerwise(), problem, x), rows_by(Loop(), problem, x))


def test_a_use_outside_of_its_layer_is_seen():
    """Layer by layer, what F.linear does with an embedding's weight is missed."""
    ids = tokens()
    problem = problem_of(Tied(functional=True), ids)
    way, passed = first_that_agrees(problem, ids, [Layerwise(), Loop()], check_rows)
    assert way == Loop()
    assert passed[0].layer is None
    assert passed[0].why.startswith("the rows of two samples differ from those of single backward passes by")


class Halved(ForwardMode):
    def times(self, view, x, v):
        return 0.5 * super().times(view, x, v)


def test_a_wrong_product_is_seen():
    x = vectors()
    ways: list[ProductWay] = [Halved(), DoubleBackward()]
    way, passed = first_that_agrees(problem_of(small_network(), x), x, ways, check_times)
    assert way == DoubleBackward()
    assert passed[0].why.startswith("the products of two samples differ")


class Padded(nn.Module):
    """No backward pass moves the padding entry of an embedding; forward mode does not know that."""

    def __init__(self, tied: bool = False):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.head = nn.Linear(WIDTH, WORDS if tied else CLASSES, bias=False)
        nn.init.normal_(self.embed.weight)  # a trained padding may be anything
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids).mean(1).tanh())


@pytest.mark.parametrize("tied", [False, True])
def test_products_and_rows_mean_the_same_padding(tied):
    ids = tokens()
    ids[:, -2:] = 0
    model = Padded(tied).double()
    problem = problem_of(model, ids)
    v = torch.randn(problem.layout.dim, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    cores = torch.randn(len(ids), 3, problem.outputs, generator=generator, dtype=torch.float64)
    product = (cores @ problem.derivatives.times(problem, ids, v).unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(product, rows_by(Loop(), problem, ids) @ v)
    assert problem.derivatives.product_way == (DoubleBackward() if tied else ForwardMode())


class Kinked(Loop):
    """On the other side of a kink, where the first entry of the first sample is large."""

    def rows(self, view, x, cores):
        rows, z = super().rows(view, x, cores)
        return rows * (1.01 if float(torch.as_tensor(x)[0, 0]) > 5 else 1.0), z


def test_one_pair_that_disagrees_is_not_the_end_of_a_way():
    x = vectors().clamp(-4, 4)
    x[:2] = 6.0
    problem = problem_of(small_network(), x)
    assert first_that_agrees(problem, x, [Kinked()], check_rows)[0] == Kinked()
    x[:] = 6.0
    assert first_that_agrees(problem, x, [Kinked()], check_rows)[0] is None


def test_kernels_are_what_they_were_afterwards():
    model = nn.Sequential(nn.Embedding(3, 2, sparse=True), nn.Linear(2, 2))
    settings = (torch.backends.mkldnn, torch.backends.cudnn)
    before = [setting.enabled for setting in settings], torch.backends.mha.get_fastpath_enabled()

    def fail() -> None:
        with kernels(model, portable=True):
            assert not model[0].sparse
            assert not any(setting.enabled for setting in settings)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert before == ([setting.enabled for setting in settings], torch.backends.mha.get_fastpath_enabled())
    assert model[0].sparse


class Silent(nn.Module):
    """Outputs that autograd does not follow."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small_network()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.body(x)


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Sign.apply(x)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, *grad_outputs):
        raise RuntimeError("a sign has no slope. Never.")


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.lock = small_network(), threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Counting(nn.Module):
    """What a copy forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.shift = small_network(), 1.0

    def __deepcopy__(self, memo):
        other = Counting()
        other.body = copy.deepcopy(self.body)
        other.shift = 0.0
        return other

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + self.shift)


class Rooted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.body(x) * 0).abs().sqrt())


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Silent(), r"The outputs of the model \(Silent\) do not depend on its parameters .* torch.no_grad\(\)"),
        (
            small_network(Rounded()),
            r"cannot be taken: Rounded '1' ends with “a sign has no slope”.* leave the parameters",
        ),
        (
            Locked(),
            r"The model \(Locked\) cannot be copied, .* cannot pickle '_thread.lock' object",
        ),
        (Checkpointed(reentrant=True), r"parameter 'body.0.weight' is computed apart .*pass use_reentrant=False"),
        (Counting(), r"A copy of the model \(Counting\) with the same parameters gives other outputs"),
        (
            Rooted(),
            r"The gradient of a sample is NaN or infinite in parameter 'body.weight', though its outputs",
        ),
    ],
)
@pytest.mark.parametrize("structure", ["dense", "matrix_free"])
def test_what_cannot_work_is_one_sentence_before_the_long_pass(model, sentence, structure):
    x, read = vectors(), []

    class Data:
        def __iter__(self):
            for i in range(5):
                read.append(i)
                yield x[2 * i : 2 * i + 2], Y[2 * i : 2 * i + 2]

    with pytest.raises(InvalidModel, match=sentence) as raised:
        ssse.Curvature.fit(model.eval(), "cross_entropy", Data(), damping=0.1, structure=structure, n=10)
    assert len(str(raised.value)) < 500
    assert "\n" not in str(raised.value)
    assert max(read) < 4


def test_the_way_is_in_the_plan_and_the_notes():
    creature = animal("control flow on data")
    curvature = ssse.Curvature.fit(
        creature.model, "cross_entropy", [(creature.x, creature.y)], damping=0.1, progress=False
    )
    assert "expected rows (one sample at a time), " in curvature.chosen
    assert any(
        "Rows are taken one sample at a time; not vectorised: the model (Branching) says" in n for n in curvature.notes
    )


def test_products_of_millions_of_parameters_agree():
    """Sums of so many squares in float32 are off by more than products may be: they are compared in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3000, 3000), nn.Tanh(), nn.Linear(3000, 3)).eval()
    x = torch.randn(10, 3000)
    problem = problem_of(model, x)
    problem.derivatives.choose(problem, x)
    assert problem.derivatives.product_way == ForwardMode()
    assert problem.derivatives.passed == ()
