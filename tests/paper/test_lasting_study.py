"""The study on digits, three in ten labels noise: what lasts, what comes back, and what is read and not made again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ssse.calibration.lengths import DAMPINGS
from ssse.paper.cache import Cache
from ssse.paper.lasting import jobs, methods, networks, run
from ssse.paper.lasting.jobs import ALONE, ASCENT, NOTHING, OURS, OWN, PAPER, PUSHED, RETRAINED, Block, Study
from ssse.paper.lasting.networks import DIGITS, Form, Twins
from ssse.paper.reproduce import place_of
from ssse.paper.result import Result
from ssse.paper.settings import Settings
from tests.support.sizes import FULL, sized

# Fewer images and epochs, and one request: a fifth of all samples. In full, the form that `ssse reproduce` has.
_SMALL = replace(
    DIGITS,
    recipe=replace(DIGITS.recipe, epochs=30, widths=(8, 16)),
    images=400,
    classes=0,
    share=0.2,
    lengths=(0.1, 0.14, 0.2, 0.28),
)
FORM: Form = sized(_SMALL, DIGITS)
LOOKED_AT = (OURS, NOTHING, RETRAINED, ASCENT)

Answers = dict[str, dict[str, Any]]


def a_study(folder: Path | None, form: Form = FORM) -> Study:
    return Study(Settings(device="cpu", cache=Cache(folder), show_progress=False), form)


@pytest.fixture(scope="module", autouse=True)
def _digits() -> Iterator[None]:
    """Whatever form is given: the images are digits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "DIGITS", FORM)
        yield


def on_s(answer: dict[str, Any], way: str) -> float:
    return answer[way]["accuracy"]["forgotten"]


def what_ascent_hid_comes_back_and_what_ours_erased_does_not(answers: dict[str, Answers]) -> None:
    """Beside what a retrained network knows of S."""
    for words, ascended in answers[ASCENT].items():
        known, ours = on_s(answers[RETRAINED][words], "alone"), answers[OURS][words]
        before = on_s(answers[NOTHING][words], "alone")
        assert before - known > 15  # there is something to forget
        assert on_s(ascended, "alone") < before - 20
        back = on_s(ascended, "repaired") - on_s(ascended, "alone")
        assert back > 20  # S comes back, although nobody trained on it
        assert on_s(ascended, "repaired") - known > 10
        # Ours is repaired just so, and what S is known better by than it should be is not half of that.
        assert on_s(ours, "repaired") - known < (on_s(ascended, "repaired") - known) / 2
        moments = [moment["accuracy"] for moment in ours["moments"]]
        assert moments[-1] - moments[0] < back / 2  # in eight further epochs
        assert ours["repaired"]["gap"] < answers[NOTHING][words]["alone"]["gap"]


def fine_tuning_forgets_next_to_nothing(answers: dict[str, Answers]) -> None:
    for words, answer in answers[NOTHING].items():
        known = on_s(answers[RETRAINED][words], "alone")
        forgotten = on_s(answer, "alone") - on_s(answer, "repaired")
        assert forgotten < (on_s(answer, "alone") - known) / 3


def blocks_hold_what_they_must(answers: dict[str, Answers]) -> None:
    study = a_study(None)
    epochs = [1, 3, 8]
    for name, by_request in answers.items():
        assert list(by_request) == [removal.words for removal in study.ground.removals]
        for removal in study.ground.removals:
            answer = by_request[removal.words]
            assert len(answer["alone"]["phi"]) == len(removal.forget)
            assert [moment["epoch"] for moment in answer["moments"]] == [0, *epochs]
            if name != RETRAINED:
                assert len(answer["along"]) == 1 + FORM.recipe.epochs // 10
                assert answer["along"][0] == pytest.approx(on_s(answer, "alone"))
                assert answer["moments"][0]["accuracy"] == pytest.approx(on_s(answer, "repaired"))
    for answer in answers[OURS].values():
        tried = {(one["damping"], one["length"]): one["shortfall"] for one in answer["trials"]}
        assert tried[answer["damping"], answer["length"]] == min(tried.values())
        chosen = [one for one in answer["trials"] if one["length"] == answer["length"]]
        assert [one["gap"] for one in chosen] == [answer["repaired"]["gap"]]  # known in hindsight, of every length
        assert {damping for damping, _ in tried} == {times * FORM.recipe.decay for times in DAMPINGS}
    for answer in answers[RETRAINED].values():
        assert answer["alone"]["gap"] == 0
        assert answer["alone"]["kl"] == pytest.approx(0, abs=1e-9)


@pytest.mark.long
def test_the_study(tmp_path, monkeypatch):
    """Computed once: it takes seconds. Then read, as by another process: nothing is trained, fitted or solved."""
    study = a_study(tmp_path)
    answers = {name: study.numbers(Block(name, 0)) for name in LOOKED_AT}
    what_ascent_hid_comes_back_and_what_ours_erased_does_not(answers)
    fine_tuning_forgets_next_to_nothing(answers)
    blocks_hold_what_they_must(answers)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("trained again")

    monkeypatch.setattr(methods, "train_lanes", never)
    study = a_study(tmp_path)
    again = {name: study.numbers(Block(name, 0)) for name in LOOKED_AT}
    assert again == json.loads(json.dumps(answers))
    directions, told = study.steps(0)
    wanted = {methods.pushed(removal.words, times) for removal in study.ground.removals for times in DAMPINGS}
    wanted |= {removal.words for removal in study.ground.removals}
    assert set(directions) == set(told["requests"]) == wanted
    assert all(told["requests"][words]["residual"] < 1e-6 for words in directions)
    assert study.settings.cache.made == 0
    with pytest.raises(AssertionError, match="trained again"):
        study.numbers(Block("labels", 0))


def untrained(form: Form, folder: Path | None = None) -> Study:
    """With networks of every seed that were never trained."""
    study = a_study(folder, form)
    ground, sample = study.ground, (study.ground.x[:8], study.ground.y[:8])
    for seed in range(form.seeds + form.shadows):
        torch.manual_seed(seed)
        model = form.recipe.network(len(ground.names), 1).eval()
        study._twins[seed] = Twins(seed, model, {removal.words: model for removal in ground.removals}, 1.0, sample)
    return study


def test_every_block_has_a_key_of_its_own(monkeypatch):
    form = replace(FORM, seeds=2, shadows=2)
    monkeypatch.setattr(networks, "DIGITS", form)
    study = untrained(form)
    blocks = study.blocks()
    assert len(set(blocks)) == len(blocks)
    assert {block.seed for block in blocks} == {0, 1, 2, 3}
    keys = {study.key(block) for block in blocks}
    assert len(keys) == len(blocks)
    some = [Block(OURS, 0), Block(NOTHING, 0)]
    assert {untrained(form).key(block) for block in some} <= keys
    steps = {study.step_key(seed, rows) for seed in range(4) for rows in ("margin", "empirical")}
    assert len(steps) == 8
    for other in (
        replace(form, recipe=replace(form.recipe, rate=0.2)),
        replace(form, images=390),
        replace(form, noise=0.2),
        replace(form, share=0.25),
        replace(form, held_out=100),
    ):
        monkeypatch.setattr(networks, "DIGITS", other)
        assert not {untrained(other).key(block) for block in some} & keys, other
    for other in (replace(form, lengths=(0.25, 0.5)), replace(form, push=0.5)):  # of ours alone
        monkeypatch.setattr(networks, "DIGITS", other)
        assert [untrained(other).key(block) in keys for block in some] == [False, True], other
    monkeypatch.setattr(networks, "DIGITS", replace(form, push=0.5))
    assert [study.step_key(0, rows) in steps for rows in ("margin", "empirical")] == [True, True]
    other = untrained(replace(form, push=0.5))
    assert [other.step_key(0, rows) in steps for rows in ("margin", "empirical")] == [False, True]


def test_opponents_of_the_first_seed_alone(monkeypatch):
    form = replace(FORM, seeds=2, opponents_of_all_seeds=False)
    monkeypatch.setattr(networks, "DIGITS", form)
    later = {block.method for block in untrained(form).blocks() if block.seed == 1}
    assert later == {OURS, NOTHING, ALONE, RETRAINED}


def test_the_other_push_is_another_answer_of_the_same_networks(tmp_path, monkeypatch):
    form = replace(FORM, both_pushes=True)
    monkeypatch.setattr(networks, "DIGITS", form)
    study, other = untrained(form, tmp_path), untrained(replace(form, push=networks.OTHER_PUSH), tmp_path)
    assert [block for block in study.blocks() if block.method == PUSHED] == [Block(PUSHED, 0)]
    assert not any(block.method == PUSHED for block in untrained(FORM).blocks())
    assert study.key(Block(PUSHED, 0)) == other.key(Block(OURS, 0)) != study.key(Block(OURS, 0))
    assert study.otherwise.twins(0) is study.twins(0)
    assert study.otherwise.ground is study.ground
    monkeypatch.setattr(Study, "_compute", lambda self, block: [{"push": self.form.push, "method": block.method}])
    words = study.cases(0)[0].words
    assert study.numbers(Block(PUSHED, 0))[words] == {"push": networks.OTHER_PUSH, "method": OURS}
    assert study.numbers(Block(OURS, 0))[words] == {"push": form.push, "method": OURS}


def test_what_there_is_no_time_for_is_left_out_and_said(tmp_path, monkeypatch):
    """And what is kept of it is told however late it is: the next run goes on."""
    form = replace(FORM, seeds=2, opponents_of_all_seeds=False)
    monkeypatch.setattr(networks, "DIGITS", form)
    monkeypatch.setattr(run, "DIGITS", form)
    made: list[Block] = []

    def numbers(study: Study, block: Block) -> dict[str, dict[str, Any]]:
        made.append(block)
        return {removal.words: {} for removal in study.ground.removals}

    monkeypatch.setattr(Study, "numbers", numbers)
    monkeypatch.setattr(Study, "has", lambda _, block: block.method == "scrub")
    monkeypatch.setattr(Study, "twins", lambda _, seed: untrained(form)._twins[seed])
    monkeypatch.setattr(Study, "steps", lambda *_: ({}, {}))
    late = Settings(device="cpu", cache=Cache(tmp_path), show_progress=False, seeds=1, minutes=0.0)
    found = run.measure(late)
    assert [block.method for block in made] == [*OWN, "scrub"]
    assert {block.seed for block in made} == {0}
    assert found["left_out"] == sorted({"neggrad", "labels", "salun", ASCENT, PAPER})
    assert run.measure(replace(late, minutes=60.0))["left_out"] == []
    notes = run._notes(found)
    assert any(note.startswith("Not measured") and "SalUn" in note for note in notes)
    assert any("--minutes" in note for note in notes)


def test_shadows_for_which_it_is_late_are_left_out_whole_or_kept_whole(tmp_path, monkeypatch):
    """A seed of the attacker's counts where ours, nothing done and the retrained network are all there."""
    form = replace(FORM, seeds=1, shadows=6)
    monkeypatch.setattr(networks, "DIGITS", form)
    monkeypatch.setattr(run, "DIGITS", form)
    some = untrained(form)
    ground, twins = some.ground, some._twins
    monkeypatch.setattr(Settings, "torch_device", lambda _: SimpleNamespace(type="cuda"))  # else there are no shadows
    monkeypatch.setattr(Study, "ground", ground)
    monkeypatch.setattr(Study, "twins", lambda _, seed: twins[seed])
    monkeypatch.setattr(Study, "steps", lambda *_: ({}, {}))
    missing = {(NOTHING, 2), ("salun", 3), (OURS, 6)}
    monkeypatch.setattr(Study, "has", lambda _, block: (block.method, block.seed) not in missing)
    words = [removal.words for removal in ground.removals]
    drawn = np.random.default_rng(0)

    def numbers(study: Study, block: Block) -> dict[str, dict[str, Any]]:
        one = {"gap": 1.0, "kl": 0.1, "auc": 0.5, "phi": list(drawn.normal(size=5)), "accuracy": {"forgotten": 50.0}}
        return {each: {"alone": one, "repaired": one} for each in words}

    monkeypatch.setattr(Study, "numbers", numbers)
    found = run.measure(Settings(device="cpu", cache=Cache(tmp_path), show_progress=False, minutes=0.0))
    assert found["shadows_left_out"] == 2
    assert found["left_out"] == []
    counts = {name: one["models"] for name, one in found["attacked"][words[0]].items()}
    assert counts == {
        f"{OURS} repaired": 5, f"{NOTHING} alone": 5, f"{NOTHING} repaired": 5, "labels repaired": 5,
        "salun repaired": 4,
    }  # fmt: skip
    assert len(found["further"][words[0]][f"{OURS} repaired"]["gaps"]) == 4
    assert set(found["answers"][OURS]) == {"0"}


def test_two_retrained_seeds_are_as_far_apart_as_they_measure(monkeypatch):
    form = replace(FORM, seeds=2)
    monkeypatch.setattr(networks, "DIGITS", form)
    study = untrained(form)
    (own,), (other,) = study.cases(0), study.cases(1)
    found, measured = run._floors(study), own.measure(other.retrained)
    assert measured["gap"] > 0
    assert found == {name: {own.words: pytest.approx(measured[name])} for name in ("gap", "kl")}


def test_a_part_of_a_run_does_not_overwrite_a_whole_one(tmp_path):
    all_of_it = {"left_out": [], "steps": {"0": {}, "1": {}}, "attacked": {"a": {}}}
    whole = Result("lasting", "", "full", False, numbers=all_of_it)
    less = ({"left_out": ["scrub"]}, {"steps": {"0": {}}}, {"attacked": {}})
    (tmp_path / "lasting").mkdir()
    stored = tmp_path / "lasting" / "results.json"
    for some in less:
        stored.unlink(missing_ok=True)
        part = Result("lasting", "", "full", False, numbers=all_of_it | some)
        assert place_of(part, tmp_path) == place_of(whole, tmp_path) == tmp_path / "lasting"
        for before, name in ((all_of_it | some, "lasting"), (all_of_it, "lasting-part")):
            stored.write_text(json.dumps({"form": "full", "numbers": before}))
            assert place_of(part, tmp_path) == tmp_path / name
            assert place_of(whole, tmp_path) == tmp_path / "lasting"
    part = replace(whole, numbers=all_of_it | less[0])
    small = replace(part, form="small")
    assert place_of(small, tmp_path) == tmp_path / "lasting-small"
    stored.write_text("{")
    assert place_of(part, tmp_path) == tmp_path / "lasting"


def test_the_full_form_answers_what_is_asked_of_it(monkeypatch):
    """The exact step and the opponents: the first of each share; ours every request, along even directions."""
    form = replace(FORM, classes=2, rates=(0.5, 1.0), opponents_of_all_requests=False)
    monkeypatch.setattr(networks, "DIGITS", form)
    study = untrained(form)
    first = [study.cases(0)[place].words for place in (0, 1, 4)]
    assert [case.words for case in study.asked(0)] == [case.words for case in study.directed(0, False)] == first
    assert len(study.directed(0, True)) == len(study.cases(0)) == 5
    assert study.step_key(0) != untrained(replace(form, opponents_of_all_requests=True)).step_key(0)


def test_shadows_answer_a_share_of_the_requests_and_are_trained_only_when_there_is_time(tmp_path, monkeypatch):
    """Every request costs as many trainings again; and when it is late, to ask what is kept trains nothing."""
    form = replace(FORM, seeds=1, shadows=5, classes=1, rates=(0.5, 1.0), shadowed=(FORM.share,))
    monkeypatch.setattr(networks, "DIGITS", form)
    study = a_study(tmp_path, form)
    trained: list[tuple[list[int], int]] = []

    def train_twins(_: Any, seeds: list[int], removals: list[Any]) -> list[Twins]:
        trained.append((seeds, len(removals)))
        return [untrained(form)._twins[seed] for seed in seeds]

    monkeypatch.setattr(jobs, "train_twins", train_twins)
    assert not any(study.has(block) for block in study.blocks())
    assert trained == []
    assert [case.words for case in study.cases(3)] == [case.words for case in study.asked(3)]
    assert [case.removal.rate for case in study.cases(3)] == [FORM.share]
    assert study.directed(3, False) == []  # the exact step at ε = 1 is not looked at there
    assert len(study.cases(0)) == 3
    assert trained == [([3], 1), ([0], 3)]
    study.ground.__dict__["x"] = SimpleNamespace(is_cuda=True)  # as many networks as a GPU can hold
    assert [study._together(seed) for seed in (0, 1, 5)] == [[0], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]


def test_shadows_are_judged_with_the_seeds_that_each_method_answered():
    """An opponent may have left out seeds, or have diverged; its networks still stand beside their own twins."""
    drawn = np.random.default_rng(0)
    methods_of = {
        OURS: range(10),
        NOTHING: range(10),
        RETRAINED: range(10),
        "labels": range(1, 10),
        "salun": (0, *range(2, 10)),
    }
    answers: dict[str, Answers] = {}
    for method, seeds in methods_of.items():
        answers[method] = {}
        for seed in seeds:
            shift = 5.0 if method == NOTHING else 0.0
            phi = list(drawn.normal(shift, 1, 30))
            one = {"phi": phi, "gap": float(seed), "auc": 0.5, "accuracy": {"forgotten": 50.0}}
            answers[method][str(seed)] = {"a": {"alone": one, "repaired": one}}
    answers["salun"]["5"]["a"] = {}
    seeds = [str(seed) for seed in range(10)]
    attacked, further = run._attacked(answers, ["a"], seeds)["a"], run._further(answers, ["a"], seeds[2:])["a"]
    whole = [f"{OURS} repaired", f"{NOTHING} alone", f"{NOTHING} repaired"]
    counts = {name: one["models"] for name, one in attacked.items()}
    assert counts == dict.fromkeys(whole, 10) | {"labels repaired": 9, "salun repaired": 8}
    assert attacked[f"{NOTHING} alone"]["accuracy"] > 0.95
    assert attacked[f"{OURS} repaired"]["accuracy"] < 0.7
    assert further[f"{OURS} repaired"]["gaps"] == [float(seed) for seed in range(2, 10)]
    assert further["salun repaired"]["gaps"] == [2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0]
    assert run._attacked(answers, ["a"], seeds[:3]) == {}  # too few to judge by
    assert run._attacked(answers, ["b"], seeds) == {}  # a request that shadows were not asked


def test_directions_and_what_is_told_of_them_are_whole_or_made_anew(tmp_path, monkeypatch):
    """Another process may have ended between the two, or be there just now: nobody is told nothing."""
    study = untrained(FORM, tmp_path)
    solved = []

    def solve(self: Study, twins: Twins, rows: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        solved.append(rows)
        return {"a": torch.ones(3)}, {"fit_seconds": 1.5}

    monkeypatch.setattr(Study, "_solve", solve)
    key = study.step_key(0)
    study.settings.cache.tensors(key, lambda: {"a": torch.ones(3)})  # what is told of it was not yet written
    for _ in range(2):
        directions, told = study.steps(0)
        assert torch.equal(directions["a"], torch.ones(3))
        assert told == {"fit_seconds": 1.5}
    assert solved == ["margin"]
    (tmp_path / f"{key}-told").unlink()
    assert untrained(FORM, tmp_path).steps(0)[1] == {"fit_seconds": 1.5}
    assert untrained(FORM).steps(0)[1] == {"fit_seconds": 1.5}  # without a folder
    assert len(solved) == 3


@pytest.mark.long
def test_with_a_projected_kernel_it_is_told_from_end_to_end(monkeypatch):
    """As with --scale large: the true kernel is nobody's, so no residual is told, and one seed has no floor."""
    few = replace(_SMALL, recipe=replace(_SMALL.recipe, epochs=4), images=200, projected=True, lengths=(0.25,))
    for place in (networks, run):
        monkeypatch.setattr(place, "DIGITS", few)
    result = run.run(Settings(device="cpu", show_progress=False))
    cost = next(table for table in result.tables if table.title == "What ours costs")
    assert cost.rows[0][cost.columns.index("largest residual")] is None
    methods_told = {row[0] for table in result.tables if table.title.startswith("Removed") for row in table.rows}
    assert {"SalUn", "NegGrad+", "retrained"} <= methods_told
    answers = [one for by_seed in result.numbers["answers"].values() for by in by_seed.values() for one in by.values()]
    assert any("moments" in one for one in answers)
    assert not any("pressed" in one for one in answers)  # epochs of the largest networks are dear
    assert not any("noise floor" in row.method for row in result.summary)


@pytest.mark.skipif(not FULL, reason="half a minute; one seed of a part is told from end to end in any size")
def test_parts_and_the_whole_of_a_class_with_two_seeds_are_told_from_end_to_end(monkeypatch):
    """As at full size, where a crash would come after minutes of a GPU; and class by class, without opponents."""
    recipe = replace(_SMALL.recipe, epochs=4)
    small = {"recipe": recipe, "images": 200, "held_out": 150, "classes": 1, "noise": 0.3, "lengths": (0.25,)}
    for place in (networks, run):
        monkeypatch.setattr(place, "DIGITS", replace(networks.FULL, **small))
    result = run.run(Settings(device="cpu", show_progress=False))
    wanted = [f"step and repair, {words}" for words in ("a whole class", "half a class", "10% at random")]
    assert [target.what for target in result.targets][:3] == wanted
    for table in result.tables:
        if table.title in ("Removed: a whole class", "Removed: half a class", "Removed: 10% at random"):
            told = {row[0]: row[1] for row in table.rows}
            assert told["ours: the chosen step, then repaired"] == told["retrained"] == 2
            assert told["SCRUB"] == told["the paper's step, ε best in hindsight"] == 1
            assert "two retrained seeds" in told
    for place in (networks, run):
        monkeypatch.setattr(place, "DIGITS", replace(networks.CLASSES, **small, seeds=1, rates=()))
    result = run.run(Settings(device="cpu", show_progress=False))
    assert not [table.title for table in result.tables if "opponents" in table.title]
    methods_told = {row[0] for table in result.tables if table.title.startswith("Removed") for row in table.rows}
    assert "SalUn" not in methods_told
    assert "fine-tuning (the repair alone)" in methods_told
