"""CIFAR-10 and a ResNet-20 trained on it, on one GPU."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from record import MissingData
from resnet import ResNet20

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
TRAIN, EPOCHS, DECAY = 45_000, 40, 5e-4


def find(folder: Path) -> Path:
    source = folder / "cifar-10-batches-bin"
    if not torch.cuda.is_available() or not source.is_dir():
        raise MissingData(f"This needs a CUDA device and the binary version of CIFAR-10 in '{source}'.")
    return source


def load(folder: Path, names: list[str]) -> tuple[Tensor, Tensor]:
    raw = np.concatenate([np.fromfile(folder / f"{name}.bin", np.uint8).reshape(-1, 3073) for name in names])
    x = torch.from_numpy(raw[:, 1:]).reshape(-1, 3, 32, 32).float() / 255
    x = (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    return x.cuda(), torch.from_numpy(raw[:, 0]).long().cuda()


def train(x: Tensor, y: Tensor, epochs: int, batch: int = 512, seed: int = 0) -> ResNet20:
    torch.manual_seed(seed)
    model = ResNet20().cuda().train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9, nesterov=True, weight_decay=DECAY)
    steps = epochs * (len(x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.4, total_steps=steps)
    for _ in range(epochs):
        for index in torch.randperm(len(x), device="cuda")[: len(x) // batch * batch].split(batch):
            optimiser.zero_grad(set_to_none=True)
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimiser.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: torch.nn.Module, x: Tensor, y: Tensor) -> float:
    return 100 * float(torch.cat([model(b).argmax(1) for b in x.split(2000)]).eq(y).float().mean())


class Clock:
    """Seconds between marks, with the device's queue drained at each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = self._now()

    @staticmethod
    def _now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    def mark(self, name: str) -> None:
        now = self._now()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now
