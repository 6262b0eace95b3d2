"""Write what `ssse reproduce` found into docs/reproduction.md, from results/*/results.json.

python benchmarks/reproduced.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from summary import markdown

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reproduction.md"
MARK = re.compile(r"<!-- reproduced -->\n.*?<!-- end -->", re.DOTALL)

NOTHING, FLOOR = "the original model: nothing erased", "noise floor: two retrained seeds"
SHOWN = {  # data set: the paper's setting, ascent, ours without a retrained model
    "faces": (
        "the same at the ε of its smallest gap",
        "gradient ascent, one step",
        "the same with damping (n−k)λ, ε = 1",
    ),
    "pets": (
        "the same at the ε of its smallest gap",
        "gradient ascent, one step",
        "the same, ε by the loss along the step",
    ),
    "animals50": (
        "the same at the ε of its smallest gap",
        "gradient ascent, one step",
        "the same, ε by the loss along the step",
    ),
    "CIFAR-10": (
        "the same at the ε of its smallest gap",
        "gradient ascent, one step",
        "the same, the ε at which S is recognised by chance",
    ),
}
COLUMNS = [
    "removed",
    "nothing done",
    "the paper's, best ε",
    "gradient ascent, best ε",
    "ours, nothing retrained",
    "two seeds",
]


def table() -> str:
    lines = [
        line
        for path in sorted((ROOT / "results").glob("*/results.json"))
        for line in json.loads(path.read_text(encoding="utf-8"))["summary"]
    ]
    rows = []
    for data, methods in SHOWN.items():
        for removed in ("100%", "50%"):
            here = {entry["method"]: entry for entry in lines if (entry["data"], entry["removed"]) == (data, removed)}
            if here:
                cells = [_gap(here.get(method)) for method in (NOTHING, *methods, FLOOR)]
                rows.append([f"{data}, {removed.replace('%', ' %')}", *cells])
    return markdown(COLUMNS, rows)


def _gap(entry: dict[str, Any] | None) -> str:
    return "–" if entry is None or entry["gap"] is None else f"{entry['gap']:.2f}"


def main() -> None:
    PAGE.write_text(MARK.sub(f"<!-- reproduced -->\n{table()}\n<!-- end -->", PAGE.read_text()))


if __name__ == "__main__":
    main()
