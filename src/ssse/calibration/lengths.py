"""How long and how damped a network's step should be: a few, each repaired, and what is seen of S and all else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ssse.erasure.health import staying
from ssse.erasure.outcome import Erasure
from ssse.errors import Diverged, InvalidData
from ssse.problem.batches import Batch, regroup, take_samples, without_weights
from ssse.problem.labels import label_values
from ssse.problem.loaders import Data
from ssse.problem.short_training import PASS, Trainee, Training, as_the_first
from ssse.system.group import Group
from ssse.system.progress import bar, say

T = TypeVar("T")

# Of the step over ‖θ‖. Measured on CIFAR-10, of steps that push all margins alike: a network of 19,000 parameters
# forgets half a class, or a tenth of its data, at 0.1 to 0.3, ResNet-20 at 0.3 to 0.6.
LENGTHS = (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.8)
START = 0.2
LOOKED_AT = 1e-4  # the scale at which a direction is found: at 1 a deep network overflows
DAMPINGS = (1.0,)  # times the curvature's: of steps that push all alike a softer one was no better
PUSH = 0.0  # the power of 1−p that a margin of S is pushed by
NEXT_TO_NOTHING = 0.01  # of what is forgotten of a class: with no more of it left, a retrained model hardly knows it
LOOKED = 5_000  # of the retained samples, at which the health of the model is judged


@dataclass(frozen=True)
class Seen:
    """A model, in shares that are right.

    Attributes:
        forgotten: on S. expected: on held-out samples, in the classes and shares that S has; none of a class of which
            D∖S holds nothing, which a model that never saw S would not name.
        retained: on a part of D∖S. staying: on held-out samples of the classes that stay.
        kin: on retained samples of the classes that S has; None where none are left, or no others.
        told: of all pairs of one of S and one held-out sample of its kind, how often S is known with more confidence;
            half, where nothing tells them apart.
    """

    forgotten: float
    expected: float
    retained: float
    staying: float
    kin: float | None = None
    told: float = math.nan


UNSEEN = Seen(math.nan, math.nan, math.nan, math.nan)  # of a model that is none: its repair diverged


@dataclass(frozen=True)
class Trial:
    """One length, after its repair.

    Attributes:
        damping: λ of the step. length: of the step over ‖θ‖; 0 is the original without step or repair. scale: its ε.
        seen: after the repair. before_repair: right after the step, with the statistics as they were.
        shortfall: the gap to a retrained model as these samples tell it: the mean of |forgotten − expected| and of what
            retained, staying and kin samples lost against the original. worn: the most that one of these lost.
    """

    damping: float
    length: float
    scale: float
    seen: Seen
    before_repair: Seen
    shortfall: float
    worn: float

    @classmethod
    def of(cls, damping: float, length: float, scale: float, seen: Seen, before_repair: Seen, original: Seen) -> Trial:
        lost = losses_of(seen, original)
        return cls(damping, length, scale, seen, before_repair, shortfall(seen, original), max(lost))

    @property
    def way(self) -> Literal[1, -1]:
        """Which way a better length may lie: longer where S stands out by more than the model suffers."""
        return 1 if self.seen.forgotten - self.seen.expected > self.worn else -1


@dataclass(frozen=True)
class Searched:
    """The trial that was chosen, its model and its step; all trials, in turn; and the original on the same samples."""

    chosen: Trial
    model: nn.Module
    erasure: Erasure
    trials: tuple[Trial, ...]
    original: Seen

    def as_the_first(self, erasures: Sequence[Erasure], group: Group) -> Searched:
        """Processes that work together have all searched; they go on with what the first one has found."""
        place = next(i for i, erasure in enumerate(erasures) if erasure is self.erasure)
        told = group.from_first(lambda: (self.chosen, self.trials, self.original, place))
        chosen, trials, original, place = told
        as_the_first(self.model, group)
        return Searched(chosen, self.model, erasures[place], trials, original)


def search_lengths(
    trainee: Trainee,
    splits: Splits,
    erasures: Sequence[Erasure],
    settings: Training,
    *,
    lengths: Sequence[float] = LENGTHS,
    start: float = START,
    seed: int = 0,
    autocast: bool = False,
    progress: bool = True,
) -> Searched:
    """Repair the model at a few lengths of one step, then of the others, and keep what has the smallest shortfall.

    Where the repair of one diverges, a shorter one is tried; it is never kept.

    Args:
        trainee: the original and what stays. erasures: the same request with one damping each. lengths: ascending.

    Raises:
        Diverged: there is none whose repair did not.
    """
    original = splits.look(trainee)

    with bar("lengths", None, progress) as advance:

        def attempt(erasure: Erasure, length: float) -> tuple[Trial, tuple[nn.Module | None, Erasure]]:
            damping, scale = erasure.diagnostics.damping, length / erasure.reach
            advance(text=f"step of {length:g} ‖θ‖, λ = {damping:.3g}, then repair")
            candidate = _on(trainee, erasure.at(scale))
            before = splits.look(candidate)
            try:
                candidate.train(settings, seed=seed, autocast=autocast, text="repair", progress=False)
            except Diverged:
                advance(1)
                return Trial(damping, length, scale, UNSEEN, before, math.inf, 0.0), (None, erasure)
            done = _on(trainee, candidate.finish())
            seen = splits.look(done)
            advance(1)
            return Trial.of(damping, length, scale, seen, before, original), (done.given, erasure)

        most = len(lengths) * len(erasures)
        say(f"at most {most} steps, mostly half of them, {settings.epochs} epochs of repair for each", progress)
        ways = [partial(attempt, erasure) for erasure in erasures]
        (chosen, (model, erasure)), trials = walk_in_turn(ways, lengths, start)
    if model is None:
        tried = ", ".join(f"{length:g}" for length in sorted({trial.length for trial in trials}))
        raise Diverged(
            f"The repair diverged after every step that was tried (lengths {tried}); nothing was changed. Use a "
            f"smaller learning_rate than {settings.learning_rate:g}, or shorter lengths."
        )
    return Searched(chosen, model, erasure, trials, original)


def walk_in_turn(
    ways: Sequence[Callable[[float], tuple[Trial, T]]], lengths: Sequence[float], start: float
) -> tuple[tuple[Trial, T], tuple[Trial, ...]]:
    """`walk` along one way after the other, from the second on from the length that was best before; then one more
    length along the best, between its own and the next the way that a better one may lie.
    """
    best, trials = walk(ways[0], lengths, start)
    along = ways[0]
    for attempt in ways[1:]:
        if best[0].shortfall == 0:
            break
        found, more = walk(attempt, lengths, best[0].length)
        trials += more
        if found[0].shortfall < best[0].shortfall:
            best, along = found, attempt
    beside = lengths.index(best[0].length) + best[0].way
    if 0 <= beside < len(lengths) and best[0].shortfall > 0:
        found = along(math.sqrt(best[0].length * lengths[beside]))
        trials += (found[0],)
        if found[0].shortfall < best[0].shortfall:
            best = found
    return best, trials


def walk(
    attempt: Callable[[float], tuple[Trial, T]], lengths: Sequence[float], start: float
) -> tuple[tuple[Trial, T], tuple[Trial, ...]]:
    """The attempt with the smallest shortfall, and all trials by length: from `start` on, until it no longer falls.

    Longer first where S stands out more than the model suffers, otherwise shorter; where that was no better than the
    start, the other way. Nothing is better than no shortfall. lengths: ascending.
    """
    first = lengths.index(min(lengths, key=lambda one: abs(math.log(one / start))))
    best = attempt(lengths[first])
    trials, way = {first: best[0]}, best[0].way
    for step in (way, -way):
        if way != step and best[0].length != lengths[first]:
            break  # it was better the first way
        place = first + step
        while 0 <= place < len(lengths) and best[0].shortfall > 0:
            found = attempt(lengths[place])
            trials[place] = found[0]
            if found[0].shortfall >= best[0].shortfall:
                break
            best, place = found, place + step
    return best, tuple(trials[one] for one in sorted(trials))


def _on(trainee: Trainee, model: nn.Module) -> Trainee:
    """The same samples and another model of the same form, which is taken over."""
    return replace(trainee, given=model, problem=trainee.problem.on(model))


@dataclass(frozen=True)
class Splits:
    """What every trial is looked at on.

    Attributes:
        weights: of the held-out samples, as S has their classes. known: of which samples D∖S has the class: all of
            them, where the retained samples are not all of D∖S. A class of which next to nothing stays is gone.
        stays: of which samples the class counts as one that stays.
    """

    forgotten: list[Batch]
    held: list[Batch]
    retained: list[Batch]
    weights: np.ndarray
    known: np.ndarray
    stays: np.ndarray
    kin: list[Batch]

    @classmethod
    def of(cls, trainee: Trainee, forget: Data, held_out: Data, n: int) -> Splits:
        forgotten = trainee.read(forget, "samples to forget")
        held = trainee.read(held_out, "held-out samples")
        labels, own, left = _classes(held), _classes(forgotten), _classes([trainee.samples])
        complete, gone = len(left) >= n - len(own), []
        classes, counts = np.unique(own, return_counts=True)
        weights = np.zeros(len(labels))
        for one, count in zip(classes, counts, strict=True):
            same = labels == one
            if not same.any():
                raise InvalidData(
                    f"No held-out sample is of class {one}, of which {count:,} are to be forgotten: what they "
                    "should be like is not known. Add some to held_out."
                )
            weights[same] = count / len(own) / same.sum()
            if complete and (left == one).sum() <= NEXT_TO_NOTHING * count:
                gone.append(one)
        x, y = trainee.samples
        order = torch.randperm(trainee.count, generator=torch.Generator().manual_seed(0)).to(trainee.problem.device)
        alike = torch.isin(_indices(label_values(y))[order], torch.as_tensor(classes, device=order.device))

        def part(places: Tensor) -> list[Batch]:
            taken = take_samples((x, y), places[:LOOKED])
            return [without_weights(one) for one in regroup([taken], PASS)] if len(places) else []

        kin = order[:0] if bool(alike.all()) else order[alike]  # what all are is not counted twice
        known = ~np.isin(labels, gone)
        return cls(forgotten, held, part(order), weights, known, staying(labels, own, n), part(kin))

    def look(self, trainee: Trainee) -> Seen:
        (held, theirs), (own, ours) = _hits(trainee, self.held), _hits(trainee, self.forgotten)
        return Seen(
            forgotten=float(own.mean()),
            expected=min(float((self.weights * self.known) @ held), 1.0),  # weights may sum to just above one
            retained=float(_hits(trainee, self.retained)[0].mean()),
            staying=float(held[self.stays].mean()),
            kin=float(_hits(trainee, self.kin)[0].mean()) if self.kin else None,
            told=_told(ours, theirs, self.weights),
        )

    def error(self, seen: Seen) -> float:
        """Of forgotten − expected: standard error by the number of samples on both sides."""
        weights = self.weights * self.known
        share = seen.expected / max(float(weights.sum()), 1e-300)  # right, of the held-out samples that count
        own, other = seen.forgotten * (1 - seen.forgotten), max(share * (1 - share), 0.0)
        return math.sqrt(own / self.count + other * float((weights**2).sum()))

    def error_told(self, seen: Seen) -> float:
        """Of `told`: Hanley and McNeil's (1982) standard error, with as many held-out samples as their weights tell."""
        area, ours, theirs = seen.told, self.count, 1 / float((self.weights**2).sum())
        one, other = area / (2 - area), 2 * area**2 / (1 + area)
        spread = area * (1 - area) + (ours - 1) * (one - area**2) + (theirs - 1) * (other - area**2)
        return math.sqrt(max(spread, 0.0) / (ours * theirs))

    @property
    def gone(self) -> bool:
        """Whether nothing of S's kind stays."""
        return not self.known[self.weights > 0].any()

    @property
    def count(self) -> int:
        return sum(len(y) for _, y in self.forgotten)


@torch.no_grad()
def _hits(trainee: Trainee, parts: list[Batch]) -> tuple[np.ndarray, np.ndarray]:
    """Which samples are right, and the margins of their labels; none is right whose outputs are NaN or infinite."""
    right, margins = [], []
    for x, y in parts:
        z, label = trainee.problem.forward(x)[0].double(), _indices(label_values(y))
        right.append(((z.argmax(1) == label) & torch.isfinite(z).all(1)).double())
        own = z.gather(1, label[:, None])[:, 0]
        margins.append(own - z.scatter(1, label[:, None], -math.inf).logsumexp(1))
    return torch.cat(right).cpu().numpy(), torch.cat(margins).cpu().numpy()


def _told(own: np.ndarray, others: np.ndarray, weights: np.ndarray) -> float:
    """The share of pairs in which the first is larger, equal ones by halves; the others weighted. NaN of any NaN."""
    if np.isnan(own).any() or np.isnan(others).any():
        return math.nan
    order = np.argsort(others)
    below = np.concatenate([[0.0], np.cumsum(weights[order])])
    places = [np.searchsorted(others[order], own, side=side) for side in ("left", "right")]
    return min(float(np.mean([below[place] for place in places])), 1.0)


def _classes(parts: list[Batch]) -> np.ndarray:
    return torch.cat([_indices(label_values(y)) for _, y in parts]).cpu().numpy()


def _indices(y: Tensor) -> Tensor:
    """Of class probabilities the likeliest."""
    return y.argmax(1) if y.is_floating_point() else y


def shortfall(seen: Seen, original: Seen) -> float:
    """The gap to a retrained model, as far as it can be told without one: see `Trial`."""
    lost = losses_of(seen, original)
    return (abs(seen.forgotten - seen.expected) + sum(lost)) / (1 + len(lost))


def losses_of(seen: Seen, original: Seen) -> list[float]:
    """What retained, staying and, where there are any, kin samples lost against the original; no gain counts."""
    pairs = [(original.retained, seen.retained), (original.staying, seen.staying), (original.kin, seen.kin)]
    return [max(0.0, before - after) for before, after in pairs if before is not None and after is not None]
