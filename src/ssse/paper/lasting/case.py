"""One request to one network: its samples, the repair that all methods share, and how a model is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssse.calibration.lengths import Seen, Splits
from ssse.erasure.repair import repair_training
from ssse.metrics.attacks import member_rate, threshold_attack
from ssse.metrics.gaps import divergences, mean_gap
from ssse.metrics.scores import confidences
from ssse.paper.lasting.networks import AT_RANDOM, Ground, Twins
from ssse.paper.study import Removal
from ssse.problem.batch_statistics import reestimate, statistics_layers
from ssse.problem.short_training import Trainee, Training
from ssse.problem.wrappers import copied

PASS = 5_000  # images that are looked at together
LOOKED = 5_000  # of D∖S, at which accuracies are measured
STATISTICS = 10_000  # of D∖S, from which a repaired network has its BatchNorm statistics

MEASURES = ("kl", "auc", "unseen")  # beside accuracies and their gap

Batches = list[tuple[Tensor, Tensor]]
Numbers = dict[str, Any]


@dataclass(frozen=True)
class Case:
    ground: Ground
    twins: Twins
    removal: Removal

    @property
    def words(self) -> str:
        return self.removal.words

    @property
    def at_random(self) -> bool:
        return self.removal.kind == AT_RANDOM

    @property
    def followed(self) -> bool:
        """Whether what comes back is looked at for every method: of the first request of each share, not of shadows."""
        if self.twins.seed >= self.ground.form.seeds:
            return False
        return self.removal is next(r for r in self.ground.removals if r.rate == self.removal.rate)

    @property
    def original(self) -> nn.Module:
        return self.twins.original

    @property
    def retrained(self) -> nn.Module:
        return self.twins.retrained[self.words]

    @cached_property
    def forget(self) -> Batches:
        return self._batches(self.ground.x, self.ground.y, self.removal.forget)

    @cached_property
    def held_out(self) -> Batches:
        return _split(self.ground.held_x, self.ground.held_y)

    @cached_property
    def held_out_alike(self) -> Tensor:
        """Places of held-out samples of the kind that S is of."""
        held = self.ground.held_y
        same = torch.ones_like(held, dtype=torch.bool) if self.at_random else held == self.removal.place
        return same.nonzero()[:, 0]

    @cached_property
    def splits(self) -> dict[str, tuple[Tensor, Tensor]]:
        """What accuracies are measured on; a request at random has no other kind."""
        ground, removal = self.ground, self.removal
        order = torch.randperm(len(removal.keep), generator=torch.Generator().manual_seed(1))
        places = {
            "retained": (ground.x, ground.y, removal.keep[order[:LOOKED]]),
            "forgotten": (ground.x, ground.y, removal.forget),
            "test_same": (ground.test_x, ground.test_y, removal.same.nonzero()[:, 0]),
        }
        if not self.at_random:
            places["test_other"] = (ground.test_x, ground.test_y, (~removal.same).nonzero()[:, 0])
        return {name: (x[at.to(x.device)], y[at.to(x.device)]) for name, (x, y, at) in places.items()}

    @cached_property
    def trainee(self) -> Trainee:
        """The original and D∖S, as a repair has them."""
        keep, problem = self.removal.keep.to(self.ground.x.device), self.twins.problem
        return Trainee(problem.model, problem, (self.ground.x[keep], self.ground.y[keep]))

    @cached_property
    def judged(self) -> Splits:
        return Splits.of(self.trainee, self.forget, self.held_out, len(self.ground.x))

    @property
    def repairing(self) -> Training:
        recipe = self.ground.form.recipe
        whole = Training(recipe.epochs, recipe.rate, recipe.batch, recipe.decay, recipe.momentum)
        return repair_training(whole, len(self.removal.keep))

    @property
    def harmless(self) -> Training:
        """What S may come back in: as the repair, at half its rate."""
        return replace(self.repairing, learning_rate=self.repairing.learning_rate / 2)

    @cached_property
    def teacher(self) -> Tensor:
        """The original's logits on all training samples, in eval mode."""
        return _logits(self.original, self.ground.x)

    def finished(self, model: nn.Module) -> nn.Module:
        """A network after its repair, with statistics of what stays. In place."""
        order = torch.randperm(len(self.removal.keep), generator=torch.Generator().manual_seed(2))[:STATISTICS]
        places = self.removal.keep[order].to(self.ground.x.device)
        layers = list(statistics_layers(model).values())
        reestimate(model, layers, (self.ground.x[some] for some in places.split(2_000)))
        return model.eval()

    def seen(self, model: nn.Module) -> Seen:
        fresh = copied(model)
        return self.judged.look(replace(self.trainee, given=fresh, problem=self.trainee.problem.on(fresh)))

    @cached_property
    def original_seen(self) -> Seen:
        return self.seen(self.original)

    def on_forgotten(self, model: nn.Module) -> float:
        x, y = self.splits["forgotten"]
        return _accuracy(_logits(model, x), y)

    @cached_property
    def wanted(self) -> tuple[dict[str, float], Tensor]:
        """The retrained network's accuracies, and its logits on S."""
        logits = {name: _logits(self.retrained, x) for name, (x, _) in self.splits.items()}
        return {name: _accuracy(logits[name], y) for name, (_, y) in self.splits.items()}, logits["forgotten"]

    def measure(self, model: nn.Module) -> Numbers:
        """Beside the retrained network: accuracies in per cent, KL in nats on S, attacks on S.

        Of a network that is destroyed, so that outputs are NaN or infinite, the accuracies alone: such are wrong.
        auc: S against test samples of its kind. unseen: the share of S, in per cent, that a threshold between D∖S and
        all test samples takes for samples that were never trained on, the "MIA" of the papers around SalUn.
        """
        logits = {name: _logits(model, x) for name, (x, _) in self.splits.items()}
        found = {name: _accuracy(logits[name], y) for name, (_, y) in self.splits.items()}
        wanted, reference = self.wanted
        if not all(bool(torch.isfinite(z).all()) for z in logits.values()):
            lost = [math.nan] * len(logits["forgotten"])
            return (
                {"accuracy": found, "gap": mean_gap(found, wanted)} | dict.fromkeys(MEASURES, math.nan) | {"phi": lost}
            )
        known = {name: confidences(logits[name], y) for name, (_, y) in self.splits.items()}
        phi, tests = known["forgotten"], [known[name] for name in known if name.startswith("test")]
        attack = threshold_attack(phi, known["test_same"])
        members = member_rate(phi, known["retained"], np.concatenate(tests))
        divergence = divergences(logits["forgotten"], [reference], self.splits["forgotten"][1])
        return {
            "accuracy": found,
            "gap": mean_gap(found, wanted),
            "kl": float(divergence.mean()),
            "auc": attack.auc,
            "unseen": 100 * (1 - float(members)),
            "phi": [round(float(value), 3) for value in phi],
        }

    def moment(self, model: nn.Module, epoch: int) -> Numbers:
        """S, as `ssse.metrics.resurfacing` looks at it."""
        x, y = self.splits["forgotten"]
        held_x, held_y = self.ground.held_x[self.held_out_alike], self.ground.held_y[self.held_out_alike]
        own, other = _logits(model, x), _logits(model, held_x)
        attack = threshold_attack(confidences(own, y), confidences(other, held_y))
        loss = float(nn.functional.cross_entropy(own, y))
        known = {
            "accuracy": _accuracy(own, y),
            "alike": _accuracy(other, held_y),
        }  # alike: held-out samples of its kind
        return {"epoch": epoch, **known, "loss": loss, "auc": attack.auc}

    def _batches(self, x: Tensor, y: Tensor, places: Tensor) -> Batches:
        places = places.to(x.device)
        return _split(x[places], y[places])


def _split(x: Tensor, y: Tensor) -> Batches:
    return list(zip(x.split(PASS), y.split(PASS), strict=True))


@torch.no_grad()
def _logits(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(PASS)])


def _accuracy(logits: Tensor, y: Tensor) -> float:
    """In per cent."""
    right = (logits.argmax(1) == y) & torch.isfinite(logits).all(1)
    return 100 * float(right.double().mean())
