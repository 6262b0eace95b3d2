"""All the ways to bring models and data to `ssse.evaluate`; the numbers stay the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ssse.errors import InvalidData
from tests.support.evaluation_problems import (
    CASES,
    OUTPUTS,
    SIZES,
    Case,
    Plain,
    evaluate,
    expected_values,
    family,
    logits,
    make,
    model,
    notes_of,
    seeds,
    values_of,
)
from tests.support.refusals import snapshot

# ── ways to bring data ────────────────────────────────────────────────────────────────────────────────────────────


def in_batches(case: Case, size: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
    return {split: list(zip(x.split(size), y.split(size), strict=True)) for split, (x, y) in case.data.items()}


LOADERS: dict[str, Callable[[Case], dict[str, Any]]] = {
    "batches of one": lambda case: in_batches(case, 1),
    "batches of seven": lambda case: in_batches(case, 7),
    "shuffled": lambda case: {
        s: DataLoader(TensorDataset(*p), batch_size=5, shuffle=True) for s, p in case.data.items()
    },
    "mappings": lambda case: {s: [{"x": x, "label": y}] for s, (x, y) in case.data.items()},
    "numpy": lambda case: {s: [(x.numpy(), y.numpy())] for s, (x, y) in case.data.items()},
    "nested lists": lambda case: {s: [[x.tolist(), y.tolist()]] for s, (x, y) in case.data.items()},
    "read once": lambda case: {s: iter([p]) for s, p in case.data.items()},
    "with an empty batch": lambda case: {s: [(x[:0], y[:0]), (x, y)] for s, (x, y) in case.data.items()},
    "float labels": lambda case: {s: [(x, y.double())] for s, (x, y) in case.data.items()},
}


@pytest.mark.parametrize("task", CASES)
@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_any_loader_gives_the_same_numbers(loader, task):
    models = family(2, 2)
    if loader is LOADERS["nested lists"]:
        models = {name: [m.float() for m in seeds(given)] for name, given in models.items()}
        case = make(task, dtype=torch.float32)
    else:
        case = CASES[task]
    expected, found = evaluate(models, case.splits), evaluate(models, loader(case))
    assert values_of(found) == pytest.approx(values_of(expected), rel=1e-9, abs=1e-9)
    assert notes_of(found) == notes_of(expected)
    assert found.flags == expected.flags


def test_mapping_batches_with_several_inputs():
    class Two(nn.Module):
        def __init__(self, inner: nn.Module):
            super().__init__()
            self.inner = inner

        def forward(self, left: Tensor, right: Tensor) -> Any:
            return {"logits": self.inner(torch.cat([left, right], 1))}

    case, models = CASES["classes"], family()
    wrapped = {name: Two(given).eval() for name, given in models.items()}
    splits = {s: [{"left": x[:, :2], "right": x[:, 2:], "y": y}] for s, (x, y) in case.data.items()}
    assert values_of(evaluate(wrapped, splits)) == pytest.approx(values_of(evaluate(models, case.splits)), rel=1e-9)


@pytest.mark.parametrize("task", CASES)
@pytest.mark.parametrize("count", [1, 3])
def test_a_handful_of_samples(task, count):
    case, models = make(task, {split: count for split in SIZES}), family(2)
    found = evaluate(models, case.splits)
    assert found["erased", "accuracy_forgotten"] == pytest.approx(
        100 * Plain(models, case.data, task).accuracy(models["erased"], "forgotten")
    )
    assert any("cannot fail at level 0.05" in flag for flag in found.flags)
    assert found.cells["attack"]["erased"].note == "pass"
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert str(found)


# ── ways to bring models ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", CASES)
def test_functions_are_models(task):
    """Tensors or numpy out; only the parameter distance needs modules."""
    case, models = CASES[task], family(2)
    functions = {
        "original": lambda x: logits(models["original"], x),
        "erased": lambda x: models["erased"](x).detach().float().double().tolist(),
        "retrained": [lambda x, m=m: m(x) for m in models["retrained"]],
    }
    found, expected = evaluate(functions, case.splits), evaluate(models, case.splits)
    assert list(found.cells) == [key for key in expected.cells if key != "distance"]
    wanted = {key: value for key, value in values_of(expected).items() if "distance" not in key}
    assert values_of(found) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_models_of_scikit_learn():
    """log p is as good as any logits: softmax gives p back."""
    case = CASES["classes"]
    x, y = (part.numpy() for part in case.data["retained"])
    fits = [LogisticRegression(C=c, max_iter=500).fit(x, y) for c in (0.1, 1.0, 10.0)]
    assert all(len(fit.classes_) == OUTPUTS for fit in fits)
    named = dict(zip(("original", "erased", "retrained"), fits, strict=True))
    found = evaluate({name: fit.predict_log_proba for name, fit in named.items()}, case.splits)
    x, y = (part.numpy() for part in case.data["forgotten"])
    p, q = named["retrained"].predict_proba(x), named["erased"].predict_proba(x)
    assert found["erased", "kl_forgotten"] == pytest.approx((p * np.log(p / q)).sum(1).mean(), rel=1e-9)
    assert found["erased", "accuracy_forgotten"] == pytest.approx(100 * named["erased"].score(x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_any_dtype_is_measured_in_double(dtype):
    case = make("classes", dtype=dtype)
    models = {name: given.to(dtype) for name, given in family().items()}
    found = evaluate(models, case.splits)
    values, _ = expected_values(Plain(models, case.data, "classes"))
    for (name, key), (mean, _) in values.items():
        if key != "distance":
            assert found[name, key] == pytest.approx(mean, rel=1e-7, abs=1e-9), (name, key)


def test_models_of_two_dtypes_are_told_apart_by_name():
    models = {**family(), "single": model(3, torch.float32)}
    with pytest.raises(InvalidData, match=r"'single' has parameters of torch.float32 .* torch.float64; cast one of"):
        evaluate(models, CASES["classes"].splits)


def test_what_a_model_raises_is_passed_on_with_its_name():
    def broken(x: Tensor) -> Tensor:
        raise ZeroDivisionError("its own")

    with pytest.raises(ZeroDivisionError, match=r"(?s)its own.*This came from the model 'broken'"):
        evaluate({**family(), "broken": broken}, CASES["classes"].splits)


def test_nothing_is_changed():
    models = family(2, 2)
    nets = [m for given in models.values() for m in seeds(given)]
    nets[0].requires_grad_(False)
    before = [snapshot(net) for net in nets]
    splits = {s: DataLoader(TensorDataset(*p), batch_size=5, shuffle=True) for s, p in CASES["classes"].data.items()}
    states = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    for _ in range(2):
        evaluate(models, splits)
    assert [snapshot(net) for net in nets] == before
    assert torch.equal(torch.get_rng_state(), states[0])
    assert str(np.random.get_state()) == states[1]  # noqa: NPY002
