"""The page of a workspace: everything that the ledger says, said to people, and nothing else."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from ssse.evaluation.scan import Scan
from ssse.evaluation.table import Evaluation
from ssse.rendering.templates import marked, visible
from ssse.workspace.page import words
from ssse.workspace.page.page import render
from ssse.workspace.record.decision import decisions
from ssse.workspace.record.decision_words import when, why
from ssse.workspace.record.describe import describe, number
from ssse.workspace.record.ledger import Entry
from ssse.workspace.record.published import published
from ssse.workspace.record.story import Request, Story
from tests.paper.test_pages import Reader, assert_policy
from tests.support.ledger_entries import (
    CHECKED,
    HOSTILE,
    LEDGERS,
    Book,
    five,
    hostile,
    many,
    new,
    one,
    page,
    table,
)

EVERY = pytest.mark.parametrize("name", LEDGERS)


@cache
def reader(name: str) -> Reader:
    return Reader(page(name))


def text_of(page: str) -> str:
    """As it is read, without the drawings; cells, lines and paragraphs apart."""
    words = re.sub(r"<svg.*?</svg>|<style>.*?</style>", "", page, flags=re.DOTALL)
    words = re.sub(r'<(/?(td|th|dt|dd|br|li|p|div|caption|summary|h\d)\b|span class="meaning")[^>]*>', " ", words)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", words)).split())


def drawn(book: Book, name: str = "shop", checked: str | None = None) -> str:
    return render(book.entries, name=name, head=book.head, checked=checked)


# ── any page ──────────────────────────────────────────────────────────────────────────────────────────────────────


@EVERY
def test_the_page_can_be_read_without_seeing_it(name):
    seen = reader(name)
    assert seen.named("html") == [{"lang": "en"}]
    assert len(seen.named("title")) == len(seen.named("h1")) == len(seen.named("main")) == 1
    levels = [int(tag[1]) for tag, _ in seen.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(seen.named("caption")) == len(seen.named("table"))
    assert all(cell.get("scope") in ("col", "row", "rowgroup") for cell in seen.named("th"))
    assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in seen.named("svg"))
    assert len(seen.named("svg")) == len(seen.named("figcaption")) == len(seen.named("figure"))


@EVERY
def test_ids_are_unique_and_every_link_finds_its_own(name):
    text, seen = page(name), reader(name)
    ids = [attributes["id"] for _, attributes in seen.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = set(re.findall(r'href="([^"]*)"', text)) | set(re.findall(r"url\(([^)]+)\)", text))
    inside = {link for link in links if not link.startswith("data:image/png;base64,")}  # the heat map
    assert {link.removeprefix("#") for link in inside} <= set(ids)
    assert all(link.startswith("#") for link in inside)
    labels = [a["aria-label"] for _, a in seen.elements if a.get("role") == "region"]
    assert len(labels) == len(set(labels))


@EVERY
def test_the_page_says_that_nothing_may_be_loaded_or_run(name):
    assert_policy(reader(name))


@EVERY
def test_the_page_loads_nothing_and_runs_nothing(name):
    text, seen = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page(name)), reader(name)
    assert not {"script", "link", "iframe", "object", "embed", "img", "form"} & {tag for tag, _ in seen.elements}
    assert not re.search(r"https?://|@import", text)
    for _, attributes in seen.elements:
        assert not any(key.startswith("on") or key == "src" for key in attributes)


@pytest.mark.parametrize("name", ["new", "hostile"])
def test_the_same_entries_give_the_same_bytes(name):
    book = LEDGERS[name]()
    stored = [Entry(**one) for one in json.loads(json.dumps([entry.to_dict() for entry in book.entries]))]
    assert render(stored, name=f"{name} <b>workspace</b>", head=book.head, checked=CHECKED) == page(name)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_colour_of_words_can_be_told_from_every_ground(dark):
    css = page("new")[page("new").index("<style>") : page("new").index("</style>")]
    light, night = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    variables = dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6})", light))
    assert set(variables) == set(re.findall(r"--(\w+): #", night))  # each has its counterpart
    variables |= dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6})", night)) if dark else {}
    rules = re.sub(r"figure svg \{.*?\}", "", css)  # drawings keep their own white ground
    colours = {name: re.findall(rf"(?<![\w-]){name}: ([^;}}]+)", rules) for name in ("color", "background")}
    inks = {_hex(value, variables) for value in colours["color"]}
    grounds = {_hex(value, variables) for value in colours["background"] if value != "none"}
    assert len(inks) >= 6
    assert len(grounds) == 3
    for ink, ground in product(inks, grounds):
        lighter, darker = sorted((_luminance(ink), _luminance(ground)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (ink, ground)


def _hex(value: str, variables: Mapping[str, str]) -> str:
    found = re.fullmatch(r"var\(--(\w+)\)", value.strip())
    colour = variables[found[1]] if found else value.strip()
    assert re.fullmatch(r"#([0-9a-f]{3}|[0-9a-f]{6})", colour), colour
    return colour if len(colour) == 7 else "#" + "".join(2 * sign for sign in colour[1:])


def _luminance(colour: str) -> float:
    """WCAG 2's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# ── what it says ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_was_asked_for_yet():
    said = text_of(page("new"))
    assert "No request has come yet: nothing was erased." in said
    assert "ssse fit WORKSPACE" in said
    assert "0 carried out" in said
    assert "May" not in said  # there is nothing to close
    assert "Nothing was measured yet." in said
    assert "Not calibrated: ε = 1." in said
    assert new().head in said
    book = new()
    book.fitted()
    said = text_of(drawn(book))
    assert "The workspace is ready for the first." in said
    assert "Next: ssse erase WORKSPACE" in said
    assert "The files were not checked when this page was made." in said


def test_the_numbers_are_those_of_the_entries():
    book, said = one(), text_of(page("one"))
    entries = {entry.kind: entry for entry in book.entries}
    erased = entries["erased"].details
    found = published(entries["erased"])["details"]["diagnostics"]
    assert "1 request came: 1 carried out." in said
    assert "73 of 1,437 5.08% of the training data" in said
    for digest in (erased["after"]["weights"], book.head):
        assert digest in said
    assert erased["after"]["curvature"] not in said  # who has all the data could look for the sample that it lacks
    assert f"≤ {found['loss_before']:.4g} → ≤ {found['loss_after']:.4g}" in said
    for name in ("leverage_max", "leverage_sum", "relative_step"):
        assert f" ≤ {found[name]:.4g} " in said, name
    assert len(found["reasons"]) == 1
    for reason in found["reasons"] + found["notes"]:
        assert reason in said
    assert (
        "ε = 1.1, with λ = 0.001, was chosen 2026-03-02 10:21:00 UTC by the method “retrained” on 73 samples." in said
    )
    assert "δ is least, …, and the predictions diverge least among those within … of it" in said
    for line in entries["sealed"].details["remains"]:
        assert f"{line['what']} {line['status']}" in said
    for entry in book.entries:
        assert entry.hash in said
        assert words.moment(entry.time) in said
    assert CHECKED in said


def test_the_table_is_the_evaluations_own():
    said = text_of(page("one"))
    shown = Evaluation.from_dict(published(one().entries[-1])["details"]["table"])
    columns = shown.columns(shown.models)
    assert [title for title, _ in columns] == ["original", "erased", "retrained (×3)", "noise floor"]
    for i, measure in enumerate(shown.measures):
        cells = " ".join(texts[i] or "–" for _, texts in columns)
        meaning = words.measure_meaning(measure.key)
        assert f"{measure.title} {meaning} {cells}" in said or f"{measure.title} {cells}" in said, measure.key
    assert "right in 100.00 % before and is in 93.15 % now; a retrained model is in 91.78 %." in said
    assert "0.34 points from those of retraining on average; before erasing it was 2.17." in said
    assert "Two retrained models differ by 0.21 points: the erased model is further than that." in said
    assert "Read every gap against the noise floor." in said
    assert "T_a: the test threes." in said


def test_every_state_of_a_request():
    said, story = text_of(page("five")), Story(five().entries)
    states = {request.id: request.state for request in story.requests}
    assert states == {
        "case-1": "erased",
        "case-2": "unsealed",
        "case-3": "refused",
        "case-4": "nothing",
        "case-5": "pending",
    }
    assert "5 requests came: 2 carried out, 1 refused, 1 pending, 1 with nothing left to erase." in said
    assert "19 of 1,437" in said
    assert "case-5 … pending – 5" in said
    assert "case-4 – all erased before 12 asked for; 12 erased before by “case-1” – 0" in said
    assert f"case-3 ✘ refused {story.known('reason', 'refused')} ✘ refused 40" in said
    assert "case-2 ◐ erased, clean-up not recorded 10 asked for; 3 erased before by “case-1” ▲ caution 7" in said
    assert "case-1 ✔ erased ✔ ok 12" in said
    assert "1 erasure without a record of what became of the old weights" in said
    assert "Not recorded for “case-2”" in said
    assert "The current curvature was fitted anew after the last erasure" in said
    assert "1 earlier measurement." in said


def test_every_kind_of_entry_is_in_the_ledger():
    said = text_of(page("five"))
    kinds = {entry.kind for entry in five().entries}
    assert kinds == set(words.KINDS) - {"confirmed", "reverted", "repaired", "upgraded"}  # nothing waits, all is new
    for entry in map(published, five().entries):
        row = f"{entry['seq']} {words.moment(entry['time'])} {words.KINDS[entry['kind']]} {entry['request'] or '–'} "
        assert row + describe(entry["kind"], entry["details"]) + f" {entry['hash'][:12]}" in said
    assert "erase.old_weights: shred → keep" in said
    assert "19 erased samples left out" in said


def test_a_caution_is_no_green_tick():
    said = text_of(page("one"))
    assert "case-2026-0142 ▲ erased, not vouched for ▲ caution 73" in said
    assert "✔ erased" not in said


def test_what_to_do_comes_first():
    seen, said = page("five"), text_of(page("five"))
    assert seen.index('id="close"') < seen.index('id="glance"') < seen.index('id="asked"')
    assert "May these requests be closed?" in said
    assert "2 of them may be closed." in said
    rows = re.findall(r'<li class="(\w+)">\n<p class="what">.*?<bdi class="id">(.*?)</bdi>', seen, re.DOTALL)
    assert rows == [
        ("partly", "case-5"),
        ("no", "case-3"),
        ("partly", "case-2"),
        ("yes", "case-4"),
        ("yes", "case-1"),
    ]
    for decision in decisions(Story(five().entries), "2026-03-03"):
        assert why(decision).replace("`", "") in said
        assert when(decision) in said
        for command in decision.commands:
            assert command in said


def failing(model: str) -> Book:
    book = one()
    values = book.entries[-1].details["table"]["values"]["attack"]
    values[model] |= {"note": "FAIL", "detail": {"passed": 0, "of": 1}}
    return book


def test_a_fail_stands_out_and_is_explained():
    made = drawn(failing("erased"))
    assert '<strong class="fails">0.470 FAIL</strong>' in made
    said = text_of(made)
    assert "FAIL. The attack by confidence can still tell the erased samples from samples that the model never" in said
    assert "✘ Retrain case-2026-0142" in said
    assert "FAIL" not in text_of(page("one"))
    assert "fails for the retrained model too" in text_of(drawn(failing("retrained")))


def test_what_has_nothing_to_see_is_said_and_what_has():
    said = text_of(page("one"))
    assert "The attack by confidence has nothing to see here: the samples are not found in the original model" in said
    assert "What has something to see: the accuracy on the erased samples (100 before, 93.15 now)" in said
    assert "has nothing to see" not in text_of(drawn(failing("original")))


def test_no_backticks_are_left():
    book = failing("erased")
    book.received("held", 30)
    book.erased("held", 30)
    old = {"weights": "shred", "curvature": "shred"}
    book.entries[-1].details.update(held=True, why_held=["Look with `ssse log`."], old=old)
    made = drawn(book)
    assert "`" not in made
    assert "<code>ssse log</code>" in made
    assert marked("a `b` <c> `d") == "a <code>b</code> &lt;c&gt; `d"
    assert marked(None) is None


def test_a_request_that_is_open_is_overdue_after_its_day():
    book = new()
    book.fitted()
    book.answer("case-1")
    book.entries[2].details.update(due="2026-05-31", who="A. <b>Person</b>")
    assert "1 is overdue" not in text_of(drawn(book))
    late = text_of(render(book.entries, name="shop", head=book.head, now="2026-06-01T00:00:00+00:00"))
    assert "1 is overdue." in late
    assert "✘ Overdue: it was due 2026-05-31 and is still open." in late
    assert "by A. <b>Person</b>" in late


def test_figures_say_what_they_show():
    labels = [svg["aria-label"] or "" for svg in reader("one").named("svg")]
    curve = Scan.from_dict(published(one().entries[2])["details"]["curve"])
    assert curve.ratio is not None
    at = np.interp(np.log(1.1), np.log(curve.scales), curve.ratio)
    assert f"δ against ε from 0.01 to 100; {at:.4g} at the chosen one" in labels
    assert sum(" against ε from " in label for label in labels) == 5
    assert len(labels) == 7  # and the two of the table; losses and leverages by request from two requests on
    more = [svg["aria-label"] or "" for svg in reader("five").named("svg")]
    assert "δ over λ and ε, the chosen pair marked" in more
    assert not any(label.startswith("Mean loss") for label in more)  # of so few samples it is not shown
    book = one()
    book.answer("small", 3)
    book.answer("another", 40)
    large = [svg["aria-label"] or "" for svg in Reader(drawn(book)).named("svg")]
    assert "Mean loss on the erased samples before and after 2 erasures of enough samples" in large


@pytest.mark.parametrize(
    ("scale", "says"), [(1.0, "Not calibrated: ε = 1."), (0.4, "Not calibrated: ε = 0.4 was given.")]
)
def test_without_a_calibration(scale, says):
    book = new()
    book.fitted()
    book.answer("case-1")
    book.entries[3].details["scale"] = scale
    said = text_of(drawn(book))
    assert says in said
    assert "how good the erasures are is not known beyond the numbers above" in said


def test_a_choice_that_the_last_erasure_did_not_use():
    book = new()
    book.fitted()
    book.calibrated(scale=0.7, curve=False)
    book.answer("case-1")
    said = text_of(drawn(book))
    assert "The last erasure did not use this choice: its ε was 1.1." in said
    assert "There is no curve for this choice." in said
    book.calibrated(scale=0.8, curve=False)
    said = text_of(drawn(book))
    assert "no request has used it yet" in said
    assert "did not use this choice" not in said
    assert "ε was chosen 2 times" in said


def test_erasures_after_the_measurement_are_told_of():
    book = new()
    book.fitted()
    book.answer("case-1")
    book.evaluated(["case-1"], floor=False)
    book.answer("case-2")
    said = text_of(drawn(book))
    assert "1 erasure came after this measurement and is not in it." in said
    assert "There is no noise floor" in said
    assert "One 'retrained' model only" in said
    assert "Two retrained models differ" not in said


def test_what_a_joint_stream_keeps():
    book = Book()
    book.created(batch_norm=True)
    book.fitted()
    book.received("case-1")
    book.erased("case-1", policy="joint")
    book.sealed("case-1", weights="kept")
    said = text_of(drawn(book))
    assert "and the old model can be rebuilt from them" in said
    assert "Old weights: kept after 1 erasure. Old curvature: shredded after 1 erasure." in said
    assert "Backups and snapshots not known to this program" in said
    del book.entries[-1].details["remains"]
    said = text_of(drawn(book))
    assert "the model before all erasures can be rebuilt from them" in said
    assert "Their running statistics were taken over all training samples" in said
    assert "holds sums over the samples, from which the forgotten ones were subtracted" in said


def test_the_salt_stays_in_the_workspace():
    """With it, and a list of people, somebody could find out who was erased."""
    book = new()
    book.entries[0].details["salt"] = "c0ffee" * 10
    shown = drawn(book)
    assert "c0ffee" not in shown
    assert '"salt"' not in text_of(shown)


def test_the_current_state_is_that_of_the_last_entry_that_left_one():
    book = Book()
    book.add("created", after={"weights": "a", "curvature": None})
    book.add("fitted", n=9, after={"weights": "a", "curvature": "b"})
    assert Story(book.entries).weights == "a"
    book.add("erased", "1", k=1, after={"weights": "c", "curvature": None}, curvature_dropped=True)
    book.add("evaluated", table=table().to_dict(), after={"weights": "old", "curvature": "old"})
    assert Story(book.entries).weights == "c"
    assert "There is no curvature now: it was dropped" in text_of(drawn(book))


def test_what_is_not_recorded_is_not_made_up():
    """Every detail that may be missing is."""
    book = Book()
    book.add("created")
    book.add("fitted", n=100)
    book.add("calibrated", scale=2.0)
    book.add("received", "a", k=3)
    book.add("erased", "a", k=3)
    book.add("sealed", "a")
    book.add("received", "b", k=4)
    book.add("refused", "b")
    book.add("evaluated", table=table().to_dict())
    book.add("configured")
    book.add("something new", "c", more=1)
    said = text_of(drawn(book))
    assert "2 requests came: 1 carried out, 1 refused." in said
    assert "3 of 100" in said
    assert "3 of – samples" in said
    assert "No entry says what remains." in said
    assert "a kind of entry that this version does not know: something new" in said
    assert "None" not in said
    assert "nan" not in said.lower().replace("finance", "")


def test_a_request_that_is_brought_again():
    entry: Any = {"time": "2026-01-01T00:00:00+00:00", "details": {"k": 2}}
    request = Request("a", {"received": {**entry, "seq": 1}, "refused": {**entry, "seq": 2}})
    assert request.state == "refused"
    request.entries["received"] = {**entry, "seq": 3}
    assert request.state == "pending"
    request.entries["erased"] = {**entry, "seq": 4}
    assert request.state == "unsealed"
    request.entries["sealed"] = {**entry, "seq": 5}
    assert request.state == "erased"
    request.entries["received"] = {**entry, "seq": 6, "details": {"k": 0}}  # and once more: nothing is left to erase
    assert request.state == "erased"


def test_samples_of_the_training_data_are_counted_once():
    book = new()
    book.fitted()
    book.answer("case-1", 100)
    assert (Story(book.entries).samples, Story(book.entries).erased_samples) == (1437, 100)
    book.fitted(excluded=100)
    book.answer("case-2", 37)
    assert (Story(book.entries).samples, Story(book.entries).erased_samples) == (1437, 137)


# ── many requests, and names that mean harm ───────────────────────────────────────────────────────────────────────


def test_a_thousand_requests():
    text, book = page("many"), many()
    assert len(text.encode()) < 4_000_000
    said = text_of(text)
    assert "1,000 requests came: 989 carried out, 10 refused, 1 pending." in said
    in_view = text_of(re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL))
    for request in (*(f"case-{i:04d}" for i in range(981, 1001)), "case-0097", "case-0500"):
        assert request in in_view, request
    assert "case-0980" not in in_view
    for entry in book.entries:
        assert entry.hash[:12] in said
    for size, what in ((969, "earlier requests"), (969, "earlier erasures"), (2975, "earlier entries")):
        assert f"{size:,} {what}. Folded, and not printed: ssse log WORKSPACE --json lists all." in said, what
    assert re.search(r"The \d+ earlier ones are left out of this list\.", said)


def test_names_that_mean_harm():
    text, said = page("hostile"), text_of(page("hostile"))
    assert not re.search(r"<script|<img|\u202e|\u2066|\u200b|\x07", text)
    assert HOSTILE[0] in said
    assert HOSTILE[1] in said
    assert "turned [U+202E] around [U+2066] and [U+200B] hidden[U+0007]" in said
    assert HOSTILE[3] in said
    assert HOSTILE[4] in said
    assert "{{ 7 * 7 }}" in said
    assert "<bdi>hostile &lt;b&gt;workspace&lt;/b&gt;</bdi>" in text
    refused = [request for request in Story(hostile().entries).requests if request.state == "refused"]
    assert len(refused) == len(HOSTILE)


def test_halves_of_characters_are_written_out():
    book = new()
    book.fitted()
    book.add("received", "half \ud800 a sign", k=1)
    assert "half [U+D800] a sign" in drawn(book).encode().decode()
    assert visible("line\nline\u200d") == "line\nline\u200d"
    assert visible(7) == 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.05, "0.05"),
        (1.1, "1.1"),
        (12, "12"),
        (7.2e-6, "7.20e-06"),
        (123456.0, "123,456"),
        (-0.5, "−0.5"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def entry(seq: int, kind: str, request: str | None = None, **details: Any) -> Entry:
    return Entry(seq, f"2026-01-01T00:{seq:02d}:00+00:00", kind, request, details, "", f"{seq:064x}")


def test_a_choice_of_the_scale_that_a_fit_has_dropped_is_not_said_to_be_in_force():
    chosen = entry(3, "calibrated", k=40, scale=0.6123, method="line_search", reason="", curve=None)
    fits = [entry(2, "fitted", n=40, d=3, structure="dense", rows="expected")]
    stands = text_of(render([*fits, chosen], name="shop", head="0" * 64))
    assert "ε, scale 0.612" in stands
    assert "was dropped" not in stands
    dropped = text_of(render([*fits, chosen, entry(4, *("fitted",), n=40, d=3)], name="shop", head="0" * 64))
    assert "ε, scale" not in dropped
    assert "the choice was dropped with the old one: the next request steps with ε = 1" in dropped


def test_a_request_was_received_when_it_came_first():
    tries = [entry(5, "received", "a", k=1), entry(6, "refused", "a", k=1, reason="no"), entry(9, "received", "a", k=2)]
    assert Story(tries).requests[0].received == "2026-01-01T00:05:00+00:00"


def test_the_first_entry_names_the_weights():
    made = entry(1, "created", model={"factory": "a:b", "parameters": 3}, after={"weights": "abcdef" * 11})
    assert "digest abcdef" in describe(made.kind, made.details)
