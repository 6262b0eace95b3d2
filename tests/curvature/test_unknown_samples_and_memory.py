"""Samples that were never there, and curvatures that do not fit or have lost their digits."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace

import pytest
import torch

import ssse
from ssse.curvature import costs
from ssse.errors import DoesNotFit, InvalidData, NotPositiveDefinite, PrecisionLost
from ssse.system.memory import human_bytes
from tests.support import dense, problems
from tests.support.refusals import attempt, fit, refused, snapshot

OUTLIERS = [  # structure, options, what the refusal says
    ("dense", {"blocks": "one"}, r"more curvature in 'all' .*\(largest leverage .*, must be below 1\)"),
    ("dense", {"blocks": 7}, r"more curvature in '\d+:\d+' "),
    ("lowrank", {}, "2 of the rows to forget are not among the curvature's rows"),
    ("lowrank", {"blocks": 7}, "2 of the rows to forget are not among the curvature's rows"),
    (ssse.LowRank(rank=6), {}, "more curvature in 'directions'"),
    ("diagonal", {}, "more curvature in 'diagonal'"),
    ("matrix_free", {}, "more curvature in 'all'"),
    ("recurrence", {"blocks": "one"}, "more curvature in 'all'"),
]


@pytest.mark.parametrize(("structure", "options", "match"), OUTLIERS)
def test_samples_that_were_not_in_the_training_data(structure, options, match, tmp_path):
    sample = problems.linear("cross_entropy")
    curvature = fit(sample, structure=structure, rows="empirical", **options)
    strangers = (torch.full((2, 5), 20.0, dtype=torch.float64), torch.tensor([0, 1]))
    with refused(ssse.Refused, match, sample.model) as caught:
        ssse.erase(sample.model, curvature, sample.loss, [strangers])
    found = caught.value.diagnostics
    assert found.verdict == "refused"
    assert (found.k, found.n) == (2, 40)
    gradient = dense.gradient(sample.model, dense.LOSSES[sample.loss], *strangers)
    assert found.forget_gradient_norm == pytest.approx(float(gradient.norm()))
    assert found.step_norm is None
    assert str(caught.value).endswith(found.reasons[0])
    if structure == "dense" and options == {"blocks": "one"}:
        rows = dense.empirical_rows(sample.model, sample.loss, sample.x, sample.y)
        rows_forget = dense.empirical_rows(sample.model, sample.loss, *strangers)
        kernel = rows_forget @ torch.linalg.solve(40 * dense.gram(rows, 40, 1e-2), rows_forget.T)
        assert found.leverage_max == pytest.approx(float(torch.linalg.eigvalsh(kernel).max()))
    if structure != "lowrank":
        assert found.leverage_max is not None
        assert found.leverage_max > 1


@pytest.mark.parametrize("structure", ["dense", "lowrank"])
def test_a_refusal_can_be_written_down(structure):
    """JSON has no NaN."""
    sample = problems.linear("cross_entropy")
    curvature = fit(sample, structure=structure, rows="empirical")
    with refused(ssse.Refused, "nothing was changed", sample.model) as caught:
        ssse.erase(sample.model, curvature, sample.loss, [(20 * sample.x[:2], sample.y[:2])])

    def no_constant(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    text = json.dumps(caught.value.diagnostics.to_dict())
    assert json.loads(text, parse_constant=no_constant)["verdict"] == "refused"


def test_the_same_sample_many_times_over():
    sample = problems.linear("cross_entropy")
    five = [(sample.x[:1].expand(5, -1), sample.y[:1].expand(5))]
    for structure in ("dense", "lowrank"):
        curvature = fit(sample, structure=structure, rows="empirical")
        with refused(InvalidData, "4 of the 5 samples to forget repeat another one", sample.model):
            ssse.erase(sample.model, curvature, sample.loss, five)
        uncounted = replace(curvature, repeats=None)  # as from a file of before they were counted
        with refused(ssse.Refused, "leverage|not among", sample.model):
            ssse.erase(sample.model, uncounted, sample.loss, five)


@pytest.mark.parametrize("structure", ["dense", "lowrank", "diagonal", "recurrence"])
def test_a_stranger_cannot_leave_the_stored_curvature(structure):
    """leave_out=False does not look at the rows; making the next curvature does, and must not invent one."""
    sample = problems.linear("cross_entropy")
    curvature = fit(sample, structure=structure, rows="empirical")
    strangers = [(torch.full((2, 5), 20.0, dtype=torch.float64), torch.tensor([0, 1]))]
    if structure == "lowrank":  # knows its samples, so it notices at once
        with refused(ssse.Refused, "2 of the rows to forget are not among", sample.model):
            ssse.erase(sample.model, curvature, sample.loss, strangers, leave_out=False)
        return
    erasure = ssse.erase(sample.model, curvature, sample.loss, strangers, leave_out=False, override=ssse.BOUNDS)
    with refused(ssse.SSSEError, "not positive definite|more curvature", sample.model):
        _ = erasure.curvature


def test_what_does_not_fit_names_what_does():
    sample = problems.mlp()
    budget = 50_000  # one dense block wants 65 KiB; the rows and their kernel 34 KiB
    with refused(DoesNotFit, "curvature of 51 parameters does not fit the memory budget of", sample.model) as caught:
        fit(sample, structure="dense", blocks="one", memory_budget=budget)
    asked, fits = str(caught.value).split("This would fit:")
    assert human_bytes(budget) in asked
    assert "expected rows, dense, 1 block, float64" in asked.split("Asked for:")[1]
    assert "margin rows, lowrank, float64" in fits
    whole, _, head = fits.partition('parameters="head"')
    assert "dense, 1 block" not in whole
    assert "dense, 1 block" in head
    assert fit(sample, structure="lowrank", rows="margin", memory_budget=budget).n == 30  # as promised


def test_where_nothing_held_fits_there_is_still_matrix_free():
    sample = problems.mlp()
    with refused(DoesNotFit, r"This would fit:\n.*matrix_free", sample.model):
        fit(sample, memory_budget=12_000)
    fit(sample, structure="matrix_free", memory_budget=12_000)


def test_the_estimate_of_a_small_data_set_is_small():
    """Ten samples are never 4096, however wide they are."""
    sample = problems.linear("mse", n=10, p=2000, c=1)
    plan = ssse.plan(sample.model, sample.loss, sample.data, structure="lowrank")
    assert plan.fit_bytes < 20 * sample.x.numel() * 8


def test_planning_leaves_the_random_numbers_alone(monkeypatch):
    monkeypatch.setattr(costs, "_SPEEDS", {})
    sample = problems.linear("cross_entropy")
    before = torch.get_rng_state()
    fit(sample)
    assert torch.equal(torch.get_rng_state(), before)


def badly_scaled(seed: int, span: int) -> problems.Sample:
    """Features from 10⁻ˢ to 10ˢ, in float32."""
    generator = torch.Generator().manual_seed(seed)
    sample = problems.linear("cross_entropy", n=60, p=6, seed=seed, dtype=torch.float32)
    sample.x = torch.randn(60, 6, generator=generator) * torch.logspace(-span, span, 6)
    sample.model.weight.data.mul_(10.0 ** -(span + 1))  # type: ignore[union-attr]
    return sample


def test_float32_with_tiny_damping_is_accurate_or_raises():
    """Which of the three it is differs between processors where a case is near the border; a wrong number is none."""
    for seed, span in ((seed, span) for seed in range(5) for span in (2, 3, 4)):
        sample = badly_scaled(seed, span)
        exact = replace(sample, model=copy.deepcopy(sample.model).double(), x=sample.x.double())
        rows = dense.expected_rows(exact.model, exact.loss, exact.x, exact.y)
        g = dense.gradient(exact.model, dense.LOSSES[exact.loss], exact.x[:5], exact.y[:5])
        for damping in (1e-2, 1e-4, 1e-6, 1e-8):
            before = snapshot(sample.model)
            options = {"structure": "dense", "blocks": "one", "rows": "expected", "damping": damping}
            found = attempt(lambda sample=sample, options=options: fit(sample, **options))
            if isinstance(found, NotPositiveDefinite):
                assert re.search(r"Block 'all' \(21×21, nλ = .*float32\).*pivot \d+.*float64", str(found))
            elif isinstance(found, PrecisionLost):
                assert re.search(r"block 'all'.*relative error of \S+, above 1e-03.*dtype=torch.float64", str(found))
            else:
                truth = torch.linalg.solve(dense.gram(rows, 60, damping), g)
                assert float((found.solve(g.float()).double() - truth).norm() / truth.norm()) < 1e-2
            assert snapshot(sample.model) == before


@pytest.mark.parametrize("structure", ["dense", "lowrank"])
def test_digits_that_float32_loses_on_any_machine_are_said(structure):
    sample = problems.beyond_float32(dual=structure == "lowrank")
    options = {"structure": structure, "blocks": 2, "rows": "expected", "damping": problems.TOO_FINE}
    match = r"block '2:4'.*relative error of \d\.\de-01, above 1e-03.*dtype=torch.float64"
    with refused(PrecisionLost, match, sample.model):
        fit(sample, **options)
    fit(sample, dtype=torch.float64, **options)  # the repair that the message names
    fit(sample, **{**options, "damping": 1e-3})  # and the other one


def test_the_dtype_asked_for_is_the_dtype_used():
    sample = problems.linear("cross_entropy", dtype=torch.float32)
    for structure in ("dense", "lowrank", "diagonal"):
        curvature = fit(sample, structure=structure, dtype=torch.float64)
        numbers = [t for t in curvature.structure.state().values() if t.is_floating_point()]
        assert {t.dtype for t in numbers} == {torch.float64}, structure


def test_a_singular_curvature_names_its_block():
    sample = problems.exactly_singular()
    match = r"Block 'all' \(18×18, nλ = 4e-20, torch.float64\).* at pivot 2\..*larger damping"
    with refused(NotPositiveDefinite, match, sample.model):
        fit(sample, damping=1e-20, structure="dense", blocks="one")
    with refused(NotPositiveDefinite, r"Block 'output 0' \(6×6", sample.model):
        fit(sample, damping=1e-20, structure="dense", blocks="output")


def test_data_too_large_to_square_says_that_and_not_something_about_damping():
    sample = problems.linear("mse")
    with refused(ssse.SSSEError, "infinit|overflow|scale", sample.model) as caught:
        fit(sample, data=[(1e170 * sample.x, sample.y)], rows="expected")
    assert "larger damping" not in str(caught.value)
