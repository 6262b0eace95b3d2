"""`pip install ssse` brings torch, numpy, scipy, safetensors, blake3, and all that needs no more works with them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ssse.errors import MissingExtra
from ssse.system.extras import LIBRARIES, needed_for
from tests.support.wheels import ROOT, build, core_python, install

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = {"torch", "numpy", "scipy", "safetensors", "blake3"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[]", line)[0] for line in requirements}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    (wheel,) = build(tmp_path_factory.mktemp("dist"), "wheel")
    return install(wheel, tmp_path_factory.mktemp("installed"))


def test_the_core_asks_for_five_packages():
    assert names(PROJECT["dependencies"]) == CORE


def test_every_library_is_of_the_extra_that_is_named():
    extras = PROJECT["optional-dependencies"]
    for package, extra in LIBRARIES.values():
        assert package in names(extras[extra]), (package, extra)
    told = {package for package, _ in LIBRARIES.values()}
    asked = set().union(*(names(extras[extra]) for extra in extras.keys() - {"all", "dev", "docs"}))
    assert asked == told
    (everything,) = extras["all"]
    assert set(re.split(r"[\[\],]", everything)[1:-1]) == extras.keys() - {"all", "dev", "docs"}


MORE = """
import sys
assert ssse.__file__.startswith(sys.argv[1])
forget, rest = [(x[:10], y[:10])], [(x[10:], y[10:])]
refined = ssse.refine(model, curvature, "cross_entropy", rest)
repaired = ssse.repair(model, rest, "cross_entropy", forget=forget, training=ssse.Training(10, 0.1))
ascended = ssse.baselines.gradient_ascent(refined.model, None, "cross_entropy", forget)
models = {"original": ascended.model, "erased": model, "refined": refined.model, "retrained": repaired.model}
splits = {"retained": rest, "forgotten": forget, "test": [(x[::2], y[::2])]}
found = ssse.evaluate(models, splits, loss_fn="cross_entropy", weight_decay=decay)
print(found, ssse.metrics.resurfacing(model, rest, forget, "cross_entropy", epochs=(0, 1)))
print("along the step:", erasure.scan(splits).scales[0], ssse.calibrate, ssse.erase_and_repair)
found.figure()
"""


@pytest.mark.long
def test_the_readmes_code_and_what_needs_no_more_run_with_the_core_alone(installed, tmp_path):
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    (tmp_path / "story.py").write_text(code + MORE)
    done = core_python(installed, "story.py", str(installed), cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "ssse.errors.MissingExtra: A figure needs matplotlib: pip install 'ssse[plots]'."
    ), done.stderr
    for words in (
        "verdict: ok",
        "epochs on D∖S",
        "mean accuracy gap, points",
        "KL(retrained ‖ model), S",
        "along the step:",
    ):
        assert words in done.stdout, done.stdout


SENTENCES = {
    "import ssse; ssse.Workspace": "A workspace needs tomli-w: pip install 'ssse[cli]'.",
    "from ssse.workspace.workspace import Workspace": "A workspace needs tomli-w: pip install 'ssse[cli]'.",
    "import ssse; ssse.sklearn": "ssse.sklearn needs scikit-learn: pip install 'ssse[sklearn]'.",
    "from ssse.sklearn import Eraser": "ssse.sklearn needs scikit-learn: pip install 'ssse[sklearn]'.",
    "import ssse; ssse.reproduce('illustrative')": (
        "The experiment 'illustrative' needs matplotlib: pip install 'ssse[plots]'."
    ),
    "from ssse.evaluation.table import Evaluation as E; E((), {}, {}, (), {}).to_frame()": (
        "to_frame() needs pandas: pip install 'ssse[frames]', or use to_dict()."
    ),
}


@pytest.mark.long
def test_a_missing_extra_is_one_sentence_with_the_command(installed, tmp_path):
    code = "\n".join(
        f"try:\n    {statement}\nexcept ImportError as error:\n    print(type(error).__name__, error)"
        for statement in SENTENCES
    )
    done = core_python(installed, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"MissingExtra {sentence}" for sentence in SENTENCES.values()]


@pytest.mark.long
def test_the_command_line_says_what_it_needs(installed, tmp_path):
    done = core_python(installed, "-m", "ssse", "demo", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: The command line needs typer: pip install 'ssse[cli]'.\n"
    done = core_python(installed, "-m", "ssse", "demo", cwd=tmp_path, also="typer")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: This command needs scikit-learn: pip install 'ssse[sklearn]'.\n"


def test_a_module_of_somebody_elses_that_is_missing_is_none_of_ours():
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as caught, needed_for("This"):
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, MissingExtra)
