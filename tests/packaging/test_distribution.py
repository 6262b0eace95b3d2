"""What is uploaded: whole, the same bytes each time, with links that hold where it is read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from ssse.system.version import __version__
from tests.support.wheels import ROOT, build

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RELATIVE = re.compile(r"\]\((?!https://|#)")
EPOCH = {"SOURCE_DATE_EPOCH": "1700000000"}


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as packed:
        return packed.read(f"ssse-{__version__}.dist-info/METADATA").decode()


@pytest.mark.long
def test_two_builds_are_the_same_bytes_and_pass_the_check(tmp_path):
    address = {"SSSE_REPOSITORY": "https://example.org/owner/ssse"}
    first, second = (build(tmp_path / name, "sdist", "wheel", **EPOCH, **address) for name in ("one", "two"))
    assert [path.name for path in first] == [f"ssse-{__version__}-py3-none-any.whl", f"ssse-{__version__}.tar.gz"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *first], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr

    with zipfile.ZipFile(first[0]) as packed:
        shipped = {name for name in packed.namelist() if name.startswith("ssse/")}
    sources = (ROOT / "src").rglob("*")
    written = {str(p.relative_to(ROOT / "src")) for p in sources if p.is_file() and p.suffix != ".pyc"}
    assert shipped == written

    told = metadata(first[0])
    assert "Project-URL: Source, https://example.org/owner/ssse\n" in told
    assert f"(https://example.org/owner/ssse/blob/v{__version__}/docs/requests.md" in told
    assert not RELATIVE.search(told)


@pytest.mark.long
def test_without_an_address_the_page_has_no_link_that_leads_nowhere(tmp_path):
    assert PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"] == ""
    (wheel,) = build(tmp_path, "wheel", **EPOCH)
    told = metadata(wheel)
    assert "Project-URL" not in told
    assert not RELATIVE.search(told)


def test_citation_and_workflows_are_of_their_schemas():
    for schema, files in (
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
        ("vendor.github-workflows", [*sorted((ROOT / ".github" / "workflows").iterdir())]),
    ):
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, "--output-format", "json"]
        done = subprocess.run([*command, *files], capture_output=True, text=True, timeout=600)
        assert json.loads(done.stdout)["status"] == "ok", done.stdout + done.stderr
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_workflows_call_targets_that_the_makefile_has():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = set()
    for path in (ROOT / ".github" / "workflows").iterdir():
        found = re.findall(r"\bmake ([\w-]+)", path.read_text())
        assert found, f"{path.name} calls nothing that a person could call, too"
        called |= set(found)
    assert called <= targets
    assert called >= {"test", "test-long", "wheel-test", "release"}


def test_the_conda_recipe_asks_for_what_pyproject_asks_for():
    recipe = yaml.safe_load((ROOT / "packaging" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == __version__
    assert f">={recipe['context']['python_min']}" == PYPROJECT["project"]["requires-python"]
    renamed = {"pytorch": "torch", "matplotlib-base": "matplotlib"}

    def asked(lines: list[str]) -> set[str]:
        pairs = (line.split() for line in lines if not line.startswith("python "))
        return {renamed.get(name, name) + least for name, least in pairs}

    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = PYPROJECT["project"]["dependencies"] + extras["cli"] + extras["sklearn"] + extras["plots"]
    assert asked(recipe["requirements"]["run"]) == set(wanted)
    beside = extras["frames"] + extras["tables"] + extras["skops"]
    assert asked(recipe["requirements"]["run_constraints"]) == set(beside)
    (script,) = PYPROJECT["project"]["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(script)]


def test_the_changelog_has_the_form_that_it_names():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert versions[1].startswith(f"{__version__} ")
    for part in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", part, re.MULTILINE)
        assert kinds
        assert kinds == [
            kind for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security") if kind in kinds
        ]
        assert not re.search(r"^- ", part.split("\n### ")[0], re.MULTILINE)
