"""How much memory may be used, and how to say it. Nothing here imports torch unless a GPU is asked about."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ssse.errors import InvalidSetting

if TYPE_CHECKING:
    import torch

SHARE = 0.6  # of the memory there is, or of what is free
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2, 1
UNITS = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def memory_budget(device: torch.device | None, asked: float | str | None) -> int:
    """Bytes that a plan may take: as asked ("8GiB" or a number), or 60 % of the device's memory; None: the CPU.

    Of all the memory, in use or not: what is planned must not depend on what else happens to run.
    """
    if asked is None:
        return int(SHARE * _total_memory(device))
    if isinstance(asked, str):
        text = asked.strip().upper()
        for unit, factor in UNITS.items():
            if text.endswith(unit):
                try:
                    return memory_budget(device, float(text.removesuffix(unit)) * factor)
                except ValueError:
                    break
        raise InvalidSetting(f'memory_budget must be bytes or a text like "8GiB", not {asked!r}.')
    if not 0 < asked < float("inf"):
        raise InvalidSetting(f"memory_budget must be positive, not {asked}.")
    return int(asked)


def spare_memory(device: torch.device | None) -> int:
    """60 % of what is free at this moment: for what is held or not held, never for what is chosen."""
    return int(SHARE * free_memory(device))


def free_memory(device: torch.device | None) -> int:
    """Bytes that are free at this moment."""
    if device is not None and device.type == "cuda":
        import torch

        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # ours, and not in use
        return torch.cuda.mem_get_info(device)[0] + cached
    total = _total_memory(None)
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return min(total, int(line.split()[1]) * 1024)
    except OSError:
        pass
    return total


def _total_memory(device: torch.device | None) -> int:
    """Bytes of the machine or of the container that we run in, whichever is less; of a GPU, its own."""
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[1]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_container_limits()])


def _container_limits() -> list[int]:
    """Limits of the control groups that a container sees as its own; "max" and absurd ones mean none."""
    limits = []
    for path in CONTAINER_LIMITS:
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return limits


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
