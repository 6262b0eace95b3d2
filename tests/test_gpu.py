"""The same numbers on a CUDA device; skipped where there is none."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import ssse
from ssse.curvature import estimates, kernel_steps
from ssse.curvature.lowrank import LowRankStructure
from ssse.errors import ModelMismatch
from ssse.problem.cores import DenseCores
from ssse.problem.derivatives import layerwise
from ssse.problem.derivatives.layerwise import Layerwise
from ssse.problem.derivatives.loop import Loop
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowKind, measure, measure_held
from ssse.system.group import WIRE, Group, current_group
from tests.support import problems
from tests.support.groups import group_of, run_processes
from tests.support.together import SAVED, answers, compare, fit, linear, on
from tests.support.together import WAYS as TOGETHER
from tests.support.zoo import ZOO, animal
from tests.test_zoo import UNPRODUCTIVE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

WAYS = [
    {"structure": "dense", "blocks": "one"},
    {"structure": "dense", "blocks": 7},
    {"structure": "lowrank"},
    {"structure": "lowrank", "blocks": 7},
    {"structure": ssse.LowRank(rank=10)},
    {"structure": ssse.MatrixFree(tolerance=1e-12)},
    {"structure": "diagonal"},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda w: "-".join(map(str, w.values())))
@pytest.mark.parametrize("kind", ["empirical", "expected", "margin", "sampled"])
@pytest.mark.parametrize("make", [lambda: problems.linear("cross_entropy"), problems.mlp, problems.conv])
def test_cuda_erases_as_the_cpu_does(way, kind, make, tmp_path):
    sample = make()  # not trained: its steps are compared, and taken however long they are
    options = {"damping": 1e-2, "weight_decay": 1e-2, "rows": kind, **way}
    forget = sample.part(slice(0, 4))
    here = ssse.Curvature.fit(sample.model, sample.loss, sample.data, **options)
    wanted = ssse.erase(sample.model, here, sample.loss, forget, override=ssse.BOUNDS)
    model = copy.deepcopy(sample.model).cuda()
    there = ssse.Curvature.fit(model, sample.loss, sample.data, **options)  # batches stay on the CPU
    erasure = ssse.erase(model, there, sample.loss, forget, override=ssse.BOUNDS)
    assert erasure.step.device.type == "cuda"
    torch.testing.assert_close(erasure.step.cpu(), wanted.step, rtol=1e-6, atol=1e-9)
    if not isinstance(way["structure"], ssse.MatrixFree):
        there.save(tmp_path / "curvature")
        moved = ssse.erase(
            sample.model, ssse.Curvature.load(tmp_path / "curvature"), sample.loss, forget, override=ssse.BOUNDS
        )
        torch.testing.assert_close(moved.step, wanted.step, rtol=1e-6, atol=1e-9)
        back = ssse.Curvature.load(tmp_path / "curvature", device="cuda")
        again = ssse.erase(model, back, sample.loss, forget, override=ssse.BOUNDS)
        torch.testing.assert_close(again.step.cpu(), wanted.step, rtol=1e-6, atol=1e-9)
        with pytest.raises(ModelMismatch, match="move one of them"):
            ssse.erase(model, back.to("cpu"), sample.loss, forget, override=ssse.BOUNDS)
    if not isinstance(way["structure"], ssse.MatrixFree):
        first = ssse.erase(model, there, sample.loss, sample.part(slice(0, 2)), policy="joint", override=ssse.BOUNDS)
        second = ssse.erase(
            first.model, first.curvature, sample.loss, sample.part(slice(2, 4)), policy="joint", override=ssse.BOUNDS
        )
        torch.testing.assert_close((first.step + second.step).cpu(), wanted.step, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"reweight": 20}], ids=str)
def test_cuda_solves_for_margins_as_the_cpu_does(options, dtype):
    """float32 rows with a float64 kernel among them."""
    sample, found = problems.mlp(n=50, dtype=dtype), []
    for model in (sample.model, copy.deepcopy(sample.model).cuda()):
        curvature = ssse.Curvature.fit(
            model, sample.loss, sample.data, weight_decay=1e-2, rows="margin", structure="lowrank", progress=False
        )
        forget = sample.part(slice(0, 4))
        erasure = ssse.erase(model, curvature, sample.loss, forget, override=ssse.BOUNDS, **options)
        assert erasure.diagnostics.solve_residual is not None
        assert erasure.diagnostics.solve_residual < 1e-9
        found.append(erasure.direction.cpu())
    assert float((found[1] - found[0]).norm() / found[0].norm()) < (1e-8 if dtype == torch.float64 else 1e-3)


@pytest.mark.parametrize("rows", ["empirical", "margin"])
def test_a_split_kernel_is_as_near_as_one_of_float32(rows):
    sample = problems.mlp(n=300, dtype=torch.float32)
    model, found = copy.deepcopy(sample.model).cuda(), {}
    before = torch.backends.cuda.matmul.fp32_precision
    for kernel in ("float64", "split"):
        curvature = ssse.Curvature.fit(
            model, sample.loss, sample.data, damping=1e-2, weight_decay=1e-2, rows=rows,
            structure=ssse.LowRank(kernel=kernel), progress=False,
        )  # fmt: skip
        assert isinstance(curvature.structure, LowRankStructure)
        found[kernel] = curvature.structure.grams[0].square.tril().double()
    assert torch.backends.cuda.matmul.fp32_precision == before
    length = found["float64"].norm()
    assert float((found["split"] - found["float64"]).norm() / length) < 2e-6


@pytest.mark.parametrize("at_once", [1, 2**28])
def test_cuda_rows_of_convolutions_are_those_of_single_backward_passes(at_once, monkeypatch):
    monkeypatch.setitem(layerwise.AT_A_TIME, "cuda", at_once)
    creature = animal("resnet")
    model = copy.deepcopy(creature.model).double().cuda()
    assert isinstance(creature.x, torch.Tensor)
    x, y = creature.x.double().cuda(), creature.y.cuda()
    problem = Problem(model, "cross_entropy", "all", (x, y))
    assert problem.derivatives.choose_rows(problem, x) == Layerwise()
    cores = DenseCores(torch.randn(len(x), 2, problem.outputs, dtype=torch.float64, device="cuda"))
    by_layers, by_loop = (
        way.rows(problem, x, lambda _, which: cores.samples(which))[0] for way in (Layerwise(), Loop())
    )
    torch.testing.assert_close(by_layers, by_loop, rtol=1e-9, atol=1e-12)


REFINED = [problems.linear("cross_entropy", n=60), problems.mlp(n=60), problems.conv(n=40)]


@pytest.mark.parametrize("structure", ["dense", "lowrank", "matrix_free"])
@pytest.mark.parametrize("sample", REFINED, ids=lambda s: s.name)
def test_cuda_refines_as_the_cpu_does(sample, structure):
    forget, retained, found = sample.part(slice(0, 5)), sample.part(slice(5, None)), []
    for model in (sample.model, copy.deepcopy(sample.model).cuda()):
        options = {"damping": 1e-2, "weight_decay": 1e-2, "structure": structure, "progress": False}
        curvature = ssse.Curvature.fit(model, sample.loss, sample.data, **options)
        erasure = ssse.erase(model, curvature, sample.loss, forget)
        found.append(ssse.refine(erasure.model, erasure.curvature, sample.loss, retained, steps=3, progress=False))
    here, there = found
    assert there.step.device.type == "cuda"
    assert there.objective_after < there.objective_before
    assert (there.steps, there.passes, there.method) == (here.steps, here.passes, here.method)
    assert there.objective_after == pytest.approx(here.objective_after, rel=1e-6)
    torch.testing.assert_close(there.step.cpu(), here.step, rtol=1e-4, atol=1e-6)
    other = there.curvature.to("cpu")
    assert ssse.refine(there.model.cpu(), other, sample.loss, retained, steps=1, progress=False).steps <= 1


LINEAR, NETWORK = problems.linear("cross_entropy", n=60), problems.mlp(n=60)
METHODS: dict[str, dict] = {
    "gradient_ascent": {},
    "influence": {"data": True, "leave_out": True, "damping": 2.0},
    "influence_unlearning": {"data": True},
    "fine_tuning": {"data": True, "batch_size": 8, "progress": False},
    "neggrad_plus": {"data": True, "batch_size": 8, "progress": False},
    "random_labels": {"data": True, "batch_size": 8, "progress": False},
    "salun": {"data": True, "batch_size": 8, "progress": False},
    "scrub": {"data": True, "batch_size": 8, "progress": False},
    "diagonal_ssse": {"rows": "expected"},
    "scrubbing": {"rows": "expected"},
    "selective_synaptic_dampening": {"rows": "empirical", "selection": 1.0},
}


@pytest.mark.parametrize("sample", [LINEAR, NETWORK], ids=lambda s: s.name)
@pytest.mark.parametrize("method", METHODS)
def test_cuda_baselines_are_those_of_the_cpu(method, sample):
    options, steps = dict(METHODS[method]), []
    rows = options.pop("rows", None)
    options |= {"data": sample.data} if options.pop("data", False) else {}
    for model in (sample.model, copy.deepcopy(sample.model).cuda()):
        curvature = None
        if rows is not None:
            settings = {"damping": 1e-2, "weight_decay": 1e-2, "structure": "diagonal", "rows": rows}
            curvature = ssse.Curvature.fit(model, sample.loss, sample.data, **settings)
        call = getattr(ssse.baselines, method)
        steps.append(call(model, curvature, sample.loss, sample.part(slice(0, 5)), **options).step)
    assert steps[1].device.type == "cuda"
    torch.testing.assert_close(steps[1].cpu(), steps[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("sample", [LINEAR, NETWORK], ids=lambda s: s.name)
def test_cuda_evidence_is_that_of_the_cpu(sample):
    forget, splits = (
        sample.part(slice(0, 20)),
        {"forgotten": sample.part(slice(0, 20)), "test": sample.part(slice(20, 60))},
    )
    other = copy.deepcopy(sample.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    found = []
    for device in ("cpu", "cuda"):
        model, retrained = (copy.deepcopy(m).to(device) for m in (sample.model, other))
        decay: Any = {"damping": 1e-2, "weight_decay": 1e-2}
        curvature = ssse.Curvature.fit(model, sample.loss, sample.data, **decay)
        erasure = ssse.erase(model, curvature, sample.loss, forget, override=ssse.BOUNDS)
        models = {"original": model, "erased": erasure.model, "retrained": [retrained, model]}
        table = ssse.evaluate(models, splits, loss_fn=sample.loss, weight_decay=1e-2)
        seen = ssse.scan(model, erasure.direction, sample.loss, splits, retrained=retrained)
        search = {"method": "line_search", "data": sample.data}
        empirical = ssse.Curvature.fit(model, sample.loss, sample.data, **decay, rows="empirical")
        chosen = ssse.calibrate(model, empirical, sample.loss, forget, **search).scale
        assert seen.divergence is not None
        found.append((table.to_dict()["values"], table.floors, seen.divergence, seen.accuracy["test"], chosen))
    (values, floors, divergence, accuracy, scale), there = found
    for key, row in values.items():
        for name, cell in row.items():
            assert there[0][key][name]["value"] == pytest.approx(cell["value"], rel=1e-5, abs=1e-6), (key, name)
    assert there[1] == pytest.approx(floors, rel=1e-5, abs=1e-6)
    assert there[2] == pytest.approx(divergence, rel=1e-5)
    assert there[3] == pytest.approx(accuracy)
    assert there[4] == pytest.approx(scale, rel=1e-6)


def test_a_workspace_answers_on_the_gpu_as_on_the_cpu(tmp_path):
    """And its files are the same to read on a machine without one."""
    workspaces = pytest.importorskip("tests.support.workspaces")  # which asks for more than a GPU
    weights = {}
    for device in ("cpu", "cuda"):
        made = workspaces.make(tmp_path / device, model__device=device)
        assert made.workspace.erase("a", ids=["s3", "s4"]).outcome == "erased"
        assert made.workspace.erase("b", forget=made.forget_file([9])).outcome == "erased"
        assert made.workspace.verify().ok
        weights[device] = made.weights()["weight"]
    torch.testing.assert_close(weights["cuda"], weights["cpu"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_the_zoo_has_rows_on_cuda(name):
    """The kernels are others there (attention, recurrent layers), and so may be the ways."""
    creature = animal(name)
    here = Problem(creature.model.cpu(), "cross_entropy", "all", (creature.x, creature.y))  # DataParallel moves models
    wanted = measure_held(here, RowKind("margin"), (creature.x, creature.y))[0].matrix()
    x = {k: v.cuda() for k, v in creature.x.items()} if isinstance(creature.x, dict) else creature.x.cuda()
    y = creature.y.cuda()
    there = Problem(animal(name).model.cuda(), "cross_entropy", "all", (x, y))
    rows = measure_held(there, RowKind("margin"), (x, y))[0].matrix().cpu()
    assert float((rows - wanted).norm(dim=1).max()) <= 5e-3 * float(wanted.norm(dim=1).max())  # TF32 may be in use
    print(f"{name}: rows {there.derivatives.row_way}")
    if name not in UNPRODUCTIVE:
        free = measure(there, RowKind("margin"), (x, y)).rows
        v = wanted.sum(0)
        torch.testing.assert_close(
            free.times(v.cuda()).cpu(), wanted @ v, rtol=1e-2, atol=1e-2 * float((wanted @ v).abs().max())
        )
        print(f"{name}: products {there.derivatives.product_way}")


def test_cuda_repairs_as_the_cpu_does():
    sample = problems.conv()
    options: dict[str, Any] = {"batch_size": 5, "epochs": 3, "learning_rate": 0.05, "seed": 2, "progress": False}
    forget, retained = sample.part(slice(0, 2)), sample.part(slice(2, 16))
    wanted = ssse.repair(sample.model, retained, sample.loss, forget=forget, **options)
    found = ssse.repair(copy.deepcopy(sample.model).cuda(), retained, sample.loss, forget=forget, **options)
    for name, value in wanted.model.state_dict().items():
        assert found.model.state_dict()[name].is_cuda
        assert torch.allclose(found.model.state_dict()[name].cpu().double(), value.double(), rtol=1e-6, atol=1e-9), name
    assert found.curve[-1].losses["forget"] == pytest.approx(wanted.curve[-1].losses["forget"], rel=1e-6)
    half = ssse.repair(sample.model.float().cuda(), [(sample.x[2:].float(), sample.y[2:])], sample.loss, forget=None,
                       autocast=True, **options)  # fmt: skip
    assert torch.isfinite(half.model.get_parameter("head.weight")).all()


def test_cuda_recalibrates_as_the_cpu_does():
    sample = problems.conv()
    wanted = ssse.recalibrate(sample.model, [sample.x + 1], progress=False)
    found = ssse.recalibrate(copy.deepcopy(sample.model).cuda(), [sample.x + 1], progress=False)
    assert torch.allclose(found.get_buffer("norm.running_var").cpu(), wanted.get_buffer("norm.running_var"), rtol=1e-9)


CLOSE = 1e-8  # in float64; sums are made in another order
FITS = [("linear", way, "margin") for way in TOGETHER] + [("linear", "dense", "expected"), ("mlp", "lowrank", "margin")]


def fit_together(
    rank: int, folder: Path, processes: int, backend: str, device: str, truth: dict[Any, dict[str, torch.Tensor]]
) -> None:
    """Every way in a group; one process alone goes the way of several too, with every collective that they need."""
    if processes == 1:
        Group.alone = False  # type: ignore[assignment, method-assign]
    with group_of(rank, processes, folder / "meeting", backend):
        for name, way, rows in FITS:
            sample, wanted = on(linear() if name == "linear" else problems.mlp(), device), truth[name, way, rows]
            curvature = fit(sample, way, rows)
            compare(answers(sample, curvature), wanted, f"{name}, {way}, {rows}", CLOSE)
            if name == "linear" and rows == "margin" and way in SAVED:
                curvature.save(folder / way)
                loaded = ssse.Curvature.load(folder / way, device=device)
                compare(answers(sample, loaded), wanted, f"loaded, {way}", CLOSE)
        check_checkpoints(folder, device, truth)
        kernel_steps.COLUMNS = 0  # by conjugate gradients on the kernel, where a factor would cost more
        by_steps = fit(on(linear(), device), "lowrank", "margin")
        compare(answers(on(linear(), device), by_steps), truth["linear", "lowrank", "margin"], "by steps", CLOSE)
    assert min(WIRE[kind] for kind in ("all_reduce", "reduce", "broadcast", "all_to_all")) > 0


def check_checkpoints(folder: Path, device: str, truth: dict[Any, dict[str, torch.Tensor]]) -> None:
    """A fit that breaks off and is made again."""
    estimates.MOST_SAMPLES = 5
    for way in ("dense in blocks", "lowrank", "diagonal"):
        sample = on(linear(), device)
        data, kept = DataLoader(Failing(sample, folder / "fit"), batch_size=4), {"checkpoint": folder / "fit"}
        with pytest.raises(OSError, match="the disk is gone"):
            fit(sample, way, "margin", data, checkpoint_seconds=0, **kept)
        assert any((folder / "fit").iterdir())
        again = fit(sample, way, "margin", DataLoader(Failing(sample), batch_size=4), **kept)
        compare(answers(sample, again), truth["linear", way, "margin"], f"again, {way}", CLOSE)


class Failing(Dataset):
    """Until something of it is in a folder, where there is one."""

    def __init__(self, sample: problems.Sample, folder: Path | None = None):
        self.sample, self.folder = sample, folder

    def __len__(self) -> int:
        return len(self.sample.x)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.folder is not None and any(self.folder.glob(f"{current_group().rank:05d}*")):
            raise OSError("the disk is gone")
        return self.sample.x[place], self.sample.y[place]


@pytest.mark.parametrize(
    ("processes", "backend"), [(1, "cpu:gloo,cuda:nccl"), (2, "cpu:gloo,cuda:gloo")], ids=["nccl", "two on one GPU"]
)
def test_cuda_fits_in_a_process_group_as_the_cpu_does_alone(processes, backend, tmp_path):
    """NCCL wants a GPU for each process; two on one GPU send by gloo, which shows that each keeps to its device."""
    truth = {}
    for name, way, rows in FITS:
        sample = linear() if name == "linear" else problems.mlp()
        truth[name, way, rows] = answers(sample, fit(sample, way, rows))
    run_processes(fit_together, processes, tmp_path, processes, backend, "cuda", truth)
