"""Install a wheel into empty environments, and use it as somebody would who has just heard of it.

    python packaging/clean_room.py dist/ssse-*.whl

One environment with every extra runs `ssse demo`; one with nothing but the core runs the README's code for PyTorch,
and is told what the command line needs. Run by `make wheel-test`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"


def main(wheel: Path) -> None:
    with TemporaryDirectory() as place:
        folder = Path(place)
        core = environment(folder / "core", str(wheel))
        names = installed(core)
        extra = {"scikit-learn", "matplotlib", "rich", "typer", "pydantic"} & names
        if extra:
            sys.exit(f"The core brings along what it does not need: {', '.join(sorted(extra))}.")
        code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
        (folder / "readme.py").write_text(code, encoding="utf-8")
        print(run(core / "bin" / "python", folder / "readme.py", cwd=folder))
        refused = subprocess.run([core / "bin" / "ssse"], capture_output=True, text=True, cwd=folder)
        if "pip install 'ssse[cli]'" not in refused.stderr:
            sys.exit(f"The command line without its extra: {refused.stderr}")
        print(refused.stderr)

        full = environment(folder / "full", f"{wheel}[all]")
        print(run(full / "bin" / "ssse", "demo", cwd=folder).splitlines()[-1])
        for name, room in (("core", core), ("all", full)):
            print(f"import ssse, {name}: {1000 * import_seconds(room):.0f} ms beyond Python's own start")


def environment(folder: Path, what: str) -> Path:
    """A fresh one with nothing in it but this and what it asks for."""
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS, what, cwd=folder)
    run(folder / "bin" / "python", "-m", "pip", "check", cwd=folder)
    return folder


def installed(room: Path) -> set[str]:
    lines = run(room / "bin" / "python", "-m", "pip", "list", "--format=freeze", cwd=room).splitlines()
    return {line.partition("==")[0].lower() for line in lines}


def import_seconds(room: Path) -> float:
    """The least of ten, less that of a Python which imports nothing."""

    def least(code: str) -> float:
        taken = []
        for _ in range(10):
            started = time.perf_counter()
            run(room / "bin" / "python", "-c", code, cwd=room)
            taken.append(time.perf_counter() - started)
        return min(taken)

    return least("import ssse") - least("pass")


def run(*words: object, cwd: Path) -> str:
    """Without the variables that would show it another ssse than the one installed."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=clean, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
