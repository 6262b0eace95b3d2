"""The experiments in their small forms, from end to end; and the results that are kept in the repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import ssse
from ssse.errors import InvalidData
from ssse.paper.awa2 import run as awa2
from ssse.paper.cache import Cache
from ssse.paper.celeba import run as celeba
from ssse.paper.cifar10 import run as cifar10
from ssse.paper.data.digits import digit_attributes, digit_classes
from ssse.paper.data.extract import save_features
from ssse.paper.lasting import run as lasting
from ssse.paper.lasting.jobs import OURS, PUSHED, RETRAINED
from ssse.paper.reproduce import redraw
from ssse.paper.result import Finding, Result
from ssse.paper.settings import Settings
from tests.support.sizes import FULL

pytestmark = pytest.mark.long

RESULTS = Path(__file__).parents[2] / "results"
# Parts of runs are written beside those that are kept.
KEPT = sorted(path.parent.name for path in RESULTS.glob("*/results.json") if not path.parent.name.endswith("-part"))


def plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return json.loads(json.dumps(value))


@pytest.fixture(scope="module", autouse=True)
def fewer_requests() -> Iterator[None]:
    """In the small size of the tests: fewer classes and rates, every method and every page."""
    with pytest.MonkeyPatch.context() as patch:
        if not FULL:
            patch.setattr(awa2, "CLASSES", 2)
            patch.setattr(celeba, "RATES", celeba.RATES[1::2])
            patch.setattr(cifar10, "SMALL", replace(cifar10.SMALL, classes=1, scanned=200))
        yield


@pytest.fixture(scope="module")
def small_awa2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    output = tmp_path_factory.mktemp("awa2")
    return ssse.reproduce("awa2", output=output, progress=False), output


def check_written(result: Result, figures: set[str]) -> None:
    assert result.form == "small"
    assert result.page is not None
    folder = result.page.parent
    stored = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert {entry["paper"] for entry in stored["figures"]} - {""} == figures
    for entry in stored["figures"]:
        assert (folder / entry["file"]).stat().st_size > 1000
    page = result.page.read_text(encoding="utf-8")
    assert "not the paper" in page
    assert "digits" in page
    assert stored["summary"]
    assert all(finding["holds"] in ("yes", "partly", "no") for finding in stored["findings"])


def line(result: Result, method: str, removed: str) -> Any:
    (found,) = [entry for entry in result.summary if entry.method.startswith(method) and entry.removed == removed]
    return found


def test_awa2_in_its_small_form(small_awa2: tuple[Result, Path]):
    result, _ = small_awa2
    check_written(result, {"Figure 3a", "Figure 4"})
    ours = line(result, "expected rows over D∖S, all classes together", "50%")
    paper = line(result, "SSSE, empirical, over D (the paper)", "50%")
    nothing = line(result, "the original model", "50%")
    assert ours.gap < paper.gap < nothing.gap
    assert ours.distance < 0.2 < paper.distance
    searched = line(result, "the same, ε by the loss", "100%")
    assert searched.gap < line(result, "expected rows over D∖S, all classes together", "100%").gap


def test_a_second_run_finds_everything_and_says_the_same(small_awa2: tuple[Result, Path]):
    result, output = small_awa2
    cache = Cache(output / ".cache")
    again = awa2.run(Settings(cache=cache, show_progress=False))
    assert cache.made == 0
    assert plain(again.numbers) == plain(result.numbers)
    assert 0 < cache.saved <= result.seconds  # so that an interrupted run tells its true time


def test_redrawing_measures_nothing_and_gives_the_same_page(small_awa2: tuple[Result, Path]):
    result, output = small_awa2
    assert result.page is not None
    page, tables = result.page.read_text(), (result.page.parent / "tables.md").read_text()
    redraw("awa2", output)
    assert result.page.read_text() == page
    assert (result.page.parent / "tables.md").read_text() == tables


def test_an_interrupted_run_goes_on_where_it_stopped(small_awa2: tuple[Result, Path], tmp_path: Path):
    whole, _ = small_awa2
    study, removals, _ = awa2.prepare(Settings(cache=Cache(tmp_path), show_progress=False))[0]
    for removal in removals[:3]:
        study.answer(removal)
    cache = Cache(tmp_path)
    study, removals, _ = awa2.prepare(Settings(cache=cache, show_progress=False))[0]
    resumed = [study.answer(removal) for removal in removals[:4]]
    assert cache.found >= 3
    for one, other in zip(resumed, whole.numbers["sets"][0]["answers"], strict=False):
        for key, curve in one["curves"].items():
            if curve["mean_gap"] is not None and key != "scrubbing":
                assert curve["mean_gap"] == pytest.approx(other["curves"][key]["mean_gap"], abs=0.2, nan_ok=True)


def test_celeba_in_its_small_form(tmp_path: Path):
    result = ssse.reproduce("celeba", output=tmp_path, progress=False)
    check_written(result, {"Figure 2"})
    exact = line(result, "the same with damping (n−k)λ", "100%")
    assert exact.ratio > 0.8
    assert exact.ratio > line(result, "SSSE, empirical, over D (the paper)", "100%").ratio
    (table,) = [table for table in result.tables if table.paper == "Table 1"]
    assert len(table.rows) == 16  # two attributes, two rates, four models


def test_cifar10_in_its_small_form_on_the_cpu(tmp_path: Path):
    result = ssse.reproduce("cifar10", output=tmp_path, device="cpu", scale="small", progress=False)
    check_written(result, {"Figure 3b", "Figure 5", "Figure 6", "Figure 7"})
    nothing = line(result, "the original model", "100%")
    assert nothing.gap > 40
    for method in ("SSSE, mini-batches of 10, over D", "last layer", "SSSE, single samples, over D (the paper)"):
        assert line(result, method, "100%").gap < nothing.gap / 2
    assert line(result, "selective", "100%").gap == pytest.approx(
        nothing.gap, abs=1
    )  # a tenth of the data: nothing to select


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_follows_from_its_numbers(name: str):
    stored = json.loads((RESULTS / name / "results.json").read_text(encoding="utf-8"))
    for field in ("command", "seed", "date", "machine", "seconds", "versions"):
        assert stored[field] or field == "seed"
    experiment, _, size = name.partition("-")
    assert stored["form"] == (size or "full")
    assert str(Path.home()) not in json.dumps(stored)
    module = import_module(f"ssse.paper.{experiment}.run")
    if hasattr(module, "compose"):
        again = module.compose(stored["numbers"]).to_dict()
        for part in ("findings", "targets", "summary", "tables", "figures", "notes"):
            assert plain(again[part]) == stored[part], part


def test_verdicts_turn_with_the_numbers():
    """No finding is written down: with the numbers of another world it says the opposite."""
    stored = json.loads((RESULTS / "celeba" / "results.json").read_text(encoding="utf-8"))["numbers"]
    before = celeba.compose(stored).findings[0]
    for answer in stored["answers"]:
        curve = answer["curves"]["paper"]
        curve["ratio"] = [None if value is None else 0.5 * value for value in curve["ratio"]]
    after = celeba.compose(stored).findings[0]
    assert (before.holds, after.holds) == ("yes", "no")
    stored = json.loads((RESULTS / "cifar10" / "results.json").read_text(encoding="utf-8"))["numbers"]
    assert cifar10.compose(stored).targets[0].met
    for answer in stored["answers"]:
        gaps = answer["curves"]["ten"]["mean_gap"]
        answer["curves"]["ten"]["mean_gap"] = [None if gap is None else gap + 5 for gap in gaps]
    assert not cifar10.compose(stored).targets[0].met


def test_what_is_said_of_networks_turns_with_the_numbers():
    def finding(numbers: dict[str, Any], words: str) -> Finding:
        return next(one for one in lasting.compose(numbers).findings if words in one.paper)

    stored = json.loads((RESULTS / "lasting" / "results.json").read_text(encoding="utf-8"))["numbers"]
    pushed, ours, retrained = (stored["answers"][name]["0"] for name in (PUSHED, OURS, RETRAINED))
    assert finding(stored, "√(1−p)").holds == "partly"
    for words, one in pushed.items():
        one["repaired"] |= {"auc": retrained[words]["alone"]["auc"], "kl": 2 * ours[words]["repaired"]["kl"]}
    assert finding(stored, "√(1−p)").holds == "yes"
    for one in pushed.values():
        one["repaired"]["kl"] = 0.0
    assert finding(stored, "√(1−p)").holds == "no"
    assert "between two retrained seeds" in finding(stored, "Step and repair bring").found
    stored["floors_kl"] = {}
    assert "seeds" not in finding(stored, "Step and repair bring").found
    four = next(table for table in lasting.compose(stored).tables if table.title.endswith("in four numbers"))
    counts = {str(row[0]): int(str(row[1])) for row in four.rows}
    for measure in ("unseen", "gap"):  # as of a network that is destroyed
        ours["10% of the data at random"]["repaired"][measure] = None
    four = next(table for table in lasting.compose(stored).tables if table.title.endswith("in four numbers"))
    label = "ours: the chosen step, then repaired"
    assert {str(row[0]): row[1] for row in four.rows} == counts | {label: counts[label] - 1}


def test_given_data_in_a_small_form(tmp_path: Path):
    """Two classes and two rates of what lies in the folder, and no word of digits."""
    found = digit_classes()
    save_features(tmp_path / "awa2-features.npz", found.x, labels=found.y)
    result = ssse.reproduce("awa2", data=tmp_path, output=tmp_path / "out", scale="small", progress=False)
    assert result.form == "small"
    assert {(line.removed, line.data) for line in result.summary} == {
        ("50%", "awa2-features"),
        ("100%", "awa2-features"),
    }
    assert result.page is not None
    assert "digits" not in result.page.read_text(encoding="utf-8")
    assert len(result.numbers["sets"][0]["answers"]) == 4


def test_a_large_training_set_is_thinned_as_in_the_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = digit_attributes()
    split = torch.arange(len(found.x)) % 3
    save_features(tmp_path / "faces.npz", found.x, attributes=found.y, split=split, names=found.names)
    settings = Settings(tmp_path, "full", "cpu", show_progress=False)
    whole, removals, _ = celeba.prepare(settings)
    assert len(whole.data.x) == (split == 0).sum()
    assert len(whole.data.test_x) == (split == 2).sum()
    assert {removal.kind for removal in removals} == set(found.names[10:])  # at most a fifth has them
    assert whole.data.x.square().sum(1).mean() == pytest.approx(1)
    monkeypatch.setattr(celeba, "MANY", 500)
    assert len(celeba.prepare(settings)[0].data.x) == (split == 0).sum() // 10


def test_where_no_attribute_is_rare_the_message_says_so(tmp_path: Path):
    save_features(tmp_path / "faces.npz", torch.rand(60, 3), attributes=torch.ones(60, 2), split=torch.arange(60) % 3)
    with pytest.raises(InvalidData, match="No attribute has at most 20% positives"):
        celeba.prepare(Settings(tmp_path, "full", "cpu", show_progress=False))
