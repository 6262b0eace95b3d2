"""How a result was made, in words that hold on any machine: no host names, no folders of somebody's."""

from __future__ import annotations

import os
import platform
import re
import shlex
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import ssse

if TYPE_CHECKING:
    import torch

_FOLDER = re.compile(r"""(?:(?<=^)|(?<=[\s='"]))(?:~|/|[A-Za-z]:[\\/])[^\s'"]*""")


def command(
    name: str,
    data: str | os.PathLike[str] | None,
    output: Path,
    scale: str,
    device: str,
    seed: int,
    cache: str | os.PathLike[str] | None,
) -> str:
    """The command line that does the same. Where the data lies is the reader's own affair."""
    words = ["ssse", "reproduce", name]
    if data is not None:
        words += ["--data", "DIR"]
    if output != Path("results"):
        words += ["--output", "DIR" if output.is_absolute() else output.as_posix()]
    for option, value, usual in (("--scale", scale, "auto"), ("--device", device, "auto"), ("--seed", seed, 0)):
        if value != usual:
            words += [option, str(value)]
    if cache is None:
        words.append("--no-cache")
    elif cache != "auto":
        words += ["--cache", "DIR"]
    return shlex.join(words)


def without_folders(line: str) -> str:
    """Absolute paths become DIR."""
    return _FOLDER.sub("DIR", line)


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def machine(device: torch.device) -> str:
    """For instance "2-core CPU, 24 GiB" or "one NVIDIA H200"."""
    if device.type == "cuda":
        import torch

        return f"one {torch.cuda.get_device_name(device)}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else 0.0
    return f"{cores}-core CPU" + (f", {memory:.0f} GiB" if memory else "")


def versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("torch", "numpy", "scikit-learn")}
    return {"python": platform.python_version(), **packages, "ssse": ssse.__version__}
