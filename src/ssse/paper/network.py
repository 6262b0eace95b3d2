"""A network: train it and its retrained twins side by side, fit the curvatures, answer requests by every method."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssse import baselines
from ssse.curvature.curvature import Curvature
from ssse.metrics.gaps import mean_gap
from ssse.paper import resnet, study, training
from ssse.paper.cache import engine, key_of
from ssse.paper.data.images import Images
from ssse.paper.settings import Settings
from ssse.paper.steps import erase
from ssse.paper.study import Curve, Method, Removal, Scanner, accuracies, timed
from ssse.paper.training import Recipe, train_networks

LOSS = "cross_entropy"
DAMPING, STRONGER, HEAD_DAMPING = 1e-4, 1e-3, 5e-5
BLOCK = 70_000
SCALES = np.geomspace(1e-3, 1e1, 21)
RATES = np.geomspace(1e-2, 1e2, 21)  # of gradient ascent
WIDE = np.geomspace(1e-5, 1e0, 21)
NOISE = np.geomspace(1e-6, 1e0, 19)

PAPER = Method("paper", "SSSE, single samples, over D (the paper)", "paper")
PAPER_TEN = Method("ten", "SSSE, mini-batches of 10, over D (the paper)", "paper")
PAPER_TEN_GAP = Method("ten", "the same at the ε of its smallest gap", "paper", "gap")
PAPER_OUT = Method("out", "SSSE, single samples, over D∖S, from S alone", "past the paper")
DAMPED = Method("damped", "SSSE, single samples, over D, λ = 1e-3", "past the paper")
DAMPED_OUT = Method("damped_out", "the same over D∖S, from S alone", "past the paper")
GRADIENT = Method("gradient", "SSSE, mini-batches of 10, gradient over D∖S", "paper")
HEAD = Method("head", "last layer: expected rows over D∖S, ε = 1", "ours", 1.0)
HEAD_CHANCE = Method("head", "the same, the ε at which S is recognised by chance", "ours", "chance")
HEAD_SEARCHED = Method("head", "the same, ε by the loss along the step", "ours", "searched", "S, 4,096 of D")
ASCENT = Method("ascent", "gradient ascent, one step", "baseline", "gap")
DIAGONAL = Method("diagonal", "SSSE with the diagonal alone", "baseline", "gap")
SCRUBBING = Method("scrubbing", "scrubbing (Fisher noise)", "baseline", "gap")
DAMPENING = Method("dampening", "selective synaptic dampening", "baseline", 1.0)
TUNING = Method("tuning", "fine-tuning, one epoch (first class alone)", "baseline", 1.0, "S and D")


@dataclass(frozen=True)
class Size:
    """What differs between the full experiment and its small form.

    Attributes:
        classes: how many of the first classes are removed. scanned: samples of each large split that a scan
            measures. batch: samples that are evaluated together.
    """

    recipe: Recipe
    classes: int = 5
    scanned: int = 5_000
    batch: int = 2_000


@dataclass
class Network:
    settings: Settings
    data: Images
    removals: Sequence[Removal]
    size: Size
    x: Tensor = field(init=False, repr=False)
    models: dict[str, nn.Module] = field(default_factory=dict)
    train_seconds: float = 0.0
    fitted: dict[str, Curvature] = field(default_factory=dict)
    fit_seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device: torch.device = self.settings.torch_device()
        self.x = self.data.x.to(self.device)
        self.y: Tensor = self.data.y.to(self.device)
        self.test_x: Tensor = self.data.test_x.to(self.device)
        self.test_y: Tensor = self.data.test_y.to(self.device)

    def train(self) -> None:
        """The original, one retrained without each request with the same seed, and second seeds for the floor."""
        jobs: list[tuple[str, Tensor, int]] = [("original", torch.arange(len(self.x)), 0)]
        jobs += [(r.words, r.keep, 0) for r in self.removals]
        jobs += [(f"{r.words}, another seed", r.keep, 1) for r in self.removals if r.place == self.removals[0].place]
        channels, classes = self.x.shape[1], len(self.data.names)

        def make() -> dict[str, Tensor]:
            keeps = [keep.to(self.device) for _, keep, _ in jobs]
            seeds = [self.settings.seed + seed for _, _, seed in jobs]
            recipe = self.size.recipe
            models, seconds = timed(
                lambda: train_networks(
                    self.x,
                    self.y,
                    keeps,
                    seeds,
                    recipe,
                    lambda: recipe.network(classes, channels),
                    progress=self.settings.show_progress,
                ),
                self.device,
            )
            states = {
                f"{i}|{name}": value.cpu()
                for i, model in enumerate(models)
                for name, value in model.state_dict().items()
            }
            return states | {"seconds": torch.tensor(seconds, dtype=torch.float64)}

        parts = [keep for _, keep, _ in jobs]
        size = str(self.size.recipe)
        key = key_of("networks", self.data.digest, size, self.settings.seed, self.device.type, *parts, training, resnet)
        states = self.settings.cache.tensors(key, make)
        self.train_seconds = float(states.pop("seconds"))
        for i, (name, _, _) in enumerate(jobs):
            model = self.size.recipe.network(classes, channels)
            mine = {k.split("|")[1]: v for k, v in states.items() if k.startswith(f"{i}|")}
            model.load_state_dict(mine)
            self.models[name] = model.to(self.device).eval()

    @property
    def model(self) -> nn.Module:
        return self.models["original"]

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        return self._batches(self.x, self.y)

    def splits(self, removal: Removal) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """Of the large splits a random part, the same for every model: a scan looks at them at every ε."""
        generator = torch.Generator().manual_seed(self.settings.seed)

        def part(places: Tensor) -> Tensor:
            return places[torch.randperm(len(places), generator=generator)[: self.size.scanned]]

        stays, others, same = part(removal.keep), part((~removal.same).nonzero()[:, 0]), removal.same.to(self.device)
        return {
            "retained": self._batches(self.x[stays], self.y[stays]),
            "forgotten": self._batches(self.x[removal.forget], self.y[removal.forget]),
            "test_other": self._batches(self.test_x[others], self.test_y[others]),
            "test_same": self._batches(self.test_x[same], self.test_y[same]),
        }

    def answers(self) -> list[dict[str, Any]]:
        """Method by method, so that each large curvature is held only while it is needed."""
        answers = [self._described(r) | {"curves": {}} for r in self.removals]
        for name, ways in (
            ("single samples", (self._paper, self._out)),
            ("more damping", (self._damped,)),
            ("mini-batches", (self._ten,)),
            ("last layer", (self._head,)),
            ("baselines", (self._baselines,)),
        ):
            for i, removal in enumerate(self.settings.each(self.removals, f"cifar10, {name}", lambda r: r.words)):
                for way in ways:
                    key = key_of(f"curve-{way.__name__}", self._base, *removal.parts, *_SOURCES)

                    def measure(way=way, removal=removal) -> dict[str, Curve]:
                        return way(removal)

                    answers[i]["curves"] |= self.settings.cache.numbers(key, measure)
            kept = self.fitted.get("single") if name == "single samples" else None  # to be damped more
            self.fitted = {} if kept is None else {"single": kept}
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # else the next budget would not see what was just freed
        return answers

    def floor(self) -> dict[float, dict[str, float]]:
        """Two retrained seeds, for the first class at each rate."""
        floors = {}
        for removal in self.removals:
            other = self.models.get(f"{removal.words}, another seed")
            if other is not None:
                splits = self.splits(removal)
                one, two = accuracies(self.models[removal.words], splits), accuracies(other, splits)
                test = [100 * (two[s] - one[s]) for s in ("test_other", "test_same")]
                floors[removal.rate] = {"gap": 100 * mean_gap(one, two), "test_other": test[0], "test_same": test[1]}
        return floors

    def curvature(self, name: str, **how: Any) -> Curvature:
        if name not in self.fitted:
            settings = {
                "damping": DAMPING,
                "weight_decay": self.size.recipe.decay,
                "progress": self.settings.show_progress,
            }
            with exact_arithmetic():
                self.fitted[name], self.fit_seconds[name] = timed(
                    lambda: Curvature.fit(self.model, LOSS, self.batches, **(settings | how)), self.device
                )
        return self.fitted[name]

    def _described(self, removal: Removal) -> dict[str, Any]:
        return self._scanner(removal).describe(removal, len(self.x), self.train_seconds / len(self.models))

    def _scanner(self, removal: Removal) -> Scanner:
        return Scanner(self.model, LOSS, self.splits(removal), self.models[removal.words])

    def _single(self) -> Curvature:
        return self.curvature(
            "single", rows="empirical", structure="lowrank", blocks=BLOCK, memory_budget=self._most_memory()
        )

    def _erased(self, removal: Removal, curvature: Curvature, **how: Any) -> tuple[Tensor, float, Scanner]:
        scanner = self._scanner(removal)
        with exact_arithmetic():
            erasure, seconds = timed(
                lambda: erase(
                    self.model, curvature, LOSS, scanner.splits["forgotten"], scale=1.0, **how, progress=False
                ),
                self.device,
            )
        return erasure.direction, seconds, scanner

    def _paper(self, removal: Removal) -> dict[str, Curve]:
        step, seconds, scanner = self._erased(removal, self._single(), leave_out=False)
        return {"paper": scanner.curve(step, seconds, SCALES, fit_seconds=self.fit_seconds["single"])}

    def _out(self, removal: Removal) -> dict[str, Curve]:
        step, seconds, scanner = self._erased(removal, self._single())
        return {"out": scanner.curve(step, seconds, SCALES)}

    def _damped(self, removal: Removal) -> dict[str, Curve]:
        if "damped" not in self.fitted:
            self.fitted["damped"] = self._single().with_damping(STRONGER)
            del self.fitted["single"]
        curves = {}
        for name, leave_out in (("damped", False), ("damped_out", True)):
            step, seconds, scanner = self._erased(removal, self.fitted["damped"], leave_out=leave_out)
            curves[name] = scanner.curve(step, seconds, SCALES)
        return curves

    def _ten(self, removal: Removal) -> dict[str, Curve]:
        curvature = self.curvature(
            "ten",
            rows="empirical",
            rows_per_batch=10,
            structure="lowrank",
            blocks=BLOCK,
            memory_budget=self._most_memory(),
        )
        curves = {}
        for name, residual in (("ten", False), ("gradient", True)):
            step, seconds, scanner = self._erased(removal, curvature, leave_out=False, residual=residual)
            curves[name] = scanner.curve(step, seconds, SCALES, fit_seconds=self.fit_seconds["ten"])
        return curves

    def _head(self, removal: Removal) -> dict[str, Curve]:
        curvature = self.curvature("head", rows="expected", structure="dense", damping=HEAD_DAMPING, parameters="head")
        step, seconds, scanner = self._erased(removal, curvature)
        names = curvature.layout.names
        (searched, why), searching = timed(lambda: scanner.search(curvature, step, self.batches), self.device)
        scales = np.union1d(SCALES, [searched])
        return {
            "head": scanner.curve(step, seconds, scales, names, searched=searched, search_seconds=searching, why=why)
        }

    def _baselines(self, removal: Removal) -> dict[str, Curve]:
        scanner, decay = self._scanner(removal), self.size.recipe.decay
        forget = scanner.splits["forgotten"]
        squares = self.curvature("squares", rows="empirical", structure="diagonal")
        fisher = self.curvature("fisher", rows="expected", structure="diagonal")
        with exact_arithmetic():
            ascent = baselines.gradient_ascent(self.model, None, LOSS, forget, weight_decay=decay)
            diagonal = baselines.diagonal_ssse(self.model, squares, LOSS, forget, scale=1e-5, leave_out=False)
            noise = baselines.scrubbing(
                self.model, fisher, LOSS, forget, noise=1.0, rule="paper", seed=self.settings.seed
            )
            damped = baselines.selective_synaptic_dampening(self.model, squares, LOSS, forget)
        assert ascent.direction is not None
        assert diagonal.direction is not None
        curves = {
            "ascent": scanner.curve(ascent.direction, ascent.seconds, RATES),
            "diagonal": scanner.curve(diagonal.direction, diagonal.seconds, WIDE),
            "scrubbing": scanner.curve(noise.step, noise.seconds, NOISE),
            "dampening": scanner.point(damped.step, damped.seconds),
        }
        if removal.place == self.removals[0].place:  # an epoch of small steps: of one class alone
            tuned = baselines.fine_tuning(
                self.model, None, LOSS, forget, data=self.batches, weight_decay=decay, progress=False
            )
            curves["tuning"] = scanner.point(tuned.step, tuned.seconds)
        return curves

    def _most_memory(self) -> int | None:
        """The rows and their kernels may take nearly all of a GPU: nothing else is held then."""
        return int(0.92 * torch.cuda.mem_get_info(self.device)[0]) if self.device.type == "cuda" else None

    def _batches(self, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
        return list(zip(x.split(self.size.batch), y.split(self.size.batch), strict=True))

    @property
    def _base(self) -> list[Any]:
        return [self.data.digest, str(self.size), self.settings.seed, self.device.type, engine()]


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Rows in full float32: the short products of a GPU's convolutions lose digits that a curvature needs."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


_SOURCES = (sys.modules[__name__], study, training, resnet)
