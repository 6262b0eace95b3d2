"""The README's comparison: `ssse compare` on the files that `ssse demo` makes, its table and its figure.

python benchmarks/compared.py            # runs it, three times for the seconds
python benchmarks/compared.py --table    # the table of what was run last, into README.md
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from summary import markdown

ROOT = Path(__file__).parent.parent
README, NUMBERS, FIGURE = ROOT / "README.md", ROOT / "benchmarks/results/compared.json", ROOT / "docs/compared.png"
MARK = re.compile(r"<!-- compared -->\n.*?<!-- end -->", re.DOTALL)
COLUMNS = {
    "S, %": ("accuracy_forgotten", 1),
    "D∖S, %": ("accuracy_retained", 1),
    "test, %": ("accuracy_test_other", 1),
    "KL on S": ("kl_forgotten", 4),
}
COSTS = {"cost once": "seconds_once", "cost of a request": "seconds"}  # as shares of a retraining in the same run
REPEATS = 3


def command() -> list[str]:
    """As docs/evidence.md has it."""
    text = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^\$ ssse (compare .*)$", text, re.MULTILINE)
    words = shlex.split(line)
    place = words.index("--figure")
    return words[:place] + words[place + 2 :]


def run() -> None:
    found: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        from ssse import demo

        demo.prepare(Path(folder))
        for _ in range(REPEATS):
            words = [*command(), "--quiet", "--output", "all.json", "--figure", FIGURE]
            subprocess.run([sys.executable, "-m", "ssse", *map(str, words)], cwd=folder, check=True)
            table = json.loads((Path(folder) / "all.json").read_text(encoding="utf-8"))["table"]
            values = {key: {name: cell["value"] for name, cell in row.items()} for key, row in table["values"].items()}
            for key in ("seconds", "seconds_once"):  # the least: what else the machine did is none of the method's
                before = found.get("values", {}).get(key, {})
                values[key] = {n: v if before.get(n) is None else min(v, before[n]) for n, v in values[key].items()}
            found = {"models": table["models"], "counts": table["counts"], "values": values}
    NUMBERS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def table() -> str:
    found = json.loads(NUMBERS.read_text(encoding="utf-8"))
    rows = []
    for name in found["models"]:
        cells = [_number(found["values"][key].get(name), digits) for key, digits in COLUMNS.values()]
        for key in COSTS.values():
            seconds = found["values"][key].get(name)
            cells.append("–" if seconds is None else _share(seconds / found["values"]["seconds"]["retrained"]))
        reads = found["values"]["reads_data"].get(name)
        rows.append([name, *cells, "–" if reads is None else "yes" if reads else "no"])
    return markdown(["", *COLUMNS, *COSTS, "reads D∖S"], rows)


def _share(part: float) -> str:
    return f"{100 * part:.0f} %" if part > 0.1 else f"{100 * part:.1g} %"


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:.0e}" if 0 < value < 0.5 * 10**-digits else f"{value:.{digits}f}"


if __name__ == "__main__":
    if "--table" not in sys.argv:
        run()
    README.write_text(MARK.sub(f"<!-- compared -->\n{table()}\n<!-- end -->", README.read_text()), encoding="utf-8")
