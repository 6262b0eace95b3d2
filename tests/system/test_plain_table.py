"""Tables as plain text."""

from __future__ import annotations

from ssse.system.plain_table import plain_table


def test_columns_stand_under_their_titles_and_nothing_is_cut():
    shown = plain_table(
        ["", "a", "long title"], [["group"], ["  x", "1.00", "2"], ["  y", "–", "3.5e-05 ± 1"]], labels=True
    )
    assert shown.splitlines() == [
        "           a   long title",
        " ────────────────────────",
        " group",
        "   x    1.00            2",
        "   y       –  3.5e-05 ± 1",
    ]


def test_wide_letters_and_marks_take_the_room_that_a_terminal_gives_them():
    assert plain_table(["模型", "θ̂"], [["1", "22"]]).splitlines() == [" 模型   θ̂", " ────────", "    1  22"]
