"""What is done with networks after a fit, by several processes: as by one, and one model on all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ssse
from ssse.calibration import lasting
from ssse.errors import Diverged, InvalidSetting
from ssse.system.group import current_group
from tests.support import problems
from tests.support.groups import group_of, run_processes
from tests.support.together import compare

DECAY = 0.05
TRAINING = ssse.Training(epochs=2, learning_rate=0.02, batch_size=8, weight_decay=DECAY)
SAMPLE = problems.mlp(n=60)
TRAINED, FORGET, STAYS, HELD_OUT = (SAMPLE.part(slice(*ends)) for ends in ((0, 40), (0, 6), (6, 40), (40, 60)))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    return nn.Sequential(*layers).double().eval()


def curvature() -> ssse.Curvature:
    return ssse.Curvature.fit(
        network(), SAMPLE.loss, TRAINED, damping=DECAY, weight_decay=DECAY, rows="margin", structure="lowrank",
        progress=False,
    )  # fmt: skip


def numbers_of(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().double().flatten() for value in model.state_dict().values()])


def lasting_erasure() -> dict[str, Tensor]:
    done = ssse.erase_and_repair(
        network(), curvature(), SAMPLE.loss, FORGET, retained=STAYS, held_out=HELD_OUT, training=TRAINING, epochs=1,
        lengths=(0.2, 0.4), dampings=(1, 4), progress=False,
    )  # fmt: skip
    trials = [(trial.damping, trial.length, trial.scale, trial.shortfall) for trial in done.trials]
    return {"model": numbers_of(done.model), "trials": torch.tensor(trials), "length": torch.tensor([done.length])}


def resurfacing() -> dict[str, Tensor]:
    found = ssse.metrics.resurfacing(
        network(), STAYS, FORGET, SAMPLE.loss, held_out=HELD_OUT, epochs=(0, 1, 2), batch_size=8, progress=False
    )
    moments = [(m.accuracy, m.loss, m.auc, m.advantage, m.held_out_accuracy) for m in found.moments]
    return {"moments": torch.tensor(moments)}


def recalibrated() -> dict[str, Tensor]:
    return {"model": numbers_of(ssse.recalibrate(network(), STAYS, progress=False))}


def refined() -> dict[str, Tensor]:
    """Quasi-Newton, with the shared curvature; and a look at a probe before."""
    erasure = ssse.erase(
        network(), curvature().with_probe(HELD_OUT), SAMPLE.loss, FORGET, scale=1e-3, override=ssse.BOUNDS,
        progress=False,
    )  # fmt: skip
    seen = erasure.diagnostics
    done = ssse.refine(erasure.model, erasure.curvature, SAMPLE.loss, STAYS, steps=2, progress=False)
    assert seen.probe_loss_after is not None
    return {"model": numbers_of(done.model), "probe": torch.tensor([seen.probe_loss_after, done.objective_after])}


def refined_linear() -> dict[str, Tensor]:
    """By Newton's steps, whose products are shared."""
    sample, found = problems.linear("cross_entropy", n=61), {}
    rest = sample.part(slice(4, None))
    for structure in ("dense", "lowrank", ssse.MatrixFree(tolerance=1e-14)):
        fitted = ssse.Curvature.fit(
            sample.model, sample.loss, sample.data, weight_decay=DECAY, structure=structure, progress=False
        )
        data = sample.data if fitted.structure.reads_data else None
        erasure = ssse.erase(
            sample.model, fitted, sample.loss, sample.part(slice(0, 4)), data=data, override=ssse.BOUNDS, progress=False
        )
        done = ssse.refine(
            erasure.model, erasure.curvature, sample.loss, rest, steps=3, tolerance=1e-12, progress=False
        )
        found[fitted.structure.kind] = numbers_of(done.model)
    return found


def compared() -> dict[str, Tensor]:
    """Every method that is used where nothing is said; D is dealt out from a loader and a list."""
    sample = problems.linear("cross_entropy", n=61)
    rest = DataLoader(TensorDataset(sample.x[4:], sample.y[4:]), batch_size=8)
    splits = {"retained": rest, "forgotten": sample.part(slice(0, 4))}
    done = ssse.compare(sample.model, sample.loss, splits, weight_decay=DECAY, progress=False)
    assert not done.failed
    return {name: numbers_of(model) for name, model in done.models.items()}


STEPS: dict[str, Callable[[], dict[str, Tensor]]] = {
    step.__name__: step for step in (lasting_erasure, resurfacing, recalibrated, refined, refined_linear, compared)
}


def work(rank: int, folder: Path) -> None:
    truth = torch.load(folder / "truth.pt")
    with group_of(rank, 2, folder / "meeting"):
        for name, step in STEPS.items():
            found = step()
            compare(found, truth[name], f"2 processes, {name}")
            current_group().agree(lambda found=found: {key: value.tolist() for key, value in found.items()})
        with pytest.raises(InvalidSetting, match="Re-weighting is for one process"):
            ssse.erase(network(), curvature(), SAMPLE.loss, FORGET, reweight=2, scale=1.0, progress=False)
        check_the_first_decides(rank)


def check_the_first_decides(rank: int) -> None:
    """Where machines differ, so may what a repair comes to: the others take what the first one has found."""
    usual = lasting.search_lengths

    def search(*args, **options):
        found = usual(*args, **options)
        for parameter in found.model.parameters() if rank else ():
            parameter.detach().add_(1)
        return found

    lasting.search_lengths = search
    own = lasting_erasure()["model"]
    lasting.search_lengths = usual
    assert torch.equal(own, lasting_erasure()["model"])

    def diverge(*args, **options):
        if rank == 1:
            raise Diverged("no")
        return usual(*args, **options)

    lasting.search_lengths = diverge
    with pytest.raises(Diverged, match="^no" if rank == 1 else "Rank 1 of 2: no"):
        lasting_erasure()
    lasting.search_lengths = usual


@pytest.mark.long
def test_networks_are_the_same_on_several_processes(tmp_path: Path):
    torch.save({name: step() for name, step in STEPS.items()}, tmp_path / "truth.pt")
    run_processes(work, 2, tmp_path)
