"""Several processes that fit together, on this machine: one start of them for many checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import start_processes


def run_processes(work: Callable[..., None], processes: int, *args: Any) -> None:
    """`work(rank, *args)` in each; what one of them raises is raised here, and ends the others."""
    start_processes(_begin, (work, args), nprocs=processes, start_method=server().get_start_method())


def server() -> Any:
    """Forks processes that have imported everything already, one thread each."""
    context = mp.get_context("forkserver")
    os.environ["OMP_NUM_THREADS"] = "1"  # for those that are started
    context.set_forkserver_preload(["ssse.erasure.erase", "tests.support.problems"])
    return context


def _begin(rank: int, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    work(rank, *args)


@contextmanager
def group_of(rank: int, processes: int, meeting: Path, backend: str = "gloo") -> Iterator[bool]:
    """The first so many processes as a group, which meet at a file; whether this one is among them."""
    if rank >= processes:
        yield False
        return
    where = f"file://{meeting}-{processes}"
    dist.init_process_group(backend, init_method=where, rank=rank, world_size=processes, timeout=timedelta(seconds=60))
    try:
        yield True
        dist.barrier()
    finally:
        dist.destroy_process_group()
