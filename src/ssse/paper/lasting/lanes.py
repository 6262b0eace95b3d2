"""Many short trainings side by side: repairs, harmless fine-tunings, and the opponents, each a plan of its steps.

The library's functions train one network at a time (`ssse.repair`, `ssse.baselines`); one small network does not fill a
GPU, and the study needs hundreds. What differs between the methods is which samples are in a batch and how much each
counts, so a plan holds exactly that, and a step can be recorded once as a CUDA graph and replayed. The tests hold every
plan against the library's function.
"""

# pyright: reportPrivateImportUsage=false
# torch._foreach_*: as in ssse.paper.training
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssse.errors import Diverged
from ssse.problem.wrappers import copied
from ssse.system.progress import bar

TOGETHER = 16  # networks on the GPU at a time

Look = Callable[[int, int, nn.Module], None]  # the place of the lane, steps done, the network in eval mode


@dataclass(frozen=True)
class Plan:
    """What one network sees, step by step; the loss of a step is Σ cᵢ·ℓᵢ + Σ dᵢ·T²·KL(teacher ‖ network).

    Attributes:
        places: of the samples of each step, shape (steps, b). cross_entropy: c, shape (steps, b).
        divergence: d, shape (steps, b), with the teacher's logits on all samples, shape (n, classes); or None.
        labels: what every sample is taught as, shape (n,). cycle: rate and momentum of each step, shape (steps, 2).
        mask: 1 where a parameter may move, 0 where it stays bit by bit, weight decay or not; None: all may.
        looks: numbers of steps after which the network is looked at.
    """

    places: Tensor
    cross_entropy: Tensor
    labels: Tensor
    cycle: Tensor
    decay: float
    nesterov: bool = False
    divergence: Tensor | None = None
    teacher: Tensor | None = None
    temperature: float = 1.0
    mask: Sequence[Tensor] | None = None
    looks: tuple[int, ...] = ()

    @property
    def steps(self) -> int:
        return len(self.places)


def train_lanes(
    x: Tensor,
    starts: Sequence[nn.Module],
    plans: Sequence[Plan],
    *,
    autocast: bool = False,
    look: Look | None = None,
    keep: bool = False,
    progress: bool = True,
) -> list[nn.Module | None]:
    """Copies of the networks, each trained by its plan in training mode. x: all samples, on the networks' device.

    Returns: the copies, in eval mode; with `keep`, None for those whose training diverged.
    Raises: Diverged, naming the place of the first that did.
    """
    trained: list[nn.Module | None] = []
    together = TOGETHER if x.is_cuda else 1
    with bar("trainings", len(plans), progress) as advance:
        for first in range(0, len(plans), together):
            some = range(first, min(first + together, len(plans)))
            lanes = [_Lane(x, starts[i], plans[i], autocast) for i in some]
            if x.is_cuda:
                with torch.cuda.device(x.device):
                    _side_by_side(lanes, first, look)
            else:
                for place, lane in enumerate(lanes, start=first):
                    for _ in range(lane.plan.steps):
                        lane.step()
                        _look(lane, place, look)
            for place, lane in enumerate(lanes, start=first):
                finite = lane.finite()
                if not finite and not keep:
                    raise Diverged(f"Training {place} diverged: its loss or its parameters are NaN or infinite.")
                trained.append(lane.model.eval() if finite else None)
            advance(len(lanes))
    return trained


class _Lane:
    """One network, its velocity and its plan; everything that a step reads is a tensor."""

    def __init__(self, x: Tensor, start: nn.Module, plan: Plan, autocast: bool):
        self.x, self.plan, self.autocast = x, plan, autocast and x.is_cuda
        self.model = copied(start).train()
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.velocity = [torch.zeros_like(p) for p in self.parameters]
        self.cycle = plan.cycle.to(x)
        self.at = torch.zeros(1, dtype=torch.int64, device=x.device)
        self.loss = torch.zeros((), dtype=x.dtype, device=x.device)
        self.done = 0

    @torch.enable_grad()
    def step(self) -> None:
        """v ← µv + g, θ ← θ − ηv, with Nesterov θ − η(g + µv); g = (∇loss + wθ) ⊙ mask: as torch.optim.SGD."""
        plan = self.plan
        index = self._row(plan.places)
        rate, momentum = self._row(self.cycle).unbind()
        images = self.x.index_select(0, index)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
            outputs = self.model(images)
        z = outputs.to(self.loss.dtype)
        own = F.cross_entropy(z, plan.labels.index_select(0, index), reduction="none")
        loss = (self._row(plan.cross_entropy).to(z.dtype) * own).sum()
        if plan.divergence is not None and plan.teacher is not None:
            loss = loss + (self._row(plan.divergence).to(z.dtype) * self._apart(z, index, plan.teacher)).sum()
        g = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            torch._foreach_add_(g, self.parameters, alpha=plan.decay)
            if plan.mask is not None:
                torch._foreach_mul_(g, list(plan.mask))
            torch._foreach_mul_(self.velocity, momentum)
            torch._foreach_add_(self.velocity, g)
            moves = torch._foreach_mul(self.velocity, momentum) if plan.nesterov else None
            move = torch._foreach_add(g, moves) if moves is not None else [v.clone() for v in self.velocity]
            torch._foreach_mul_(move, -rate)
            torch._foreach_add_(self.parameters, move)
            self.loss.copy_(loss)
            self.at.add_(1)
        self.done += 1

    def _row(self, table: Tensor) -> Tensor:
        """Of this step."""
        return table.index_select(0, self.at).squeeze(0)

    def _apart(self, z: Tensor, index: Tensor, teacher: Tensor) -> Tensor:
        t = self.plan.temperature
        taught = (teacher.index_select(0, index).to(z.dtype) / t).log_softmax(1)
        return t**2 * F.kl_div((z / t).log_softmax(1), taught, reduction="none", log_target=True).sum(1)

    def recorded(self, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        """A step as a CUDA graph. What the steps before the recording changed is put back."""
        state = [*self.parameters, *self.model.buffers(), *self.velocity, self.at, self.loss]
        before = [tensor.detach().clone() for tensor in state]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries choose their algorithms and take their memory
                self.at.zero_()
                self.step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):  # waits for the steps above
            self.step()
        with torch.no_grad():
            for tensor, value in zip(state, before, strict=True):
                tensor.copy_(value)
        self.done = 0
        return graph

    def finite(self) -> bool:
        return all(
            bool(torch.isfinite(tensor).all()) for tensor in (self.loss, *self.parameters, *self.model.buffers())
        )


def _look(lane: _Lane, place: int, look: Look | None) -> None:
    if look is not None and lane.done in lane.plan.looks:
        look(place, lane.done, lane.model.eval())
        lane.model.train()


def _side_by_side(lanes: Sequence[_Lane], first: int, look: Look | None) -> None:
    streams = [torch.cuda.Stream() for _ in lanes]
    graphs = [lane.recorded(stream) for lane, stream in zip(lanes, streams, strict=True)]
    torch.cuda.synchronize()
    for step in range(max(lane.plan.steps for lane in lanes)):
        waited = False
        for place, (lane, graph, stream) in enumerate(zip(lanes, graphs, streams, strict=True), start=first):
            if step >= lane.plan.steps:
                continue
            with torch.cuda.stream(stream):
                graph.replay()
            lane.done += 1
            if look is not None and lane.done in lane.plan.looks:
                if not waited:
                    torch.cuda.synchronize()
                    waited = True
                stream.synchronize()
                _look(lane, place, look)
    torch.cuda.synchronize()
    del graphs
    torch.cuda.empty_cache()  # the activations of all networks
