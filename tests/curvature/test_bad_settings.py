"""Settings that mean nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import ssse
from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from tests.support import problems
from tests.support.refusals import INF, NAN, fit, refused

FIT_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"loss": "cross-entropy"}, "Unknown loss 'cross-entropy'.*cross_entropy"),
    ({"rows": "empiricl"}, "rows must be 'auto' or one of empirical.*not 'empiricl'"),
    ({"rows": "empiricl", "structure": "dense"}, "rows must be 'auto' or one of empirical.*not 'empiricl'"),
    ({"structure": "dens"}, "structure must be 'auto', one of dense, .*not 'dens'"),
    ({"structure": "dense", "blocks": "ouput"}, 'blocks must be .*"output".*not .ouput'),
    ({"structure": "dense", "blocks": 0}, "blocks must be .*a positive integer, not 0"),
    ({"structure": "dense", "blocks": True}, "blocks must be .*a positive integer, not True"),
    ({"structure": "lowrank", "blocks": 0}, "blocks must be .*a positive integer, not 0"),
    ({"structure": ssse.LowRank(rank=3), "blocks": 7}, "rank=3 .*has no blocks; leave out rank= or blocks="),
    ({"structure": "diagonal", "blocks": 7}, "blocks .*diagonal"),
    ({"structure": "matrix_free", "blocks": 7}, "blocks .*matrix_free"),
    ({"parameters": "heads"}, "parameters must be \"all\", \"head\", .* not 'heads'. Did you mean 'head'"),
    ({"parameters": ["wieght"]}, "no parameter 'wieght'. Did you mean 'weight'"),
    ({"parameters": []}, "empty list; name at least one"),
    ({"damping": None}, r"damping \(λ\) must be positive.*damping=1e-4 or the weight_decay.*Got 0"),
    ({"damping": 0.0}, r"damping \(λ\) must be positive.*Got 0"),
    ({"damping": 0.0, "weight_decay": 1e-3}, r"damping \(λ\) must be positive.*Got 0"),
    ({"damping": -1e-3}, r"damping \(λ\) must be positive.*Got -0.001"),
    ({"damping": NAN}, r"damping \(λ\) must be positive.*Got nan"),
    ({"damping": INF}, r"damping \(λ\) must be positive.*Got inf"),
    ({"weight_decay": -1.0}, "weight_decay must be zero or positive, not -1"),
    ({"weight_decay": NAN}, "weight_decay must be zero or positive, not nan"),
    ({"weight_decay": INF}, "weight_decay must be .*not inf"),
    ({"rows": "expected", "rows_per_batch": 4}, "rows_per_batch .*rows='empirical'"),
    ({"rows": "sampled", "rows_per_batch": 4}, "rows_per_batch .*rows='empirical'"),
    ({"rows_per_batch": 0}, "rows_per_batch must be 1 or more"),
    ({"rows_per_batch": 2, "structure": "matrix_free"}, "use it with rows_per_batch=1"),
    ({"structure": ssse.LowRank}, r"structure is an object, not a class: LowRank\(\), not LowRank"),
    ({"structure": 3}, "structure must be .*not 3"),
    ({"memory_budget": "8 parsecs"}, 'memory_budget must be bytes or a text like "8GiB", not .8 parsecs'),
    ({"memory_budget": "GiB"}, "memory_budget must be bytes or a text"),
    ({"memory_budget": "infGiB"}, "memory_budget must be"),
    ({"memory_budget": "-8GiB"}, "memory_budget must be"),
    ({"memory_budget": 0}, "memory_budget must be positive, not 0"),
    ({"memory_budget": NAN}, "memory_budget must be"),
]


@pytest.mark.parametrize(("options", "match"), FIT_SETTINGS, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_settings_of_fit_that_mean_nothing(options, match):
    sample = problems.linear("cross_entropy")
    with refused(InvalidSetting, match, sample.model):
        fit(sample, **options)


CHOICES: list[tuple[Callable[[], object], str]] = [
    (lambda: ssse.LowRank(rank=0), "rank must be at least 1, not 0"),
    (lambda: ssse.LowRank(rank=-1), "rank must be at least 1, not -1"),
    (lambda: ssse.MatrixFree("dens"), "preconditioner must be one of .*dense, not .dens"),  # type: ignore[arg-type]
    (lambda: ssse.MatrixFree(tolerance=2.0), "tolerance .*2.0"),
    (lambda: ssse.MatrixFree(tolerance=NAN), "tolerance .*nan"),
    (lambda: ssse.MatrixFree(tolerance=-1e-3), "tolerance .*-0.001"),
    (lambda: ssse.MatrixFree(max_iterations=0), "max_iterations .*0"),
]


@pytest.mark.parametrize(("make", "match"), CHOICES)
def test_options_of_structures_that_mean_nothing(make, match):
    with pytest.raises(InvalidSetting, match=match):
        make()


def test_settings_that_mean_nothing_for_a_network():
    sample = problems.mlp()
    with refused(InvalidSetting, 'blocks="output" needs θ to be one linear layer.*parameters="head"', sample.model):
        fit(sample, structure="dense", blocks="output")
    sample.model[0].requires_grad_(False)  # type: ignore[index]
    with refused(InvalidSetting, r"Parameter '0\.weight' is frozen \(requires_grad=False\)", sample.model):
        fit(sample, parameters=["0.weight", "2.weight"])
    sample.model[2].requires_grad_(False)  # type: ignore[index]
    sample.model[0].requires_grad_(True)  # type: ignore[index]
    with refused(InvalidModel, "The last linear layer, '2', is frozen", sample.model):
        fit(sample, parameters="head")
    plain = replace(sample, model=nn.Sequential(nn.LayerNorm(4)).double().eval())
    with refused(InvalidSetting, 'parameters="head" needs a linear layer; the model has none', plain.model):
        fit(plain, parameters="head")


@pytest.mark.parametrize("structure", ["recurrence", "lowrank"])
def test_structures_that_need_to_know_n_say_so(structure):
    sample = problems.linear("cross_entropy")
    with refused(InvalidSetting, "number of samples.*DataLoader or a list", sample.model):
        fit(sample, structure=structure, data=iter(sample.data))


ERASE_SETTINGS: list[tuple[dict[str, Any], str]] = [
    *(({"scale": scale}, rf"scale \(ε\) must be a positive number, not {scale}") for scale in (NAN, 0.0, -1.0, INF)),
    ({"policy": "rebaze"}, "policy must be one of rebase, joint, not 'rebaze'"),
]


@pytest.mark.parametrize(("options", "match"), ERASE_SETTINGS)
def test_settings_of_erase_that_mean_nothing(options, match):
    sample = problems.linear("cross_entropy")
    curvature = fit(sample)
    with refused(InvalidSetting, match, sample.model):
        ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), **options)


def test_rows_of_mini_batches_cannot_be_subtracted():
    sample = problems.linear("cross_entropy")
    curvature = fit(sample, rows="empirical", rows_per_batch=4)
    with refused(InvalidSetting, r"mini-batch of 4.*leave_out=False .*rows_per_batch=1", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)))
    forget = sample.part(slice(0, 2))
    erasure = ssse.erase(sample.model, curvature, sample.loss, forget, leave_out=False, override=ssse.BOUNDS)
    with pytest.raises(InvalidSetting, match=r"cannot leave this curvature.*rows_per_batch=1"):
        _ = erasure.curvature


def test_streams_that_change_their_mind():
    sample = problems.linear("cross_entropy")
    curvature = fit(sample)
    rebased = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)))
    with refused(InvalidSetting, "not known after a rebase.*policy='joint'", rebased.model):
        ssse.erase(rebased.model, rebased.curvature, sample.loss, sample.part(slice(2, 4)), residual=True)
    joint = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), policy="joint")
    with refused(InvalidSetting, "begun with leave_out=True; its requests must stay with it", joint.model):
        ssse.erase(joint.model, joint.curvature, sample.loss, sample.part(slice(2, 4)), leave_out=False)


def test_matrix_free_and_its_data():
    sample = problems.linear("cross_entropy")
    part = sample.part(slice(0, 2))
    with refused(InvalidData, "reads the training data many times; pass a DataLoader or a list", sample.model):
        fit(sample, structure="matrix_free", data=iter(sample.data))
    curvature = fit(sample, structure="matrix_free")
    erase = partial(ssse.erase, sample.model, curvature, sample.loss, part)
    with refused(InvalidData, "reads the training data many times", sample.model):
        erase(data=iter(sample.data))
    with refused(InvalidData, "holds 30 samples; this curvature stands for 40", sample.model):
        erase(data=sample.part(slice(0, 30)))
    assert torch.equal(erase(data=sample.data).step, erase().step)


def test_matrix_free_with_as_many_samples_but_others():
    """The mean loss over the data is stored, so this can be noticed."""
    sample = problems.linear("cross_entropy")
    curvature = fit(sample, structure="matrix_free")
    with refused(InvalidData, "not the data|other data", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), data=[(sample.x.flip(1), sample.y)])


@pytest.mark.parametrize("leave_out", [True, False])
def test_conjugate_gradients_that_stopped_early_are_no_silent_answer(leave_out):
    sample = problems.converged(problems.linear("cross_entropy"), 1e-2)
    curvature = fit(sample, structure=ssse.MatrixFree("none", max_iterations=1))
    with refused(ssse.Refused, "is not solved: .* more than 1e-03. Allow more than 1 steps", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), leave_out=leave_out)
    coarse = fit(sample, structure=ssse.MatrixFree("none", max_iterations=1, tolerance=0.9))  # as somebody asked for
    found = ssse.erase(sample.model, coarse, sample.loss, sample.part(slice(0, 2)), leave_out=leave_out).diagnostics
    assert found.solve_residual is not None
    assert 1e-3 < found.solve_residual < 1.8


def test_vectors_of_another_shape():
    curvature = fit(problems.linear("cross_entropy"))
    for shape in ((17,), (18, 1), ()):
        with pytest.raises(InvalidSetting, match=r"v must have shape \(18,\), .*got " + re.escape(str(shape))):
            curvature.solve(torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(InvalidSetting, match="damping"):
        curvature.with_damping(0.0)


SHARDS = [{"blocks": 6}, {"blocks": "one"}, {"blocks": "parameter"}, {"blocks": "output", "damping": 0.5}]


@pytest.mark.parametrize("options", SHARDS, ids=str)
def test_shards_that_do_not_belong_together(options):
    """Blocks of six parameters each are not the same as the six of each output."""
    sample = problems.linear("cross_entropy")
    one = fit(sample, data=sample.part(slice(0, 20)), structure="dense", blocks="output")
    other = fit(sample, data=sample.part(slice(20, 40)), structure="dense", **options)
    with pytest.raises(InvalidSetting, match="Shards must share"):
        ssse.Curvature.merge([one, other])


def test_no_shards_at_all():
    with pytest.raises(InvalidSetting, match="shard"):
        ssse.Curvature.merge([])
