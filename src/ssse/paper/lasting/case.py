"""One request to one network: its samples, the repair that all methods share, and how a model is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssse.calibration.lasting import Seen, Splits, shortfall
from ssse.erasure.repair import repair_training
from ssse.evaluation.outputs import logits_of
from ssse.metrics.attacks import threshold_attack
from ssse.metrics.gaps import accuracy, divergences, mean_gap
from ssse.metrics.scores import confidences
from ssse.paper.lasting.networks import AT_RANDOM, Ground, Twins
from ssse.paper.study import Removal
from ssse.problem.short_training import Trainee, Training
from ssse.problem.wrappers import copied

LOSS = "cross_entropy"
BATCH = 2_000
LOOKED = 5_000  # of D∖S, at which accuracies are measured

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
    def original(self) -> nn.Module:
        return self.twins.original

    @property
    def retrained(self) -> nn.Module:
        return self.twins.retrained[self.words]

    @property
    def autocast(self) -> bool:
        return self.ground.form.recipe.autocast and self.ground.x.is_cuda

    @cached_property
    def forget(self) -> Batches:
        return self._batches(self.ground.x, self.ground.y, self.removal.forget)

    @cached_property
    def retained(self) -> Batches:
        return self._batches(self.ground.x, self.ground.y, self.removal.keep)

    @cached_property
    def data(self) -> Batches:
        return _split(self.ground.x, self.ground.y)

    @cached_property
    def held_out(self) -> Batches:
        return _split(self.ground.held_x, self.ground.held_y)

    @cached_property
    def held_out_alike(self) -> Batches:
        """Held-out samples of the kind that S is of."""
        if self.at_random:
            return self.held_out
        same = (self.ground.held_y == self.removal.place).nonzero()[:, 0]
        return self._batches(self.ground.held_x, self.ground.held_y, same)

    @cached_property
    def splits(self) -> dict[str, Batches]:
        """What accuracies are measured on; a request at random has no other kind."""
        ground, removal = self.ground, self.removal
        order = torch.randperm(len(removal.keep), generator=torch.Generator().manual_seed(1))
        splits = {
            "retained": self._batches(ground.x, ground.y, removal.keep[order[:LOOKED]]),
            "forgotten": self.forget,
            "test_same": self._batches(ground.test_x, ground.test_y, removal.same.nonzero()[:, 0]),
        }
        if not self.at_random:
            others = (~removal.same).nonzero()[:, 0]
            splits["test_other"] = self._batches(ground.test_x, ground.test_y, others)
        return splits

    @cached_property
    def trainee(self) -> Trainee:
        return Trainee.of(self.original, LOSS, self.retained)

    @cached_property
    def judged(self) -> Splits:
        return Splits.of(self.trainee, self.forget, self.held_out, len(self.ground.x))

    @property
    def repairing(self) -> Training:
        recipe = self.ground.form.recipe
        whole = Training(recipe.epochs, recipe.rate, recipe.batch, recipe.decay, recipe.momentum)
        return repair_training(whole)

    def repaired(self, model: nn.Module, look: Callable[[nn.Module], None] | None = None) -> nn.Module:
        """As `ssse.repair` does it, without reading the samples again. look: at the model after each epoch."""
        trainee = self.on(model)

        def after(_: int, __: float) -> None:
            if look is not None:
                look(trainee.given)

        trainee.train(self.repairing, autocast=self.autocast, after_epoch=after, progress=False)
        return trainee.finish()

    def on(self, model: nn.Module) -> Trainee:
        """A copy of the model, to be trained on D∖S."""
        fresh = copied(model)
        return replace(self.trainee, given=fresh, problem=self.trainee.problem.on(fresh))

    def seen(self, model: nn.Module) -> Seen:
        return self.judged.look(self.on(model))

    @cached_property
    def original_seen(self) -> Seen:
        return self.seen(self.original)

    def shortfall(self, model: nn.Module) -> float:
        """What methods are tuned by: nothing of it is known from a retrained model or from the test samples."""
        return shortfall(self.seen(model), self.original_seen)

    def accuracies(self, model: nn.Module) -> dict[str, float]:
        return {name: accuracy(*self._outputs(model, batches)) for name, batches in self.splits.items()}

    def on_forgotten(self, model: nn.Module) -> float:
        return accuracy(*self._outputs(model, self.forget))

    @cached_property
    def wanted(self) -> dict[str, float]:
        return self.accuracies(self.retrained)

    def measure(self, model: nn.Module) -> Numbers:
        """Beside the retrained model: points of accuracy, KL in nats on S, and the attack on S against test samples."""
        found = self.accuracies(model)
        logits, labels = self._outputs(model, self.forget)
        unseen, truth = self._outputs(model, self.splits["test_same"])
        phi = confidences(logits, labels)
        attack = threshold_attack(phi, confidences(unseen, truth))
        reference, _ = self._outputs(self.retrained, self.forget)
        return {
            "accuracy": {name: 100 * value for name, value in found.items()},
            "gap": 100 * mean_gap(found, self.wanted),
            "kl": float(divergences(logits, [reference], labels).mean()),
            "auc": attack.auc,
            "phi": [round(float(value), 3) for value in phi],
        }

    def _outputs(self, model: nn.Module, batches: Batches) -> tuple[np.ndarray, np.ndarray]:
        """Logits and labels."""
        logits = np.concatenate([logits_of(model, x, "network") for x, _ in batches])
        return logits, torch.cat([y for _, y in batches]).cpu().numpy()

    def _batches(self, x: Tensor, y: Tensor, places: Tensor) -> Batches:
        places = places.to(x.device)
        return _split(x[places], y[places])


def _split(x: Tensor, y: Tensor) -> Batches:
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))
