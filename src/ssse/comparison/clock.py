"""Seconds of work, also where a GPU does it while Python has gone on."""

from __future__ import annotations

import time
from typing import Self

import torch


class Clock:
    """`with clock as taken: …`, then `taken.seconds`."""

    def __init__(self, device: torch.device):
        self.device: torch.device = device
        self.seconds: float = 0.0
        self._started: float = 0.0

    def __enter__(self) -> Self:
        self._wait()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *ended: object) -> None:
        self._wait()
        self.seconds = time.perf_counter() - self._started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
