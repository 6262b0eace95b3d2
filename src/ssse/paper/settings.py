"""How an experiment is run: where its data lies, how large, on what device, with which seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from ssse.errors import InvalidSetting
from ssse.paper.cache import Cache
from ssse.paper.experiments import Scale
from ssse.system.progress import bar

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """Attributes:
    data: the folder of the data sets; None: what comes with scikit-learn, in a small form.
    scale: "auto" is full where the data is given, else small. device: "auto" is a GPU where there is one.
    seeds: of networks, where an experiment has several; None: as many as its size has.
    minutes: after which nothing new is begun but what an experiment cannot be told without; None: it is finished.
    """

    data: Path | None = None
    scale: Scale = "auto"
    device: str = "auto"
    seed: int = 0
    cache: Cache = field(default_factory=lambda: Cache(None))
    show_progress: bool = True
    seeds: int | None = None
    minutes: float | None = None
    started: float = field(default_factory=time.perf_counter)

    @property
    def late(self) -> bool:
        return self.minutes is not None and time.perf_counter() - self.started > 60 * self.minutes

    @property
    def small(self) -> bool:
        return self.data is None if self.scale == "auto" else self.scale == "small"

    def torch_device(self) -> torch.device:
        name = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise InvalidSetting(f"device must be 'auto', 'cpu' or 'cuda', not {name!r}.") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise InvalidSetting("device='cuda', but torch sees no CUDA device here. Use --device cpu --scale small.")
        return device

    def each(self, items: Sequence[T], text: str, words: Callable[[T], str] = str) -> Iterator[T]:
        """Go through the items with a bar on stderr that names the one at work; silent where nobody looks."""
        with bar(text, len(items), self.show_progress) as advance:
            for item in items:
                advance(text=f"{text}: {words(item)}")
                yield item
                advance(1)
