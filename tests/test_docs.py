"""What the documentation shows is run, and its numbers are those that the command prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(*arguments: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readmes_code_runs(tmp_path):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "story.py").write_text(block.group(1))
    assert "verdict: ok" in run("story.py", folder=tmp_path)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example, tmp_path):
    assert run(str(example), folder=tmp_path)


def test_the_readmes_table_is_the_demos(tmp_path):
    printed = [_steady(line) for line in run("-m", "ssse.demo", folder=tmp_path).splitlines()]
    block = re.search(r"```text\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    shown = [_steady(line) for line in block.group(1).splitlines()]
    start = printed.index(shown[0])
    assert printed[start : start + len(shown)] == shown
    page = (tmp_path / "out" / "demo.html").read_text()
    assert page.count("<svg") == 3


def _steady(line: str) -> str:
    """Numbers below 1e-4 are where an optimiser happened to stop, which differs between processors."""
    return re.sub(r"\d\.\de-\d\d", "tiny   ", line).rstrip()


def test_importing_the_package_does_not_import_torch():
    code = "import sys, ssse; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
