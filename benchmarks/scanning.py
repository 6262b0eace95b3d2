"""Looking at 50 values of ε: what it costs beside forward passes of the model over the same splits.

The step is linear in ε, so one solve serves all of them, and what remains is forward passes: the floor is 50 of them
for a network, and a single one for a model linear in θ, whose logits are linear in ε. 45,000 training samples of noise
and 10,000 of test; noise changes nothing about the work.

    python benchmarks/scanning.py
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import ssse
from record import Report, best_of, run_alone
from ssse.evaluation.splits import four_splits

TRAIN, TEST, FORGET, SCALES = 45_000, 10_000, 4_500, np.geomspace(0.1, 10, 50)
BATCH = 1024


class Counted(nn.Module):
    """The same model, counting the samples that go through it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.samples = model, [0]  # a list is shared by copies of the module

    def __deepcopy__(self, memo: dict) -> Counted:
        twin = Counted(copy.deepcopy(self.model, memo))
        twin.samples = self.samples
        return twin.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        self.samples[0] += len(x)
        return self.model(x)


def main(_: Path) -> None:
    report = Report("scanning", f"{len(SCALES)} values of ε over {TRAIN + TEST:,} samples, float32")
    rows = []
    torch.manual_seed(0)
    subjects = {
        "linear, 1,280 features, 50 classes": (nn.Linear(1280, 50), (1280,), 50),
        "network 784–256–10, all parameters": (
            nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)),
            (784,),
            10,
        ),
    }
    for name, (module, shape, classes) in subjects.items():
        model = Counted(module).eval()
        generator = torch.Generator().manual_seed(1)
        sets = [
            TensorDataset(
                torch.randn(n, *shape, generator=generator), torch.randint(0, classes, (n,), generator=generator)
            )
            for n in (TRAIN, TEST)
        ]
        same = sets[1].tensors[1] == 0
        loaders = four_splits(sets[0], list(range(FORGET)), sets[1], same, batch_size=BATCH)
        splits = {split: list(loader) for split, loader in loaders.items()}  # both sides then read from memory
        direction = 0.01 * torch.randn(sum(p.numel() for p in model.parameters()), generator=generator)

        @torch.no_grad()
        def passes(model: nn.Module = model, splits: dict = splits) -> None:
            for _ in SCALES:
                for batches in splits.values():
                    for x, _y in batches:
                        model(x)

        def scan(model: nn.Module = model, splits: dict = splits, direction: Tensor = direction) -> ssse.Scan:
            return ssse.scan(model, direction, "cross_entropy", splits, scales=SCALES, progress=False)

        model.samples[0] = 0
        scan()
        counted = model.samples[0] / (TRAIN + TEST)
        best = best_of(2, passes=passes, scan=scan)
        one = best["passes"] / len(SCALES)
        rows.append((name, f"{counted:.2f}", one, best["scan"], best["scan"] / one))
        report.numbers[name] = {**best, "forward_passes": counted}
        kind = name.split()[0].strip(",")
        report.at_most(f"forward passes counted, {kind}", counted, 1.1 if kind == "linear" else 60)
        report.at_most(f"time of the scan, {kind}", best["scan"] / one, 60, " forward passes")
    report.table(
        "Passes are counted in the module itself. Seconds: the best of 2 rounds, in each 50 plain passes and one scan",
        ("model", "forward passes", "one pass, s", "scan, s", "scan over one pass"),
        rows,
    )
    report.notes.append(
        "The scan also compares every prediction with its label and runs the confidence attack at every ε. For a "
        "linear model that arithmetic on 50 × 55,000 × 50 logits is what it spends its time on, not the model."
    )
    report.finish()


if __name__ == "__main__":
    run_alone(main, __doc__)
