"""A model that `fully_shard` has spread over processes: its last layer is erased from as that of the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ssse
from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from tests.support import problems
from tests.support.groups import group_of, run_processes
from tests.support.together import compare

DAMPING, FORGET = 1e-2, slice(3, 7)
SAMPLE = problems.mlp(n=61)  # in batches of 5: seven for one process of two, six for the other


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(4, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))
    return nn.Sequential(*layers).double().eval()


def loader(**more: Any) -> DataLoader:
    return DataLoader(TensorDataset(SAMPLE.x, SAMPLE.y), batch_size=5, **more)


def sharded() -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    model = network()
    model.requires_grad_(False)
    model[5].requires_grad_(True)
    for place in (0, 3):
        fully_shard(model[place])
    fully_shard(model)
    return model


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    found = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=False))
    return {key: torch.as_tensor(value).clone() for key, value in found.items()}


def two_requests(head: ssse.ShardedHead, model: nn.Module) -> dict[str, Tensor]:
    share = head.share(loader(shuffle=True))
    curvature = ssse.Curvature.fit(
        head.layer, SAMPLE.loss, share, damping=DAMPING, rows="expected", structure="dense", progress=False
    )
    found = {"solution": curvature.solve(torch.ones(18).double())}
    for name, gone in {"first": slice(3, 7), "second": slice(20, 21)}.items():
        layer, features = ssse.ShardedHead(model).layer, head.features(SAMPLE.part(gone))
        erasure = ssse.erase(layer, curvature, SAMPLE.loss, features, override=ssse.BOUNDS, progress=False)
        head.replace(erasure.model)
        found[name], curvature = erasure.step, erasure.curvature
    return found


def truth() -> dict[str, Tensor]:
    """Of the whole model, on one process."""
    model = network()
    curvature = ssse.Curvature.fit(
        model, SAMPLE.loss, loader(), damping=DAMPING, rows="expected", structure="dense", parameters="head",
        progress=False,
    )  # fmt: skip
    found = {"solution": curvature.solve(torch.ones(18).double())}
    for name, gone in {"first": slice(3, 7), "second": slice(20, 21)}.items():
        erasure = ssse.erase(model, curvature, SAMPLE.loss, SAMPLE.part(gone), override=ssse.BOUNDS, progress=False)
        found[name], model, curvature = erasure.step, erasure.model, erasure.curvature
    return found | {f"state {key}": value for key, value in model.state_dict().items()}


class Own(IterableDataset):
    """Four batches of five for the first process, one for the second."""

    def __init__(self, rank: int):
        self.rank = rank

    def __iter__(self):
        return iter(SAMPLE.part(slice(i, i + 5))[0] for i in ((0, 5, 10, 15), (20,))[self.rank])


def work(rank: int, folder: Path) -> None:
    wanted = torch.load(folder / "truth.pt")
    with group_of(rank, 2, folder / "meeting"):
        model = sharded()
        refuse_other_theta(model)
        head = ssse.ShardedHead(model)
        found = two_requests(head, model)
        state = whole_state(model)
        compare(found | {f"state {key}": value for key, value in state.items()}, wanted, "fully_shard")
        with torch.no_grad():
            model(SAMPLE.x)  # after which the outermost module keeps all of its weights
        refuse_other_theta(model)
        assert torch.equal(ssse.ShardedHead(model).layer.weight, state["5.weight"])
        own = list(head.share(Own(rank)))
        assert [len(y) for _, y in own] == [5] * (4, 1)[rank]
        refuse_data(rank, head)
        refuse_other_meshes()


def refuse_other_theta(model: nn.Module) -> None:
    advice = "is sharded by fully_shard: .*Gather the whole model.*ssse.ShardedHead"
    for theta in ("head", "all"):
        with pytest.raises(InvalidModel, match=advice):
            ssse.Curvature.fit(model, SAMPLE.loss, loader(), damping=DAMPING, parameters=theta, progress=False)


def refuse_data(rank: int, head: ssse.ShardedHead) -> None:
    """On every process, and nobody waits for another."""
    with pytest.raises(InvalidData, match="Rank 1 of 2 has no samples"):
        head.share(iter([SAMPLE.part(FORGET)[0]] * (1 - rank)))
    with pytest.raises(InvalidData, match="There are no samples"):
        head.features(iter([]))
    broken = SAMPLE.x.clone()
    broken[8] = torch.nan
    batches = [(x, SAMPLE.y[i : i + 5]) for i, x in enumerate((broken if rank else SAMPLE.x).split(5))]
    with pytest.raises(InvalidData, match="NaN" if rank else "Rank 1 of 2: .*NaN"):
        head.features(batches[:3])
    assert len(head.features(SAMPLE.part(FORGET))) == 1


def refuse_other_meshes() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = parallelize_module(network(), init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()})
    with pytest.raises(InvalidModel, match=r"'0.weight' is a DTensor, and the model is not sharded by fully_shard"):
        ssse.ShardedHead(model)
    with pytest.raises(InvalidModel, match=r"'0.weight' is a DTensor: .*Gather the whole model"):
        ssse.Curvature.fit(model, SAMPLE.loss, loader(), damping=DAMPING, parameters="head", progress=False)
    fully_shard(model := network(), mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "parts")))
    with pytest.raises(InvalidModel, match=r"'0.weight' is spread over a mesh of \(2, 1\) processes"):
        ssse.ShardedHead(model)


@pytest.mark.long
def test_the_head_of_a_sharded_model(tmp_path: Path):
    torch.save(truth(), tmp_path / "truth.pt")
    run_processes(work, 2, tmp_path)


def test_a_model_that_is_whole():
    model = network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    head = ssse.ShardedHead(model)
    found = two_requests(head, model)
    compare(found | {f"state {key}": value for key, value in model.state_dict().items()}, truth(), "whole")
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items() if key[0] != "5")


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 3).double(), nn.Linear(3, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.head(self.body(x))


def test_layers_that_are_no_head():
    with pytest.raises(InvalidSetting, match="the model has none"):
        ssse.ShardedHead(nn.ReLU().eval())
    with pytest.raises(InvalidSetting, match=r"The model has no linear layer '9'\. It has 0, 3, 5\."):
        ssse.ShardedHead(network(), layer="9")
    with pytest.raises(InvalidModel, match=r"The model's output is not that of the layer"):
        ssse.ShardedHead(network(), layer="3").features(SAMPLE.part(FORGET))
    with pytest.raises(InvalidModel, match=r"The model's output is not that of the layer"):
        ssse.ShardedHead(Twice().eval()).features(SAMPLE.part(FORGET))
    with pytest.raises(InvalidModel, match="training mode"):
        ssse.ShardedHead(nn.Sequential(nn.Dropout(), nn.Linear(4, 3)).train())
    tied = problems.tied().model
    with pytest.raises(InvalidModel, match=r"The weight of 'first' is that of first.weight, second.weight"):
        ssse.ShardedHead(tied, layer="first")
    with pytest.raises(InvalidModel, match="not of the form of the model's"):
        ssse.ShardedHead(network()).replace(nn.Linear(5, 4).double())
