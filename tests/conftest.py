"""Small problems gain nothing from threads, and two test processes would fight over the cores.

Whoever sets OMP_NUM_THREADS outside has it as wanted, to see that nothing depends on the number of threads.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import suppress

os.environ.setdefault("OMP_NUM_THREADS", "1")
for library in ("OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", os.environ["OMP_NUM_THREADS"])

import pytest  # noqa: E402
import torch  # noqa: E402
import typer.testing  # noqa: E402

with suppress(ImportError):  # the tests of test_gpu.py also run where there is no Hypothesis
    import tests.support.sizes  # noqa: F401  # its profile, before any test is imported
from tests.support.patches import CheckedMonkeyPatch  # noqa: E402

# Typer builds its commands anew at every call in a test, which takes longer than most of them do.
if build := getattr(typer.testing, "_get_command", None):
    typer.testing._get_command = functools.cache(build)  # type: ignore[attr-defined]
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first; the order of the others, which pytest-randomly shuffles, stays."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture
def monkeypatch() -> Iterator[pytest.MonkeyPatch]:
    """pytest's own, which also fails where a patch had no effect."""
    own = CheckedMonkeyPatch()
    try:
        yield own
    finally:
        own.undo()
    own.check()
