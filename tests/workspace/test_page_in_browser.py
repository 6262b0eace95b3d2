"""The page of requests in a headless Chromium: silent, alone, on a phone, and for those who do not see it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ssse.workspace.page.receipt import render_receipt
from tests.support import browser
from tests.support.browser import browse, on_phones, with_script
from tests.support.ledger_entries import HOSTILE, hostile, one, page, receipt_of

RECEIPTS = {
    "receipt": lambda: render_receipt(receipt_of(one(), "case-2026-0142")),
    "hostile receipt": lambda: render_receipt(receipt_of(hostile(), HOSTILE[3])),
}

pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason=browser.NO_CHROMIUM)


def test_errors_and_requests_would_be_seen(tmp_path: Path):
    """Without this the silence of the others would prove nothing."""
    loud = (
        '<!DOCTYPE html><title>x</title><body><img src="http://example.invalid/x.png"><script>nosuch()</script></body>'
    )
    seen = browse(loud, tmp_path)
    assert any("nosuch is not defined" in line for line in seen.console)
    assert seen.requests == ["http://example.invalid/x.png"]


def test_it_is_silent_and_alone(tmp_path: Path):
    seen = browse(page("five"), tmp_path)
    assert seen.console == []
    assert seen.requests == []
    assert seen.dom.count("<table") == seen.dom.count("<caption") >= 6
    assert seen.dom.count("<svg") == seen.dom.count("<figcaption") >= 8
    assert "<script" not in seen.dom


def test_nothing_sticks_out_on_a_phone(tmp_path: Path):
    names = ["new", "five", "hostile", "many"]
    seen = browse(on_phones([page(name) for name in names]), tmp_path)
    assert seen.console == []
    for name, found in zip(names, seen.found, strict=True):
        assert found["width"] == 360, name
        assert found["wide"] <= 360, name
        assert found["outside"] == [], name
        assert len(found["figures"]) == page(name).count("<figure "), name
        assert all(height > 100 for height in found["figures"]), name


def test_nothing_of_a_receipt_sticks_out_on_a_phone(tmp_path: Path):
    seen = browse(on_phones([make() for make in RECEIPTS.values()]), tmp_path)
    assert seen.console == []
    for name, found in zip(RECEIPTS, seen.found, strict=True):
        assert found["wide"] <= 360, name
        assert found["outside"] == [], name


def test_what_sticks_out_would_be_seen(tmp_path: Path):
    wide = '<!DOCTYPE html><title>x</title><body><p style="width: 400px">x</p></body>'
    (found,) = browse(on_phones([wide]), tmp_path).found
    assert found["wide"] > 360
    assert len(found["outside"]) == 1


def without_policy(text: str) -> str:
    """The page's own policy lets no script run, axe's neither."""
    changed, number = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    assert number == 1
    return changed


def test_no_script_runs(tmp_path: Path):
    """Whatever might get into it: the policy stands before all else."""
    seen = browse(page("new").replace("</body>", "<script>document.title = 'run'</script></body>"), tmp_path)
    assert any("Content Security Policy" in line for line in seen.console)
    assert "<title>run</title>" not in seen.dom


@pytest.mark.parametrize("name", ["new", "five", "receipt"])
def test_axe_finds_nothing(name, tmp_path: Path):
    axe = browser.axe()
    if axe is None:
        pytest.skip(browser.NO_AXE)
    text = RECEIPTS[name]() if name in RECEIPTS else page(name)
    seen = browse(with_script(without_policy(text), axe, browser.AXE), tmp_path, wait=20_000)
    assert seen.found == []


def test_axe_would_find_something(tmp_path: Path):
    axe = browser.axe()
    if axe is None:
        pytest.skip(browser.NO_AXE)
    poor = '<!DOCTYPE html><title></title><body><img src="data:,"><p style="color: #ccc">pale words</p></body>'
    rules = {entry["rule"] for entry in browse(with_script(poor, axe, browser.AXE), tmp_path, wait=20_000).found}
    assert {"html-has-lang", "document-title", "image-alt", "color-contrast"} <= rules
