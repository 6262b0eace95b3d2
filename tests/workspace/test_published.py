"""What is shown of a request does not tell whose samples it erased: no number that was measured on few samples."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from ssse.errors import Refused
from ssse.verdict import Assessment
from ssse.workspace.engines.torch import TorchEngine
from ssse.workspace.record.ledger import Entry
from ssse.workspace.record.published import PUBLIC, SECRET, bucket, exact, published, published_details
from ssse.workspace.record.sentences import FIXED, without_numbers
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.commands import call, call_json
from tests.support.ledger_entries import one

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?:e[-+]?\d+)?(?!\.?\w)|(?<![\w.])\d+e[-+]?\d+(?!\.?\w)")
MAKE = {"torch": workspaces.make, "sklearn": workspaces.make_estimator}


def outputs(path: Path) -> str:
    """Everything that shows what was done: the ledger in all forms, and the page as it is read."""
    said = [call("log", path, *words)[0] for words in ((), ("-v",), ("--json",))]
    for request in {entry.request for entry in Workspace(path).log().entries} - {None}:
        said += [call("log", path, "--request", request, *words)[0] for words in ((), ("--json",))]
    page = path.with_name("page.html")
    call("report", path, "--output", page)
    text = re.sub(r"<style>.*?</style>", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    labels = re.findall(r'label="[^"]*"', text)
    return "\n".join([*said, html.unescape(re.sub(r"<[^>]*>", " ", text)), *labels])


def two_digits(text: str) -> set[str]:
    """All numbers with a point, by their first two digits."""
    return {f"{float(number):.1e}" for number in NUMBER.findall(text)}


def secrets(value: Any) -> Iterator[float]:
    """Every number of it that is no count."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from secrets(one) if name != "seconds" else ()
    elif isinstance(value, list):
        for one in value:
            yield from secrets(one)
    elif isinstance(value, float) and value not in (0.0, 1.0):
        yield abs(value)
    elif isinstance(value, str):
        yield from (float(number) for number in NUMBER.findall(value))


def told(shown: str, kept: Any, before: str) -> set[str]:
    """Which of the numbers that the ledger keeps are shown, to two digits, and were not before."""
    return {f"{value:.1e}" for value in secrets(kept)} & (two_digits(shown) - two_digits(before))


def measured(entry: Entry) -> list[Any]:
    """What the ledger keeps that depends on the samples."""
    names = ("diagnostics", "distance_bound", "gradient_bound", "table", "curve", "reason", "notes")
    return [entry.details.get(name) for name in names]


@pytest.mark.parametrize("engine", MAKE)
def test_no_number_of_a_small_request_is_shown(tmp_path, engine):
    made = MAKE[engine](tmp_path)
    before = outputs(made.path)
    tried = ("erase", made.path, "--request", "tried", "--ids", "s3", "--dry-run")
    answers = [call(*tried)[0], call(*tried, "--json")[0]]
    answers.append(call("erase", made.path, "--request", "a", "--ids", "s3", "-v")[0])
    answers.append(call("erase", made.path, "--request", "b", "--ids", "s5", "--json")[0])
    entries = [entry for entry in made.workspace.log().entries if entry.kind == "erased"]
    assert len(entries) == 2
    shown = "\n".join([*answers, outputs(made.path)])
    for entry in entries:
        assert entry.details["diagnostics"]["loss_after"] > 0
        assert told(shown, measured(entry), before) == set()
        found = call("log", made.path, "--request", entry.request, "--exact")[0]
        assert told(found, measured(entry), before)  # it would have been seen
        assert entry.details["after"]["curvature"] not in shown
        assert entry.details["erased_samples"] not in shown
    assert "<svg" not in made.path.with_name("page.html").read_text(encoding="utf-8")


def test_nor_of_one_that_is_refused(tmp_path):
    made = workspaces.make(tmp_path, fit=False)
    before = "".join(call("fit", made.path)) + outputs(made.path) + " 1e5"
    said = call("erase", made.path, "--request", "a", "--ids", "s3,s4", "--scale", "1e5", code=3)[0]
    said += call("erase", made.path, "--request", "b", "--ids", "s3,s4", "--scale", "1e5", "--json", code=3)[0]
    entry = made.workspace.log("a").entries[-1]
    assert (entry.kind, entry.details["measured"]) == ("refused", True)
    assert two_digits(entry.details["reason"])
    assert told(said + outputs(made.path), measured(entry), before) == set()
    assert "…" in published(entry)["details"]["reason"]
    assert "ssse log" in call("erase", made.path, "--request", "c", "--ids", "s3,s4", "--scale", "1e5", code=3)[0]


def test_what_is_wrong_with_the_request_itself_is_shown(tmp_path):
    """Places in its own file say nothing of anybody in the training data."""
    made = workspaces.make(tmp_path)
    call("erase", made.path, "--request", "2026-001", "--ids", "s3")
    reason = call_json("erase", made.path, "--request", "2026-002", "--ids", "s3", code=3)["reason"]
    assert reason == "All of its samples are erased already, by '2026-001'."
    stranger = made.home / "stranger.npz"
    np.savez(stranger, x=np.zeros((1, 4)), y=np.zeros(1, dtype=np.int64))
    both = made.home / "both.npz"
    np.savez(both, x=np.concatenate([made.x[:1].numpy(), np.zeros((1, 4))]), y=np.array([int(made.y[0]), 0]))
    reason = call_json("erase", made.path, "--request", "c", "--forget", both, code=3)["reason"]
    assert reason.startswith("1 of its 2 samples (at place 1) were never in the training data")
    assert reason in call("log", made.path, "--request", "c")[0]


def test_nor_of_a_measurement_on_few(tmp_path):
    made = workspaces.make(tmp_path, erase__old_weights="keep")
    call("erase", made.path, "--request", "a", "--ids", "s3,s4")
    before = outputs(made.path)
    save_file(made.weights(), made.home / "r.safetensors")
    words = ("evaluate", made.path, "--retrained", made.home / "r.safetensors")
    said = call(*words)[0] + call(*words, "--json")[0]
    entry = made.workspace.log().entries[-1]
    assert (entry.kind, entry.details["table"]["counts"]["forgotten"]) == ("evaluated", 2)
    assert told(said + outputs(made.path), measured(entry), before) == set()
    shown = published(entry)["details"]
    assert shown["table"]["counts"] == {"forgotten": 2}  # those of the test data tell their class
    assert shown["notes"] == []
    assert "measured on fewer than 20 samples" in made.path.with_name("page.html").read_text(encoding="utf-8")


def test_nor_of_a_choice_on_few(tmp_path):
    made = workspaces.make(tmp_path)
    before = outputs(made.path)
    words = ("calibrate", made.path, "--ids", "s3,s4,s5", "--method", "loss_search", "--scales", "0.5,1,2")
    said = call(*words)[0] + call(*words, "--json")[0]
    entry = made.workspace.log().entries[-1]
    assert (entry.kind, entry.details["k"]) == ("calibrated", 3)
    shown = published(entry)["details"]
    assert (shown["curve"], shown["scale"]) == (None, bucket(entry.details["scale"]))
    said += call("erase", made.path, "--request", "a", "--ids", "s6")[0]
    used = made.workspace.log("a").entries[1].details
    assert used["scale_source"]
    assert used["scale"] == entry.details["scale"] != shown["scale"]
    said += call("fit", made.path, "--again")[0]  # drops it
    allowed = before + " 0.5 1.0 2.0 0.01"
    assert told(said + outputs(made.path), [*measured(entry), entry.details["scale"]], allowed) == set()
    assert f"ε up to {shown['scale']:g}" in said


@pytest.mark.parametrize("engine", MAKE)
def test_nor_of_a_fit_without_those_that_were_erased(tmp_path, engine):
    """Who has all the data could leave out each sample in turn, and compare."""
    made = MAKE[engine](tmp_path)
    call("erase", made.path, "--request", "a", "--ids", "s3")
    said = call("fit", made.path, "--again", "-v")[0]
    kept = made.workspace.log().entries[-1].details
    numbers = [kept.get(name) for name in ("mean_loss", "gradient_norm", "correction", "distance_bound")]
    assert any(numbers)
    assert told(said, numbers, "") == set()


def test_nor_of_a_replay_that_is_refused(tmp_path, monkeypatch):
    made = workspaces.make(tmp_path, erase__confirm="always")
    made.workspace.erase("a", ids=["s3"])

    def refused(*_: Any) -> None:
        raise Refused(Assessment(reasons=("The largest leverage is 1.234.",), k=1, n=40, erased=0, policy="rebase"))

    monkeypatch.setattr(TorchEngine, "erase", refused)
    damages = made.workspace.verify(recompute="a").damages
    assert [what for _, what in damages] == ["holds what no replay of 'a' gives: The largest leverage is …."]


@pytest.mark.parametrize("engine", MAKE)
def test_nor_of_a_workspace_of_an_earlier_version(tmp_path, engine):
    shutil.copytree(ROOT / "tests" / "before" / engine, tmp_path / engine, symlinks=True)
    path = tmp_path / engine / "ws"
    entry = next(entry for entry in Workspace(path).log().entries if entry.kind == "erased")
    shown = published(entry)["details"]
    assert entry.details["k"] < PUBLIC
    assert set(shown["diagnostics"]) <= {"verdict", "reasons", "notes", "forced"}
    others = json.dumps([published(one) for one in Workspace(path).log().entries if one.kind != "erased"])
    assert told(outputs(path), measured(entry), others) == set()


# ── how much of a larger request is shown ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine", MAKE)
def test_of_enough_samples_powers_of_two_are_shown(tmp_path, engine):
    made = MAKE[engine](tmp_path, n=400)
    answer = call_json("erase", made.path, "--request", "a", "--ids", ",".join(f"s{i}" for i in range(PUBLIC)))
    kept = made.workspace.log("a").entries[1]
    shown = answer["details"]["diagnostics"]
    for name in ("loss_before", "loss_after", "leverage_max", "relative_step", "probe_loss_after"):
        value = kept.details["diagnostics"][name]
        assert shown.get(name) == bucket(value)
        assert value is None or value <= shown[name] < 2 * value
    assert not {"leverages", "swing", "strain", "step_norm", "seconds"} & set(shown)
    assert len(json.dumps(published(kept))) < 3000
    text = call("log", made.path, "--request", "a")[0]
    assert told(text, [kept.details["diagnostics"]["loss_after"]], "") == set()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0.3, 0.5), (0.5, 0.5), (0.51, 1.0), (3, 4.0), (-0.3, -0.5), (0.0, 0.0)),
        *((None, None), (float("inf"), None), (5e-324, 5e-324), (1.7e308, 2.0**1023)),
    ],
)
def test_buckets(value, shown):
    assert bucket(value) == shown


def test_curves_and_tables_of_enough_samples_are_coarse():
    entries = {entry.kind: entry for entry in one().entries}
    curve = published(entries["calibrated"])["details"]["curve"]
    assert all(value is None or value == float(f"{value:.2g}") for value in curve["divergence"])
    table = published(entries["evaluated"])["details"]["table"]["values"]
    assert table["kl_forgotten"]["original"]["value"] == 0.051
    assert table["accuracy_forgotten"]["erased"]["value"] == 93.15


def test_what_nobody_has_put_on_the_list_is_not_shown():
    found = {"engine": "torch", "k": 100, "n": 900, "brand_new": 1.5, "diagnostics": {"brand_new": 1, "verdict": "ok"}}
    assert published_details("erased", found) == {
        **{"engine": "torch", "k": 100, "n": 900, "diagnostics": {"verdict": "ok"}}
    }
    assert published_details("something new", {"k": 1}) == {}


def test_secrets_are_never_shown_and_details_stay_exact(tmp_path):
    made = workspaces.make(tmp_path)
    answer = made.workspace.erase("a", ids=["s3"])
    entry = made.workspace.log("a").entries[1]
    assert answer.details == entry.details
    assert "loss_before" in answer.details["diagnostics"]
    first = made.workspace.log().entries[0]
    for secret in SECRET:
        assert secret not in exact(first)["details"]
        assert secret not in published(first)["details"]
    salt = first.details["salt"]
    said = call_json("log", made.path, "--exact")
    assert said["secret"].startswith("As secret as the data")
    assert said["entries"][-2]["details"]["diagnostics"] == entry.details["diagnostics"]
    assert salt not in json.dumps(said)
    assert "As secret as the data" in call("log", made.path, "--exact")[0]
    assert "As secret" not in call("log", made.path)[0]


# ── sentences ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("The step is 1.23 times as long as θ.", "The step is … times as long as θ."),
        ("went from 0.0123 to 4.5e-05, 1e+10 times", "went from … to …, … times"),
        ("Of 2,000 probe samples 97.3% were right, 85 % after it.", "Of … probe samples … were right, … after it."),
        (
            "Fit with weight_decay=0.00312, or dtype=torch.float64.",
            "Fit with weight_decay=0.00312, or dtype=torch.float64.",
        ),
        ("'layers.0.weight' moves by −3.5", "'layers.0.weight' moves by …"),
        ("of (1/n) Σ loss + (w/2)‖θ‖², by 3", "of (1/n) Σ loss + (w/2)‖θ‖², by …"),
        ("The scale is 1.1: the Newton step is at 1.", "The scale is …: the Newton step is at 1."),
        ("by .5 and 3/4 and 1.2.3", "by … and …/… and …"),
    ],
)
def test_sentences_lose_their_numbers_and_nothing_else(text, shown):
    assert without_numbers(text) == shown
    assert without_numbers(shown) == shown


@pytest.mark.parametrize("words", FIXED)
def test_numbers_that_stay_are_words_of_the_library(words):
    """Each stands in a sentence of the source; a percentage is written with its format there."""
    source = re.sub(r'"\s*\n\s*f?"', "", "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py")))
    mine = (ROOT / "src/ssse/workspace/record/sentences.py").read_text(encoding="utf-8")
    written = words.replace("10%", "{LARGE_FRACTION:.0%}")
    assert source.count(written) > mine.count(f'"{words}"') if written == words else written in source


# ── the attack ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_attack_finds_the_sample_in_the_ledger_and_not_in_what_is_published(tmp_path, monkeypatch):
    """A small form of benchmarks/identification.py."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import identification  # type: ignore[import-not-found]  # a script's folder
    from identification_attack import attack  # type: ignore[import-not-found]

    subject = identification.softmax(tmp_path, identification.digits(300))
    seen = list(identification.answered(subject, identification.drawn(subject, 6, 1)))
    known = dict(identification.attackers(seen))
    assert attack(known[identification.EXACT]).ranks == [1.0] * 6
    assert sum(rank == 1 for rank in attack(known[identification.PUBLISHED]).ranks) <= 2
