"""Processes that disagree, fail alone, or find damaged files: each is told by name on all of them, and none waits."""

from __future__ import annotations

import copy
import errno
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import ssse
from ssse.curvature import checkpoints, estimates, fit
from ssse.errors import BrokenArtefact, Busy, GroupBroken, InvalidData, InvalidSetting, ModelMismatch
from ssse.system.environment import versions
from ssse.system.group import current_group
from tests.support import problems
from tests.support.groups import group_of, run_processes, server
from tests.support.together import DAMPING, FORGET, linear
from tests.support.together import fit as fitted

SAMPLE = linear()


class Stopping(Dataset):
    """Ctrl-C comes amid the pass of every process."""

    def __init__(self, stop: int):
        self.stop, self.read = stop, 0

    def __len__(self) -> int:
        return len(SAMPLE.x)

    def __getitem__(self, place: int):
        self.read += 1
        if place in (self.stop, self.stop + 1) and self.read > 20:
            raise KeyboardInterrupt
        return SAMPLE.x[place], SAMPLE.y[place]


def work(rank: int, folder: Path) -> None:
    with group_of(rank, 2, folder / "meeting"):
        check_settings(rank)
        check_requests(rank)
        check_full_disk(rank, folder / "full")
        check_damaged_checkpoints(rank, folder)
        check_artefacts(rank, folder)


def check_settings(rank: int) -> None:
    """Before the long pass, and named."""
    given = copy.deepcopy(SAMPLE.model).to("meta") if rank else SAMPLE.model
    with pytest.raises(InvalidSetting, match="Rank 1 of 2 has another kind of device than rank 0: meta, and there cpu"):
        ssse.Curvature.fit(given, SAMPLE.loss, SAMPLE.data, damping=DAMPING, progress=False)
    with pytest.raises(InvalidSetting, match=f"{'^' if rank else '^Rank 1 of 2: '}damping"):
        ssse.Curvature.fit(SAMPLE.model, SAMPLE.loss, SAMPLE.data, damping=-1.0 if rank else 1.0, progress=False)
    data = iter(SAMPLE.data) if rank else SAMPLE.data
    with pytest.raises(
        InvalidSetting, match="Rank 1 of 2 has another number of samples than rank 0: None, and there 61"
    ):
        ssse.Curvature.fit(SAMPLE.model, SAMPLE.loss, data, damping=DAMPING, progress=False)
    narrow = problems.linear("cross_entropy", n=61, dtype=torch.float32) if rank else SAMPLE
    with pytest.raises(InvalidSetting, match="Rank 1 of 2 has another model than rank 0"):
        ssse.Curvature.fit(narrow.model, SAMPLE.loss, narrow.data, damping=DAMPING, progress=False)
    with pytest.raises(InvalidSetting, match=r"Rank 1 of 2 has another choice of settings than rank 0"):
        fitted(SAMPLE, "dense", "margin", dtype=torch.float32 if rank else None)
    loss, data = ("mse", [(SAMPLE.x, torch.zeros(61, 3).double())]) if rank else (SAMPLE.loss, SAMPLE.data)
    with pytest.raises(InvalidSetting, match="Rank 1 of 2 has another loss than rank 0: mse, and there cross_entropy"):
        ssse.Curvature.fit(SAMPLE.model, loss, data, damping=DAMPING, rows="expected", progress=False)
    torch.set_num_threads(1 + rank)
    with pytest.raises(InvalidSetting, match="Rank 1 of 2 has another number of threads than rank 0: 2, and there 1"):
        fitted(SAMPLE, "dense", "margin")
    torch.set_num_threads(1)
    usual = fit.versions
    fit.versions = lambda: versions() | ({"torch": "2.0.0"} if rank else {})
    with pytest.raises(
        InvalidSetting, match=r"Rank 1 of 2 has another version of the libraries than rank 0: .*2\.0\.0"
    ):
        fitted(SAMPLE, "dense", "margin")
    fit.versions = usual


def check_requests(rank: int) -> None:
    curvature = fitted(SAMPLE, "dense", "margin")

    def erase(**other: Any) -> ssse.Erasure:
        given: dict[str, Any] = {"model": SAMPLE.model, "curvature": curvature, "forget": SAMPLE.part(FORGET)}
        return ssse.erase(
            **{**given, **(other if rank else {})}, loss_fn=SAMPLE.loss, override=ssse.BOUNDS, progress=False
        )

    broken = SAMPLE.x[FORGET].clone()
    broken[0] = torch.nan
    with pytest.raises(InvalidData, match="NaN" if rank else "Rank 1 of 2: .*NaN"):
        erase(forget=[(broken, SAMPLE.y[FORGET])])
    with pytest.raises(ModelMismatch, match="The model's parameter values" if rank else "Rank 1 of 2: The model's"):
        erase(model=problems.linear("cross_entropy", seed=3).model)
    with pytest.raises(InvalidSetting, match="^scale" if rank else "^Rank 1 of 2: scale"):
        erase(scale=-1.0)
    with pytest.raises(InvalidSetting, match="Rank 1 of 2 has another curvature than rank 0"):
        erase(curvature=curvature.with_damping(0.5))
    assert erase().diagnostics.k == 4


def check_full_disk(rank: int, folder: Path) -> None:
    usual = checkpoints.write_folder

    def write(path: Path, *more: Any) -> None:
        if rank:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        usual(path, *more)

    checkpoints.write_folder = write
    with pytest.raises(OSError, match=r"No space left" if rank else r"Rank 1 of 2: .*No space left"):
        fitted(SAMPLE, "dense", "margin", checkpoint=folder, checkpoint_seconds=0.0)
    checkpoints.write_folder = usual
    assert fitted(SAMPLE, "dense", "margin", checkpoint=folder).n == 61
    assert not folder.exists()


def rows_in(part: Path) -> Path:
    return next(part.glob("part-*.safetensors"))


def truncate(part: Path) -> None:
    file = rows_in(part)
    file.write_bytes(file.read_bytes()[:-100])


def alter(part: Path) -> None:
    file = rows_in(part)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def lose(part: Path) -> None:
    file = rows_in(part)
    file.unlink()


def edit(part: Path) -> None:
    manifest = part / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"replaces": []', '"replaces": ["x"]'))


def scribble(part: Path) -> None:
    (part / "manifest.json").write_text('{"form')


DAMAGES: dict[Callable[[Path], None], str] = {
    truncate: "is not a whole safetensors file",
    alter: "was altered",
    lose: "is missing",
    edit: "does not match its own digest",
    scribble: "is not a manifest of ours",
}


def check_damaged_checkpoints(rank: int, home: Path) -> None:
    kept = home / "kept"
    estimates.MOST_SAMPLES = 2
    loader = DataLoader(Stopping(30), batch_size=2)
    with pytest.raises((KeyboardInterrupt, GroupBroken)):  # whichever process is the first
        fitted(SAMPLE, "lowrank", "margin", loader, checkpoint=kept, checkpoint_seconds=0.0)
    current = current_group()
    current.numbers(0.0)
    assert len(list(kept.glob("0*/manifest.json"))) > 4
    for damage, said in DAMAGES.items():
        folder = home / f"checkpoint-{damage.__name__}"
        if rank == 0:
            shutil.copytree(kept, folder)
            damage(sorted(folder.glob("0*"))[1])
        current.numbers(0.0)
        with pytest.raises(BrokenArtefact, match=said):
            fitted(SAMPLE, "lowrank", "margin", checkpoint=folder)
    assert fitted(SAMPLE, "lowrank", "margin", checkpoint=kept).n == 61
    estimates.MOST_SAMPLES = 1024


def check_artefacts(rank: int, folder: Path) -> None:
    """Of two models with the same shapes: a part that is missing, that is another's, that is there twice."""
    other = problems.linear("cross_entropy", n=61, seed=5)
    for name, sample in {"one": SAMPLE, "other": other}.items():
        fitted(sample, "lowrank", "margin").save(folder / name)
    group = current_group()

    def damaged(name: str, damage: Callable[[Path], None]) -> Path:
        target = folder / f"artefact-{name}"
        if rank == 0:
            shutil.copytree(folder / "one", target)
            damage(target)
        group.numbers(0.0)
        return target

    first, second = "part-00000.safetensors", "part-00001.safetensors"

    def swap(target: Path) -> None:
        shutil.copy(folder / "other" / second, target / second)

    def twice(target: Path) -> None:
        shutil.copy(target / first, target / second)

    def foreign_manifest(target: Path) -> None:
        shutil.copy(folder / "other" / "manifest.json", target / "manifest.json")

    def told_twice(target: Path) -> None:
        manifest = json.loads((target / "manifest.json").read_text())
        manifest["tensors"][second] = manifest["tensors"][first]
        (target / "manifest.json").write_text(json.dumps(manifest))

    cases = {
        "missing": (lambda target: (target / second).unlink(), f"'.*{second}' is missing"),
        "swapped": (swap, f"'.*{second}' was altered"),
        "twice": (twice, f"'.*{second}' holds other tensors than its manifest says"),
        "another manifest": (foreign_manifest, "was altered"),
        "told twice": (told_twice, "does not match its own digest"),
    }
    for name, (damage, said) in cases.items():
        with pytest.raises(BrokenArtefact, match=said):
            ssse.Curvature.load(damaged(name, damage))
    curvature = ssse.Curvature.load(folder / "other")
    with pytest.raises(ModelMismatch, match="parameter values"):
        ssse.erase(SAMPLE.model, curvature, SAMPLE.loss, SAMPLE.part(FORGET), progress=False)
    with pytest.raises(InvalidSetting, match="Rank 1 of 2 has another stored curvature than rank 0"):
        ssse.Curvature.load(folder / ("other" if rank else "one"))
    with pytest.raises(BrokenArtefact, match=f"{'' if rank else 'Rank 1 of 2: '}.*manifest.json' is missing"):
        ssse.Curvature.load(folder / ("nowhere" if rank else "one"))
    assert ssse.Curvature.load(folder / "one").n == 61
    with pytest.raises(FileExistsError, match="exists already"):
        curvature.save(folder / "one")


@pytest.mark.long
def test_what_goes_wrong_on_one_process_is_told_on_all(tmp_path: Path):
    run_processes(work, 2, tmp_path)


def hold(folder: Path, begun: Any, end: Any) -> None:
    """A fit that is at work for as long as the test wishes."""
    torch.set_num_threads(1)

    class Slow(Stopping):
        def __getitem__(self, place: int):
            if self.read > 40:
                begun.set()
                end.wait(60)
            return super().__getitem__(place)

    fitted(SAMPLE, "dense", "margin", DataLoader(Slow(-5), batch_size=2), checkpoint=folder)


def test_two_fits_do_not_write_to_one_folder(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(checkpoints, "PATIENCE", 0.2)
    context = multiprocessing.get_context(server().get_start_method())
    begun, end = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path / "fit", begun, end))
    process.start()
    assert begun.wait(60)
    with pytest.raises(Busy, match=f"Another fit is at work in '{tmp_path / 'fit'}'"):
        fitted(SAMPLE, "dense", "margin", checkpoint=tmp_path / "fit")
    end.set()
    process.join(60)
    assert process.exitcode == 0
    assert not (tmp_path / "fit").exists()
    assert fitted(SAMPLE, "dense", "margin", checkpoint=tmp_path / "fit").n == 61
    assert os.listdir(tmp_path) == []
