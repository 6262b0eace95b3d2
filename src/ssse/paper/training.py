"""Networks trained side by side: the original model and the retrained ones differ in their samples and seeds alone.

One small network does not fill a GPU. There each training step is recorded once as a CUDA graph, and the graphs of all
networks are replayed in turn on streams of their own. On a CPU the same steps are taken one network after the other.
"""

# pyright: reportPrivateImportUsage=false
# torch._foreach_*: one launch for all parameters, and unlike torch.optim.SGD's, the momentum can be a tensor, which a
# recorded step needs, because OneCycleLR moves it
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidSetting
from ssse.paper.resnet import ResNet20
from ssse.system.progress import bar

TOGETHER = 16  # networks on the GPU at a time: each holds the activations of a batch
RISE, FIRST, LAST = 0.3, 25.0, 1e4  # OneCycleLR's defaults: share of rising steps; rate/FIRST, then that/LAST


@dataclass(frozen=True)
class Recipe:
    """Nesterov's SGD, one cycle of the rate: `torch.optim.SGD` with the defaults of `OneCycleLR`.

    Attributes:
        batch: samples in a step; the last, incomplete batch of an epoch is left out.
        rate: the largest learning rate. momentum, swing: it goes from momentum + swing to momentum − swing and back.
        decay: of all parameters. widths, blocks: of the network.
        autocast: bfloat16 in the layers, on a GPU, about twice as fast there; parameters, velocity and the
            loss stay in the dtype of the images.
    """

    epochs: int = 40
    batch: int = 512
    rate: float = 0.4
    momentum: float = 0.9
    swing: float = 0.05
    decay: float = 5e-4
    widths: tuple[int, ...] = (16, 32, 64)
    blocks: int = 3
    autocast: bool = True

    def network(self, classes: int = 10, channels: int = 3) -> ResNet20:
        return ResNet20(classes, channels, self.widths, self.blocks)

    def cycle(self, steps: int) -> Tensor:
        """Rate and momentum of each of `steps` steps, shape (steps, 2), float64."""
        at, top = torch.arange(steps, dtype=torch.float64), RISE * steps - 1
        first = torch.tensor([self.rate / FIRST, self.momentum + self.swing], dtype=torch.float64)
        middle = torch.tensor([self.rate, self.momentum - self.swing], dtype=torch.float64)
        last = torch.tensor([self.rate / FIRST / LAST, self.momentum + self.swing], dtype=torch.float64)
        rising = middle + (first - middle) * _cosine(at / top)
        falling = last + (middle - last) * _cosine((at - top) / (steps - 1 - top))
        return torch.where((at <= top)[:, None], rising, falling)


def _cosine(share: Tensor) -> Tensor:
    """From one to zero along half a wave, as a column."""
    return (1 + torch.cos(math.pi * share[:, None])) / 2


@torch.enable_grad()
def train_networks(
    x: Tensor,
    y: Tensor,
    keeps: Sequence[Tensor],
    seeds: Sequence[int],
    recipe: Recipe,
    make_model: Callable[[], nn.Module],
    *,
    after_epoch: Callable[[int, int, nn.Module], None] | None = None,
    progress: bool = True,
) -> list[nn.Module]:
    """Train a network for every pair of `keeps` and `seeds`, on the device of x and in its dtype.

    The same seed gives the same initial weights whatever is kept. torch's random state is left as it was.

    Args:
        x: images, shape (n, channels, height, width). y: classes, shape (n,).
        keeps: per network, the indices of the samples that it is trained on.
        make_model: a network with fresh weights from torch's default generator, for instance `recipe.network`; or, in
            turn, the networks that the trainings begin from.
        after_epoch: is given the network's place, the epochs done, and the network itself, to look at in place.
    Returns: the networks, in eval mode.
    Raises:
        InvalidData: x holds NaN or infinity, or a network has no samples. InvalidSetting: a training diverged.
    """
    if len(keeps) != len(seeds):
        raise InvalidSetting(f"There must be one seed for every network, not {len(seeds)} for {len(keeps)}.")
    if not bool(torch.isfinite(x).all()):
        raise InvalidData("The images hold NaN or infinity. Leave those samples out, or repair them.")
    if empty := [i for i, keep in enumerate(keeps) if len(keep) == 0]:
        raise InvalidData(f"Network {empty[0]} has no samples to be trained on: keep at least one.")
    together = TOGETHER if x.is_cuda else 1
    pixels = x.permute(0, 2, 3, 1).contiguous()  # channels last: what the fast convolutions want
    models = []
    with bar("training, epochs", len(keeps) * recipe.epochs, progress) as advance:
        for i in range(0, len(keeps), together):
            pairs = zip(keeps[i : i + together], seeds[i : i + together], strict=True)
            trainings = [_Training(pixels, y, keep, seed, recipe, make_model) for keep, seed in pairs]

            def look(place: int, epoch: int, first: int = i, group: Sequence[_Training] = trainings) -> None:
                if after_epoch is not None:
                    after_epoch(first + place, epoch, group[place].model)

            if x.is_cuda:
                with torch.cuda.device(x.device):
                    _side_by_side(trainings, recipe.epochs, advance, look if after_epoch else None)
            else:
                _in_turn(trainings, recipe.epochs, advance, look)
            models += [training.finished() for training in trainings]
    return models


class _Training:
    """One network, its velocity, and all batches that it will see; everything that a step reads is a tensor."""

    def __init__(
        self, pixels: Tensor, y: Tensor, keep: Tensor, seed: int, recipe: Recipe, make_model: Callable[[], nn.Module]
    ):
        self.pixels, self.y, self.seed, self.recipe = pixels, y, seed, recipe
        batch = min(recipe.batch, len(keep))
        self.steps = len(keep) // batch  # of an epoch
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPU's generators as well
            model = make_model()
            orders = [torch.randperm(len(keep))[: self.steps * batch] for _ in range(recipe.epochs)]
        self.batches = keep.to(pixels.device)[torch.cat(orders).view(-1, batch).to(pixels.device)]
        self.cycle = recipe.cycle(len(self.batches)).to(pixels)
        self.model = _laid_out(model.to(pixels.device, pixels.dtype), torch.channels_last).train()
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.velocity = [torch.zeros_like(p) for p in self.parameters]
        self.at = torch.zeros(1, dtype=torch.int64, device=pixels.device)
        self.loss = torch.zeros((), dtype=pixels.dtype, device=pixels.device)

    def step(self) -> None:
        """v ← µv + g, θ ← θ − η(g + µv) with g = ∇loss + decay·θ, as torch.optim.SGD with nesterov."""
        index = self.batches.index_select(0, self.at).squeeze(0)
        rate, momentum = self.cycle.index_select(0, self.at).squeeze(0).unbind()
        images = self.pixels.index_select(0, index).permute(0, 3, 1, 2)
        half = images.is_cuda and self.recipe.autocast
        with torch.autocast(images.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            outputs = self.model(images)
        loss = F.cross_entropy(outputs.to(self.loss.dtype), self.y.index_select(0, index))
        g = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            torch._foreach_add_(g, self.parameters, alpha=self.recipe.decay)
            torch._foreach_mul_(self.velocity, momentum)
            torch._foreach_add_(self.velocity, g)
            torch._foreach_add_(g, torch._foreach_mul(self.velocity, momentum))
            torch._foreach_mul_(g, -rate)
            torch._foreach_add_(self.parameters, g)
            self.loss.copy_(loss)
            self.at.add_(1)

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
        return graph

    def finished(self) -> nn.Module:
        if not all(bool(torch.isfinite(tensor).all()) for tensor in (self.loss, *self.parameters)):
            raise InvalidSetting(
                f"The training with seed {self.seed} diverged: its last loss is {float(self.loss)}. "
                f"Take a rate below {self.recipe.rate:g}."
            )
        return _laid_out(self.model, torch.contiguous_format).eval()


def _laid_out(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    return model.to(memory_format=layout)  # pyright: ignore[reportCallIssue]: torch's stub lacks this form


def _in_turn(
    trainings: Sequence[_Training], epochs: int, advance: Callable[[int], None], look: Callable[[int, int], None]
) -> None:
    for place, training in enumerate(trainings):
        for epoch in range(1, epochs + 1):
            for _ in range(training.steps):
                training.step()
            advance(1)
            look(place, epoch)


def _side_by_side(
    trainings: Sequence[_Training],
    epochs: int,
    advance: Callable[[int], None],
    look: Callable[[int, int], None] | None,
) -> None:
    streams = [torch.cuda.Stream() for _ in trainings]
    graphs = [training.recorded(stream) for training, stream in zip(trainings, streams, strict=True)]
    torch.cuda.synchronize()
    marks = []
    for epoch in range(1, epochs + 1):
        for step in range(max(training.steps for training in trainings)):
            for training, graph, stream in zip(trainings, graphs, streams, strict=True):
                if step < training.steps:
                    with torch.cuda.stream(stream):
                        graph.replay()
        for mark in marks:  # of the epoch before: the bar tells the truth and the queue never runs dry
            mark.synchronize()
            advance(1)
        marks = [stream.record_event() for stream in streams]
        if look is not None:  # the queue runs dry here
            torch.cuda.synchronize()
            for place in range(len(trainings)):
                look(place, epoch)
    torch.cuda.synchronize()
    advance(len(marks))
    del graphs
    torch.cuda.empty_cache()  # the activations of all networks
