"""The wheel, built and unpacked as an installer does it, and a Python that has nothing beside it but the core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ssse.system.extras import LIBRARIES

ROOT = Path(__file__).parent.parent.parent

# Libraries of the extras are not found, as if they had never been installed; jinja2 comes with torch wherever that is.
WITH_TORCH = {"jinja2", "markupsafe"}
BLOCKER = """
import sys
from importlib.machinery import PathFinder
class WithoutExtras(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else super().find_spec(name, path, target)
sys.meta_path[:] = [WithoutExtras if finder is PathFinder else finder for finder in sys.meta_path]
"""


def build(folder: Path, *kinds: str, **environment: str) -> list[Path]:
    """Wheel or sdist of this tree, without asking anything of a network."""
    clean = {key: value for key, value in os.environ.items() if key not in ("SSSE_REPOSITORY", "PYTHONPATH")}
    command = [sys.executable, "-m", "build", "--no-isolation", *(f"--{kind}" for kind in kinds), "--outdir", folder]
    done = subprocess.run([*command, ROOT], env=clean | environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(folder.iterdir())


def install(wheel: Path, folder: Path) -> Path:
    """Into a folder of its own, without what it depends on."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target"]
    done = subprocess.run([*command, folder, wheel], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


def core_python(installed: Path, *arguments: str, cwd: Path, also: str = "") -> subprocess.CompletedProcess[str]:
    """Python with ssse as it is installed there, and none of the libraries that are not of its core.

    Args: also: one library of an extra that is there all the same, with all that its extra brings.
    """
    extras = {extra for name, (_, extra) in LIBRARIES.items() if name == also}
    names = {name for name, (_, extra) in LIBRARIES.items() if extra not in extras} - WITH_TORCH
    blocker = cwd / "sitecustomize.py"
    blocker.write_text(BLOCKER.format(names=names))
    path = os.pathsep.join(map(str, (cwd, installed)))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600
    )
