"""A fit that is killed goes on, on any number of processes, and comes to the same curvature."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

import ssse
from ssse.curvature import estimates
from ssse.errors import InvalidData, InvalidSetting
from tests.support import problems
from tests.support.groups import group_of, server
from tests.support.sizes import sized

NEAR = 1e-9  # float64; sums are made in another order
ENDED = 30.0  # seconds, after which a process that was told to end has ended
WAYS: list[Any] = ["dense", "lowrank", "diagonal", ssse.LowRank(rank=9), ssse.MatrixFree(tolerance=1e-14), "recurrence"]


class Samples(Dataset):
    """One after another, slowly; Ctrl-C comes at one of them, if so wished."""

    def __init__(self, sample: problems.Sample, stop: int | None = None, seconds: float = 0.0):
        self.sample, self.stop, self.seconds, self.read = sample, stop, seconds, 0

    def __len__(self) -> int:
        return len(self.sample.x)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.seconds)
        self.read += 1
        if self.stop == place and self.read > 40:  # of the pass: a few were looked at before
            self.stop = None
            os.kill(os.getpid(), signal.SIGINT)
        return self.sample.x[place], self.sample.y[place]


def linear() -> problems.Sample:
    return problems.linear("cross_entropy", n=61)


def fit(data: Dataset, way: Any, rows: Any = "margin", **more: Any) -> ssse.Curvature:
    sample = linear()
    return ssse.Curvature.fit(
        sample.model, sample.loss, DataLoader(data, batch_size=4), damping=1e-2, rows=rows, structure=way,
        progress=False, **more,
    )  # fmt: skip


def ones() -> Tensor:
    return torch.ones(18, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Ctrl-C is heard, whatever started the tests: what runs in the background may have been told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path, few_at_a_time):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    data = Samples(linear(), stop=30)
    assert fit(data, "dense", checkpoint=tmp_path / "fit").n == len(data)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.fixture
def few_at_a_time(monkeypatch):
    monkeypatch.setattr(estimates, "MOST_SAMPLES", 5)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_interrupted_fit_goes_on(tmp_path: Path, few_at_a_time, way: Any):
    folder, sample = tmp_path / "fit", linear()
    truth = fit(Samples(sample), way, "expected")
    for stop in (20, 44):
        with pytest.raises(KeyboardInterrupt):
            fit(Samples(sample, stop), way, "expected", checkpoint=folder)
        assert folder.is_dir()
    rest = Samples(sample)
    again = fit(rest, way, "expected", checkpoint=folder)
    torch.testing.assert_close(again.solve(ones()), truth.solve(ones()), rtol=NEAR, atol=0)
    assert (again.n, again.repeats, again.mean_loss) == (truth.n, truth.repeats, pytest.approx(truth.mean_loss))
    assert not folder.exists()


def interrupted(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(Samples(linear(), stop=30), "dense", checkpoint=folder)


def test_another_fit_does_not_go_on_from_it(tmp_path: Path, few_at_a_time):
    folder, sample = tmp_path / "fit", linear()
    interrupted(folder)
    with pytest.raises(InvalidSetting, match="is a part of a fit with another choice of settings"):
        fit(Samples(sample), "dense", "expected", checkpoint=folder)
    with pytest.raises(InvalidSetting, match="is a part of a fit with another number of samples: 61, and now 40"):
        fit(Samples(problems.linear("cross_entropy", n=40)), "dense", checkpoint=folder)
    sample.x[0] += 1
    with pytest.raises(InvalidData, match="is of other samples than the data has now"):
        fit(Samples(sample), "dense", checkpoint=folder)
    model = problems.linear("cross_entropy", seed=1).model
    with pytest.raises(InvalidSetting, match="is a part of a fit with another model"):
        ssse.Curvature.fit(model, sample.loss, sample.data, damping=1e-2, structure="dense", checkpoint=folder)


def test_the_same_part_twice_is_refused(tmp_path: Path, few_at_a_time):
    folder = tmp_path / "fit"
    interrupted(folder)
    (part,) = folder.iterdir()
    shutil.copytree(part, folder / "00001-copy")
    with pytest.raises(InvalidData, match=f"'00001-copy'|'{part.name}'.* are of the same samples"):
        fit(Samples(linear()), "dense", checkpoint=folder)


def test_a_part_that_was_never_finished_is_left_out(tmp_path: Path, few_at_a_time):
    folder = tmp_path / "fit"
    interrupted(folder)
    (part,) = folder.iterdir()
    shutil.copytree(part, folder / f".{part.name}-0123abcd")
    (folder / f".{part.name}-0123abcd" / "manifest.json").write_text('{"for')
    truth = fit(Samples(linear()), "dense").solve(ones())
    torch.testing.assert_close(fit(Samples(linear()), "dense", checkpoint=folder).solve(ones()), truth)
    assert not folder.exists()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(linear().data)


STREAMS: dict[str, Callable[[], Any]] = {
    "list_iterator": lambda: iter(linear().data),
    "Stream": Stream,  # each process's own part, or all of it
    "DataLoader": lambda: DataLoader(Stream(), batch_size=None),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_cannot_go_on(tmp_path: Path, name: str):
    """Before anything is read or written."""
    sample, said = linear(), f"checkpoint= needs data that can be read from any place on: .*; not {name}"
    with pytest.raises(InvalidData, match=said):
        ssse.Curvature.fit(sample.model, sample.loss, STREAMS[name](), damping=1e-2, checkpoint=tmp_path / "fit")
    assert not any(tmp_path.iterdir())


def test_nor_can_batches_that_a_sampler_of_ones_own_puts_together(tmp_path: Path):
    sample = linear()
    loader = DataLoader(Samples(sample), batch_sampler=[list(range(30)), list(range(30, 61))])
    with pytest.raises(InvalidData, match="checkpoint= needs data that can be read from any place on"):
        ssse.Curvature.fit(sample.model, sample.loss, loader, damping=1e-2, checkpoint=tmp_path / "fit")


def killed(rank: int, processes: int, home: Path, run: int, way: Any) -> None:
    """One process of a fit; the first one writes down what came out."""
    torch.set_num_threads(1)
    estimates.MOST_SAMPLES = 2
    with group_of(rank, processes, home / f"meeting-{run}"):
        data = Samples(linear(), seconds=0.01)
        curvature = fit(data, way, checkpoint=home / "fit", checkpoint_seconds=0.02)
        x = curvature.solve(ones())  # together
        if rank == 0:
            (home / "answer").write_text(" ".join(map(repr, [curvature.n, curvature.repeats, *x.tolist()])))


@pytest.mark.long
def test_random_kills_of_random_processes_lose_nothing(tmp_path: Path):
    chance, truth, done = random.Random(0), {}, 0
    for way in ("dense", "lowrank"):
        truth[way] = fit(Samples(linear()), way).solve(ones())
    for turn in itertools.count():
        if turn >= 2 and done >= sized(0, 100):  # some come too late, and do not count
            break
        way, home, answer = ("dense", "lowrank")[turn % 2], tmp_path / str(turn), tmp_path / str(turn) / "answer"
        home.mkdir()
        deaths = iter(range(sized(2, 4)))
        for run in range(20):
            death = next(deaths, None)
            count = chance.choice((1, 2, 3))
            started = [server().Process(target=killed, args=(i, count, home, run, way)) for i in range(count)]
            for process in started:
                process.start()
            if death is not None:
                wait_for_a_part(home / "fit", started)
                time.sleep(chance.uniform(0, 0.15))
                done += end_one(chance.choice(started))
                for process in started:  # as torchrun does
                    process.terminate()
            for process in started:
                process.join(ENDED)
                assert process.exitcode is not None
            if answer.exists():
                break
        n, repeats, *x = map(float, answer.read_text().split())
        assert (n, repeats) == (61, 0)
        torch.testing.assert_close(torch.tensor(x, dtype=torch.float64), truth[way], rtol=NEAR, atol=0)
        assert not (home / "fit").exists()


def wait_for_a_part(folder: Path, started: list[Any]) -> None:
    """That was not there yet; or until all is over."""
    before = set(folder.glob("0*"))
    while set(folder.glob("0*")) <= before and any(process.is_alive() for process in started):
        time.sleep(0.005)


def end_one(process: Any) -> bool:
    """Whether it was still at work."""
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL
