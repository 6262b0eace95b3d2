"""A hundred small requests to a network in a workspace, without a person: are they answered, and what is left of it?

python benchmarks/stream.py          some minutes
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from record import Report, run_alone
from ssse.demo import Digits
from ssse.workspace.workspace import Workspace

REQUESTS, HIDDEN, WEIGHT_DECAY = 100, 16, 1e-4
WAYS: dict[str, dict[str, Any]] = {
    "rebase, never": {"erase.refit": "never"},
    "rebase, when needed": {},
    "joint": {"erase.policy": "joint"},
    "lowrank, margin rows, never": {"erase.refit": "never", "fit.structure": "lowrank", "fit.rows": "margin"},
}
MODULE = """\
from torch import nn


def network():
    return nn.Sequential(nn.Linear(64, {hidden}), nn.ReLU(), nn.Linear({hidden}, 10)).double()
"""


@dataclass(frozen=True)
class Done:
    erased: int
    fits: int
    fitting: float
    seconds: float
    model: nn.Module


def main(_: Path) -> None:
    report = Report("stream", f"{REQUESTS} small requests to a network")
    digits = Digits.load()
    requests = _requests(len(digits.y))
    gone = torch.tensor([place for request in requests for place in request])
    keep = torch.ones(len(digits.y), dtype=torch.bool)
    keep[gone] = False
    original, retrained = _train(digits.x, digits.y), _train(digits.x[keep], digits.y[keep])

    def measures(model: nn.Module) -> list[float]:
        with torch.no_grad():
            right = float((model(digits.test_x).argmax(1) == digits.test_y).double().mean())
            losses = [float(F.cross_entropy(model(digits.x[part]), digits.y[part])) for part in (gone, keep)]
            old, new, here = (one(digits.x[gone]).softmax(1) for one in (original, retrained, model))
        return [100 * right, *losses, float((here - new).norm() / (old - new).norm())]

    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        ids = np.array([str(place) for place in range(len(digits.y))])
        np.savez(home / "train.npz", x=digits.x.numpy(), y=digits.y.numpy(), id=ids)
        np.savez(home / "test.npz", x=digits.test_x.numpy(), y=digits.test_y.numpy())
        save_file(original.state_dict(), home / "w.safetensors")
        (home / "layers.py").write_text(MODULE.format(hidden=HIDDEN))
        done = {name: _stream(home, f"ws{i}", options, requests) for i, (name, options) in enumerate(WAYS.items())}
        once = _stream(home, "once", {"erase.policy": "joint"}, [[p for request in requests for p in request]])
    columns = ["", "erased", "fits", "fitting, s", "all, s", "test, %", "loss on S", "loss on the rest", "distance"]
    rows: list[list[Any]] = [
        [name, *(["–"] * 4), *measures(model)] for name, model in (("original", original), ("retrained", retrained))
    ]
    rows += [
        [name, f"{s.erased}", s.fits, s.fitting, s.seconds, *measures(s.model)]
        for name, s in {**done, "one request for all": once}.items()
    ]
    report.table(
        f"Digits, 64–{HIDDEN}–10, ReLU, all parameters in θ, w = {WEIGHT_DECAY:g}; {len(gone)} of {len(keep)} samples "
        f"in {REQUESTS} requests of one to three",
        columns,
        rows,
    )
    report.notes.append(
        "Fits: the stream's own, after the first. Distance: of predicted probabilities on S from the retrained "
        "network's, over that of the original (0 = retrained, 1 = nothing erased)."
    )
    needed = done["rebase, when needed"]
    report.at_least("rebase, when needed: erased", needed.erased, REQUESTS)
    report.at_least("joint: erased", done["joint"].erased, REQUESTS)
    report.at_most("rebase, when needed: distance from the retrained network", measures(needed.model)[3], 1.0)
    report.at_most(
        "rebase, when needed: test accuracy lost", measures(original)[0] - measures(needed.model)[0], 2, " points"
    )
    report.finish()


def _stream(home: Path, name: str, options: dict[str, Any], requests: list[list[int]]) -> Done:
    settings = {
        "model.factory": "layers:network",
        "model.search": "..",
        "model.device": "cpu",
        "data.train": "../train.npz",
        "data.test": "../test.npz",
        "fit.weight_decay": WEIGHT_DECAY,
        **options,
    }
    workspace = Workspace.init(home / name, settings, home / "w.safetensors").workspace
    workspace.fit()
    started, erased = time.perf_counter(), 0
    for number, places in enumerate(requests):
        erased += workspace.erase(f"request {number}", ids=[str(place) for place in places]).outcome == "erased"
    seconds = time.perf_counter() - started
    fits = [entry.details["seconds"] for entry in workspace.log().entries if entry.kind == "fitted"][1:]
    assert workspace.verify().ok
    model = _network()
    model.load_state_dict(load_file(workspace.folder.current / "weights.safetensors"))
    return Done(erased, len(fits), sum(fits), seconds, model.eval())


def _requests(samples: int) -> list[list[int]]:
    chooser = np.random.default_rng(1)
    order, found, at = chooser.permutation(samples), [], 0
    for _ in range(REQUESTS):
        k = int(chooser.integers(1, 4))
        found.append(order[at : at + k].tolist())
        at += k
    return found


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)).double()


def _train(x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = _network()
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=1500, history_size=20, tolerance_grad=1e-8, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), y) + WEIGHT_DECAY / 2 * sum((p * p).sum() for p in model.parameters())
        loss.backward()
        return loss

    optimiser.step(closure)
    return model.eval()


if __name__ == "__main__":
    run_alone(main, __doc__)
