"""What a reproduction leaves on disk."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

import ssse
from ssse.errors import InvalidSetting
from ssse.paper.experiments import EXPERIMENTS, Scale
from ssse.paper.pages import labels, markdown, provenance
from ssse.paper.pages.writer import write, write_overview
from ssse.paper.result import Form, Result
from ssse.paper.settings import Settings
from ssse.rendering import numbers
from tests.support import experiments
from tests.support.experiments import NASTY

VOID = {"meta", "br", "link", "img"}


class Reader(HTMLParser):
    """Collects the elements, and checks that what is opened is closed."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read by the tests, changed by none."""
    folder = tmp_path_factory.mktemp("results") / "illustrative"
    assert write(experiments.result(), folder) == folder / "page.html"
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Reader:
    return Reader((folder / "page.html").read_text())


def test_the_files(folder):
    names = {path.name for path in folder.iterdir()}
    assert names == {"results.json", "ratio.svg", "distance.svg", "tables.md", "page.html"}
    for path in folder.glob("*.svg"):
        assert 1000 < path.stat().st_size < 300_000


def test_the_numbers_come_back_as_they_were(folder):
    text = (folder / "results.json").read_text()
    assert text.endswith("}\n")
    assert "θ" in text
    body = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert body == experiments.result().to_dict()
    assert body["numbers"]["gaps"] == [0.1, None]


def test_the_same_result_gives_the_same_bytes(folder, tmp_path):
    write(experiments.result(), tmp_path)
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_what_the_run_before_left_is_removed_and_nothing_else(tmp_path):
    result = experiments.result()
    write(result, tmp_path)
    (tmp_path / "mine.svg").write_text("<svg/>")
    del result.figures[0]
    write(result, tmp_path)
    assert {path.name for path in tmp_path.glob("*.svg")} == {"distance.svg", "mine.svg"}
    (tmp_path / "results.json").write_text("broken")
    write(result, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text())["experiment"] == "illustrative"


def test_two_figures_of_one_name_are_refused_before_anything_is_written(tmp_path):
    result = experiments.result()
    result.figures.append(experiments.drawn("ratio"))
    with pytest.raises(ValueError, match="same name"):
        write(result, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_words_are_not_taken_for_html(folder, page):
    assert page.named("script") == []
    assert NASTY in page.text
    assert "<b>" not in (folder / "page.html").read_text()
    for path in folder.glob("*.svg"):
        assert 'aria-label="The ratio &amp; ' in path.read_text()


def test_the_page_says_that_nothing_may_be_loaded_or_run(page):
    assert_policy(page)


def assert_policy(page: Reader) -> None:
    """Before anything that it is about."""
    said = [tag for tag, _ in page.elements].index("style")
    (policy,) = [a["content"] for tag, a in page.elements[:said] if a.get("http-equiv") == "Content-Security-Policy"]
    parts = dict(part.strip().split(" ", 1) for part in (policy or "").split(";"))
    assert parts["default-src"] == parts["base-uri"] == parts["form-action"] == "'none'"
    assert "script-src" not in parts
    assert set(parts) == {"default-src", "style-src", "img-src", "base-uri", "form-action"}
    assert (parts["style-src"], parts["img-src"]) == ("'unsafe-inline'", "data:")


def test_every_template_of_a_page_has_the_policy():
    """And every page that is kept here was made from one that has."""
    root = Path(__file__).parents[2]
    templates = [p for p in (root / "src").rglob("*.j2") if "<html" in p.read_text(encoding="utf-8")]
    assert len(templates) == 3
    assert all('{% include "policy.html.j2" %}' in p.read_text(encoding="utf-8") for p in templates)
    for path in (root / "results").glob("*/page.html"):
        assert 'http-equiv="Content-Security-Policy"' in path.read_text(encoding="utf-8")[:1000], path


def test_the_page_loads_nothing(folder):
    text = (folder / "page.html").read_text()
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?://|@import|\bsrc=", without_namespaces)
    links = re.findall(r'href="(.{0,12})', without_namespaces) + re.findall(r"url\((.{0,12})", without_namespaces)
    assert links
    assert all(link.startswith(("#", "data:image/")) for link in links)


def test_ids_are_unique_and_every_reference_finds_its_own(folder, page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    text = (folder / "page.html").read_text()
    references = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert len(references) > 10
    assert references <= set(ids)
    assert 'fill="#123456"' in text  # the ground of a hatched bar: a colour, not a reference


def test_the_page_can_be_read_without_seeing_it(page):
    assert page.named("html") == [{"lang": "en"}]
    assert len(page.named("h1")) == 1
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in page.named("svg"))
    assert len(page.named("figure")) == len(page.named("figcaption")) == len(page.named("svg")) == 2
    assert len(page.named("caption")) == len(page.named("table")) == 4
    assert all(cell.get("scope") in ("col", "row", "rowgroup") for cell in page.named("th"))
    for verdict in ("✔ yes", "◐ partly", "✘ no", "✔ met", "✘ not met"):
        assert verdict in page.text


def test_the_page_says_how_near_to_the_paper_it_is(page):
    assert "Small form on scikit-learn's digits: not the paper's data" in page.text
    assert "Stands beside Figure 2a of the paper." in page.text
    assert "Stands beside Table 1 of the paper." in page.text
    assert "Past the paper." in page.text
    assert page.text.count("Our data: Digits instead of faces.") == 2
    assert page.text.index("Digits instead of faces.") < page.text.index("997×") < page.text.index("Mean gap 0.34")


def test_an_empty_result_has_a_page(tmp_path):
    bare = Result("illustrative", "Nothing", "full")
    text = write(bare, tmp_path).read_text()
    assert Reader(text).named("table") == []
    assert "At full size" in text
    assert "nan" not in (tmp_path / "tables.md").read_text()


def test_tables_as_markdown(folder):
    text = (folder / "tables.md").read_text()
    rows = [row for row in text.splitlines() if row.startswith("|")]
    assert "| original | 98.12 | – | 10 |" in rows
    assert r"| erased \<b\> | – | 2.600e-05 | 10 |" in rows
    assert r"| a\|b | 12,346 | −0.5000 | 50,000 |" in rows
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows if "✔ yes" in row or "we find" in row}) == 1
    assert r"θ\*₋S" in text
    assert "<script>" not in text
    assert "![The ratio & ratio](ratio.svg)" in text


def test_the_summary_puts_requests_together():
    groups = labels.by_request(experiments.result().summary)
    assert [(name, len(lines)) for name, lines in groups] == [
        ("digits, all of a class", 2),
        ("digits, half of a class", 1),
    ]
    cells = labels.summary_cells(groups[0][1][0])
    assert cells == [
        "SSSE (the paper's)",
        "best of 33: 0.4–1.3",
        "0.34 ± 0.10",
        "γ 0.981",
        "0.123",
        "0.0123",
        "12.3",
        "S",
    ]
    assert labels.summary_cells(groups[0][1][1])[2:5] == ["–", "–", "–"]
    assert labels.summary_cells(groups[1][1][0])[2] == "0.34"


@pytest.mark.parametrize(
    ("cell", "text"),
    [(0.0, "0"), (1.0, "1.000"), (-1234.56, "−1235"), (float("inf"), "∞"), (True, "yes"), (7, "7"), ("1.0", "1.0")],
)
def test_cells(cell, text):
    assert numbers.shown(cell) == text


def test_underscores_within_words_are_left_alone():
    assert markdown.escape("T_a and _this_\nand ~5") == r"T_a and \_this\_ and \~5"


def test_the_overview_of_two_experiments(tmp_path):
    for name in ("awa2", "illustrative"):
        write(experiments.result(name), tmp_path / name)
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "results.json").write_text('{"title": "half')
    text = write_overview(tmp_path).read_text()
    assert text.index("illustrative/page.html") < text.index("awa2/page.html")  # the paper's order
    assert "`cifar10/results.json` cannot be read" in text
    assert text.count("| data, removed | method |") == 1
    assert "| digits (small form of awa2), all of a class | SSSE (the paper's) |" in text
    assert text.count("| Scrubbing fails. | It does not here. | Summary | ✘ no |") == 2
    assert text.count("| ✘ not met: few samples |") == 2
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (tmp_path / target).is_file()


def test_the_overview_reads_what_a_later_version_wrote(tmp_path):
    write(experiments.result(), tmp_path / "illustrative")
    path = tmp_path / "illustrative" / "results.json"
    body = json.loads(path.read_text())
    for entry in body["findings"] + body["summary"]:
        entry["newer"] = 1
    path.write_text(json.dumps(body))
    assert "cannot be read" not in write_overview(tmp_path).read_text()


def test_reproduce_says_how_it_was_made(tmp_path, monkeypatch):
    seen: list[Settings] = []

    def run(settings: Settings):
        seen.append(settings)
        settings.cache.numbers("kept", lambda: [1])
        return experiments.result("celeba")

    experiments.install(monkeypatch, "celeba", run)
    (tmp_path / "data").mkdir()
    arguments = {"data": tmp_path / "data", "output": tmp_path / "out", "seed": 3, "device": "cpu", "progress": False}
    result = ssse.reproduce("celeba", **arguments)
    assert result.command == "ssse reproduce celeba --data DIR --output DIR --device cpu --seed 3"
    assert re.fullmatch(r"\d+-core CPU, \d+ GiB", result.machine)
    assert list(result.versions) == ["python", "torch", "numpy", "scikit-learn", "ssse"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result.date)
    assert seen[0].cache.folder == tmp_path / "out" / ".cache"
    assert len(result.notes) == 1
    (tmp_path / "out" / ".cache" / "kept.seconds").write_text("1000")
    assert ssse.reproduce("celeba", **arguments).seconds > 1000  # what the first part of the work took counts
    assert ssse.reproduce("celeba", **arguments, cache=None).command.endswith("--no-cache")
    assert seen[-1].cache.folder is None
    for path in (tmp_path / "out").rglob("*.*"):
        if path.is_file():
            assert str(tmp_path) not in path.read_text(), path


def test_every_size_lies_in_a_folder_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    sizes: list[tuple[Scale, Form, str]] = [
        ("auto", "full", "lasting"),
        ("small", "small", "lasting-small"),
        ("classes", "classes", "lasting-classes"),
        ("large", "large", "lasting-large"),
    ]
    for scale, form, folder in sizes:
        made = replace(experiments.result("lasting"), form=form)
        experiments.install(monkeypatch, "lasting", lambda _, made=made: made)
        result = ssse.reproduce(
            "lasting", data=tmp_path / "data", output=tmp_path, scale=scale, seeds=1, minutes=2.5, progress=False
        )
        assert result.command.endswith(" --seeds 1 --minutes 2.5")
        assert result.page == tmp_path / folder / "page.html"


def test_a_command_that_is_handed_over_loses_its_folders():
    assert (
        provenance.without_folders("python run.py --data=/home/me/x '~/y' a/b") == "python run.py --data=DIR 'DIR' a/b"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("celebA2", {}, "Did you mean 'celeba'"),
        ("zzz", {}, "There are: illustrative, celeba, awa2, cifar10, lasting"),
        ("awa2", {"scale": "big"}, "one of auto, full, small, classes, large"),
        ("awa2", {"scale": "full"}, "needs its data"),
        ("awa2", {"scale": "large"}, "no size 'large'"),
        ("lasting", {"scale": "large"}, "needs its data"),
        ("awa2", {"data": "not/there"}, "does not exist"),
        ("awa2", {"seed": -1}, "seed"),
        ("awa2", {"seeds": 2}, "'awa2' is run whole; leave --seeds out"),
        ("awa2", {"minutes": 3}, "'awa2' is run whole; leave --minutes out"),
        ("lasting", {"seeds": 0}, "seeds must be a whole number from 1 on"),
        ("lasting", {"seeds": 1.5}, "seeds must be a whole number from 1 on"),
        ("lasting", {"minutes": float("nan")}, "minutes must be a number from 0 on"),
        ("awa2", {"device": "tpu!"}, "device must be"),
        ("awa2", {"device": "meta"}, "device must be"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(name, arguments, says, monkeypatch, tmp_path):
    experiments.install(monkeypatch, "awa2", lambda settings: pytest.fail("was run"))
    with pytest.raises(InvalidSetting, match=re.escape(says)):
        ssse.reproduce(name, output=tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_every_experiment_says_what_it_needs():
    assert list(EXPERIMENTS) == ["illustrative", "celeba", "awa2", "cifar10", "lasting"]
    for name, spec in EXPERIMENTS.items():
        assert spec.name == name
        assert all((spec.title, spec.paper, spec.data, spec.memory, spec.time, spec.small))


@pytest.mark.parametrize("stand_in", [True, False])
def test_whether_the_data_stands_in_for_the_papers_is_a_field(tmp_path, stand_in):
    """No words about the data decide it; where a result is older than the field, the name of its data set does."""
    result = experiments.result()
    result.stand_in, result.data = stand_in, ["digits" if not stand_in else "faces"]
    write(result, tmp_path / result.experiment)
    label = labels.form_label("small", stand_in)
    assert label in (tmp_path / result.experiment / "tables.md").read_text()
    assert label in write_overview(tmp_path).read_text()
    stored = tmp_path / result.experiment / "results.json"
    body = json.loads(stored.read_text())
    assert body.pop("stand_in") is stand_in
    for row in body["summary"]:
        row["data"] = "digits" if stand_in else "faces"
    stored.write_text(json.dumps(body))
    assert label in write_overview(tmp_path).read_text()
