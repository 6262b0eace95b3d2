"""Whether a request may be closed: decided in one place, case by case, from what may be shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from ssse.evaluation.table import Cell, Evaluation, Measure
from ssse.workspace.record.decision import CLOSED, GRAVITY, Action, Because, Decision, decisions
from ssse.workspace.record.decision_words import LABELS, commands, label, placeholders, when, why
from ssse.workspace.record.sight import failed_audits, sights, void_audits
from ssse.workspace.record.story import Story
from tests.support import workspaces
from tests.support.commands import call, call_json
from tests.support.ledger_entries import SETTINGS, Book, five, many, new, table

LATER = "2026-07-01T00:00:00+00:00"


def measured(k: int = 73, retrained: bool = True, original: bool = True, **cells: Any) -> Evaluation:
    """A table of some measures by model; `attack` says which models the attack finds the samples in."""
    models = tuple(m for m, there in (("original", original), ("erased", True), ("retrained", retrained)) if there)
    rows = {}
    for key, row in cells.items():
        if key.endswith("attack"):
            rows[key] = {m: Cell(0.5, None, "", {"passed": int(not v), "of": 1}) for m, v in row.items() if m in models}
        else:
            rows[key] = {m: Cell(value) for m, value in row.items() if m in models}
    measures = tuple(Measure(key, key, "") for key in rows)
    return Evaluation(models, dict.fromkeys(models, 1), {"forgotten": k}, measures, rows)


BLIND: dict[str, Any] = {
    "accuracy_forgotten": {"original": 90.0, "erased": 90.0, "retrained": 90.0},
    "kl_forgotten": {"original": 2e-4, "erased": 1e-4},
    "attack": {"original": False, "erased": False, "retrained": False},
    "distance": {"original": 1.0, "erased": 0.3},
}
SEEN: dict[str, Any] = {
    "accuracy_forgotten": {"original": 100.0, "erased": 91.0, "retrained": 90.5},
    "kl_forgotten": {"original": 0.05, "erased": 0.0005},
    "attack": {"original": True, "erased": False, "retrained": False},
}


def book() -> Book:
    made = new()
    made.fitted()
    return made


def erased(verdict: str, **more: Any) -> Book:
    made = book()
    made.received("r", 73)
    made.erased("r", 73, verdict)
    made.entries[-1].details.update(more)
    return made


def sealed(verdict: str = "caution", **more: Any) -> Book:
    made = erased(verdict, **more)
    made.sealed("r")
    return made


def evaluated(made: Book, **cells: Any) -> Book:
    of = cells.pop("of", ["r"])
    made.add("evaluated", table=measured(**cells).to_dict(), of=of, notes=[])
    return made


def repaired(made: Book) -> Book:
    made.add("repaired", engine="torch", epochs=1, verdict="ok", after={"weights": "w"}, old={"weights": "shred"})
    return made


def decided(made: Book, request: str = "r", now: str = LATER) -> Decision:
    return next(one for one in decisions(Story(made.entries), now) if one.request == request)


def held() -> Book:
    old = {"weights": "shred", "curvature": "shred"}
    return erased("caution", held=True, why_held=["The verdict is 'caution'."], old=old)


def reverted() -> Book:
    made = held()
    made.add("reverted", requests=["r"], entries=[4], back_to=2, refused=[], after={"weights": "w"})
    return made


def refused(**received: Any) -> Book:
    made = book()
    made.received("r", 3)
    made.entries[-1].details.update(received)
    made.refused("r", 3, "The step is too long.", diagnostics={"verdict": "refused", "broken": ["step"]}, measured=True)
    return made


def failing(**more: bool) -> dict[str, Any]:
    return {**SEEN, "attack": {"original": True, "erased": True, "retrained": False, **more}}


CASES: dict[str, tuple[Any, Action, Because]] = {
    "erased, ok": (lambda: sealed("ok"), "close", "vouched"),
    "erased, caution, not measured": (sealed, "measure", "not_measured"),
    "overriding a bound, ok by itself": (lambda: sealed("ok", overridden=["step"]), "measure", "not_measured"),
    "erased, caution, measured": (lambda: evaluated(sealed(), **SEEN), "close", "measured"),
    "measured before it was erased": (lambda: _before(), "measure", "not_measured"),
    "measured of another request": (lambda: evaluated(sealed(), **SEEN, of=["x"]), "measure", "not_measured"),
    "measured, and still different": (
        lambda: evaluated(sealed(), **{**SEEN, "kl_forgotten": {"original": 0.05, "erased": 0.03}}),
        "retrain",
        "still_different",
    ),
    "ok, and still different": (
        lambda: evaluated(sealed("ok"), **{**SEEN, "kl_forgotten": {"original": 0.05, "erased": 0.03}}),
        "look",
        "still_different",
    ),
    "audit failed": (lambda: evaluated(sealed(), **failing()), "retrain", "audit_failed"),
    "ok, audit failed": (lambda: evaluated(sealed("ok"), **failing()), "retrain", "audit_failed"),
    "an audit that retrained models fail too": (
        lambda: evaluated(sealed(), **failing(retrained=True)),
        "close",
        "measured",
    ),
    "nothing to see": (lambda: evaluated(sealed(), **BLIND), "measure", "nothing_to_see"),
    "nothing to see, vouched for": (lambda: evaluated(sealed("ok"), **BLIND), "close", "vouched"),
    "measured without a retrained model": (
        lambda: evaluated(sealed(), retrained=False, attack={"original": False, "erased": False}),
        "measure",
        "nothing_to_see",
    ),
    "nothing to see, by any measure": (
        lambda: evaluated(
            sealed(),
            **BLIND,
            resurfacing_rise={"original": 0.0, "erased": 0.0, "retrained": 0.0},
            resurfacing_accuracy_0={"original": 90.0, "erased": 90.0, "retrained": 90.0},
        ),
        "look",
        "nothing_to_see",
    ),
    "it comes back": (
        lambda: evaluated(
            sealed(),
            resurfacing_rise={"original": 0.0, "erased": 30.0, "retrained": 2.0},
            resurfacing_accuracy_0={"original": 100.0, "erased": 60.0, "retrained": 60.0},
        ),
        "retrain",
        "still_different",
    ),
    "measured on few": (lambda: evaluated(sealed(), k=3, **SEEN), "look", "too_few"),
    "measured on few, vouched for": (lambda: evaluated(sealed("ok"), k=3, **SEEN), "close", "vouched"),
    "repaired, ok": (lambda: repaired(sealed("ok")), "measure", "repaired"),
    "repaired after the measurement": (lambda: repaired(evaluated(sealed(), **SEEN)), "measure", "repaired"),
    "repaired, then measured": (lambda: evaluated(repaired(sealed()), **SEEN), "close", "measured"),
    "held": (held, "confirm", "held"),
    "held, audit failed": (lambda: evaluated(held(), **failing()), "retrain", "audit_failed"),
    "held, measured": (lambda: evaluated(held(), **SEEN), "confirm", "held"),
    "reverted": (reverted, "retrain", "reverted"),
    "refused": (refused, "retrain", "refused"),
    "not in the data": (lambda: refused(k=0, asked=3, already={}), "ask", "not_found"),
    "partly not in the data": (lambda: refused(k=2, asked=3), "ask", "not_found"),
    "not finished": (lambda: _received(), "finish", "pending"),
    "not sealed": (lambda: erased("ok"), "finish", "unsealed"),
}


def _received() -> Book:
    made = book()
    made.received("r", 3)
    return made


def _before() -> Book:
    made = book()
    made.add("evaluated", table=measured(**SEEN).to_dict(), of=["r"], notes=[])
    made.answer("r", 73)
    return made


@pytest.mark.parametrize("case", CASES)
def test_every_case(case):
    make, action, because = CASES[case]
    found = decided(make())
    assert (found.action, found.because) == (action, because)
    said = why(found)
    assert said.endswith(".")
    assert "None" not in said
    assert "WORKSPACE" not in "".join(commands(found, "ws"))
    assert found.to_dict()["action"] == action
    if action in ("measure", "confirm", "look"):
        assert found.commands


def test_every_action_has_words_and_its_colour():
    assert set(LABELS) == set(GRAVITY) == set(get_args(Action))
    assert {action for action, (_, colour) in LABELS.items() if colour == "yes"} == set(CLOSED)
    every = {because for _, _, because in CASES.values()} | {"erased_before", "undone_with", "depends"}
    assert every == set(get_args(Because))


def test_a_green_tick_is_said_of_nothing_that_may_not_be_closed():
    for make, _, _ in CASES.values():
        found = decided(make())
        assert label(found)[0].startswith("✔") == found.closes


def test_the_command_has_what_the_workspace_has_not():
    plain = {**SETTINGS, "data": {"train": "train.npz"}}
    found = decided(sealed())
    assert found.commands == ("ssse evaluate WORKSPACE --request r --original OLD --retrained NEW",)
    assert placeholders(found) == "OLD: the weights from before; NEW: weights retrained without the samples"
    made = sealed(old={"weights": "keep", "curvature": "keep"})
    made.entries[0].details["settings"] = plain
    assert decided(made).commands == ("ssse evaluate WORKSPACE --request r --test TEST --retrained NEW",)
    made = book()
    made.answer("it's mine", 30)
    assert "--request 'it'\"'\"'s mine'" in decided(made, "it's mine").commands[0]


def test_what_was_erased_before_hangs_on_who_erased_it():
    made = sealed("ok")
    made.received("again", 0, {"r": 73})
    found = decided(made, "again")
    assert (found.action, found.because, found.facts["by"]) == ("nothing", "erased_before", ["r"])
    made = sealed("caution")
    made.received("again", 0, {"r": 73})
    found = decided(made, "again")
    assert (found.action, found.because, found.facts["on"]) == ("measure", "depends", ["r"])
    assert found.commands == decided(made).commands
    made.received("partly", 5, {"r": 2})
    made.erased("partly", 5, "ok")
    made.sealed("partly")
    assert (decided(made, "partly").action, decided(made, "partly").because) == ("measure", "depends")


def test_who_was_refused_because_of_one_that_was_undone_asks_again():
    made = held()
    made.received("again", 0, {"r": 73})
    made.refused("again", 73, "All of its samples are erased already, by 'r'.", measured=False)
    assert decided(made, "again").action == "confirm"
    made.add("reverted", requests=["r"], entries=[4], back_to=2, refused=["again"], after={"weights": "w"})
    found = decided(made, "again")
    assert (found.action, found.because) == ("ask", "undone_with")


def test_requests_that_name_each_other_come_to_an_end():
    made = sealed("ok")
    made.entries[-3].details["already"] = {"x": 1, "r": 1}
    made.received("x", 3, {"r": 1})
    made.erased("x", 3, "ok")
    made.sealed("x")
    assert decided(made).closes


def due(made: Book, day: str, request: str = "r") -> Book:
    entry = next(one for one in made.entries if (one.kind, one.request) == ("received", request))
    entry.details.update(due=day, who="A. Person")
    return made


def test_overdue_is_what_was_not_settled_by_the_end_of_the_day():
    """The book's entries are of 2026-03-02."""
    in_time = decided(due(sealed("ok"), "2026-03-02"))
    assert (in_time.overdue, in_time.who, in_time.settled) == (False, "A. Person", in_time.answered)
    assert "In time: it was due 2026-03-02." in when(in_time)
    assert "by A. Person, 34 minutes after it was received" in when(in_time)
    late = decided(due(sealed("ok"), "2026-03-01"))
    assert late.overdue
    assert "Overdue: it was due 2026-03-01 and could be closed on 2026-03-02." in when(late)
    open_one = due(sealed(), "2026-06-30")
    assert not decided(open_one, now="2026-06-30T23:59:59+00:00").overdue
    assert "It is due 2026-06-30." in when(decided(open_one, now="2026-06-30T23:59:59+00:00"))
    assert decided(open_one, now="2026-07-01T00:00:00+00:00").overdue
    assert "is still open" in when(decided(open_one, now="2026-07-01T00:00:00+00:00"))


def test_closed_by_a_measurement_it_is_settled_since_then():
    made = due(sealed(), "2026-03-02")
    made.entries.append(replace(evaluated(sealed(), **SEEN).entries[-1], time="2026-03-09T00:00:00+00:00"))
    found = decided(made)
    assert (found.action, found.settled, found.overdue) == ("close", "2026-03-09T00:00:00+00:00", True)


def test_nobody_is_named_who_was_not_given():
    found = decided(sealed("ok"))
    assert (found.who, found.due, found.overdue) == (None, None, False)
    assert "(no name was given)" in when(found)


def test_what_has_nothing_to_see():
    seen = {one.key: one.sees for one in sights(measured(**BLIND).to_dict())}
    assert seen == {"accuracy_forgotten": False, "kl_forgotten": False, "attack": False, "distance": True}
    seen = {one.key: (one.sees, one.reached) for one in sights(measured(**SEEN).to_dict())}
    assert seen == dict.fromkeys(SEEN, (True, True))
    assert "kl_forgotten" not in {one.key for one in sights(measured(kl_forgotten={"erased": 0.1}).to_dict())}
    of_retrained = measured(**failing(retrained=True)).to_dict()
    assert failed_audits(of_retrained) == []
    assert void_audits(of_retrained) == ["the attack by confidence"]
    words = table().to_dict()  # as the first versions wrote it: words alone
    words["values"]["attack"]["erased"]["note"] = "FAIL"
    assert failed_audits(words) == ["the attack by confidence"]


def test_a_thousand_requests_and_every_state():
    found = decisions(Story(many().entries), LATER)
    assert len(found) == 1000
    assert {one.request: one.action for one in decisions(Story(five().entries), LATER)} == {
        "case-1": "close",
        "case-2": "finish",
        "case-3": "retrain",
        "case-4": "nothing",
        "case-5": "finish",
    }


def test_log_says_it_and_json_has_it(tmp_path):
    made = workspaces.make(tmp_path)
    call("erase", made.path, "--request", "a", "--ids", "s3", "--due", "2020-01-31", "--by", "A. Person")
    found = call_json("log", made.path)["decisions"]
    assert [(one["request"], one["due"], one["who"], one["overdue"]) for one in found] == [
        ("a", "2020-01-31", "A. Person", True)
    ]
    said = call("log", made.path)[0]
    assert "Request 'a':" in said or "1 of 1 request may be closed" in said
    one = call("log", made.path, "--request", "a")[0]
    assert "Overdue: it was due 2020-01-31" in one
    assert made.workspace.log("a").decisions[0].to_dict() == found[0]
    assert "YYYY-MM-DD" in call("erase", made.path, "--request", "b", "--ids", "s4", "--due", "soon", code=2)[1]
    assert "--by takes a name" in call("erase", made.path, "--request", "b", "--ids", "s4", "--by", " ", code=2)[1]
    assert [entry.request for entry in made.workspace.log().entries if entry.request == "b"] == []
