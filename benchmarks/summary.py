"""Write the measured numbers into README.md and docs/scale.md, from the JSON files in results/.

Between `<!-- NAME -->` and `<!-- end -->` stands what NAME.json says, and `<!-- targets -->` is filled with all
targets of all benchmarks. Nothing between those marks is written by hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from record import RESULTS

HERE = Path(__file__).parent
PAGES = (HERE / "README.md", HERE.parent / "docs" / "scale.md")
MARK = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def main() -> None:
    read = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    results = {name: one for name, one in read.items() if "targets" in one}  # compared.json is of `ssse compare`

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        text = targets(results) if name == "targets" else section(results.get(name))
        return f"<!-- {name} -->\n{text}\n<!-- end -->"

    for page in PAGES:
        page.write_text(MARK.sub(fill, page.read_text()))


def section(result: dict[str, Any] | None) -> str:
    """One benchmark: where and when, its tables, its notes."""
    if result is None:
        return "Not measured."
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    place = f"{result['date'][:10]}, {result['machine']}, {versions}"
    parts = [f"`{result['command']}`, {place}; {result['seconds']:.0f} s in all."]
    for table in result["tables"]:
        parts.append(f"{table['title']}:\n\n{markdown(table['columns'], table['rows'])}")
    parts += result["notes"]
    return "\n\n".join(parts)


def targets(results: dict[str, dict[str, Any]]) -> str:
    rows = [
        [name, target["what"], target["wanted"], target["measured"], "yes" if target["met"] else "**no**"]
        for name, result in results.items()
        for target in result["targets"]
    ]
    return markdown(["benchmark", "what", "wanted", "measured", "met"], rows)


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    align = ["---"] + ["---:"] * (len(columns) - 1)
    lines = [columns, align, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
