"""The site, built without running its notebooks and examples: whole, alone, and for those who do not see it.

`make docs` runs them too, and ends at the first warning.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.browser import browse, with_script
from tests.support.site import broken_links, fetched_from_elsewhere

pytest.importorskip("sphinx_gallery", reason="the docs extra is not installed: pip install 'ssse[docs]'")

ROOT = Path(__file__).parent.parent
OF_EVERY_KIND = (
    "docs/index", "docs/methods", "docs/reference/sklearn", "docs/tutorials/inbox", "docs/gallery/index",
    "docs/gallery/inbox", "search",
)  # fmt: skip
pytestmark = pytest.mark.long
in_browser = pytest.mark.skipif(browser.CHROMIUM is None, reason=browser.NO_CHROMIUM)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """From a copy, since the gallery is written beside its sources."""
    home = tmp_path_factory.mktemp("site")
    for folder in ("docs", "examples", "benchmarks", "results"):
        ignored = shutil.ignore_patterns("gallery", ".cache", "__pycache__")
        shutil.copytree(ROOT / folder, home / folder, ignore=ignored)
    for page in ROOT.glob("*.md"):
        shutil.copy(page, home)
    options = ("--quiet", "--fail-on-warning", "--define", "nb_execution_mode=off", "--define", "plot_gallery=0")
    command = [sys.executable, "-m", "sphinx", *options, "--conf-dir", "docs", ".", "out/site"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return home / "out" / "site"


def test_no_link_is_broken(built):
    assert broken_links(built) == []


def test_nothing_is_fetched_from_elsewhere(built):
    assert fetched_from_elsewhere(built) == []


def test_every_public_name_is_found_by_the_search(built):
    index = (built / "searchindex.js").read_text(encoding="utf-8")
    for name in ("erase_and_repair", "normalized_confusion_distance", "neggrad_plus", "Eraser"):
        assert f'"{name.lower()}"' in index.lower()


def test_the_two_tutorials_can_be_downloaded_as_notebooks(built):
    nbformat = pytest.importorskip("nbformat")
    titles = set()
    for path in (built / "_downloads").rglob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        titles.add(next(cell.source.splitlines()[0] for cell in notebook.cells if cell.cell_type == "markdown"))
    assert {"# An inbox of deletion requests", "# Comparing methods"} <= titles


@in_browser
@pytest.mark.parametrize(("name", "theme"), [(name, "light") for name in OF_EVERY_KIND] + [(OF_EVERY_KIND[2], "dark")])
def test_axe_finds_nothing(name, theme, built, tmp_path):
    axe = browser.axe()
    if axe is None:
        pytest.skip(browser.NO_AXE)
    page = built / f"{name}.html"
    dressed = f"document.body.dataset.theme = '{theme}';"
    seen = browse(with_script(page.read_text(), dressed, axe, browser.AXE), tmp_path, wait=20_000, beside=page.parent)
    assert seen.found == []
    assert seen.requests == []


@in_browser
def test_the_search_finds(built, tmp_path):
    seen = browse((built / "search.html").read_text(), tmp_path, wait=8_000, beside=built, query="?q=neggrad")
    assert "docs/reference/baselines.html" in seen.dom
    assert seen.requests == []


@in_browser
def test_nothing_sticks_out_on_a_phone(built, tmp_path):
    """In frames, since no window is that narrow."""
    frame = '<iframe style="width: 360px; height: 800px; border: 0" src="{}.html"></iframe>'
    frames = "".join(frame.format(name) for name in OF_EVERY_KIND)
    looking = with_script(f"<!DOCTYPE html><title>x</title><body>{frames}</body>", browser.PHONES)
    seen = browse(looking, tmp_path, beside=built)
    for name, found in zip(OF_EVERY_KIND, seen.found, strict=True):
        assert found["wide"] <= found["width"] == 360, name


def test_the_checks_of_links_see_what_is_broken(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">x</a><a href="c.html">x</a><img src="http://example.invalid/x.png">'
    )
    (tmp_path / "b.html").write_text('<p id="there">x</p>')
    assert broken_links(tmp_path) == ["a.html → b.html#here", "a.html → c.html"]
    assert fetched_from_elsewhere(tmp_path) == ["a.html: http://example.invalid/x.png"]
