"""A command that torchrun has started several times: the first process is at work, the others take part where asked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssse.system.launcher import launched

if TYPE_CHECKING:
    import numpy as np

    from ssse.workspace.settings import Settings


@contextmanager
def joined() -> Iterator[None]:
    """In the process group of all that were started, where there are several; on GPUs each has its own."""
    if launched()[1] == 1:
        yield
        return
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Order:
    """What the others are asked for: a fit of this model on this data. `places`: of the samples; None: all."""

    settings: Settings
    state: Path
    files: Mapping[str, str]
    places: np.ndarray | None
    checkpoint: Path | None


class Others:
    """The other processes, which wait for one order."""

    def __init__(self) -> None:
        self._told = launched()[1] == 1 or not _in_a_group()

    def ask(self, order: Order | None) -> None:
        if not self._told:
            self._told = True
            _tell(order)


def wait_for_order() -> Order | None:
    return _tell(None)


def _tell(order: Order | None) -> Any:
    from ssse.system.group import current_group

    return current_group().from_first(lambda: order)


def _in_a_group() -> bool:
    from ssse.system.group import current_group

    return not current_group().alone
