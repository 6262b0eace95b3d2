"""What the baselines refuse: in words, with the repair, and nothing changed."""

from __future__ import annotations

import pytest

import ssse
from ssse import baselines
from ssse.errors import InvalidData, InvalidSetting, ModelMismatch
from tests.support import problems
from tests.support.refusals import fit as fit_any
from tests.support.refusals import refused

S = slice(3, 8)


def fit(sample: problems.Sample, **options) -> ssse.Curvature:
    return fit_any(sample, **{"structure": "diagonal", "rows": "expected", **options})


def call(method: str, sample: problems.Sample, curvature: ssse.Curvature | None, **options) -> baselines.Updated:
    return getattr(baselines, method)(sample.model, curvature, sample.loss, sample.part(S), **options)


BAD = [
    ("scrubbing", {}, {"rows": "empirical"}, r"rows='expected'; this one has .*'empirical'. Fit with .*'expected'"),
    ("scrubbing", {"rule": "paper"}, {}, r"needs noise=\(λσ²\)\^¼"),
    ("scrubbing", {"rule": "paper", "noise": 1e-3, "forgotten_class": 1}, {}, "special case of rule='notebook'"),
    ("scrubbing", {"rule": "both"}, {}, "one of notebook, paper, not 'both'"),
    ("scrubbing", {"noise": -1.0}, {}, "zero or positive, not -1.0"),
    ("scrubbing", {"forgotten_class": 0}, {"parameters": ["0.weight"]}, "none of 0.weight has 3 rows"),
    ("diagonal_ssse", {}, {"structure": "dense"}, "structure='dense'.*Fit with structure='diagonal'"),
    ("diagonal_ssse", {}, None, "needs a curvature; fit one with structure='diagonal'"),
    ("selective_synaptic_dampening", {}, {}, "needs a curvature with .*rows='empirical'; this one has .*'expected'"),
    ("selective_synaptic_dampening", {}, {"rows": "empirical", "rows_per_batch": 2}, "mini-batches of 2.*per_batch=1"),
    ("selective_synaptic_dampening", {"selection": 0.0}, {}, "selection must be a positive number"),
    ("gradient_ascent", {"scale": float("nan")}, None, "scale must be a positive number, not nan"),
    ("gradient_ascent", {"scale": 1e308 * 10}, None, "scale must be a positive number, not inf"),
    ("gradient_ascent", {"scale": 1.7e308}, {"weight_decay": 1e3}, "step of gradient_ascent is NaN or infinite"),
    ("gradient_ascent", {"weight_decay": -0.1}, None, "weight_decay must be zero or positive"),
    ("gradient_ascent", {"parameters": "head"}, {}, "already says which parameters"),
    ("influence", {"tolerance": 2.0, "data": []}, None, "between 0 and 1, not 2.0"),
    ("influence", {"data": []}, None, r"damping \(λ\) must be positive"),
    ("fine_tuning", {"epochs": 0, "data": []}, None, "epochs must be at least 1"),
    ("fine_tuning", {"momentum": 1.0, "data": []}, None, "below 1, not 1.0"),
    ("fine_tuning", {"schedule": "linear", "data": []}, None, "one of constant, step, cosine, one_cycle, not 'linear'"),
    ("fine_tuning", {"batch_norm": True, "data": []}, None, "batch_norm must be one of train, eval, not True"),
    ("neggrad_plus", {"beta": 1.5, "data": []}, None, "beta must be above 0 and at most 1, not 1.5"),
    ("neggrad_plus", {"forget_batch_size": 0, "data": []}, None, "forget_batch_size must be at least 1, not 0"),
    ("neggrad_plus", {"weight_decay": -1.0, "data": []}, None, "weight_decay must be zero or positive, not -1.0"),
    ("scrub", {"max_epochs": 6, "data": []}, None, "must lie in 0 … 5, the number of epochs, not 6"),
    ("scrub", {"alpha": -1.0, "data": []}, None, "zero or positive, and one of them positive: -1.0, 0.99"),
    ("scrub", {"temperature": 0.0, "data": []}, None, "temperature must be a positive number, not 0.0"),
    ("salun", {"share": 0.0, "data": []}, None, "share must be above 0 and at most 1, not 0.0"),
    ("random_labels", {"retain_weight": 0.0, "data": []}, None, "retain_weight must be a positive number, not 0.0"),
    ("random_labels", {"forget_batch_size": 3, "data": []}, None, "forget_batch_size needs retain_weight"),
    ("gradient_ascent_until", {"stop_accuracy": 1.0}, None, "at least 0 and below 1, not 1.0"),
    ("influence_unlearning", {"samples": 0, "data": []}, None, "samples must be at least 1"),
]


@pytest.mark.filterwarnings("ignore::ssse.DoubtfulSetting")
@pytest.mark.parametrize(("method", "options", "fitted", "message"), BAD)
def test_settings_without_a_meaning_are_refused(method, options, fitted, message):
    sample = problems.mlp(n=16)
    curvature = None if fitted is None else fit(sample, **fitted)
    with refused(InvalidSetting, message, sample.model):
        call(method, sample, curvature, **options)


def test_data_and_models_that_do_not_belong_together_are_refused():
    sample = problems.mlp(n=16)
    curvature, ascend = fit(sample), baselines.gradient_ascent
    less = sample.part(slice(0, 12))
    with refused(InvalidData, "holds 12 samples; this curvature stands for 16", sample.model):
        call("influence", sample, curvature, data=less)
    with refused(InvalidData, "5 of the 5 samples to forget are not in", sample.model):
        call("fine_tuning", sample, None, data=sample.part(slice(8, 16)))
    with refused(InvalidData, "forget set is empty", sample.model):
        ascend(sample.model, None, sample.loss, [])
    with refused(InvalidData, "something must remain", sample.model):
        ascend(sample.model, curvature, sample.loss, sample.data)
    with refused(InvalidData, r"hold \d.* times the squared rows.*not in the training data", sample.model):
        baselines.scrubbing(sample.model, curvature, sample.loss, [(50 * sample.x[S], sample.y[S])])
    with refused(ModelMismatch, "parameter values are not those"):
        ascend(problems.mlp(seed=1).model, curvature, sample.loss, sample.part(S))
    joint = ssse.erase(sample.model, curvature, sample.loss, sample.part(S), policy="joint")
    with refused(InvalidSetting, "belongs to a joint stream", joint.model):
        ascend(joint.model, joint.curvature, sample.loss, sample.part(slice(0, 2)))
    rebased = ssse.erase(sample.model, fit(sample, rows="empirical"), sample.loss, sample.part(S), override=ssse.BOUNDS)
    later = baselines.selective_synaptic_dampening(
        rebased.model, rebased.curvature, sample.loss, sample.part(slice(0, 2))
    )
    assert "before 5 samples were erased" in later.notes[1]
    regression = problems.linear("mse")
    with refused(InvalidSetting, r"diverged: the loss is (nan|inf) in step .*smaller learning_rate than 1e\+60"):
        call("fine_tuning", regression, None, data=regression.data, learning_rate=1e60, epochs=9)
