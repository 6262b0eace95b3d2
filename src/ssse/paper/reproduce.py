"""Run an experiment and write its page, or draw a finished one again.

Importing this does not import torch, so that the command line is there at once.
"""

from __future__ import annotations

import json
import math
import os
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ssse.errors import InvalidSetting
from ssse.paper.experiments import EXPERIMENTS, Scale, Spec, find
from ssse.system import environment
from ssse.system.extras import needed_for

if TYPE_CHECKING:
    from ssse.paper.result import Result


def reproduce(
    name: str,
    *,
    data: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] = "results",
    scale: Scale = "auto",
    device: str = "auto",
    seed: int = 0,
    seeds: int | None = None,
    minutes: float | None = None,
    cache: str | os.PathLike[str] | None = "auto",
    progress: bool = True,
    command: str | None = None,
) -> Result:
    """Run one experiment of the paper and write OUTPUT/NAME: numbers, figures, tables, and a page to put beside it.

    Args:
        data: the folder of its data set; None: a small form on what comes with scikit-learn.
        scale: "auto" is full where the data is given, else small.
        device: "auto" is a GPU where there is one.
        seeds: networks of so many seeds, where the experiment has several; None: as many as its size has.
        minutes: after which nothing new is begun but what it cannot be told without; the page says what is missing.
            The same call goes on from there. None: it is finished.
        cache: where trained models and measured requests are kept, so that an interrupted run goes on where it stopped;
            "auto" is OUTPUT/.cache, None keeps nothing.
        command: what the page says that it was made with; None: the command line that does the same.

    Raises:
        InvalidSetting: there is no such experiment, folder, scale or device, or it needs data that was not given.
    """
    spec = find(name)
    folder = _checked(spec, data, scale, device, seed)
    _check_several(spec, seeds, minutes)
    from ssse.paper.cache import Cache
    from ssse.paper.settings import Settings

    with needed_for(f"The experiment '{name}'"):
        import matplotlib  # noqa: F401  # said before the long work, not after it

        from ssse.paper.pages import provenance
        from ssse.paper.pages.writer import write, write_overview

        experiment = import_module(f"ssse.paper.{spec.name}.run")

    output = Path(output)
    kept = Cache(output / ".cache" if cache == "auto" else cache)
    settings = Settings(folder, scale, device, seed, kept, progress, seeds, minutes)
    place = settings.torch_device()  # a device that is not there is refused before the work, not after it
    started = time.perf_counter()
    result = experiment.run(settings)
    # A run that was interrupted counts with the seconds that its first part took.
    result.seconds = time.perf_counter() - started + kept.saved
    result.seed = seed
    line = command or provenance.command(spec.name, data, output, scale, device, seed, cache, seeds, minutes)
    result.command = provenance.without_folders(line)
    result.date, result.machine = environment.today(), environment.machine(place)
    result.versions = environment.versions()
    result.page = write(result, place_of(result, output))
    write_overview(output)
    return result


def redraw(name: str, output: str | os.PathLike[str] = "results") -> Result:
    """Draw and judge a finished run again, from the numbers in its results.json; nothing is measured.

    Raises:
        InvalidSetting: there is no finished run, or its numbers are not of this version.
    """
    spec, folder = find(name.partition("-")[0]), Path(output) / name
    with needed_for(f"The experiment '{name}'"):
        from ssse.paper.pages.writer import write, write_overview

        compose = getattr(import_module(f"ssse.paper.{spec.name}.run"), "compose", None)
    if compose is None:
        raise InvalidSetting(f"'{name}' takes seconds: run it again instead.")
    try:
        before = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        result = compose(before["numbers"])
        for field in ("command", "seed", "date", "seconds", "machine", "versions"):
            setattr(result, field, before[field])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidSetting(f"'{folder}' holds no finished run of this version: run '{name}' first.") from error
    result.page = write(result, folder)
    write_overview(Path(output))
    return result


def place_of(result: Result, output: Path) -> Path:
    """OUTPUT/NAME; beside it, as NAME-small, where a small form would overwrite a run at full size; or NAME-SIZE; and
    NAME-part, where a run of less would overwrite one of more: fewer seeds, methods left out, no attackers' networks.
    """
    folder = output / result.experiment
    if result.form in EXPERIMENTS[result.experiment].sizes:
        folder = folder.with_name(f"{folder.name}-{result.form}")
    elif (_stored(folder).get("form"), result.form) == ("full", "small"):
        folder = folder.with_name(f"{folder.name}-small")
    before = _stored(folder).get("numbers")
    less = isinstance(before, dict) and any(map(int.__lt__, _extent(result.numbers), _extent(before)))
    return folder.with_name(f"{folder.name}-part") if less else folder


def _extent(numbers: dict[str, Any]) -> tuple[int, int, int]:
    """How much there is: seeds of networks, methods (less what is left out), requests that are attacked."""
    seeds, left_out, attacked = (len(numbers.get(name) or ()) for name in ("steps", "left_out", "attacked"))
    return seeds, -left_out, attacked


def _stored(folder: Path) -> dict[str, Any]:
    """What lies there; empty where nothing does, or it cannot be read."""
    try:
        found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _check_several(spec: Spec, seeds: int | None, minutes: float | None) -> None:
    for name, value in (("seeds", seeds), ("minutes", minutes)):
        if value is not None and not spec.several:
            raise InvalidSetting(f"'{spec.name}' is run whole; leave --{name} out.")
    if seeds is not None and (not isinstance(seeds, int) or seeds < 1):
        raise InvalidSetting(f"seeds must be a whole number from 1 on, not {seeds!r}.")
    if minutes is not None and not 0 <= minutes < math.inf:
        raise InvalidSetting(f"minutes must be a number from 0 on, not {minutes!r}.")


def _checked(spec: Spec, data: str | os.PathLike[str] | None, scale: str, device: str, seed: int) -> Path | None:
    """The folder of the data, if one is given, with everything else in order."""
    if scale not in get_args(Scale):
        raise InvalidSetting(f"scale must be one of {', '.join(get_args(Scale))}, not {scale!r}.")
    if scale not in ("auto", "full", "small", *spec.sizes):
        raise InvalidSetting(f"'{spec.name}' has no size '{scale}'; leave --scale {scale} out.")
    if device not in ("auto", "cpu", "cuda") and not device.startswith("cuda:"):
        raise InvalidSetting(f"device must be 'auto', 'cpu' or 'cuda', not {device!r}.")
    if not isinstance(seed, int) or seed < 0:
        raise InvalidSetting(f"seed must be a whole number from 0 on, not {seed!r}.")
    if data is None:
        if scale in ("full", *spec.sizes) and spec.needs_data:
            size = "full" if scale == "full" else "that"
            raise InvalidSetting(
                f"'{spec.name}' at {size} size needs its data ({spec.data}). Say where it lies with --data, or leave "
                f"out --scale {scale}."
            )
        return None
    if not spec.needs_data:
        raise InvalidSetting(f"'{spec.name}' needs no data; leave --data out.")
    folder = Path(data)
    if not folder.is_dir():
        raise InvalidSetting(f"The folder of the data, '{folder}', does not exist or is not a folder.")
    return folder
