"""A short training on what stays, after a step: it heals the network, and what the step erased stays erased."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn

from ssse.erasure.health import NOISE, WORSE_ACCURACY, WORSE_LOSS, WORSE_LOSS_SHARE
from ssse.erasure.trained import check_trained
from ssse.errors import InvalidModel, InvalidSetting
from ssse.metrics.looks import Look, look
from ssse.problem.batch_statistics import statistics_layers
from ssse.problem.batches import Batch, given_form, regroup
from ssse.problem.loaders import Data
from ssse.problem.losses import NAMED, LossLike
from ssse.problem.overlap import refuse_forgotten
from ssse.problem.short_training import PASS, Trainee, Training, as_the_first
from ssse.problem.wrappers import copied
from ssse.system.group import current_group
from ssse.system.progress import say
from ssse.verdict import number

# Of the training that the model came from. Measured on a small network of CIFAR-10: at half as large a rate S looks
# forgotten after the repair and comes back in the epochs after it; at twice the rate so few epochs do not heal. What
# comes back in the repair itself is seen by whoever chooses the length of the step.
EPOCH_SHARE = 0.1
RATE_SHARE, RATE_STEPS, LARGEST_RATE_SHARE = 0.25, 350, 0.5

LEFT_OVER = 0.05  # by how much S may be better known than held-out samples of its kind before it is said

UNCHECKED = "Without forget= it was not checked whether forgotten samples are among the retained ones."
_NAMES = {"forget": "S", "held_out": "held-out", "probe": "probe", "retained": "D∖S"}


@dataclass(frozen=True)
class Point:
    """The model after so many epochs of the repair.

    Attributes:
        epoch: None after a training of the user's own.
        training_loss: the mean over the mini-batches of the epoch, in training mode; None before the first.
        losses, accuracies: in eval mode, by what was looked at: "forget" (S), "held_out", "probe", and of the model
            that is handed back "retained" (D∖S). An accuracy is left out where the loss knows no right.
    """

    epoch: int | None
    training_loss: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    accuracies: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Repair:
    """A model, trained a little further on what stays.

    Attributes:
        model: a new module in eval mode; the one passed in is untouched. No curvature fitted before belongs to it.
        verdict: "ok", or "caution" with the reasons.
        curve: from the model as it was passed in to the one handed back; with `train=` these two alone.
        training: how it was trained; None with `train=`. steps: that were taken, None if unknown.
        samples, forgotten: how many were trained on, and how many were made sure not to be among them.
        original: loss and accuracy of the original model on D∖S, where it was passed.
    """

    model: nn.Module
    verdict: Literal["ok", "caution"]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    curve: tuple[Point, ...]
    training: Training | None
    steps: int | None
    samples: int
    forgotten: int | None
    seed: int | None
    seconds: float
    original: Mapping[str, float] | None = None

    @property
    def epochs(self) -> int | None:
        return None if self.training is None else self.training.epochs

    @property
    def learning_rate(self) -> float | None:
        """The largest of the cycle."""
        return None if self.training is None else self.training.learning_rate

    def to_dict(self) -> dict[str, Any]:
        """All but the model, as JSON can hold it."""
        return asdict(replace(self, model=nn.Identity())) | {"model": None}

    def __str__(self) -> str:
        how = "by a training of your own" if self.training is None else _cost(self.training, self.samples)
        first, last = self.curve[0], self.curve[-1]
        lines = [f"repaired: {how}", f"verdict: {self.verdict}", *(f"  because {reason}" for reason in self.reasons)]
        for key, name in _NAMES.items():
            if key in last.losses:
                pairs = [(point.losses.get(key), point.accuracies.get(key)) for point in (first, last)]
                lines.append(f"{name}: " + " → ".join(_seen(*pair) for pair in pairs if pair[0] is not None))
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


def repair(
    model: nn.Module,
    retained: Data,
    loss_fn: LossLike,
    *,
    forget: Data | None,
    training: Training | None = None,
    epochs: int | None = None,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    weight_decay: float | None = None,
    momentum: float | None = None,
    train: Callable[[nn.Module, list[Any]], nn.Module] | None = None,
    held_out: Data | None = None,
    probe: Data | None = None,
    original: nn.Module | None = None,
    seed: int = 0,
    autocast: bool = False,
    label_key: str | None = None,
    progress: bool = True,
) -> Repair:
    """Train an erased network a little further on what stays, and estimate its BatchNorm statistics anew.

        repaired = ssse.repair(erasure.model, retained_loader, "cross_entropy", forget=forget_loader)

    A step far enough to erase what a network remembers also hurts it elsewhere; a few epochs on D∖S heal that, and S
    does not come back. The same epochs without the step forget nothing. Steps of SGD with Nesterov's momentum, the rate
    along one cycle, a fraction of `training`'s epochs and rate; in training mode, on a copy. Frozen parameters stay.

    Args:
        model: as `ssse.erase` gave it, in eval mode.
        retained: batches of D∖S, or of as much of it as there is; held in memory, on the model's device.
        loss_fn: as in `Curvature.fit`.
        forget: batches of S, to refuse them among the retained samples, and to see them along the repair. None: it is
            not checked, and a note says so.
        training: how the model was trained. epochs, learning_rate: of the repair itself; if not given, a tenth of
            training's epochs, one at least, and a quarter of its rate, up to a half where steps are few. batch_size,
            weight_decay, momentum: as training's.
        train: a training of your own, for augmentation or another optimiser: train(model, batches) gets a copy in
            training mode and the retained batches, (x, y) or (x, y, weight), and returns the trained module.
        held_out: samples of the same kind as S that were never trained on: what S should be like.
        probe: samples that should keep working. Both are looked at after every epoch, as S is.
        original: the model before the step, which the repaired one is compared with on D∖S.
        seed: of the order of samples and of what layers draw. autocast: bfloat16 in the layers, faster on a GPU.

    Interrupted at any moment (Ctrl-C), it leaves the model as it was.

    Raises:
        InvalidData: forgotten samples are among the retained ones.
        Diverged: the training did. Nothing is changed.
    """
    started = time.perf_counter()
    own = {
        "epochs": epochs,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "weight_decay": weight_decay,
        "momentum": momentum,
    }
    _settings(training, own, train, 1)  # what is wrong with them is said before the samples are read
    trainee = Trainee.of(model, loss_fn, retained, label_key)
    settings = _settings(training, own, train, trainee.count)
    looked: dict[str, list[Batch]] = {}
    for name, data, what in (
        ("forget", forget, "samples to forget"),
        ("held_out", held_out, "held-out samples"),
        ("probe", probe, "probe samples"),
    ):
        if data is not None:
            looked[name] = trainee.read(data, what)
    if "forget" in looked:
        refuse_forgotten([trainee.samples], looked["forget"])
    reference = None if original is None else trainee.beside(original, loss_fn)

    curve, losses = [_point(trainee, 0, None, looked)], []
    if train is not None:
        trainee = _trained_by(train, model, trainee)
    else:
        assert settings is not None
        say(f"repair: {_cost(settings, trainee.count)}", progress)

        def after(epoch: int, loss: float) -> None:
            losses.append(loss)
            if epoch < settings.epochs:  # at its end it is looked at as it is handed back
                curve.append(_point(trainee, epoch, loss, looked))

        trainee.train(settings, seed=seed, autocast=autocast, after_epoch=after, text="repair", progress=progress)
    repaired = trainee.finish()
    as_the_first(repaired, current_group(trainee.problem.device))
    done = Trainee(repaired, trainee.problem.on(repaired), trainee.samples)
    everything = {**looked, "retained": list(regroup([done.samples], PASS))}
    end = _point(done, len(losses) or None, losses[-1] if losses else None, everything)
    curve.append(end)
    before = None if reference is None else look(reference.problem, everything["retained"])
    reasons = _not_healed(done, end, before) + _left_over(end, looked)
    return Repair(
        model=repaired,
        verdict="caution" if reasons else "ok",
        reasons=tuple(reasons),
        notes=_notes(forget, done),
        curve=tuple(curve),
        training=settings,
        steps=None if settings is None else settings.steps(trainee.count),
        samples=trainee.count,
        forgotten=sum(len(y) for _, y in looked["forget"]) if "forget" in looked else None,
        seed=None if settings is None else seed,
        seconds=time.perf_counter() - started,
        original=None if before is None else _numbers(before),
    )


def repair_training(training: Training | None, samples: int, **own: float | None) -> Training:
    """Of a repair on so many samples: what was given, otherwise its share of the training that the model came from."""
    settings = _settings(training, own, None, samples)
    assert settings is not None  # without a training of the user's own there are settings
    return settings


def _settings(training: Training | None, own: Mapping[str, Any], train: Any, samples: int) -> Training | None:
    """Of the repair: what was given, otherwise a share of what the model was trained with. None: they are `train`'s."""
    given = {name: value for name, value in own.items() if value is not None}
    if train is not None:
        if not callable(train):
            raise InvalidSetting(f"train must be a function of a model and batches, not a {type(train).__name__}.")
        if given or training is not None:
            name = next(iter(given), "training")
            raise InvalidSetting(f"train= is a training of your own, with settings of its own: leave {name}= out.")
        return None
    if training is not None and not isinstance(training, Training):
        raise InvalidSetting(f"training must be an ssse.Training, not a {type(training).__name__}.")
    whole = training or Training()
    epochs = max(1, math.floor(EPOCH_SHARE * whole.epochs + 1e-9))  # 0.1 · 30 is not to be 2
    settings = replace(whole, **{"epochs": epochs, **given})
    if "learning_rate" in given:
        return settings
    few = max(1.0, RATE_STEPS / settings.steps(samples))
    return replace(settings, learning_rate=min(RATE_SHARE * few, LARGEST_RATE_SHARE) * whole.learning_rate)


def _trained_by(train: Callable[[nn.Module, list[Any]], nn.Module], model: nn.Module, trainee: Trainee) -> Trainee:
    batches = [given_form(batch) for batch in regroup([trainee.samples], PASS)]
    with torch.enable_grad():
        trained = train(trainee.given.train(), batches)
    check_trained(model, trained, "train(model, batches)")
    if not all(bool(torch.isfinite(p).all()) for p in trained.parameters()):
        raise InvalidModel("The model that train() returned holds NaN or infinity; its training diverged.")
    given = copied(trained).to(trainee.problem.device).eval()
    return Trainee(given, trainee.problem.on(given), trainee.samples)


def _point(trainee: Trainee, epoch: int | None, loss: float | None, looked: Mapping[str, list[Batch]]) -> Point:
    seen = {name: look(trainee.problem, parts) for name, parts in looked.items()}
    accuracies = {name: one.accuracy for name, one in seen.items() if one.accuracy is not None}
    return Point(epoch, loss, {name: one.loss for name, one in seen.items()}, accuracies)


def _not_healed(trainee: Trainee, end: Point, original: Look | None) -> list[str]:
    """Where the repaired model does not do on D∖S as the original did."""
    if original is None:
        return []
    loss, accuracy = end.losses["retained"], end.accuracies.get("retained")
    advice = "Repair for longer, or take a shorter step."
    if accuracy is not None and original.accuracy is not None and original.accuracy - accuracy > WORSE_ACCURACY:
        return [
            f"The repair has not healed the model: {accuracy:.1%} of the retained samples are right, and under the "
            f"original {original.accuracy:.1%}. {advice}"
        ]
    named = trainee.problem.loss.name == "cross_entropy"
    limit = original.loss + WORSE_LOSS_SHARE * math.log(max(trainee.problem.outputs, 2))
    if loss > (limit if named else WORSE_LOSS * original.loss):
        return [
            f"The repair has not healed the model: its mean loss on the retained samples is {loss:.3g}, the original's "
            f"{original.loss:.3g}. {advice}"
        ]
    return []


def _left_over(end: Point, looked: Mapping[str, list[Batch]]) -> list[str]:
    """S better known than held-out samples of its kind, by more than so few of both show by chance, is memory."""
    own, other = end.accuracies.get("forget"), end.accuracies.get("held_out")
    if own is None or other is None:
        return []
    counts = {name: sum(len(y) for _, y in looked[name]) for name in ("forget", "held_out")}
    spread = math.sqrt(own * (1 - own) / counts["forget"] + other * (1 - other) / counts["held_out"])
    if own - other <= max(LEFT_OVER, NOISE * spread):
        return []
    return [
        f"S is still remembered: {own:.1%} of it are right after the repair, and {other:.1%} of the held-out samples "
        "of its kind. The step was too short, or S came back."
    ]


def _notes(forget: Data | None, done: Trainee) -> tuple[str, ...]:
    notes = []
    if forget is None:
        notes.append(UNCHECKED)
    if done.problem.linear is not None and done.problem.loss.name in NAMED:
        notes.append("The model is linear in θ: ssse.refine goes to the minimum on what stays, a repair only near it.")
    if statistics_layers(done.problem.model):
        notes.append("BatchNorm's statistics are those of the retained samples.")
    notes.append("A curvature fitted before belongs to another θ: fit a new one before the next request.")
    return tuple(notes)


def _numbers(seen: Look) -> dict[str, float]:
    return {"loss": seen.loss} | ({} if seen.accuracy is None else {"accuracy": seen.accuracy})


def _cost(training: Training, samples: int) -> str:
    epochs = "1 epoch" if training.epochs == 1 else f"{training.epochs} epochs"
    return (
        f"{epochs} over {samples:,} samples, {training.steps(samples):,} steps of "
        f"{min(training.batch_size, samples):,}, largest rate {training.learning_rate:.3g}"
    )


def _seen(loss: float | None, accuracy: float | None) -> str:
    return f"loss {number(loss)}" + ("" if accuracy is None else f", {accuracy:.1%} right")
