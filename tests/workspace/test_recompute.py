"""A request taken again from the state before it: the weights that are there are that erasure, or they are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ssse.errors import InvalidSetting
from ssse.system.digests import digest_folder
from ssse.workspace.record.entry import Entry
from ssse.workspace.record.folder import summary
from tests.support import workspaces
from tests.support.commands import call, call_json
from tests.support.rewrites import rebuild
from tests.support.workspaces import snapshot

KEPT: dict[str, Any] = {"erase__old_weights": "keep", "erase__old_curvature": "keep"}
MAKE = {"torch": workspaces.make, "sklearn": workspaces.make_estimator}


@pytest.fixture(params=MAKE)
def made(request, tmp_path):
    return MAKE[request.param](tmp_path / "home", erase__confirm="always")


def test_a_request_that_waits_is_replayed(made):
    made.workspace.erase("r-1", ids=["s3", "s11"])
    before = snapshot(made.path)
    text, _ = call("verify", made.path, "--recompute", "r-1", code=0)
    assert "The weights are what erasing 'r-1' gives, " in text
    said = call_json("verify", made.path, "--recompute", "r-1", code=0)
    assert said["ok"]
    assert said["recomputed"]["same"] or said["recomputed"]["distance"] < 1e-6
    assert snapshot(made.path) == before  # it reads only
    made.workspace.fit(again=True)  # the same weights, under another name
    assert made.workspace.verify(recompute="r-1").ok


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("policy", ["rebase", "joint"])
def test_of_a_stream_each_whose_states_are_kept(tmp_path, kind, policy):
    made = MAKE[kind](tmp_path, erase__policy=policy, **KEPT)
    for number, ids in enumerate((["s3", "s11"], ["s5"], ["s6", "s30"])):
        made.workspace.erase(f"r-{number}", ids=ids)
    for number in range(3):
        found = made.workspace.verify(recompute=f"r-{number}")
        assert found.ok, found.damages
        assert found.recomputed is not None
        assert found.recomputed.distance < 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {"fit__structure": "matrix_free"},
        {"fit__rows": "sampled", "fit__seed": 3},
        {"erase__leave_out": False},
        {"erase__residual": True},
        {"erase__scale": 1.7},
    ],
    ids=lambda options: next(iter(options)),
)
def test_with_the_settings_of_then(tmp_path, options):
    made = workspaces.make(tmp_path, erase__confirm="always", **options)
    made.workspace.erase("r-0", ids=["s5"], options={"erase.confirm": "never"})
    if "erase__residual" in options:
        made.workspace.fit(again=True)
    made.workspace.erase("r-1", ids=["s3", "s11"])
    toml = made.path / "ssse.toml"
    toml.write_text(
        toml.read_text().replace("scale = 1.7\n", "scale = 0.5\n").replace("residual = true", "residual = false")
    )
    made.workspace.report()  # takes the edit over
    found = made.workspace.verify(recompute="r-1")
    assert found.ok, found.damages
    assert found.recomputed is not None
    assert found.recomputed.distance < 1e-4


def test_samples_that_have_left_the_data_are_handed_in(made):
    made.workspace.erase("r-1", ids=["s3", "s11"])
    stays = [place for place in range(40) if place not in (3, 11)]
    forgotten = made.forget_file([11, 3])
    ids = np.array([f"s{place}" for place in stays])
    np.savez(made.home / "train.npz", x=made.x[stays].numpy(), y=made.y[stays].numpy(), id=ids)
    _, complaint = call("verify", made.path, "--recompute", "r-1", code=2)
    assert "2 of the 2 samples of request 'r-1' are not in" in complaint
    assert made.workspace.verify(recompute="r-1", forget=forgotten).ok
    with pytest.raises(InvalidSetting, match="--recompute"):
        made.workspace.verify(forget=forgotten)


def test_what_was_shredded_cannot_be_replayed(made):
    made.workspace.erase("r-1", ids=["s3", "s11"])
    made.workspace.confirm()
    _, complaint = call("verify", made.path, "--recompute", "r-1", code=2)
    assert "cannot be replayed any more: the state from before it was shredded" in complaint
    _, complaint = call("verify", made.path, "--recompute", "nobody", code=2)
    assert "erased nothing that stands" in complaint


def test_the_original_weights_under_a_chain_that_says_erased_are_found(made):
    """By somebody who may write everything: files, ledger, hashes, seal. `verify` alone says yes."""
    made.workspace.erase("r-1", ids=["s3", "s11"])
    old, new = made.path / "states" / "000002", made.path / "states" / "000004"
    name = next(path.name for path in old.iterdir() if path.is_file())
    (new / name).write_bytes((old / name).read_bytes())
    files = digest_folder(new)

    def forged(entries: list[Entry]) -> list[Entry]:
        return [
            *entries[:-1],
            replace(entries[-1], details={**entries[-1].details, "files": files, "after": summary(files)}),
        ]

    rebuild(made.path, forged)
    assert made.workspace.verify().ok
    text, _ = call("verify", made.path, "--recompute", "r-1", code=4)
    assert f"states/000004/{name}: is not what erasing 'r-1' gives" in text
    said = call_json("verify", made.path, "--recompute", "r-1", code=4)
    assert said["recomputed"]["distance"] == pytest.approx(1)
