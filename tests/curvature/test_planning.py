"""What `auto` picks: by the problem and a stated budget, never by the moment, and never rows at an unmeasured ε."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.curvature import costs, planning
from ssse.curvature import curvature as curvatures
from ssse.curvature import fit as fits
from ssse.curvature.costs import Speeds
from ssse.curvature.estimates import Plan
from ssse.errors import DoesNotFit, InvalidSetting
from ssse.problem.token_losses import TokenLoss
from ssse.rows.kinds import RowKind
from ssse.system import memory, progress
from tests.support import problems

GIB = 2**30


def wide(n: int, classes: int = 10) -> tuple[nn.Module, str, list[tuple[Tensor, Tensor]]]:
    """784–64–10, as on MNIST; nothing is computed but a trial on a few samples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, classes)).eval()
    x, y = torch.zeros(1, 784).expand(n, -1), torch.zeros(1, dtype=torch.long).expand(n)
    return model, "cross_entropy", [(x[i : i + 500], y[i : i + 500]) for i in range(0, n, 500)]


def picked(plan: Plan) -> tuple[object, ...]:
    """All but what is measured."""
    return plan.kind, plan.structure, plan.blocks, plan.dtype, plan.group, plan.fit_bytes, plan.operations


@pytest.mark.parametrize("n", [500, 1500, 3000, 60000])
@pytest.mark.parametrize("budget", ["4GiB", "14GiB", "500GiB"])
def test_a_network_gets_rows_that_are_right_at_scale_one(n, budget):
    plan = ssse.plan(*wide(n), memory_budget=budget)
    assert plan.kind.name in ("expected", "margin")
    assert plan.fit_bytes <= memory.memory_budget(None, budget)


def test_more_data_gets_one_row_a_sample_and_the_plan_says_what_else_there_is():
    few, many = (ssse.plan(*wide(n), memory_budget="14GiB") for n in (500, 3000))
    assert (few.kind.name, few.structure.kind) == ("expected", "lowrank")
    assert (many.kind.name, many.structure.kind) == ("margin", "lowrank")
    slow = ssse.plan(*wide(1500), memory_budget="14GiB")  # expected rows would fit
    assert slow.kind.name == "margin"
    assert slow.operations < planning.SOON < float(slow.reason.split(" takes ")[1].split()[0])
    assert "rows='expected', structure='lowrank' asks for it" in slow.reason
    asked = ssse.plan(*wide(1500), memory_budget="14GiB", rows="expected", structure="lowrank")
    assert asked.operations > planning.SOON
    assert ssse.plan(*wide(1500), memory_budget="14GiB", rows="expected").kind.name == "expected"


@pytest.mark.parametrize("n", [500, 1500, 3000])
def test_the_moment_does_not_choose(monkeypatch, n):
    """Whatever is free, and however fast the machine is: the same plan, or a word that it does not fit now."""
    monkeypatch.setattr(memory, "_total_memory", lambda device: 24 * GIB)
    found, refused = set(), []
    for free in (24.0, 12.0, 3.0, 1.0, 0.1):
        monkeypatch.setattr(fits, "free_memory", lambda device, free=free: int(free * GIB))
        monkeypatch.setattr(costs, "_SPEEDS", {("cpu", torch.float32): Speeds(1e9 / free, 1e9, 1e9, 1e5)})
        try:
            found.add(picked(ssse.plan(*wide(n))))
        except DoesNotFit as error:
            refused.append(str(error))
    assert len(found) == 1
    assert all("is within the memory budget of 14 GiB" in text and "free at this moment" in text for text in refused)
    assert "only 102 MiB are free" in refused[-1]


def test_what_would_fit_now_is_offered_and_fits(monkeypatch):
    monkeypatch.setattr(memory, "_total_memory", lambda device: 24 * GIB)
    monkeypatch.setattr(fits, "free_memory", lambda device: GIB)
    with pytest.raises(DoesNotFit, match='pass memory_budget="1024MiB" for a smaller plan:\n  margin rows, ') as caught:
        ssse.plan(*wide(500))
    smaller = ssse.plan(*wide(500), memory_budget="1024MiB")
    assert str(smaller).rsplit(":", 1)[0] in str(caught.value)
    assert smaller.fit_bytes <= GIB


def test_a_budget_that_was_given_is_not_held_against_what_is_free(monkeypatch):
    sample = problems.mlp()
    plan = ssse.plan(sample.model, sample.loss, sample.data, memory_budget="1GiB")
    monkeypatch.setattr(memory, "_total_memory", lambda device: 2**20)
    with pytest.raises(DoesNotFit):
        ssse.plan(*wide(500))
    assert picked(ssse.plan(sample.model, sample.loss, sample.data, memory_budget="1GiB")) == picked(plan)


def squared(z: Tensor, y: Tensor) -> Tensor:
    return (z - y).square().sum()


@pytest.mark.parametrize("loss", ["mse", "binary_cross_entropy", squared])
def test_where_there_is_no_margin_expected_rows_come_in_blocks(loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 5)).double().eval()
    data = [(torch.randn(200, 30).double(), torch.zeros(200, 5).double())]
    whole = ssse.plan(model, loss, data, memory_budget="1GiB")
    less = ssse.plan(model, loss, data, memory_budget=20 * 2**20)
    assert [plan.kind.name for plan in (whole, less)] == ["expected", "expected"]
    assert len(whole.blocks) <= 1 < len(less.blocks)
    assert "would be more faithful but needs" in less.reason


def test_a_linear_model_has_expected_rows_whatever_it_takes():
    torch.manual_seed(0)
    model = nn.Linear(500, 10).eval()
    data = [(torch.zeros(100, 500), torch.zeros(100, dtype=torch.long))] * 100
    names = {ssse.plan(model, "cross_entropy", data, memory_budget=b).kind.name for b in ("1GiB", "60MiB")}
    assert names == {"expected"}


def test_a_convolution_costs_what_it_computes():
    """Its few weights are used at every place: operations are counted in a trial, not from the parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 64, 3)).eval()
    data = [(torch.randn(50, 1, 8, 8), torch.zeros(50, dtype=torch.long))]
    forward = 2 * (64 * 2 * 9 + 128 * 3)
    one, three = (
        ssse.plan(model, "cross_entropy", data, rows=rows, structure="diagonal") for rows in ("margin", "expected")
    )
    assert three.operations - one.operations == 50 * 4 * forward
    assert one.operations >= 50 * 3 * forward


def test_the_container_counts_where_it_is_smaller_than_the_machine(monkeypatch, tmp_path):
    for text, wanted in (("max\n", None), ("1073741824\n", GIB), ("9223372036854771712\n", None)):
        (tmp_path / "memory.max").write_text(text)
        monkeypatch.setattr(memory, "CONTAINER_LIMITS", (str(tmp_path / "memory.max"), str(tmp_path / "missing")))
        budget = memory.memory_budget(None, None)
        monkeypatch.setattr(memory, "CONTAINER_LIMITS", ())
        assert budget == (memory.memory_budget(None, None) if wanted is None else int(0.6 * wanted))


def test_a_long_fit_is_told_of_before_it_begins(monkeypatch):
    sample = problems.mlp()
    said: list[str] = []
    monkeypatch.setattr(curvatures, "say", lambda text, show: said.append(text))
    monkeypatch.setattr(curvatures, "WORTH_A_WORD", -1.0)
    fitted = ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=1e-2)
    request = "then under a second for a request of 1 sample"
    assert said == [f"Curvature: {fitted.chosen}, under a second, {request}; {fitted.reason}."]
    ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=1e-2, on_plan=lambda plan: None)
    assert len(said) == 1


def test_nobody_is_told_where_nobody_is_looking(capsys):
    progress.say("a word", True)  # stderr is no terminal here
    assert capsys.readouterr().err == ""


class Stacked(nn.Module):
    """Three blocks and a head, of 1,000 to 2,000 parameters each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(40, 40), nn.Tanh()) for _ in range(3)))
        self.head = nn.Linear(40, 30)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


def stacked(n: int = 300) -> tuple[nn.Module, str, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    return Stacked().eval(), "cross_entropy", [(torch.randn(n, 40), torch.arange(n) % 30)]


def test_parts_that_fit_are_offered_with_the_words_that_ask_for_them():
    model, loss, data = stacked()
    sizes = {"last 2 blocks": 2 * 1640 + 1230, "last block": 1640 + 1230, "head": 1230}
    plan = ssse.plan(model, loss, data, memory_budget="60MiB")
    offered = {other.part: other for other in plan.others if other.part}
    assert {name: other.size for name, other in offered.items()} == sizes
    assert not plan.part
    assert plan.size == 3 * 1640 + 1230
    for name, other in offered.items():
        asked = ssse.plan(model, loss, data, memory_budget="60MiB", parameters=name)
        assert asked.size == other.size
        assert picked(asked) == picked(other)
        assert other.fit_bytes <= 60 * 2**20
        assert f'parameters="{name}" ({other.size:,})' in plan.table()
    assert (offered["head"].kind.name, offered["head"].structure.kind) == ("expected", "dense")
    assert sum(line.startswith("→") for line in plan.table().splitlines()) == 1


def test_where_nothing_of_the_whole_fits_a_part_may_and_the_error_says_which():
    model, loss, data = stacked()
    with pytest.raises(DoesNotFit, match=r'This would fit:\n(.*\n)*  parameters="head" \(1,230\): ') as caught:
        ssse.plan(model, loss, data, memory_budget="4MiB")
    assert 'parameters="last block"' not in str(caught.value)
    with pytest.raises(DoesNotFit, match='parameters="head"'):
        ssse.Curvature.fit(model, loss, data, memory_budget="4MiB", damping=1e-2)
    assert ssse.plan(model, loss, data, memory_budget="4MiB", parameters="head").size == 1230


def test_a_part_is_not_offered_where_the_whole_is_as_faithful_as_can_be():
    sample = problems.mlp()
    assert not any(plan.part for plan in ssse.plan(sample.model, sample.loss, sample.data).others)
    linear = problems.linear("cross_entropy")
    assert not any(plan.part for plan in ssse.plan(linear.model, linear.loss, linear.data).others)


def test_margins_of_tokens_have_a_part_of_the_outputs_each():
    """A sequence of T tokens and V words has T·V outputs and T rows, and cores of T·V numbers, not of T²·V."""
    kind = RowKind("margin")
    loss = TokenLoss("token_cross_entropy", shifted=False, mean=False, vocabulary=7)
    assert kind.rows_per_sample(loss, 35) == 5
    assert kind.core_numbers(loss, 35) == 35


def test_a_request_of_so_many_samples_is_told_of_and_whether_a_refit_is_cheaper(monkeypatch):
    """By one speed for everything, so that no machine decides."""
    monkeypatch.setattr("ssse.curvature.estimates.speeds_of", lambda *_: Speeds(1e10, 1e10, 1e10, 1e6))
    torch.manual_seed(0)
    model, data = nn.Linear(300, 10).eval(), [(torch.randn(6000, 300), torch.randint(0, 10, (6000,)))]
    few, many = (
        ssse.plan(model, "cross_entropy", data, structure="dense", blocks="one", forget=forget) for forget in (2, 3000)
    )
    assert few.asked == 2
    assert many.asked == 3000
    assert few.request_seconds is not None
    assert many.request_seconds is not None
    assert many.request_seconds > 5 * few.request_seconds
    assert "for a request of 3,000 samples" in str(many)
    for wrong in (0, True, 1.5, 6000):
        with pytest.raises(InvalidSetting, match="forget"):
            ssse.plan(model, "cross_entropy", data, forget=wrong)  # type: ignore[arg-type]
