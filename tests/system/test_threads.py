"""One thread for small work, and as many as there were afterwards."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import scipy.linalg  # noqa: F401  # the second library
from threadpoolctl import threadpool_info, threadpool_limits

from ssse.system.threads import SMALL, threads_for


def threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_small_work_is_done_by_one_thread_and_the_number_comes_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with threads_for(SMALL):
            assert threads() == {1}
            with threads_for(1):
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == before
        with threads_for(SMALL + 1):
            assert threads() == before


def test_an_error_sets_the_number_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with pytest.raises(ValueError, match="inside"), threads_for(1):
            raise ValueError("inside")
        assert threads() == before


def test_several_jobs_at_once_leave_the_number_as_it_was() -> None:
    met = Barrier(4)

    def job(_: int) -> None:
        with threads_for(1):
            met.wait()

    with threadpool_limits(2, user_api="blas"):
        before = threads()
        for _ in range(5):
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(job, range(4)))
            assert threads() == before
