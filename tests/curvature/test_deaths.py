"""A process of a fit ends, fails or stands still: the others end by one sentence, and what was read is not lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import ssse
from ssse.curvature.checkpoints import Checkpoints
from ssse.curvature.choices import StructureName
from ssse.system.store import CHECKPOINT, read_folder
from tests.support import problems
from tests.support.groups import server

SAMPLES, SECONDS = 1600, 0.01  # of each: a pass of four takes four seconds
ENDED = 30.0  # seconds
SURVIVORS = (0, 1, 3)
BEFORE = 200  # samples that may be read to look at the data, before the pass
AMID = 1002  # read by rank 2 of 4 after half of its pass


def linear() -> problems.Sample:
    return problems.linear("cross_entropy", n=SAMPLES)


class Read(Dataset):
    """Writes down what is read, and does something at one of them."""

    def __init__(self, log: Path, at: int = -1, then: Callable[[], object] = int):
        self.sample, self.log, self.at, self.then, self.slow = linear(), log, at, then, True

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        time.sleep(SECONDS * self.slow)
        with self.log.open("a") as file:
            file.write(f"{place}\n")
        if place == self.at:
            (self.log.parent / "when").write_text(str(time.time()))
            self.then()
        return self.sample.x[place], self.sample.y[place]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stand_still() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def fail() -> None:
    raise OSError("The disk is gone.")


def fit(data: Dataset, structure: StructureName = "dense", **more) -> ssse.Curvature:
    sample = linear()
    return ssse.Curvature.fit(
        sample.model, sample.loss, DataLoader(data, batch_size=4), damping=1e-2, structure=structure, progress=False,
        **more,
    )  # fmt: skip


def part_of(
    rank: int, processes: int, home: Path, then: Callable[[], object], seconds: float, structure: StructureName
) -> None:
    """One process, as a user starts it by hand; what it came to is in a file. `then` comes to rank 2 amid its pass."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{home}/meeting-{processes}", rank=rank, world_size=processes,
        timeout=timedelta(seconds=seconds),
    )  # fmt: skip
    told = home / f"told-{processes}-{rank}"
    data = Read(home / f"read-{processes}-{rank}", at=AMID if rank == 2 else -1, then=then)
    data.slow = rank != 2 or then is not fail  # it fails before the others have read much
    try:
        more = {} if structure == "matrix_free" else {"checkpoint": home / "fit", "checkpoint_seconds": 0.1}
        curvature = fit(data, structure, **more)
        x = curvature.solve(torch.ones(18, dtype=torch.float64))
        told.write_text(" ".join(map(repr, [curvature.n, *x.tolist()])))
    except Exception as error:
        told.write_text(f"{time.time()} {type(error).__name__} {error}")


def begin(
    processes: int,
    home: Path,
    then: Callable[[], object] = int,
    seconds: float = 60,
    structure: StructureName = "dense",
):
    context = server()
    started = [
        context.Process(target=part_of, args=(i, processes, home, then, seconds, structure)) for i in range(processes)
    ]
    for process in started:
        process.start()
    return started


def endings(home: Path, started: list, ranks: tuple[int, ...]) -> dict[int, tuple[float, str]]:
    """How long after it each of them ended, and by what."""
    found = {}
    for rank in ranks:
        started[rank].join(2 * ENDED)
        assert started[rank].exitcode == 0
        when, text = (home / f"told-4-{rank}").read_text().split(" ", 1)
        found[rank] = float(when) - float((home / "when").read_text()), text
    return found


def reads_of(home: Path, processes: int, rank: int) -> list[int]:
    return [int(place) for place in (home / f"read-{processes}-{rank}").read_text().split()]


def reads(home: Path, processes: int) -> list[int]:
    return [place for rank in range(processes) for place in reads_of(home, processes, rank)]


def in_the_folder(folder: Path) -> np.ndarray:
    """Which samples are in it; every part is whole."""
    paths = [path.parent for path in folder.glob("*/manifest.json")]
    whole = [read_folder(path, CHECKPOINT) for path in paths]
    assert whole
    return Checkpoints.open(folder, whole[0][1]["of"], SAMPLES, 1.0).done


@pytest.mark.long
def test_a_process_is_killed_and_the_others_end(tmp_path: Path):
    """Nobody started them but the test: no torchrun ends them."""
    started = begin(4, tmp_path, kill)
    for rank, (seconds, text) in endings(tmp_path, started, SURVIVORS).items():
        assert seconds < ENDED
        assert text.startswith(f"GroupBroken Rank {rank} of 4 stops, since ")
        assert text.count("\n") == 0
    assert started[2].exitcode == -signal.SIGKILL
    done = in_the_folder(tmp_path / "fit")
    assert 0 < done.sum() < SAMPLES
    assert not done[AMID]
    for process in (others := begin(3, tmp_path)):
        process.join(2 * ENDED)
    assert [process.exitcode for process in others] == [0, 0, 0]
    again = [place for place in reads(tmp_path, 3) if done[place]]  # all look at the first, and at a few of each part
    assert len(set(again)) < min(BEFORE, done.sum() / 2)
    assert set(reads(tmp_path, 3)) >= set((~done).nonzero()[0].tolist())
    check_answer(tmp_path / "told-3-0")
    assert not (tmp_path / "fit").exists()


def check_answer(told: Path) -> None:
    quick = Read(told.with_name("alone"))
    quick.slow = False
    n, *x = map(float, told.read_text().split())
    assert n == SAMPLES
    truth = fit(quick).solve(torch.ones(18, dtype=torch.float64))
    torch.testing.assert_close(torch.tensor(x, dtype=torch.float64), truth, rtol=1e-9, atol=0)


@pytest.mark.long
def test_a_process_that_stands_still_is_waited_for_as_long_as_the_group_says(tmp_path: Path):
    """It closes no connection: the `timeout` of init_process_group decides."""
    started = begin(4, tmp_path, stand_still, seconds=5)
    try:
        found = endings(tmp_path, started, SURVIVORS)
    finally:
        started[2].kill()
        started[2].join()
    for seconds, text in found.values():
        assert 4 < seconds < ENDED
        assert "GroupBroken" in text
        assert "has not answered within the group's timeout" in text
    assert any("Timed out" in text for _, text in found.values())
    done = in_the_folder(tmp_path / "fit")
    assert done[np.arange(SAMPLES) % 4 != 2].all()  # all that the others have read


@pytest.mark.long
@pytest.mark.parametrize("structure", ["dense", "matrix_free"])
def test_a_process_that_cannot_read_its_data_is_named(tmp_path: Path, structure: StructureName):
    """The others do not read to the end first."""
    started = begin(4, tmp_path, fail, structure=structure)
    found = endings(tmp_path, started, (0, 1, 2, 3))
    assert found[2][1] == "OSError The disk is gone."
    for rank in SURVIVORS:
        seconds, text = found[rank]
        assert seconds < ENDED
        assert text == "OSError Rank 2 of 4: The disk is gone."
        own = {place for place in reads_of(tmp_path, 4, rank) if place % 4 == rank}
        assert len(own) < SAMPLES / 4
    if structure == "dense":
        assert in_the_folder(tmp_path / "fit").any()
