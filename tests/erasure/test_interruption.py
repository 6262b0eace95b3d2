"""Ctrl-C while samples are erased: model, curvature and files stay as they were; and how far a request is, is told."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import rich.progress
import torch
from rich.console import Console
from torch import Tensor

import ssse
from ssse.erasure import stages
from ssse.system import progress
from ssse.system.digests import bytes_of
from tests.support import problems
from tests.support.refusals import fit, snapshot

PACKAGE = str(Path(ssse.__file__).parent)
STRUCTURES: dict[str, dict[str, Any]] = {
    "dense": {"rows": "expected", "structure": "dense"},
    "lowrank": {"rows": "margin", "structure": "lowrank"},
    "matrix_free": {"rows": "margin", "structure": "matrix_free"},
    "preconditioned": {"rows": "margin", "structure": ssse.MatrixFree(preconditioner="diagonal")},
}


class Moments:
    """Every call of a function of the package, counted; at one of them Ctrl-C is pressed.

    Not of generators: Python itself drops what is raised while one is closed.
    """

    def __init__(self, at: int | None = None):
        self.at, self.count = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_flags & inspect.CO_GENERATOR:
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


def everywhere(call: Callable[[], Any], moments: int) -> Iterator[int]:
    """Interrupt the call at so many moments, evenly from the first to the last; each time, let somebody look."""
    call()  # the first time, ways are chosen
    whole = Moments()
    with whole.watching():
        call()
    for at in sorted({1 + i * (whole.count - 1) // (moments - 1) for i in range(moments)}):
        with pytest.raises(KeyboardInterrupt), Moments(at).watching():
            call()
        yield at


def held(curvature: ssse.Curvature) -> dict[str, Any]:
    tensors = {**curvature.structure.state(), "gradient": curvature.gradient}
    return {name: bytes_of(t.reshape(1, -1)).tobytes() for name, t in tensors.items() if t is not None} | {
        "manifest": str(curvature._manifest())
    }


def switches() -> tuple[Any, ...]:
    """Of torch, for all of the process."""
    return (
        torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled(),
        torch.get_float32_matmul_precision(), torch.get_default_dtype(), torch.random.get_rng_state().tolist(),
    )  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURES)
def test_it_leaves_everything_as_it_was(name, tmp_path):
    sample = problems.conv()
    fit(sample, damping=1.0, **STRUCTURES[name]).save(tmp_path / "curvature")
    curvature = ssse.Curvature.load(tmp_path / "curvature")  # mapped: what is written to it is written to the disk
    data: dict[str, Any] = {"data": sample.data} if curvature.structure.reads_data else {}

    def erase() -> ssse.Erasure:
        return ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), **data, progress=False)

    wanted = erase()

    def look() -> tuple[Any, ...]:
        files = {path.name: path.read_bytes() for path in (tmp_path / "curvature").iterdir()}
        return snapshot(sample.model), held(curvature), switches(), files

    before = look()
    for moment in everywhere(erase, 25):
        assert look() == before, moment
    assert torch.equal(erase().step, wanted.step)


@pytest.mark.parametrize("name", ["dense", "lowrank", "preconditioned"])
def test_nor_is_anything_lost_where_the_next_curvature_is_made(name):
    sample = problems.mlp()
    curvature = fit(sample, damping=1.0, **STRUCTURES[name])
    erasure = ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 2)), progress=False)
    wanted = held(ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 2)), progress=False).curvature)
    before = held(curvature), snapshot(erasure.model)
    pending = list(erasure._pending)

    def make() -> None:
        erasure.__dict__.pop("curvature", None)
        erasure._pending[:] = pending
        _ = erasure.curvature

    for moment in everywhere(make, 10):
        assert (held(curvature), snapshot(erasure.model)) == before, moment
        assert held(erasure.curvature) == wanted, moment


def test_out_of_a_loss_of_your_own():
    sample, left = problems.mlp(), [10**9]

    def loss(z: Tensor, y: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return torch.nn.functional.cross_entropy(z, y)

    curvature = fit(sample, loss=loss, damping=0.3)
    before = snapshot(sample.model), held(curvature), switches()

    def erase() -> ssse.Erasure:
        return ssse.erase(sample.model, curvature, loss, sample.part(slice(0, 2)), progress=False)

    wanted, needed = erase().step, 10**9 - left[0]
    left[0] = 10**9
    erase()
    needed = 10**9 - left[0]
    for calls in {0, 1, needed // 2, needed - 1}:
        left[0] = calls
        with pytest.raises(KeyboardInterrupt):
            erase()
        assert (snapshot(sample.model), held(curvature), switches()) == before
    left[0] = 10**9
    assert torch.equal(erase().step, wanted)


def stages_of(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> list[list[Any]]:
    """[text, total, how far it came] of every stage that was shown."""
    shown: list[list[Any]] = []

    @contextmanager
    def bar(text: str, total: int | None, show: bool) -> Iterator[Callable[..., None]]:
        assert show

        def move(done: int = 0, text: str | None = None, anew: int | None = None) -> None:
            if anew is not None:
                shown.append([text, anew, 0])
            shown[-1][2] += done

        shown.append([text, total, 0])
        yield move

    monkeypatch.setattr(stages, "bar", bar)
    call()
    return shown


def test_the_stages_of_a_request_are_shown(monkeypatch):
    sample = problems.mlp()
    curvature = fit(sample, structure="dense", damping=0.3)
    shown = stages_of(monkeypatch, lambda: ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 3))))
    assert shown == [
        ["erasing", None, 0], ["rows of the samples to forget", 3, 3], ["solving", 0, 0], ["looking at the step", 0, 0],
    ]  # fmt: skip


@pytest.mark.parametrize("rows", ["expected", "margin"])
def test_conjugate_gradients_show_every_step_its_residual_and_how_far_it_is(monkeypatch, rows):
    sample = problems.mlp()
    curvature = fit(sample, damping=0.3, rows=rows, structure=ssse.MatrixFree(tolerance=1e-6))
    found: list[ssse.Erasure] = []

    def erase() -> None:
        found.append(ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 3)), data=sample.data))

    shown = stages_of(monkeypatch, erase)
    assert [text for text, *_ in shown[:4]] == [
        "erasing", "reading the training data", "rows of the samples to forget", "solving",
    ]  # fmt: skip
    assert shown[1][1:] == [30, 30]
    count = 30 * (3 if rows == "expected" else 1)
    steps = shown[4:-1]
    assert [passed for _, _, passed in steps] == [count] * len(steps)
    assert [total for _, total, _ in steps] == [0] + [count] * (len(steps) - 1)  # known once all have passed
    assert [text.split(", residual ")[0] for text, *_ in steps] == [
        f"conjugate gradients, step {i + 1}" for i in range(len(steps))
    ]
    residuals = [float(text.split("residual ")[1]) for text, *_ in steps]
    assert residuals[0] == 1
    assert residuals[-1] <= 1.05e-6  # to the digits that are shown
    assert min(residuals[:-1]) >= 0.95e-6
    assert f"{len(steps) - 1} steps of conjugate gradients" in str(found[0].diagnostics.notes)


def test_a_terminal_shows_the_bar_before_the_first_sample_is_read(monkeypatch):
    screen, sample = StringIO(), problems.mlp()
    monkeypatch.setattr(rich.console, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=100))
    curvature = fit(sample, damping=0.3)

    def samples() -> Iterator[tuple[Tensor, Tensor]]:
        assert "erasing" in screen.getvalue()
        yield from sample.part(slice(0, 2))

    ssse.erase(sample.model, curvature, forget=samples())
    ending = len(screen.getvalue())
    ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 2)), progress=False)
    assert len(screen.getvalue()) == ending


def test_the_clock_of_a_bar_runs_on_from_stage_to_stage(monkeypatch):
    made: list[rich.progress.Progress] = []
    monkeypatch.setattr(
        rich.console, "Console", lambda stderr: Console(file=StringIO(), force_terminal=True, width=100)
    )

    class Watched(rich.progress.Progress):
        def __init__(self, *columns: Any, **options: Any):
            self.hours = 0.0
            super().__init__(*columns, get_time=lambda: self.hours, **options)
            made.append(self)

    monkeypatch.setattr(rich.progress, "Progress", Watched)
    with progress.bar("one", 3, True) as move:
        made[0].hours = 5.0  # type: ignore[attr-defined]
        move(3)
        move(text="two", anew=0)
        made[0].hours = 7.0  # type: ignore[attr-defined]
        task = made[0].tasks[0]
        assert (task.elapsed, task.completed, task.total, task.description) == (7.0, 0, None, "two")
        assert not task.finished
        move(text="three", anew=4)
        move(4)
        assert task.finished_time == 7.0
