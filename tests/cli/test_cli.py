"""The command line, as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ssse
from ssse.cli.app import app
from ssse.errors import InvalidData
from ssse.paper.experiments import EXPERIMENTS
from ssse.paper.settings import Settings
from tests.support import experiments


def call(*arguments: str, code: int = 0) -> tuple[str, str]:
    """What is printed on stdout and stderr."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout, done.stderr


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Settings]:
    """An experiment that writes into an empty folder; what it was run with."""
    seen: list[Settings] = []

    def run(settings: Settings):
        seen.append(settings)
        return experiments.result()

    experiments.install(monkeypatch, "illustrative", run)
    monkeypatch.chdir(tmp_path)
    return seen


@pytest.mark.parametrize("arguments", [["--help"], ["reproduce", "--help"], ["reproduce", "--list"], ["--version"]])
def test_help_and_list_do_not_import_torch(arguments):
    code = (
        "import sys\nfrom ssse.cli.app import app\n"
        f"app({arguments!r}, standalone_mode=False)\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'matplotlib', 'sklearn')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_package_can_be_run():
    done = subprocess.run([sys.executable, "-m", "ssse", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"ssse {ssse.__version__}\n"


def test_the_list_names_what_each_needs():
    text, _ = call("reproduce", "--list")
    assert all(name in text for name in EXPERIMENTS)
    listed = json.loads(call("reproduce", "--list", "--json")[0])
    assert [entry["name"] for entry in listed] == list(EXPERIMENTS)
    assert set(listed[0]) == {"name", "title", "paper", "data", "memory", "time", "small", "sizes", "several"}


def test_a_run_prints_findings_targets_and_the_page(fake):
    text, complaints = call("reproduce", "illustrative", "--seed", "2", "--device", "cpu")
    assert complaints == ""
    for words in ("✔ yes", "◐ partly", "✘ no", "✔ met", "✘ not met", "Small form", "<script>"):
        assert words in text
    page = Path("results") / "illustrative" / "page.html"
    assert text.endswith(f"The page: {page}\n")
    assert page.is_file()
    assert Path("results/README.md").is_file()
    assert (fake[0].seed, fake[0].device, fake[0].show_progress) == (2, "cpu", True)
    assert "ssse reproduce illustrative --device cpu --seed 2<" in page.read_text()


def test_json_is_all_that_is_printed(fake):
    text, _ = call("reproduce", "illustrative", "--json")
    printed = json.loads(text)
    stored = json.loads(Path("results/illustrative/results.json").read_text())
    del stored["numbers"]
    assert printed == stored


def test_quiet_prints_the_path(fake):
    text, _ = call("reproduce", "illustrative", "-q", "--output", "elsewhere")
    assert text == f"{Path('elsewhere') / 'illustrative' / 'page.html'}\n"
    assert not fake[0].show_progress


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [([], Path("results/.cache")), (["--cache", "kept"], Path("kept")), (["--no-cache"], None)],
)
def test_where_what_was_computed_is_kept(fake, arguments, folder):
    call("reproduce", "illustrative", "-q", *arguments)
    assert fake[0].cache.folder == folder


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["celebs"], "Did you mean 'celeba'?"),
        ([], "Which experiment?"),
        (["illustrative", "--cache", "a", "--no-cache"], "contradict"),
        (["celeba", "--data", "not-there"], "not-there"),
        (["illustrative", "--data", "."], "needs no data"),
        (["celeba", "--scale", "full"], "--data"),
        (["illustrative", "--device", "tpu"], "device must be"),
    ],
)
def test_what_cannot_be_done_is_one_line(fake, arguments, says):
    text, complaints = call("reproduce", *arguments, code=2)
    assert text == ""
    assert says in complaints
    assert complaints.count("\n") == 1
    assert fake == []


@pytest.mark.parametrize("arguments", [["--scale", "big"], ["--seed", "-1"], ["--seed", "x"], ["--nothing"]])
def test_wrong_options_are_refused(fake, arguments):
    assert arguments[0] in call("reproduce", "illustrative", *arguments, code=2)[1]
    assert fake == []


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (InvalidData("Two\nlines [of] it."), 2, "Error: Two lines [of] it.\n"),
        (FileNotFoundError(2, "No such file", "faces.npz"), 1, "Error: [Errno 2] No such file: 'faces.npz'\n"),
        (MemoryError(), 1, "Error: out of memory\n"),
        (RuntimeError("odd"), 1, "Error: RuntimeError: odd (SSSE_TRACEBACK=1 in the environment shows where.)\n"),
        (KeyboardInterrupt(), 130, "Stopped; run the same command again to go on where it stopped.\n"),
    ],
)
def test_failures_end_with_their_code(monkeypatch, tmp_path, error, code, says):
    def fail(settings: Settings):
        raise error

    experiments.install(monkeypatch, "illustrative", fail)
    monkeypatch.chdir(tmp_path)
    assert call("reproduce", "illustrative", code=code) == ("", says)


def test_a_traceback_is_shown_on_request(monkeypatch, tmp_path):
    def fail(settings: Settings):
        raise RuntimeError("odd")

    experiments.install(monkeypatch, "illustrative", fail)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSSE_TRACEBACK", "1")
    done = CliRunner().invoke(app, ["reproduce", "illustrative"])
    assert isinstance(done.exception, RuntimeError)


def test_a_page_that_cannot_be_written_is_one_line(fake):
    Path("results").write_text("a file, not a folder")
    assert call("reproduce", "illustrative", code=1)[1].startswith("Error: ")
