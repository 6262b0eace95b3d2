"""Files that earlier versions wrote are read, and give the steps that those versions took."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import ssse
from ssse.intake.skops import read_skops
from ssse.sklearn import Eraser

BEFORE = Path(__file__).parent / "before"
CURVATURES = sorted(path.stem.removeprefix("curvature-") for path in BEFORE.glob("curvature-*.safetensors"))
FORGET = slice(0, 2)  # the samples that were erased then


def test_every_structure_is_among_them():
    assert set(CURVATURES) == {
        "dense",
        "diagonal",
        "head",
        "lowrank",
        "margin",
        "matrix_free",
        "recurrence",
        "truncated",
    }


@pytest.mark.parametrize("name", CURVATURES)
def test_a_curvature_takes_the_same_step(name):
    stored = load_file(BEFORE / f"curvature-{name}.safetensors")
    x, y = stored["x"], stored["y"]
    model = (
        nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)) if name in ("head", "margin") else nn.Linear(3, 3)
    )
    model.load_state_dict({key[6:]: value for key, value in stored.items() if key.startswith("model.")}, assign=True)
    curvature = ssse.Curvature.load(BEFORE / f"curvature-{name}")
    curvature = curvature.with_damping(curvature.damping * 12 / 10)  # up to 0.2 the damping of 12 stayed where 2 left
    data = [(x, y)] if name == "matrix_free" else None
    erasure = ssse.erase(
        model.eval(), curvature, "cross_entropy", [(x[FORGET], y[FORGET])], data=data, override=ssse.BOUNDS
    )
    torch.testing.assert_close(erasure.step, stored["step"], rtol=1e-9, atol=1e-12)
    assert erasure.curvature.n == 10
    assert curvature.partial == (name == "head")


def test_an_eraser_takes_the_same_step():
    stored = np.load(BEFORE / "eraser.npz")
    model = read_skops(BEFORE / "sklearn" / "model.skops")
    assert np.array_equal(model.coef_, stored["coef"])
    eraser = Eraser.load(BEFORE / "eraser", model)
    erased = eraser.erase(stored["x"][FORGET], stored["y"][FORGET])
    assert eraser.outcome_.strain is None  # it lacks the sum that this needs
    np.testing.assert_allclose(erased.coef_, stored["erased_coef"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(erased.intercept_, stored["erased_intercept"], rtol=1e-9, atol=1e-12)
