"""Somebody with write access and bad intentions: kills, failing disks, edits, fuzzed inputs, crowds, code in data.

python benchmarks/adversary.py            about forty minutes on two busy cores
python benchmarks/adversary.py --small    some of each, a few minutes

Every part is a process of tests/support/, two at a time. Their counts go to results/adversary.json and into the table
of docs/requests.md. Stopped and started again, it goes on with the parts that are not done, and after a harm with those
that saw one (--anew: from the start).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from record import RESULTS, Report
from ssse.system.files import write_atomically
from summary import markdown

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the attacks are those of the tests

from tests.support.attempts import GROUPS  # noqa: E402
from tests.support.dying import build  # noqa: E402
from tests.support.kills import OPERATIONS  # noqa: E402
from tests.support.tally import HARMS, Tally  # noqa: E402

NAME = "adversary"
DOCS = ROOT / "docs" / "requests.md"
STATE = ROOT / "out" / "adversary.json"  # what is done of a run that was stopped
MARK = re.compile(r"<!-- adversary -->\n.*?<!-- end -->", re.DOTALL)
WORKERS = max(2, (os.cpu_count() or 2))
MEMORY = Path("/dev/shm")

KILLS, ERRORS, EDITS, FUZZED, CROWD, CODE, READERS = (
    "kills",
    "disks that fail or write by halves",
    "flips, truncations, swaps and edits, size and time kept",
    "fuzzed inputs",
    "processes at once",
    "attempts to run code from data",
    "programs that hold the ledger",
)
REWRITES, INBOX = "histories written anew, with key and anchor", "request files in an inbox, with kills"
WANTED = {KILLS: 1000, ERRORS: 400, EDITS: 2000, FUZZED: 1000, CROWD: 206, CODE: 90, READERS: 30, REWRITES: 7}
WANTED |= {INBOX: 1000}


@dataclass(frozen=True)
class Part:
    """One process: `python -m tests.support.MODULE FOLDER WORDS`. `preload`: with the library that kills."""

    group: str
    name: str
    module: str
    words: tuple[str, ...] = ()
    preload: bool = False


def parts(small: bool) -> Iterator[Part]:
    """In an order in which both cores are busy to the end."""
    operations = list(OPERATIONS)
    step = 25 if small else 1
    for seed in range(1 if small else 4):
        yield Part(EDITS, f"edits {seed}", "edits", (str(60 if small else 550), str(seed)))
    for name in operations:
        yield Part(KILLS, f"kills in calls, {name}", "dying", (f"kills/{step},{name}",), True)
    some = operations[0::2]
    yield Part(ERRORS, f"failing disks, {some[0]} …", "dying", (f"errors/{3 * step},{','.join(some)}",), True)
    yield Part(ERRORS, "short writes", "dying", (f"short/{step},fit,erase",), True)
    for seed in range(1 if small else 2):
        yield Part(FUZZED, f"fuzz {seed}", "fuzz", (str(56 if small else 560), str(seed + 10)))
    for name in GROUPS:
        yield Part(CODE, f"code in data, {name}", "attempts", (f"{name}/{9 if small else 1}",))
    yield Part(READERS, "readers", "readers", (str(10 if small else 60),))
    yield Part(CROWD, "crowd", "crowds", (str(24 if small else 210),))
    if (ROOT / "tests" / "support" / "rewriting.py").exists():
        yield Part(REWRITES, "rewrites", "rewriting")
    if (ROOT / "tests" / "support" / "inboxes.py").exists():
        yield Part(INBOX, "inbox", "inboxes", ("40", "8") if small else ("1000", "100"))
    yield Part(KILLS, "killed again, erase", "kills", (f"twice{2 if small else 20},erase",))
    for name in ["report"] if small else ["erase", "calibrate", "report"]:
        yield Part(KILLS, f"kills at lines, {name}", "kills", (f"lines,{name}",))
    killed = [name for name in operations if name != "report"]
    for name in killed[:2] if small else killed:
        yield Part(KILLS, f"kills at random, {name}", "kills", (f"{3 if small else 5},{name}",))


def attack(part: Part, library: Path | None) -> Tally:
    """What the part came to; where its process does not come to an end, that is a harm, too."""
    if part.preload and library is None:
        return Tally()
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if part.preload:
        environment["LD_PRELOAD"] = str(library)
    with tempfile.TemporaryDirectory(prefix="ssse-adversary-", dir=place) as home:
        command = [sys.executable, "-m", f"tests.support.{part.module}", home, *part.words]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        tally = Tally()
        tally.note("lost", f"{part.name}: {done.stderr[-1500:]}")
        return tally
    found = json.loads(done.stdout.splitlines()[-1])
    return Tally.from_dict(found) if "ways" in found else counted(part, found)


def counted(part: Part, found: dict[str, Any]) -> Tally:
    """Of kills.py and inboxes.py, which raise where anything does not hold, and else count."""
    tally = Tally()
    if part.group == INBOX:
        tally.ways[f"files, {found['killed']} kills among them"] += found["files"]
        return tally
    for counts in found.values():
        tally.ways[part.name.split(",")[0]] += counts["killed"]
    return tally


def main(small: bool, anew: bool) -> None:
    report = Report(NAME, "The workspace under attack")
    before = {} if anew or not STATE.exists() else json.loads(STATE.read_text())
    found = {name: Tally.from_dict(plain) for name, plain in before.get("parts", {}).items()}
    done = {name: tally for name, tally in found.items() if tally.unharmed}  # the others are tried once more
    if before.get("small") != small:
        done = {}
    seconds = before.get("seconds", 0.0) if done else 0.0
    todo = [part for part in parts(small) if part.name not in done]
    console, began = Console(stderr=True), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        library = build(Path(folder))
        running = {pool.submit(attack, part, library): part for part in todo}
        try:
            for job in as_completed(running):
                part, tally = running[job], job.result()
                done[part.name] = tally
                taken = seconds + time.perf_counter() - began
                keep(small, taken, done)
                harms = ", ".join(f"[red]{n} {harm}[/]" for harm, n in tally.harms.items() if n) or "no harm"
                count = f"{len(done)} of {len(done) + sum(not other.done() for other in running)}"
                console.print(f"{count}, {taken:.0f} s: {part.name}: {tally.tried} tried, {harms}", highlight=False)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    report.began -= seconds
    finish(report, {part.name: part.group for part in parts(small)}, done, small)
    if all(tally.unharmed for tally in done.values()):
        STATE.unlink(missing_ok=True)


def keep(small: bool, seconds: float, done: dict[str, Tally]) -> None:
    """Whole or not at all, for this may be stopped at any moment, too."""
    plain = {name: tally.to_dict() for name, tally in done.items()}
    write_atomically(STATE, json.dumps({"small": small, "seconds": seconds, "parts": plain}))


def finish(report: Report, groups: dict[str, str], done: dict[str, Tally], small: bool) -> None:
    whole = {
        group: Tally.sum(done[name] for name, its in groups.items() if its == group)
        for group in WANTED
        if group in groups.values()
    }
    rows = [[group, tally.tried, *(tally.harms[harm] for harm in HARMS)] for group, tally in whole.items()]
    report.table("What was tried, and what came of it", ["attack", "tried", *HARMS], rows)
    everything = Tally.sum(whole.values())
    for group, tally in whole.items():
        if not small:
            report.at_least(group, tally.tried, WANTED[group])
    for harm in HARMS:
        report.at_most(harm, everything.harms[harm], 0)
    inside = sum(n for way, n in whole[KILLS].ways.items() if way.endswith("SQLite"))
    report.notes.append(f"{inside:,} of the kills came inside calls of SQLite.")
    if (found := identification()) is not None:
        report.notes.append(found)
    report.numbers = {
        "small": small,
        "ways": {group: dict(sorted(tally.ways.items())) for group, tally in whole.items()},
        "failures": everything.failures,
    }
    report.finish(write=not small)
    if not small:
        DOCS.write_text(MARK.sub(f"<!-- adversary -->\n{table()}\n<!-- end -->", DOCS.read_text()))


def identification() -> str | None:
    """Of benchmarks/identification.py, which is a benchmark of its own."""
    path = RESULTS / "identification.json"
    if not path.exists():
        return None
    targets = [t for t in json.loads(path.read_text())["targets"] if "against chance" in t["what"]]
    worst = max(float(target["measured"].removesuffix("×")) for target in targets)
    return (
        f"Identification by what is published (`benchmarks/identification.py`): at most {worst:g} times chance in "
        f"{len(targets)} comparisons."
    )


def table() -> str:
    """For docs/requests.md, from the JSON."""
    if not (RESULTS / f"{NAME}.json").exists():
        return "Not measured."
    result: dict[str, Any] = json.loads((RESULTS / f"{NAME}.json").read_text())
    (shown,) = result["tables"]
    place = f"{result['date'][:10]}, {result['machine']}, {result['seconds']:.0f} s: `{result['command']}`."
    return "\n\n".join([markdown(shown["columns"], shown["rows"]), " ".join([place, *result["notes"]])])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--small", action="store_true", help="some of each; nothing is written into the docs")
    parser.add_argument("--anew", action="store_true", help="forget what a run that was stopped had done")
    parser.add_argument("--data", type=Path, help="not used; for benchmarks/run.py")
    chosen = parser.parse_args()
    main(chosen.small, chosen.anew)
