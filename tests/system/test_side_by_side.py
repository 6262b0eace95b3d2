"""Pieces of work at once: their results in order, what they raise, and the number of threads afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from ssse.system.side_by_side import side_by_side


@pytest.fixture
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


def test_results_in_order_each_on_its_share_of_the_threads(threads: int):
    meeting = threading.Barrier(2, timeout=60)  # passed only where two are at work at once

    def work(item: int) -> tuple[int, int]:
        meeting.wait()
        return item, torch.get_num_threads()

    assert side_by_side(work, [5, 6]) == [(5, 2), (6, 2)]
    assert torch.get_num_threads() == threads


def test_what_is_raised_is_raised_and_the_threads_are_as_before(threads: int):
    def work(item: int) -> int:
        if item == 2:
            raise ValueError("two")
        return item

    with pytest.raises(ValueError, match="two"):
        side_by_side(work, list(range(9)))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("count", [0, 1])
def test_where_there_is_nothing_to_share_no_thread_is_begun(threads: int, count: int):
    found = side_by_side(lambda _: threading.current_thread(), list(range(count)))
    assert found == [threading.current_thread()] * count


def test_one_thread_alone_works_in_turn():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert side_by_side(lambda _: threading.current_thread(), [1, 2]) == [threading.current_thread()] * 2
    finally:
        torch.set_num_threads(before)
