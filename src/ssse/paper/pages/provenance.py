"""The command that made a result, without folders of somebody's."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

_FOLDER = re.compile(r"""(?:(?<=^)|(?<=[\s='"]))(?:~|/|[A-Za-z]:[\\/])[^\s'"]*""")


def command(
    name: str,
    data: str | os.PathLike[str] | None,
    output: Path,
    scale: str,
    device: str,
    seed: int,
    cache: str | os.PathLike[str] | None,
    seeds: int | None = None,
    minutes: float | None = None,
) -> str:
    """The command line that does the same. Where the data lies is the reader's own affair."""
    words = ["ssse", "reproduce", name]
    if data is not None:
        words += ["--data", "DIR"]
    if output != Path("results"):
        words += ["--output", "DIR" if output.is_absolute() else output.as_posix()]
    for option, value, usual in (
        ("--scale", scale, "auto"),
        ("--device", device, "auto"),
        ("--seed", seed, 0),
        ("--seeds", seeds, None),
        ("--minutes", minutes, None),
    ):
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
