"""Run all benchmarks, or those named, one after another, each in a process of its own.

python benchmarks/run.py                       all of them, about an hour
python benchmarks/run.py dense_fit precision   these two
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from record import DATA

HERE = Path(__file__).parent
SUBJECTS = (
    "dense_fit",
    "scaling",
    "kills_of_ranks",
    "network_rows",
    "sequence_rows",
    "matrix_free",
    "large_request",
    "plan_accuracy",
    "many_classes",
    "rounding",
    "precision",
    "damping",
    "weight_decay",
    "growth",
    "scanning",
    "calibration",
    "network_scale",
    "language",
    "multi_attribute",
    "thousand_requests",
    "adversary",
    "identification",
    "stream",
    "sklearn_refits",
    "sklearn_speed",
    "verdicts",
    "verdict_cases",
    "network_verdicts",
    "shortened_steps",
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--data", type=Path, default=DATA, help="folder with faces.npz and pets.npz")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.subjects) - set(SUBJECTS))
    if unknown:
        parser.error(f"no benchmark called {', '.join(unknown)}; there are {', '.join(SUBJECTS)}.")
    console, failed = Console(stderr=True), []
    for subject in chosen.subjects or SUBJECTS:
        began = time.perf_counter()
        command = [sys.executable, str(HERE / f"{subject}.py"), "--data", str(chosen.data)]
        if subprocess.run(command).returncode != 0:
            failed.append(subject)
        console.print(f"{subject}: {time.perf_counter() - began:.0f} s", highlight=False)
    if failed:
        console.print(f"[red]failed:[/] {', '.join(failed)}", highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
