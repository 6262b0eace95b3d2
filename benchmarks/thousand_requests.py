"""A thousand requests in one workspace, a sample each: does a request's time grow, and where does the model end up?

python benchmarks/thousand_requests.py          about two minutes
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from record import Report, run_alone
from ssse.demo import WEIGHT_DECAY, train
from ssse.system.files import size_of
from ssse.workspace.workspace import Workspace

REQUESTS, SAMPLES, CLASSES, INPUTS = 1000, 10_000, 10, 64
POLICIES = ("joint", "rebase")
COMPARED = 100


@dataclass
class Stream:
    """One workspace after all requests. `late` and `fresh`: seconds of its last hundred, and of the first hundred of
    another workspace in turns with them."""

    theta: Tensor
    late: float
    fresh: float
    verify: float
    ledger: int
    state: int


def main(_: Path) -> None:
    report = Report("thousand_requests", f"{REQUESTS:,} requests in a row")
    x, y = _data()
    gone = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1))[:REQUESTS]
    keep = torch.ones(SAMPLES, dtype=torch.bool)
    keep[gone] = False
    model = train(x, y)
    original, retrained = _flat(model.state_dict()), _flat(train(x[keep], y[keep]).state_dict())
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        np.savez(home / "train.npz", x=x.numpy(), y=y.numpy())
        save_file(model.state_dict(), home / "w.safetensors")
        once = _at_once(home, gone)
        streams = {policy: _stream(home, policy, gone.tolist()) for policy in POLICIES}

    def distance(theta: Tensor) -> float:
        return float((theta - retrained).norm() / (original - retrained).norm())

    def drift(theta: Tensor) -> float:
        return float((theta - once).norm() / once.norm())

    columns = ["policy", "last hundred, s", "first, s", "ratio", "difference", "distance", "verify, s", "ledger, MB"]
    report.table(
        f"A sample each, softmax regression, n = {SAMPLES:,}, d = {len(once):,}; seconds are medians of a request",
        columns,
        [
            [policy, s.late, s.fresh, s.late / s.fresh, drift(s.theta), distance(s.theta), s.verify, s.ledger / 1e6]
            for policy, s in streams.items()
        ],
    )
    report.notes += [
        "The first hundred requests of a fresh workspace take turns with the last hundred of the thousand.",
        f"Difference: ‖θ̂ − θ̂₁‖/‖θ̂₁‖, θ̂₁ the model after one request for all {REQUESTS:,} samples (policy joint). Under "
        "rebase it is the drift. Distance: to the retrained model (0 = retrained, 1 = nothing erased); of θ̂₁ it is "
        f"{distance(once):.3f}.",
    ]
    report.at_most("joint: difference to one request for all", drift(streams["joint"].theta), 1e-6)
    for policy, stream in streams.items():
        report.at_most(f"{policy}: time of the last hundred against the first", stream.late / stream.fresh, 1.1, "×")
        report.numbers[policy] = {"drift": drift(stream.theta), "state_bytes": stream.state}
    report.finish()


def _stream(home: Path, policy: str, gone: list[int]) -> Stream:
    late, fresh = _workspace(home, policy), _workspace(home, policy, f"{policy}-fresh")
    for place in gone[:-COMPARED]:
        _timed(late, place)
    turns = [(_timed(late, place), _timed(fresh, place)) for place in gone[-COMPARED:]]
    started = time.perf_counter()
    checked = late.verify()
    assert checked.ok, checked.damages
    return Stream(
        theta=_flat(load_file(late.folder.current / "weights.safetensors")),
        late=float(np.median([one for one, _ in turns])),
        fresh=float(np.median([other for _, other in turns])),
        verify=time.perf_counter() - started,
        ledger=late.folder.ledger.stat().st_size,
        state=size_of(late.folder.states),
    )


def _timed(workspace: Workspace, place: int) -> float:
    started = time.perf_counter()
    answer = workspace.erase(f"request {place}", ids=[str(place)])
    assert answer.outcome == "erased", answer.reason
    return time.perf_counter() - started


def _at_once(home: Path, gone: Tensor) -> Tensor:
    workspace = _workspace(home, "joint", "at-once")
    workspace.erase("all", ids=[str(place) for place in gone.tolist()])
    return _flat(load_file(workspace.folder.current / "weights.safetensors"))


def _workspace(home: Path, policy: str, name: str = "") -> Workspace:
    settings = {
        "model.factory": "ssse.demo:softmax",
        "model.device": "cpu",
        "data.train": "../train.npz",
        "data.ids": "place",
        "fit.weight_decay": WEIGHT_DECAY,
        "erase.policy": policy,
    }
    workspace = Workspace.init(home / (name or policy), settings, home / "w.safetensors").workspace
    workspace.fit()
    return workspace


def _data() -> tuple[Tensor, Tensor]:
    """Ten clouds that overlap."""
    generator = torch.Generator().manual_seed(0)
    centres = 0.35 * torch.randn(CLASSES, INPUTS, generator=generator, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    return centres[y] + torch.randn(SAMPLES, INPUTS, generator=generator, dtype=torch.float64), y


def _flat(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([weights[name].reshape(-1) for name in sorted(weights)])


if __name__ == "__main__":
    run_alone(main, __doc__)
