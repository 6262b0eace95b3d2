"""The floor plan: each room imports only from rooms to its left, and no file takes part in a circle of imports.

Imports within functions and for types alone count too, and so do modules that are imported by their name.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import ssse

PACKAGE = Path(ssse.__file__).parent
LINE = (
    "verdict",
    "errors",
    "system",
    "problem",
    "rows",
    "curvature",
    "metrics",
    "rendering",
    "evaluation",
    "erasure",
    "calibration",
    "baselines",
    "comparison",
    "sklearn",
    "intake",
    "workspace.settings",
    "workspace.proof",
    "workspace.record",
    "workspace.results",
    "workspace.engines",
    "workspace.page",
    "workspace.commands",
    "workspace",
    "paper",
    "demo",
    "cli",
    "",  # the package itself, which knows where every public name lives
)
AT_THE_ROOT = 6  # files, at most


@cache
def modules() -> dict[str, Path]:
    """Without "ssse." before them; a package is its __init__."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts).removesuffix("__init__").removesuffix(".")] = path
    return found


def imports(path: Path) -> set[str]:
    """Modules of ours that a file names, wherever in it and for whatever purpose."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {own(alias.name) for alias in node.names if is_own(alias.name)}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if is_own(node.module or ""):
                found |= {own(f"{node.module}.{alias.name}") for alias in node.names}
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"ssse(\.\w+)+", node.value)
        ):
            found |= {own(node.value)} - {""}  # "ssse.toml" is a file
    return found


def is_own(name: str) -> bool:
    return name.split(".")[0] == "ssse"


def own(name: str) -> str:
    """The module that a dotted name belongs to: `ssse.erasure.erase.Erasure` is of `erasure.erase`."""
    parts = name.split(".")[1:]
    while ".".join(parts) not in modules():
        parts.pop()
    return ".".join(parts)


def place(module: str) -> int:
    """In the line; a room within a room before the room around it."""
    if module == "__main__":
        return len(LINE) - 1
    return next(i for i, room in enumerate(LINE) if module == room or module.startswith(f"{room}."))


@pytest.mark.parametrize("module", modules())
def test_each_room_imports_only_from_its_left(module):
    if module == "":
        pytest.skip("the package names everything")
    back = {name for name in imports(modules()[module]) if place(name) > place(module)}
    assert not back, f"{module} imports from its right: {', '.join(sorted(back))}"


def test_no_circle_of_imports():
    graph = {module: imports(path) - {module} for module, path in modules().items()}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(" → ".join(name or "ssse" for name in reversed(error.args[1]))) from None


def test_a_handful_of_files_at_the_root():
    found = sorted(path.name for path in PACKAGE.glob("*.py"))
    assert len(found) <= AT_THE_ROOT, found


def test_the_check_sees_what_it_is_for(tmp_path):
    file = tmp_path / "file.py"
    file.write_text(
        "from ssse.errors import SSSEError\n"
        "def later():\n    from ssse.cli.app import main\n"
        "if TYPE_CHECKING:\n    import ssse.paper.reproduce\n"
        "NAME = 'ssse.workspace.workspace'\n"
    )
    assert imports(file) == {"errors", "cli.app", "paper.reproduce", "workspace.workspace"}
    assert (
        place("errors") < place("workspace.record.ledger") < place("workspace.workspace") < place("cli.app") < place("")
    )
