"""When and where something was made, in words that hold on any machine."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from ssse.system.version import __version__

if TYPE_CHECKING:
    import torch


def now() -> str:
    """UTC, to the second. SOURCE_DATE_EPOCH, the usual variable for reproducible outputs, is respected."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(fixed), UTC).isoformat(timespec="seconds") if fixed.isdecimal() else clock()


def clock() -> str:
    """UTC, to the second, as it is: a record of what happened has no other time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def today() -> str:
    return now()[:10]


def machine(device: torch.device) -> str:
    """For instance "2-core CPU, 24 GiB" or "one NVIDIA H200"."""
    if device.type == "cuda":
        import torch

        return f"one {torch.cuda.get_device_name(device)}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else 0.0
    return f"{cores}-core CPU" + (f", {memory:.0f} GiB" if memory else "")


@cache
def versions() -> dict[str, str]:
    """Of what numbers may depend on; scikit-learn is not everywhere."""
    packages = {"torch": version("torch"), "numpy": version("numpy")}
    with suppress(PackageNotFoundError):
        packages["scikit-learn"] = version("scikit-learn")
    return {"python": platform.python_version(), **packages, "ssse": __version__}
