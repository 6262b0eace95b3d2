"""Write what `ssse reproduce` found into docs/reproduction.md and the README, from results/*/results.json.

python benchmarks/reproduced.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ssse.paper.lasting.jobs import NOTHING as ORIGINAL
from ssse.paper.lasting.jobs import OURS
from ssse.paper.lasting.plans import OPPONENTS
from ssse.paper.lasting.view import floor, kinds, mean
from summary import markdown

ROOT = Path(__file__).parent.parent

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


# Of `lasting`: the folder of a size, and what its networks are.
NETWORKS = {
    "lasting": "ResNet-20",
    "lasting-large": "11 million parameters",
    "lasting-small": "19,000 parameters, 6,000 images",
    "lasting-classes": "the same, class by class",
}
LASTING_COLUMNS = [
    "network",
    "removed",
    "nothing done",
    "fine-tuning",
    "step and repair",
    "two retrained seeds",
    "best opponent (ours there)",
    "KL on S",
    "two retrained seeds",
]


def table() -> str:
    """Of the paper's experiments."""
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
    return _two_digits(None if entry is None else entry["gap"])


def lasting() -> str:
    """Of step and repair on networks: gaps in points of accuracy."""
    rows = []
    for folder, network in NETWORKS.items():
        stored = json.loads((ROOT / "results" / folder / "results.json").read_text(encoding="utf-8"))["numbers"]
        for rate, removed in kinds(stored).items():
            gaps = [mean(stored, ORIGINAL, "alone", rate), mean(stored, ORIGINAL, "repaired", rate)]
            gaps += [mean(stored, OURS, "repaired", rate), floor(stored, rate)]
            divergences = [mean(stored, OURS, "repaired", rate, "kl"), floor(stored, rate, "floors_kl")]
            link = f"[{network}](results/{folder}/tables.md)"
            cells = [*map(_two_digits, gaps), _best_opponent(stored, rate), *map(_two_digits, divergences)]
            rows.append([link, removed.replace("%", " %"), *cells])
    return markdown(LASTING_COLUMNS, rows)


def _best_opponent(numbers: dict[str, Any], rate: float) -> str:
    """After the same repair, with the settings of least gap; and ours on the same networks."""
    known = [(gap, o) for o in OPPONENTS if (gap := mean(numbers, o.key, "repaired", rate)) is not None]
    if not known:
        return "–"
    least, best = min(known, key=lambda one: one[0])
    ours = mean(numbers, OURS, "repaired", rate, like=best.key)
    return f"{best.label} {least:.2f} ({_two_digits(ours)})"


def _two_digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


PAGES = {"docs/reproduction.md": ("reproduced", table), "README.md": ("lasting", lasting)}


def main() -> None:
    for page, (mark, make) in PAGES.items():
        path = ROOT / page
        pattern = re.compile(rf"<!-- {mark} -->\n.*?<!-- end -->", re.DOTALL)
        path.write_text(pattern.sub(f"<!-- {mark} -->\n{make()}\n<!-- end -->", path.read_text()))


if __name__ == "__main__":
    main()
