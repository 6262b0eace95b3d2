"""What an eraser keeps: sums over the samples of every linear model in the estimator, and no sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssse.errors import (
    DoesNotFit,
    InvalidData,
    NotPositiveDefinite,
    PrecisionLost,
)
from ssse.sklearn.adapters import Classifier, Tally
from ssse.sklearn.composition import Tree
from ssse.sklearn.coordinates import Frame
from ssse.sklearn.quadratic import Head
from ssse.system.memory import human_bytes, memory_budget

HELPS = 0.9  # of the gradient left after a step of refining; above, only rounding is left
CHUNK = 1 << 22  # numbers of X̃ that are made dense at a time

Advance = Callable[[int], None]


@dataclass(frozen=True)
class State:
    """Of each leaf of the tree: how many samples of each class, and its heads.

    Attributes:
        shift: how far, by one Newton step, the estimator was from the minimum when the curvature was taken.
        weighted: whether samples came with weights. dropped: whether a class of a softmax model has vanished.
    """

    frame: Frame
    tallies: tuple[Tally, ...]
    heads: tuple[tuple[Head, ...], ...]
    erased: int = 0
    shift: float = 0.0
    weighted: bool = False
    dropped: bool = False

    @classmethod
    def empty(cls, tree: Tree, frame: Frame, weighted: bool) -> State:
        nobody = np.zeros(0, dtype=np.int64)
        return cls(
            frame,
            tuple(leaf.tally(nobody, np.zeros(0)) for leaf in tree.leaves),
            tuple(tuple(leaf.heads(frame)) for leaf in tree.leaves),
            weighted=weighted,
        )

    @property
    def all_heads(self) -> list[Head]:
        return [head for heads in self.heads for head in heads]

    @property
    def finished(self) -> bool:
        return all(head.inverse is not None for head in self.all_heads)

    @property
    def samples(self) -> int:
        return self.tallies[0].samples

    @property
    def distance(self) -> float:
        """From the minimum over the samples that are left, at most."""
        return math.hypot(*(head.bound.distance for head in self.all_heads)) if self.finished else math.inf

    @property
    def gradient(self) -> float:
        return math.hypot(*(head.bound.gradient for head in self.all_heads))

    @property
    def correction(self) -> float:
        """That shift, over the length of the parameters."""
        size = float(np.linalg.norm(self.parameters()))
        return self.shift / size if size else (math.inf if self.shift else 0.0)

    @property
    def exact(self) -> bool:
        return all(head.loss.exact for head in self.all_heads)

    @property
    def known_gradient(self) -> bool:
        """Whether the gradient at the anchor was measured, and nothing of it is only bounded."""
        return all(head.bound.residual == 0 for head in self.all_heads)

    @property
    def bounded(self) -> bool:
        return all(head.loss.bounded for head in self.all_heads)

    def parameters(self, anchor: bool = False) -> np.ndarray:
        """All coefficients and intercepts, as scikit-learn counts them; or those that the sums are of."""
        found = []
        for head in self.all_heads:
            at = head.anchor if anchor else head.theta
            coef, intercept = self.frame.outside(head.loss.wide(at, self.frame.width))
            found += [coef.ravel(), intercept]
        return np.concatenate(found)

    def with_heads(self, heads: Sequence[Sequence[Head]]) -> State:
        return replace(self, heads=tuple(tuple(group) for group in heads))


def check_memory(sizes: Sequence[tuple[int, int]], asked: float | str | None) -> None:
    """Before the data is read. `sizes`: of each head, its parameters in one column, and its groups."""
    needed = sum(8 * size**2 * (groups + 3) for size, groups in sizes)  # sums, inverse, what a request makes of both
    if needed > (free := memory_budget(None, asked)):
        raise DoesNotFit(
            f"The curvature of this model needs {human_bytes(needed)}, of {human_bytes(free)} that are free: it grows "
            "with the square of features times classes. Reduce the features (PCA, SelectKBest), take one model for "
            "each class (OneVsRestClassifier), raise memory_budget, or refit from where it stands (warm_start=True, "
            'solver="newton-cg"), which is the same step from the data itself.'
        )


def take_in(
    state: State,
    tree: Tree,
    x: Any,
    columns: list[np.ndarray],
    weights: np.ndarray,
    advance: Advance,
    *,
    in_place: bool,
) -> State:
    """The sums of these samples beside those there are; X is read once, for all heads."""
    sums = [[head.sums for head in heads] for heads in state.heads]
    for part, design in designs(state, x):
        for i, leaf in enumerate(tree.leaves):
            for j, labels in enumerate(leaf.labels(columns[i][part], weights[part])):
                found = state.heads[i][j].measure(design, labels)
                sums[i][j] = sums[i][j].take_in(found) if in_place else sums[i][j] + found
        advance(len(design))
    heads = [
        [replace(head, sums=one, inverse=None) for head, one in zip(group, ours, strict=True)]
        for group, ours in zip(state.heads, sums, strict=True)
    ]
    tallies = tuple(
        tally + leaf.tally(codes, weights)
        for tally, leaf, codes in zip(state.tallies, tree.leaves, columns, strict=True)
    )
    return replace(state.with_heads(heads), tallies=tallies)


def finish(state: State, tree: Tree) -> State:
    """With every curvature factorised."""
    heads = []
    for leaf, group, tally in zip(tree.leaves, state.heads, state.tallies, strict=True):
        lacking = np.flatnonzero(tally.counts == 0)
        if len(lacking) and isinstance(leaf, Classifier):
            lacked = leaf.classes.tolist()[lacking[0]]
            raise InvalidData(
                f"There is no sample of class {lacked!r}, so this is not the data that {leaf.name} was fitted to."
            )
        try:
            heads.append(
                [
                    head.finished(state.frame, weights, tally.samples)
                    for head, weights in zip(group, leaf.weights(tally), strict=True)
                ]
            )
        except (NotPositiveDefinite, PrecisionLost) as error:
            raise type(error)(
                f"{leaf.name}: {error}. scikit-learn then takes one of many solutions, which is not supported: drop "
                "features that follow from others (OneHotEncoder(drop='first')), or use a penalty."
            ) from error
    new = state.with_heads(heads)
    return replace(new, shift=_shift(new))


def _shift(state: State) -> float:
    """How long the step to the minimum is, by the gradient where the model is."""
    total = 0.0
    for head in state.all_heads:
        step = head.loss.wide(head.solve(head.gradient()), state.frame.width)
        total = math.hypot(total, *(float(np.linalg.norm(part)) for part in state.frame.outside(step)))
    return total


def look_again(state: State, x: Any, advance: Advance) -> State:
    """A second pass, for the constants of the bound."""
    reach = {
        (i, j): 0.0
        for i, heads in enumerate(state.heads)
        for j, head in enumerate(heads)
        if head.loss.bounded and not head.loss.exact
    }
    for _, design in designs(state, x) if reach else ():
        for i, j in reach:
            head = state.heads[i][j]
            assert head.inverse is not None
            reach[i, j] = max(reach[i, j], head.loss.reach(design, head.inverse))
        advance(len(design))
    return state.with_heads(
        [
            [head.reaching(reach[i, j]) if (i, j) in reach else head for j, head in enumerate(heads)]
            for i, heads in enumerate(state.heads)
        ]
    )


def anew(state: State, tree: Tree, x: Any, columns: list[np.ndarray], weights: np.ndarray, advance: Advance) -> State:
    """All sums and constants over these samples, where the model is."""
    empty = state.with_heads([[head.emptied() for head in heads] for heads in state.heads])
    empty = replace(empty, tallies=tuple(tally - tally for tally in state.tallies), dropped=False)
    new = finish(take_in(empty, tree, x, columns, weights, advance, in_place=True), tree)
    return look_again(new, x, advance)


def with_slopes_measured(
    state: State, tree: Tree, x: Any, columns: list[np.ndarray], weights: np.ndarray, advance: Advance
) -> State:
    """One pass over the samples that are left: the gradient where the model is, as it is and not as it was foreseen."""
    slopes = [[[np.zeros_like(part) for part in head.sums.slopes] for head in heads] for heads in state.heads]
    for part, design in designs(state, x):
        for i, leaf in enumerate(tree.leaves):
            for j, labels in enumerate(leaf.labels(columns[i][part], weights[part])):
                for total, found in zip(slopes[i][j], state.heads[i][j].slopes_at(design, labels), strict=True):
                    total += found
        advance(len(design))
    return state.with_heads(
        [
            [head.anchored(tuple(ours)) for head, ours in zip(heads, group, strict=True)]
            for heads, group in zip(state.heads, slopes, strict=True)
        ]
    )


def refined(
    state: State,
    tree: Tree,
    x: Any,
    columns: list[np.ndarray],
    weights: np.ndarray,
    steps: int,
    advance: Advance,
    *,
    curvature: bool,
) -> State:
    """Steps with the gradient over these samples; with a new curvature where the old one is too far away to help."""
    samples = (x, columns, weights, advance)
    best, fresh = with_slopes_measured(state, tree, *samples), False
    for _ in range(steps):
        stepped = best.with_heads([[head.stepped(best.frame) for head in heads] for heads in best.heads])
        found = with_slopes_measured(stepped, tree, *samples)
        better, slow = _left(found) < _left(best), _left(found) > _left(best) / 2
        best = found if better else best
        if slow and (fresh or not curvature):
            break
        fresh = slow
        if slow:
            best = anew(best, tree, *samples)
    best = replace(best, shift=_shift(best))
    return anew(best, tree, *samples) if curvature and not fresh else best


def _left(state: State) -> float:
    return math.hypot(*(head.bound.left for head in state.all_heads))


def mean_losses(
    old: State, new: State, tree: Tree, design: np.ndarray, columns: list[np.ndarray], weights: np.ndarray
) -> tuple[float, float]:
    """On these samples under the two models, summed over outputs."""
    totals = [0.0, 0.0]
    for leaf, codes, before, after in zip(tree.leaves, columns, old.heads, new.heads, strict=True):
        for labels, one, other in zip(leaf.labels(codes, weights), before, after, strict=True):
            totals[0] += one.mean_loss(design, labels, one.theta)
            totals[1] += one.mean_loss(design, labels, other.theta)
    return totals[0], totals[1]


def designs(state: State, x: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """X̃ in parts, long enough that a product of one outweighs adding its result up."""
    step = max(CHUNK // state.frame.width, 2 * state.frame.width, 1)
    for first in range(0, x.shape[0], step):
        part = slice(first, min(first + step, x.shape[0]))
        yield part, state.frame.design(x[part])
