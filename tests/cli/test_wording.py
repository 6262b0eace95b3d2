"""The command line names settings where the library names arguments of Python."""

from __future__ import annotations

import pytest

from ssse.cli.wording import as_settings
from ssse.workspace.settings import Settings

WORDS = [
    ("Use dtype=torch.float64, a larger damping", "Use --set fit.dtype=float64, a larger damping"),
    ("groups with policy='joint', which", "groups with --set erase.policy=joint, which"),
    ('Use rows="empirical".', "Use --set fit.rows=empirical."),
    ("Pass leave_out=False (the paper's)", "Pass --set erase.leave_out=false (the paper's)"),
    ("residual=True needs", "--set erase.residual=true needs"),
    ("pass damping=1e-4 or", "pass --set fit.damping=1e-4 or"),
    ("a larger memory_budget=.", "a larger --set fit.memory_budget=."),
    ('parameters="head" takes', "--set fit.parameters=head takes"),
    ("If it is meant, pass n=80.", "If it is meant, pass --set fit.n=80."),
    ("fit with rows_per_batch=1.", "fit with --set fit.rows_per_batch=1."),
    ("Is weight_decay=0.000986 what", "Is --set fit.weight_decay=0.000986 what"),
]


@pytest.mark.parametrize(("python", "shell"), WORDS)
def test_arguments_are_settings(python, shell):
    assert as_settings(python) == shell


@pytest.mark.parametrize(
    "text", ["drop_last=True, so", "ssse.LowRank(rank=100)", "w = 0.5 and λ=3", "track_running_stats=True", "seed", ""]
)
def test_what_is_no_setting_stays(text):
    assert as_settings(text) == text


def test_what_it_says_can_be_set():
    settings = Settings.model_validate({"data": {"train": "x.npz"}})
    changed = settings.with_options({"fit.dtype": "float64", "fit.n": 80, "erase.leave_out": False})
    assert (changed.fit.dtype, changed.fit.n, changed.erase.leave_out) == ("float64", 80, False)
