"""How much memory may be used, and how to say it. Nothing here imports torch unless a GPU is asked about."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ssse.errors import InvalidSetting

if TYPE_CHECKING:
    import torch

SHARE = 0.6  # of what is free
UNITS = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def memory_budget(device: torch.device | None, asked: float | str | None) -> int:
    """Bytes we may use: as asked ("8GiB" or a number), or 60 % of what is free on the device; None: the CPU."""
    if asked is None:
        return int(SHARE * _free_memory(device))
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


def _free_memory(device: torch.device | None) -> int:
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
