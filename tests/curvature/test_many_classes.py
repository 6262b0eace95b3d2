"""Many classes: what a fit has in memory at once stays within its plan, and no square of the classes is ever formed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ssse
from tests.support.allocations import Allocations

CLASSES, N = 200, 60


def test_what_is_counted_is_what_there_is():
    with Allocations() as seen:
        a = torch.ones(1000)
        b = a + 1
        del a
        _ = b.view(10, 100)
        c = b * 2
    assert seen.peak == 8000
    assert seen.now == 8000
    assert float(c[0]) == 4


@pytest.mark.parametrize("budget", ["2MiB", "16MiB"])
@pytest.mark.parametrize("parameters", ["all", "head"])
def test_the_peak_of_a_fit_is_within_its_plan(parameters, budget):
    torch.manual_seed(0)
    head = nn.Linear(8, CLASSES)
    model = (nn.Sequential(nn.Linear(10, 8), nn.ReLU(), head) if parameters == "head" else head).eval()
    x = torch.randn(N, 10 if parameters == "head" else 8)
    data = [(x[i : i + 20], torch.arange(i, i + 20) % CLASSES) for i in range(0, N, 20)]
    how: dict[str, Any] = {"parameters": parameters, "memory_budget": budget, "weight_decay": 1.0}
    plan = ssse.plan(model, "cross_entropy", data, **how)
    assert plan.fit_bytes <= {"2MiB": 2**21, "16MiB": 2**24}[budget]
    plans, began = [], []

    def on_plan(chosen: object) -> None:
        plans.append(chosen)
        began.append(seen.now)  # what the trial left is not of the fit
        seen.peak = seen.now

    with Allocations() as seen:
        curvature = ssse.Curvature.fit(model, "cross_entropy", data, progress=False, on_plan=on_plan, **how)
    assert 0 < seen.peak - began[0] <= plan.fit_bytes
    forget = [(x[:3], torch.arange(3))]
    erasure = ssse.erase(model, curvature, forget=forget, override=ssse.BOUNDS, progress=False)  # it is not trained
    assert erasure.diagnostics.k == 3
