"""Does the memory come back? The forgotten samples along a harmless training on what stays.

A step can hide what a model knows without taking it away: gradient ascent brings the accuracy on S down, and an epoch
on *other* samples brings it back. What a second-order step has erased stays erased. So the model is trained on D∖S for
a few epochs, as any user of it might, and S is looked at on the way; a retrained model, which never saw S, says what is
the model's getting better as such.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from ssse.errors import InvalidSetting
from ssse.metrics.attacks import threshold_attack
from ssse.metrics.looks import look
from ssse.problem.batches import Batch
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike
from ssse.problem.overlap import refuse_forgotten
from ssse.problem.short_training import Trainee, Training
from ssse.system.plain_table import plain_table


@dataclass(frozen=True)
class Moment:
    """S after so many epochs on D∖S.

    Attributes:
        accuracy: the share of S that is right; None where the loss knows no right. loss: the mean on S.
        auc, advantage: of `threshold_attack` on S against held-out samples; None without any.
        held_out_accuracy: on those.
    """

    epoch: int
    accuracy: float | None
    loss: float
    auc: float | None = None
    advantage: float | None = None
    held_out_accuracy: float | None = None


@dataclass(frozen=True)
class Resurfacing:
    """The forgotten samples along a harmless training.

    Attributes:
        moments: of the model, in order of their epochs. retrained: of the retrained model along the same training.
        forgotten, retained: how many samples. training: how it was trained; seed: the order of samples.
    """

    moments: tuple[Moment, ...]
    retrained: tuple[Moment, ...] | None
    forgotten: int
    retained: int
    training: Training
    seed: int
    seconds: float

    @property
    def epochs(self) -> tuple[int, ...]:
        return tuple(moment.epoch for moment in self.moments)

    @property
    def rise(self) -> float | None:
        """By how many points the accuracy on S rises from the first moment to the last; below 0 where it falls."""
        return _rise(self.moments)

    @property
    def retrained_rise(self) -> float | None:
        return None if self.retrained is None else _rise(self.retrained)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**asdict(self), "rise": self.rise, "retrained_rise": self.retrained_rise}

    def __str__(self) -> str:
        beside = self.retrained or ()
        titles = ["epochs on D∖S", *_titles("", self.moments), *_titles("retrained: ", beside)]
        rows = [
            [str(moment.epoch), *_texts(moment), *(_texts(beside[place]) if beside else ())]
            for place, moment in enumerate(self.moments)
        ]
        lines = [plain_table(titles, rows)]
        if self.rise is not None:
            other = "" if self.retrained_rise is None else f", the retrained model's by {self.retrained_rise:+.1f}"
            lines.append(f"the accuracy on S changes by {self.rise:+.1f} points{other}")
        return "\n".join(lines)


def resurfacing(
    model: nn.Module,
    retained: Data,
    forget: Data,
    loss_fn: LossLike,
    *,
    held_out: Data | None = None,
    retrained: nn.Module | None = None,
    epochs: Sequence[int] = (0, 1, 3, 8),
    learning_rate: float = 0.05,
    batch_size: int = 512,
    weight_decay: float = 5e-4,
    momentum: float = 0.9,
    seed: int = 0,
    autocast: bool = False,
    label_key: str | None = None,
    progress: bool = True,
) -> Resurfacing:
    """Train a copy on D∖S, harmlessly, and look at S on the way: what was hidden comes back, what was erased does not.

    One training in training mode, as long as the last of `epochs`: SGD with Nesterov's momentum, the rate along one
    cycle. Read the rise against that of a retrained model: where it rises too, so does the model as a whole. Accuracy
    on S that ends above that on held-out samples of the same kind is memory, whether it rose or never fell.

    Args:
        model: in eval mode; it stays as it is, and so does `retrained`.
        retained: batches of D∖S, held in memory; S must not be among them. forget: batches of S.
        held_out: samples of the same kind as S that were never trained on: for the attack.
        retrained: a model that never saw S, trained in the same way for comparison.
        epochs: after which S is looked at; 0 is the model as it is.
        learning_rate: the largest of the cycle; of a harmless training about a tenth of the original's.
        autocast: bfloat16 in the layers, which is faster on a GPU.

    Raises:
        InvalidData: samples of S are among the retained ones. Diverged: the training did.
    """
    started = time.perf_counter()
    moments = _check_epochs(epochs)
    training = Training(max(moments[-1], 1), learning_rate, batch_size, weight_decay, momentum)

    first = Trainee.of(model, loss_fn, retained, label_key)
    s = first.read(forget, "samples to forget")
    held = None if held_out is None else first.read(held_out, "held-out samples")
    refuse_forgotten([first.samples], s)

    def followed(trainee: Trainee, name: str) -> tuple[Moment, ...]:
        found = [_moment(trainee, 0, s, held)] if 0 in moments else []

        def after(epoch: int, _: float) -> None:
            if epoch in moments:
                found.append(_moment(trainee, epoch, s, held))

        if moments[-1]:
            trainee.train(
                training, seed=seed, autocast=autocast, after_epoch=after, text=f"training of {name}", progress=progress
            )
        return tuple(found)

    # Both copies are made before anything is trained: what is wrong with the second is said at once.
    second = None if retrained is None else first.beside(retrained, loss_fn)
    own = followed(first, "the model")
    beside = None if second is None else followed(second, "the retrained model")
    count = sum(len(y) for _, y in s)
    return Resurfacing(own, beside, count, first.count, training, seed, time.perf_counter() - started)


def _check_epochs(epochs: Sequence[int]) -> list[int]:
    given = list(epochs) if isinstance(epochs, (list, tuple, range)) else []
    if not given or not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in given):
        raise InvalidSetting(f"epochs are whole numbers from 0 on after which S is looked at, not {epochs!r}.")
    return sorted(set(given))


def _moment(trainee: Trainee, epoch: int, forgotten: list[Batch], held_out: list[Batch] | None) -> Moment:
    seen = look(trainee.problem, forgotten)
    if held_out is None:
        return Moment(epoch, seen.accuracy, seen.loss)
    unseen = look(trainee.problem, held_out)
    attack = threshold_attack(seen.confidences, unseen.confidences)
    return Moment(epoch, seen.accuracy, seen.loss, attack.auc, attack.advantage, unseen.accuracy)


def _rise(moments: tuple[Moment, ...]) -> float | None:
    first, last = moments[0].accuracy, moments[-1].accuracy
    return None if first is None or last is None else 100 * (last - first)


def _titles(before: str, moments: Sequence[Moment]) -> list[str]:
    if not moments:
        return []
    attacked = moments[0].auc is not None
    return [f"{before}S right", "loss on S", *(["held-out right", "attack AUC", "advantage"] if attacked else [])]


def _texts(moment: Moment) -> list[str]:
    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}"

    texts = [share(moment.accuracy), f"{moment.loss:.3g}"]
    if moment.auc is not None and moment.advantage is not None:
        texts += [share(moment.held_out_accuracy), f"{moment.auc:.3f}", f"{moment.advantage:.3f}"]
    return texts
