"""The data, the requests, and the networks: each seed's original and its twins that never saw the forgotten samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from ssse.calibration.lengths import LENGTHS, PUSH
from ssse.paper import resnet, training
from ssse.paper.cache import key_of
from ssse.paper.data.images import Images, digits_as_images, load_cifar10
from ssse.paper.settings import Settings
from ssse.paper.study import Removal, draw_removals, timed
from ssse.paper.training import Recipe, train_networks
from ssse.problem.problem import Problem
from ssse.system.digests import digest_tensors

AT_RANDOM = "the data at random"
LOSS = "cross_entropy"
OTHER_PUSH = 0.5  # √(1−p): in the middle between all margins alike and the gradient


@dataclass(frozen=True)
class Form:
    """One size of the study.

    Attributes:
        images: to train on; None: all. held_out: of the test images, to choose settings by; the rest measures.
        classes: how many of the first are removed. rates: shares of a class that go. share: removed at random.
        seeds: networks are trained with 0, 1, … shadows: seeds beyond those, for U-LiRA; on a GPU alone.
        shadowed: shares of the requests that shadows answer; None: all.
        noise: share of all labels that are drawn at random, where the images alone leave nothing to remember.
        lengths: of our step, that are tried. push: the power of 1−p by which it pushes. both_pushes: also by
            OTHER_PUSH, with the first seed.
        opponents_of_all_seeds: or of the first alone. opponents_of_all_requests: or of the first of each share.
        opponents: none, where it is False.
        projected: whether the kernel is of projected gradients, because the rows fit no memory.
    """

    name: str
    recipe: Recipe
    images: int | None
    held_out: int
    classes: int
    rates: tuple[float, ...]
    share: float
    seeds: int
    shadows: int = 0
    shadowed: tuple[float, ...] | None = None
    noise: float = 0.0
    lengths: tuple[float, ...] = LENGTHS
    push: float = PUSH
    both_pushes: bool = False
    opponents_of_all_seeds: bool = True
    opponents_of_all_requests: bool = True
    projected: bool = False
    opponents: bool = True


# Half of the test images choose: 500 of a class, so that what is a removal's own luck stays below two points.
FULL = Form(
    "full", Recipe(), None, 5_000, 5, (0.5, 1.0), 0.1, 2, shadows=6, shadowed=(0.1,), both_pushes=True,
    opponents_of_all_seeds=False, opponents_of_all_requests=False,
)  # fmt: skip
# As ResNet-18 for small images, but for its shortcuts, which have no parameters here: 11.0 million.
LARGE = Form(
    "large", Recipe(epochs=20, widths=(64, 128, 256, 512), blocks=2), None, 5_000, 0, (), 0.1, 1, projected=True
)
_FEW = Recipe(epochs=40, batch=128, rate=0.2, widths=(8, 16, 32), blocks=1, autocast=False)
MEDIUM = Form("medium", _FEW, 6_000, 2_000, 1, (0.5,), 0.1, 5, shadows=16, opponents_of_all_seeds=False)
# What is one class' luck is a third of a gap there: five classes, and ours alone.
CLASSES = Form("classes", _FEW, 6_000, 2_000, 5, (0.5,), 0.1, 3, opponents=False)
DIGITS = Form("digits", replace(_FEW, batch=32, rate=0.1), 600, 150, 1, (0.5,), 0.1, 1, noise=0.3)


@dataclass(frozen=True)
class Ground:
    """Everything that a request is answered on. held_x, held_y: neither trained on nor measured on."""

    form: Form
    settings: Settings
    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    test_x: Tensor
    test_y: Tensor
    names: tuple[str, ...]
    words: str
    digest: str
    removals: tuple[Removal, ...]


def prepare(settings: Settings, form: Form) -> Ground:
    """The images, a part of the test images set apart, and the requests, which are the same for every seed."""
    images = digits_as_images() if form.name == DIGITS.name else load_cifar10(_folder(settings))
    if form.noise:
        images = _with_noise(images, form.noise, settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    kept = torch.randperm(len(images.x), generator=generator)[: form.images].sort().values
    apart = torch.randperm(len(images.test_x), generator=generator)
    held, measured = apart[: form.held_out].sort().values, apart[form.held_out :].sort().values
    x, y, test_y = images.x[kept], images.y[kept], images.test_y[measured]
    digest = digest_tensors({"x": x, "y": y, "test": images.test_x[apart], "test_y": images.test_y[apart]})
    device = settings.torch_device()
    return Ground(
        form, settings, x.to(device), y.to(device), images.test_x[held].to(device), images.test_y[held].to(device),
        images.test_x[measured].to(device), test_y.to(device), images.names,
        f"{images.source}; {len(x):,} to train on, {len(held):,} held out to choose by, {len(measured):,} to measure",
        digest, tuple(_requests(images, y, test_y, form, settings.seed)),
    )  # fmt: skip


def _with_noise(images: Images, share: float, seed: int) -> Images:
    """Test labels as well: held-out samples are to be what the forgotten ones are."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(y: Tensor) -> Tensor:
        other = torch.randint(len(images.names), y.shape, generator=generator)
        return torch.where(torch.rand(y.shape, generator=generator) < share, other, y)

    return replace(images, y=drawn(images.y), test_y=drawn(images.test_y))


def _folder(settings: Settings):
    assert settings.data is not None  # the form without data is of digits
    return settings.data


def _requests(images: Images, y: Tensor, test_y: Tensor, form: Form, seed: int) -> list[Removal]:
    """Parts of the first classes, then a part of all samples, whose kind is everything."""
    classes = torch.arange(len(images.names))
    first = {c: images.names[c] for c in range(form.classes)}
    removals = draw_removals(first, y[:, None] == classes, test_y[:, None] == classes, form.rates, seed)
    everything, tests = torch.ones(len(y), 1, dtype=torch.bool), torch.ones(len(test_y), 1, dtype=torch.bool)
    return removals + draw_removals({0: AT_RANDOM}, everything, tests, (form.share,), seed)


@dataclass(frozen=True)
class Twins:
    """One seed. retrained: by the words of the request. seconds: of one training, a share of those side by side."""

    seed: int
    original: nn.Module
    retrained: dict[str, nn.Module]
    seconds: float
    sample: tuple[Tensor, Tensor]  # a few, to look at the model with

    @cached_property
    def problem(self) -> Problem:
        return Problem(self.original, LOSS, "all", self.sample)


def _placed(model: nn.Module, device: torch.device) -> nn.Module:
    """Channels last on a GPU: what its fast convolutions want; copies are as their original."""
    if device.type != "cuda":
        return model
    return model.to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]: not in torch's stub


def twins_key(ground: Ground, seeds: Sequence[int], removals: Sequence[Removal]) -> str:
    """Whatever device they were trained on: they are what is studied, not what is measured."""
    keeps = [removal.keep for removal in removals]
    return key_of("twins", ground.digest, str(ground.form.recipe), list(seeds), *keeps, training, resnet)


def train_twins(ground: Ground, seeds: Sequence[int], removals: Sequence[Removal]) -> list[Twins]:
    """The original and the retrained networks of every seed, side by side, or from the cache where they are there."""
    keeps = [torch.arange(len(ground.x)), *(removal.keep for removal in removals)]
    recipe, device = ground.form.recipe, ground.x.device
    classes, channels = len(ground.names), ground.x.shape[1]
    jobs = [(seed, keep.to(device)) for seed in seeds for keep in keeps]

    def make() -> dict[str, Tensor]:
        models, seconds = timed(
            lambda: train_networks(
                ground.x,
                ground.y,
                [keep for _, keep in jobs],
                [seed for seed, _ in jobs],
                recipe,
                lambda: recipe.network(classes, channels),
                progress=ground.settings.show_progress,
            ),
            device,
        )
        states = {f"{i}|{k}": v.cpu() for i, model in enumerate(models) for k, v in model.state_dict().items()}
        return states | {"seconds": torch.tensor(seconds, dtype=torch.float64)}

    states = ground.settings.cache.tensors(twins_key(ground, seeds, removals), make)
    models = []
    for i in range(len(jobs)):
        model = recipe.network(classes, channels)
        model.load_state_dict({k.split("|")[1]: v for k, v in states.items() if k.split("|")[0] == str(i)})
        models.append(_placed(model, device).eval())
    seconds, words = float(states["seconds"]) / len(jobs), [removal.words for removal in removals]
    sample = ground.x[:8], ground.y[:8]
    groups = (models[i : i + len(keeps)] for i in range(0, len(models), len(keeps)))
    return [
        Twins(seed, group[0], dict(zip(words, group[1:], strict=True)), seconds, sample)
        for seed, group in zip(seeds, groups, strict=True)
    ]
