"""A zoo of models as people have them, each tiny, with samples: torch alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint

SAMPLES, CLASSES, LENGTH, WORDS, WIDTH = 10, 3, 5, 11, 6

Inputs = Tensor | dict[str, Tensor]


@dataclass(frozen=True)
class Animal:
    model: nn.Module
    x: Inputs

    @property
    def y(self) -> Tensor:
        return torch.arange(SAMPLES) % CLASSES


def tokens() -> Tensor:
    return torch.randint(1, WORDS, (SAMPLES, LENGTH))


def lengths() -> Tensor:
    return torch.arange(SAMPLES) % (LENGTH - 1) + 2


def padded() -> dict[str, Tensor]:
    """Token ids, 0 where a sequence has ended."""
    keep = torch.arange(LENGTH) < lengths()[:, None]
    return {"ids": tokens() * keep, "mask": keep.long()}


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase], **options: bool):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.recurrent = kind(WIDTH, 4, batch_first=True, **options)
        self.head = nn.Linear(8 if options.get("bidirectional") else 4, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embed(ids))[0][:, -1])


class Packed(nn.Module):
    """Sequences of several lengths, packed inside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.recurrent = nn.LSTM(WIDTH, 4, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(self.embed(ids), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        return self.head(self.recurrent(packed)[1][0][-1])


class Bag(nn.Module):
    def __init__(self, **options: bool | str):
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, WIDTH, **options)  # type: ignore[arg-type]
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.bag(ids).tanh())


class SparseWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids).mean(1).tanh())


class Encoder(nn.Module):
    """torch's own encoder with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        h = self.encoder(self.embed(ids), src_key_padding_mask=mask == 0)
        return self.head((h * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True))


class Attention(nn.Module):
    """The samples second, as torch's attention has them unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 2)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids).transpose(0, 1)
        return self.head(self.attend(h, h, h, need_weights=False)[0].mean(0))


class Tied(nn.Module):
    """The words' embedding is the output layer too: once as a layer, and once by F.linear."""

    def __init__(self, functional: bool):
        super().__init__()
        self.functional = functional
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        if not functional:
            self.out = nn.Linear(WIDTH, WORDS, bias=False)
            self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.mix(self.embed(ids)).tanh().mean(1)
        return F.linear(h, self.embed.weight) if self.functional else self.out(h)


class ResidualBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3, padding=1)
        )
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x + self.body(x)).relu().mean((2, 3)))


class FreeParameter(nn.Module):
    """A parameter of the model itself, outside of every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(WIDTH))
        self.body, self.head = nn.Linear(WIDTH, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.body(x * self.prompt.exp()) + self.prompt.sum()).tanh())


class Branching(nn.Module):
    """Python looks at the data: each sample has a road of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.high(row).tanh() if float(row[0]) > 0 else self.low(row).tanh() for row in x])


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool):
        super().__init__()
        self.reentrant = reentrant
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x.requires_grad_(self.reentrant), use_reentrant=self.reentrant))


class Cube(torch.autograd.Function):
    """As they are written: neither a rule for vmap nor a forward derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, *grad_outputs):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad_outputs[0]


class CubeOnce(torch.autograd.Function):
    """Whose derivative has none."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grad_outputs):  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad_outputs[0]


class Cubed(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


class Stack(nn.Module):
    """A sequence in which the last outputs of the samples are the parts of one long batch: (n·t, …)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.GroupNorm(2, WIDTH)
        self.each = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        n, t = ids.shape
        return self.each(self.norm(self.embed(ids).view(n * t, WIDTH)).relu()).view(n, t, CLASSES).mean(1)


class Patches(nn.Module):
    """A small vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.cls, self.place = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 5, WIDTH))
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.patch(x).flatten(2).mT], 1) + self.place
        return self.head(self.block(h)[:, 0])


def vectors() -> Tensor:
    return torch.randn(SAMPLES, WIDTH)


def images() -> Tensor:
    return torch.randn(SAMPLES, 3, 8, 8)


def signals() -> Tensor:
    return torch.randn(SAMPLES, 2, 9)


def small_network(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 8), *(between or (nn.Tanh(),)), nn.Linear(8, CLASSES))


def settled(model: nn.Module, x: Tensor) -> nn.Module:
    """With statistics of its own data."""
    model.train()
    with torch.no_grad():
        model(x)
    return model


def traced() -> Animal:
    x = vectors()
    with torch.no_grad():
        return Animal(torch.jit.trace(small_network().eval(), x[:2]), x)  # type: ignore[arg-type]


def scripted() -> Animal:
    return Animal(torch.jit.script(small_network().eval()), vectors())


def weight_norm() -> Animal:
    model = small_network()
    parametrizations.weight_norm(model[0])
    return Animal(model, vectors())


ZOO: dict[str, Callable[[], Animal]] = {
    "mlp": lambda: Animal(small_network(), vectors()),
    "lstm": lambda: Animal(Recurrent(nn.LSTM), tokens()),
    "two-way lstm": lambda: Animal(Recurrent(nn.LSTM, bidirectional=True), tokens()),
    "gru": lambda: Animal(Recurrent(nn.GRU), tokens()),
    "rnn": lambda: Animal(Recurrent(nn.RNN), tokens()),
    "packed sequences": lambda: Animal(Packed(), padded()),
    "sparse embedding": lambda: Animal(SparseWords(), tokens()),
    "embedding bag": lambda: Animal(Bag(mode="mean"), tokens()),
    "sparse embedding bag": lambda: Animal(Bag(mode="sum", sparse=True), tokens()),
    "encoder with padding": lambda: Animal(Encoder(), padded()),
    "attention": lambda: Animal(Attention(), tokens()),
    "tied layers": lambda: Animal(Tied(functional=False), tokens()),
    "tied by F.linear": lambda: Animal(Tied(functional=True), tokens()),
    "traced": traced,
    "scripted": scripted,
    "resnet": lambda: Animal(settled(ResidualBlock(), images()), images()),
    "group norm": lambda: Animal(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Linear(144, CLASSES)),
        images(),
    ),
    "parameter outside": lambda: Animal(FreeParameter(), vectors()),
    "weight norm": weight_norm,
    "convolutions over time": lambda: Animal(
        nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.ConvTranspose1d(4, 2, 3), nn.Flatten(), nn.Linear(18, CLASSES)),
        signals(),
    ),
    "control flow on data": lambda: Animal(Branching(), vectors()),
    "checkpointed": lambda: Animal(Checkpointed(reentrant=False), vectors()),
    "own function": lambda: Animal(small_network(Cubed(Cube)), vectors()),
    "own function, once": lambda: Animal(small_network(Cubed(CubeOnce)), vectors()),
    "samples and parts in one": lambda: Animal(Stack(), tokens()),
    "vision transformer": lambda: Animal(Patches(), images()),
    "data parallel": lambda: Animal(nn.DataParallel(small_network()), vectors()),
}


def animal(name: str, zoo: dict[str, Callable[[], Animal]] = ZOO) -> Animal:
    """The same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        found = zoo[name]()
    return Animal(found.model.eval(), found.x)
