"""Models in DataParallel, DistributedDataParallel and torch.compile: worked on inside, handed back outside."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ssse
from ssse.errors import InvalidModel, ModelMismatch
from ssse.problem.fingerprint import Fingerprint
from ssse.problem.view import ModelView
from ssse.problem.wrappers import copied, unwrapped
from tests.support import problems
from tests.support.refusals import fit, refused, snapshot


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


def compiled_inside(model: nn.Module) -> nn.Module:
    """One layer alone, as people do to keep compile times short."""
    model[0] = compiled(model[0])  # type: ignore[operator, index]
    return model


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DataParallel": nn.DataParallel,
    "compiled": compiled,
    "compiled in DataParallel": lambda model: nn.DataParallel(compiled(model)),
    "DataParallel, compiled": lambda model: compiled(nn.DataParallel(model)),
    "compiled inside": compiled_inside,
    "compiled in place": compiled_in_place,
}
every_wrapper = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


def subject(dtype: torch.dtype = torch.float64) -> problems.Sample:
    return problems.mlp(dtype=dtype)


@every_wrapper
@pytest.mark.parametrize("options", [{}, {"structure": "matrix_free"}, {"parameters": "head"}], ids=str)
def test_a_wrapped_model_is_worked_on_as_the_one_inside_and_handed_back_wrapped(wrap, options):
    sample = subject()
    plain = ssse.erase(sample.model, fit(sample, damping=1.0, **options), sample.loss, sample.part(slice(0, 2)))
    wrapped = replace(sample, model=wrap(copy.deepcopy(sample.model)))
    before = snapshot(wrapped.model)
    curvature = fit(wrapped, damping=1.0, **options)
    erasure = ssse.erase(wrapped.model, curvature, sample.loss, sample.part(slice(0, 2)))
    assert snapshot(wrapped.model) == before
    torch.testing.assert_close(erasure.step, plain.step)
    assert type(erasure.model) is type(wrapped.model)
    assert list(erasure.model.state_dict()) == list(wrapped.model.state_dict())
    torch.testing.assert_close(erasure.model(sample.x), plain.model(sample.x))  # it runs, with the new parameters
    assert not torch.equal(erasure.model(sample.x), wrapped.model(sample.x))


@every_wrapper
def test_curvatures_of_wrapped_and_of_plain_models_are_the_same(wrap, tmp_path):
    sample = subject()
    wrapped = wrap(copy.deepcopy(sample.model))
    fit(sample, damping=1.0).save(tmp_path / "plain")
    fit(replace(sample, model=wrapped), damping=1.0).save(tmp_path / "wrapped")
    for name, model in {"plain": wrapped, "wrapped": sample.model}.items():
        curvature = ssse.Curvature.load(tmp_path / name)
        assert curvature.layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
        first = ssse.erase(model, curvature, sample.loss, sample.part(slice(0, 2)))
        second = ssse.erase(first.model, first.curvature, sample.loss, sample.part(slice(2, 4)))
        assert type(second.model) is type(model)


@every_wrapper
def test_parameters_may_be_named_as_inside_or_as_outside(wrap):
    model = wrap(subject().model)
    outside = next(name for name, _ in model.named_parameters())
    for name in (outside, "0.weight"):
        assert ModelView(model, [name]).layout.names == ("0.weight",)


def with_outer_names(curvature: ssse.Curvature, model: nn.Module) -> ssse.Curvature:
    """As versions before this one fitted it."""
    view = ModelView(model, curvature.layout.names)
    outer = dict(zip(curvature.layout.names, (name for name, _ in model.named_parameters()), strict=True))
    old = Fingerprint._of(view, model, outer)
    return replace(curvature, fingerprint=old, layout=replace(curvature.layout, names=old.names))


@every_wrapper
def test_curvatures_with_the_names_of_a_wrapper_can_still_be_used(wrap, tmp_path: Path):
    sample = subject()
    sample = replace(sample, model=wrap(sample.model))
    with_outer_names(fit(sample, damping=1.0), sample.model).save(tmp_path / "old")
    old = ssse.Curvature.load(tmp_path / "old")
    erasure = ssse.erase(sample.model, old, sample.loss, sample.part(slice(0, 2)))
    wanted = ssse.erase(sample.model, fit(sample, damping=1.0), forget=sample.part(slice(0, 2)))
    torch.testing.assert_close(erasure.step, wanted.step)
    erasure.curvature.save(tmp_path / "next")
    following = ssse.Curvature.load(tmp_path / "next")
    assert following.layout == erasure.curvature.layout
    assert following.layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    ssse.erase(erasure.model, following, sample.loss, sample.part(slice(2, 4)))
    with torch.no_grad():
        next(iter(sample.model.parameters())).add_(1e-9)
    with refused(ModelMismatch, "parameter values are not those", sample.model):
        ssse.erase(sample.model, old, sample.loss, sample.part(slice(0, 2)))


@pytest.mark.parametrize("wrap", [nn.DataParallel, compiled_inside])
def test_wrapped_models_are_scanned_refined_and_compared(wrap):
    sample = subject()
    wrapped = wrap(copy.deepcopy(sample.model))
    curvature = fit(replace(sample, model=wrapped), weight_decay=1e-2, damping=1.0)
    erasure = ssse.erase(wrapped, curvature, sample.loss, sample.part(slice(0, 2)))
    splits = {"forgotten": sample.part(slice(0, 2)), "test": sample.part(slice(2, 30))}
    found = erasure.scan(splits, scales=[0.5, 1.0], retrained=erasure.model, progress=False)
    assert found.distance is not None
    assert found.distance[-1] == pytest.approx(0.0, abs=1e-6)  # at ε = 1 it is the erased model
    refined = ssse.refine(
        erasure.model, erasure.curvature, sample.loss, sample.part(slice(2, None)), steps=1, progress=False
    )
    assert type(refined.model) is type(wrapped)


def test_a_plain_model_is_not_copied_and_a_wrapped_one_shares_its_tensors():
    model = subject().model
    assert unwrapped(model) is model
    assert unwrapped(compiled(nn.DataParallel(model))) is model
    inside = unwrapped(compiled_inside(model))
    assert inside is not model
    assert inside.state_dict().keys() == subject().model.state_dict().keys()
    for one, other in zip(inside.parameters(), model.parameters(), strict=True):
        assert one is other


@contextmanager
def process_group(path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without it")
def test_distributed_data_parallel(tmp_path):
    sample = subject()
    with process_group(tmp_path / "group"):
        wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(sample.model))
        curvature = fit(replace(sample, model=wrapped), damping=1.0)
        erasure = ssse.erase(wrapped, curvature, sample.loss, sample.part(slice(0, 2)))
        assert type(erasure.model) is nn.parallel.DistributedDataParallel
        torch.testing.assert_close(
            erasure.step, ssse.erase(sample.model, fit(sample, damping=1.0), forget=sample.part(slice(0, 2))).step
        )
        erasure.model(sample.x).sum().backward()  # it trains on
    with refused(InvalidModel, r"its process group is gone.*Pass model\.module"):
        ssse.erase(wrapped, curvature, sample.loss, sample.part(slice(0, 2)))
    assert ssse.erase(wrapped.module, curvature, sample.loss, sample.part(slice(0, 2))).model is not None


class Attached(nn.Linear):
    """With something that nobody can copy."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs)
        self.log: Any = (line for line in ())


def test_a_model_that_cannot_be_copied_says_what_to_do():
    sample = replace(problems.linear("cross_entropy"), model=Attached(5, 3).double().eval())
    with refused(
        InvalidModel, r"The model \(Attached\) cannot be copied.*generator.*Take what cannot be copied", sample.model
    ):
        ssse.erase(sample.model, fit(sample), sample.loss, sample.part(slice(0, 2)))


def test_copies_are_apart():
    model = compiled(nn.DataParallel(subject().model))
    other = copied(model)
    with torch.no_grad():
        next(iter(other.parameters())).add_(1)
    x = torch.ones(2, 4, dtype=torch.float64)
    assert not torch.equal(other(x), model(x))


@pytest.mark.parametrize("compile_it", [torch.jit.script, lambda m: torch.jit.trace(m, torch.zeros(1, 5).double())])
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_an_erased_model_of_torchscript_can_be_trained_on(compile_it):
    """torch's own copy of one would be a result of operations on the parameters of the original."""
    sample = problems.linear("cross_entropy")
    sample = replace(sample, model=compile_it(sample.model.eval()))
    erased = ssse.erase(sample.model, fit(sample), sample.loss, sample.part(slice(0, 2))).model
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in erased.parameters())
    torch.optim.SGD(erased.parameters(), lr=0.1)
