"""What a benchmark leaves behind: tables on the screen, and the same numbers as JSON in `results/`."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import ssse
from ssse.paper.result import Target

RESULTS = Path(__file__).parent / "results"
DATA = Path("data")


class MissingData(Exception):
    """The data a benchmark needs is not in the folder given by --data."""


@dataclass
class Report:
    name: str
    title: str
    notes: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)
    machine: str = field(default_factory=lambda: machine())

    def at_most(self, what: str, measured: float, limit: float, unit: str = "") -> None:
        self.targets.append(
            Target(what, f"at most {limit:g}{unit}", f"{number(measured)}{unit}", bool(measured <= limit))
        )

    def at_least(self, what: str, measured: float, limit: float, unit: str = "") -> None:
        self.targets.append(
            Target(what, f"at least {limit:g}{unit}", f"{number(measured)}{unit}", bool(measured >= limit))
        )

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        cells = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
        self.tables.append({"title": title, "columns": list(columns), "rows": cells})

    def finish(self, write: bool = True) -> None:
        """Print everything and write results/NAME.json."""
        self._print()
        if not write:
            return
        body = {
            "name": self.name,
            "title": self.title,
            "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": self.machine,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "ssse": ssse.__version__,
            },
            "seconds": round(time.perf_counter() - self.began, 1),
            "notes": self.notes,
            "targets": [asdict(target) for target in self.targets],
            "tables": self.tables,
            "numbers": self.numbers,
        }
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self.name}.json").write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")

    def _print(self) -> None:
        console = Console()
        console.rule(self.title)
        for entry in self.tables:
            shown = Table(title=entry["title"], title_justify="left")
            for i, column in enumerate(entry["columns"]):
                shown.add_column(column, justify="left" if i == 0 else "right")
            for row in entry["rows"]:
                shown.add_row(*row)
            console.print(shown)
        if self.targets:
            shown = Table("target", "wanted", "measured", "", title="Targets", title_justify="left")
            for target in self.targets:
                mark = "[green]met[/]" if target.met else "[red]missed[/]"
                shown.add_row(target.what, target.wanted, target.measured, mark)
            console.print(shown)
        for note in self.notes:
            console.print(note, highlight=False)


def best_of(repeats: int, **functions: Callable[[], Any]) -> dict[str, float]:
    """Seconds of each function, the best of several rounds; in every round each has its turn.

    The machine may be shared: what disturbs one side of a ratio then disturbs the other as well.
    """
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            best[name] = min(best[name], seconds_of(function)[0])
    return best


def seconds_of(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    value = function()
    return time.perf_counter() - began, value


def grown_by(function: Callable[[], Any]) -> tuple[float, Any]:
    """MiB by which the process grows, at its peak, above what it holds now. On Linux alone."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed and kept would hide as much
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _kibibytes("VmRSS")
    value = function()
    return (_kibibytes("VmHWM") - before) / 1024, value


def _kibibytes(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder with faces.npz and pets.npz")
    return parser.parse_args()


def run_alone(main: Callable[[Path], None], description: str | None) -> None:
    """Run one benchmark as a script; leave it out, and say so, where its data is missing."""
    try:
        main(arguments(description).data)
    except MissingData as missing:
        Console(stderr=True).print(f"[yellow]left out:[/] {missing}", highlight=False)


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()}-core CPU, {memory:.0f} GiB, {torch.get_num_threads()} threads"


def number(value: Any) -> str:
    """Three significant digits, or an integer as it is."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
