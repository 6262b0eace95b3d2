"""`Eraser`: the curvature of a fitted scikit-learn estimator, and samples taken out of it."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline

from ssse.erasure.bounds import check_override
from ssse.erasure.policy import Policy, check_policy
from ssse.errors import InvalidData, InvalidSetting, ModelMismatch, NotPositiveDefinite, PrecisionLost, Refused
from ssse.sklearn.adapters import ClassCounts, ErasureRequest
from ssse.sklearn.assessment import (
    SHORT_SWING,
    TOO_LONG,
    assess_refined,
    assess_step,
    broken_bounds,
    distance_between,
    refuse_request,
    refuse_step,
)
from ssse.sklearn.bases import BaseEstimator, MetaEstimatorMixin
from ssse.sklearn.checks import check_counts, check_weighted, sample_weights, too_long
from ssse.sklearn.composition import Composition, decompose
from ssse.sklearn.coordinates import Coordinates
from ssse.sklearn.fingerprint import digest_linear_models
from ssse.sklearn.measures import StepMeasures, measure_step
from ssse.sklearn.outcome import TOO_FAR, Outcome
from ssse.sklearn.quadratic import Erased
from ssse.sklearn.refining import Remaining, refined
from ssse.sklearn.sums import TrainingSums, check_memory, finish, mean_losses, measure_reach, take_in
from ssse.system.progress import bar
from ssse.system.threads import threads_for

if TYPE_CHECKING:
    import os


class Eraser(MetaEstimatorMixin, BaseEstimator):
    """Takes samples out of a fitted estimator as a refit without them would, from sums over its training data.

        eraser = Eraser(model).fit(X, y)             # once; X and y are not kept
        model = eraser.erase(X_forget, y_forget)     # a new estimator of the same class, each time

    Parameters:
        estimator: fitted; it stays as it is.
        policy: "rebase": every request starts from the model that the last one made; of the models before, their
            curvature is kept, less what was erased. "joint": the first model and the sums at it stay, so that any order
            and grouping of the same requests gives the same model as one request.
        memory_budget: bytes, or a text like "8GiB"; 60 % of what is free if not given.
        progress: a bar on stderr while `fit` reads.

    Attributes:
        estimator_: the current estimator. n_erased_: samples erased so far.
        distance_bound_: its coefficients are no further than this from those at the minimum over the remaining samples;
            infinite where nothing is proved. leverage_: the largest leverage of the last request.
        outcome_: the last request's `Outcome`; there is none before the first.
    """

    def __init__(
        self,
        estimator: Any,
        *,
        policy: Policy = "rebase",
        memory_budget: float | str | None = None,
        progress: bool = False,
    ):
        self.estimator = estimator
        self.policy: Policy = policy
        self.memory_budget = memory_budget
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Eraser:
        """Learn the curvature: two passes over exactly the data that the estimator was fitted to."""
        check_policy(self.policy)
        transformers, composition = decompose(self.estimator)
        x, columns, weights = self._read(transformers, composition, X, y, sample_weight)
        sums = self._begin(composition, x, sample_weight is not None)
        with bar("curvature", 2 * x.shape[0], self.progress) as advance:
            sums = finish(take_in(sums, composition, x, columns, weights, advance, in_place=True), composition)
            sums = measure_reach(sums, x, advance)
        self._set(copy.deepcopy(self.estimator), sums)
        self.in_parts_: bool = False
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Eraser:
        """Learn from one part of the data after another; for data that does not fit into memory.

        As after `fit`, but for a wider `distance_bound_`: its constants need a second look at the samples.
        """
        check_policy(self.policy)
        if hasattr(self, "sums_") and self.sums_.erased:
            raise InvalidSetting("Samples were erased already, so more of the training data cannot be taken in.")
        transformers, composition = decompose(self.estimator)
        x, columns, weights = self._read(transformers, composition, X, y, sample_weight)
        sums = getattr(self, "sums_", None)
        if sums is None or not self.in_parts_:
            sums = self._begin(composition, x, sample_weight is not None)
        elif digest_linear_models(composition) != self.model_digest_:
            raise ModelMismatch("The estimator was changed since the first part of the data was taken in.")
        elif sums.weighted != (sample_weight is not None):
            raise InvalidData("sample_weight must be given with every part of the data, or with none.")
        with bar("curvature", x.shape[0], self.progress) as advance:
            sums = take_in(sums, composition, x, columns, weights, advance, in_place=False)
        self._set(copy.deepcopy(self.estimator), sums)
        self.in_parts_ = True
        return self

    def erase(self, X: Any, y: Any, sample_weight: Any = None, *, override: Collection[str] = ()) -> Any:
        """A new fitted estimator without these samples, given exactly as they were fitted.

        Args:
            override: bounds (`ssse.BOUNDS`) that are not to refuse the step: "share", more of the samples at once than
                one step is for; "stationarity", an estimator far from its minimum. A step that is too long stays
                refused, or is shortened.

        Raises:
            Refused: the samples cannot have been in the training data, or the rest does not determine a model.
                Nothing is changed then, nor by any other error.
        """
        started = time.perf_counter()
        overridden = check_override(override)
        sums = self._finished_sums()
        transformers, composition = self._current_composition()
        x, columns, weights = self._read(transformers, composition, X, y, sample_weight)
        check_weighted(sums, sample_weight)
        with threads_for(sums.operations(len(weights))):
            whole, new, outcome = self._answer(sums, transformers, composition, x, columns, weights, overridden)
        outcome = replace(outcome, seconds=time.perf_counter() - started)
        self._set(whole, new, outcome)
        return copy.deepcopy(whole)  # what its owner does to it must not change what the next request starts from

    def refine(self, X: Any, y: Any, sample_weight: Any = None, *, steps: int = 5, curvature: bool = True) -> Any:
        """A new estimator nearer to the refit, where the samples that remain can still be read.

        Each step is one pass over them: the gradient as it is, times the curvature that is held, corrected by what the
        steps before did to the gradient. A step that would raise the objective is shortened, which takes two passes
        more; so no call ends above where it began, and from any place enough of them arrive at the refit. It ends early
        when only rounding is left. What is left of the gradient is then measured and no longer bounded.

        Args:
            steps: at most so many.
            curvature: also take the curvature anew, when steps become slow and at the end, unless scores are so far out
                that there is none. Each time costs as much as `fit`; it makes `distance_bound_` far smaller, and the
                requests to come start as from a fresh fit.
        Raises:
            InvalidData: this is not what remains, by the number of samples of each class.
        """
        if not isinstance(steps, int) or steps < 1:
            raise InvalidSetting(f"steps must be a whole number from 1 on, not {steps!r}.")
        sums = self._finished_sums()
        transformers, composition = self._current_composition()
        x, columns, weights = self._read(transformers, composition, X, y, sample_weight)
        check_weighted(sums, sample_weight)
        for adapter, class_counts, codes in zip(composition.adapters, sums.class_counts, columns, strict=True):
            if not np.array_equal(adapter.count_classes(codes, weights).counts, class_counts.counts):
                raise InvalidData(
                    f"These are {x.shape[0]} samples, and {sums.samples} remain, in other classes perhaps: give "
                    "exactly the training data without what was erased."
                )
        with bar("refining", (steps + 1 + 2 * curvature) * x.shape[0], self.progress) as advance:
            new = refined(sums, Remaining(composition, x, columns, weights, advance), steps, curvature=curvature)
        written = [
            adapter.write(quadratics, new.coordinates, class_counts)
            for adapter, quadratics, class_counts in zip(
                composition.adapters, new.quadratics, new.class_counts, strict=True
            )
        ]
        inner = composition.write([estimator for estimator, _ in written], new.class_counts)
        whole = _whole(self.estimator_, inner)
        lost = math.hypot(*(lost for _, lost in written))
        self._set(
            whole,
            new,
            assess_refined(self.policy, getattr(self, "outcome_", None), sums, new, lost, transformers is not None),
        )
        return copy.deepcopy(whole)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """The sums, the curvature and the policy as a folder of safetensors; no pickle. The model is not in it."""
        from ssse.sklearn.store import StoredEraser, save

        stored = StoredEraser(self._fitted(), self.policy, self.in_parts_, self.distance_bound_, self.leverage_)
        save(folder, self.estimator_, stored)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], estimator: Any, *, verify: bool = True) -> Eraser:
        """As it was saved, for the estimator as it was then (`estimator_`)."""
        from ssse.sklearn.store import load

        stored = load(folder, estimator, verify)
        eraser = cls(estimator, policy=stored.policy)
        eraser._set(estimator, stored.sums)
        eraser.in_parts_ = stored.in_parts
        eraser.distance_bound_, eraser.leverage_ = stored.distance_bound, stored.leverage
        return eraser

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "sums_")

    def _answer(
        self,
        sums: TrainingSums,
        transformers: Pipeline | None,
        composition: Composition,
        x: Any,
        columns: list[np.ndarray],
        weights: np.ndarray,
        overridden: Collection[str],
    ) -> tuple[Any, TrainingSums, Outcome]:
        """The new estimator, its sums, and what is to be said of them; or a refusal."""
        after = [
            before - adapter.count_classes(codes, weights)
            for before, adapter, codes in zip(sums.class_counts, composition.adapters, columns, strict=True)
        ]
        check_counts(composition, sums, after, len(weights))
        broken = broken_bounds(sums, len(weights))
        refusal = refuse_request(self.policy, sums, len(weights), *broken.values()).breaking(broken)
        if "stationarity" in broken and "stationarity" not in overridden:
            raise Refused(refusal)
        design = sums.coordinates.design(x)
        if why := too_long(sums, design):
            raise Refused(refuse_request(self.policy, sums, len(weights), why))
        try:
            new, inner, measures, lost = self._erase(sums, composition, design, columns, weights, after)
        except (NotPositiveDefinite, PrecisionLost) as error:
            raise Refused(refuse_step(self.policy, sums, len(weights), str(error))) from error
        whole = _whole(self.estimator_, inner)
        moved, size = distance_between(sums, new), float(np.linalg.norm(sums.parameters()))
        # Of a model that had little to learn θ is short, and a step may be longer that hardly moves scores.
        small = measures.swing is not None and measures.swing <= SHORT_SWING
        if moved is not None and not (new.exact or small) and (whole_step := moved / measures.share) > TOO_FAR * size:
            raise Refused(
                refuse_request(self.policy, sums, len(weights), TOO_LONG.format(whole_step / max(size, 1e-300)))
            )
        if broken.keys() - overridden:  # after what no override takes, which says more
            raise Refused(refusal)
        outcome = assess_step(
            self.policy, sums, new, moved, new.distance + lost, measures, transformers is not None, doubted=sums.doubted
        )
        new = replace(new, doubted=sums.doubted or outcome.verdict != "ok")
        if moved is not None:
            losses = mean_losses(sums, new, composition, design, columns, weights)
            outcome = replace(outcome, loss_before=losses[0], loss_after=losses[1])
        if broken:
            outcome = outcome.overriding(broken)
            new = replace(new, doubted=True)
        return whole, new, outcome

    def _erase(
        self,
        sums: TrainingSums,
        composition: Composition,
        design: np.ndarray,
        columns: list[np.ndarray],
        weights: np.ndarray,
        after: list[ClassCounts],
    ) -> tuple[TrainingSums, Any, StepMeasures, float]:
        """The new sums, the new estimator, what the step says, and the distance that the estimator's dtype costs."""
        staying = composition.staying(after)
        joint, steps = self.policy == "joint", dict[int, list[Erased]]()
        quadratics, class_counts, estimators, lost = [], [], [], 0.0
        dropped = sums.dropped
        for i, adapter in enumerate(composition.adapters):
            if staying[i]:
                request = ErasureRequest(design, columns[i], weights, after[i], sums.coordinates, joint)
                steps[i] = adapter.erase(sums.quadratics[i], request)
        every = [one for group in steps.values() for one in group]
        # The squared hinge has no such rule, nor have classes that vanish; shares of a joint step would depend on how
        # requests are grouped.
        regular = len(every) == len(sums.all_quadratics) and all(one.bounded for one in every)
        measures = measure_step(every, sums, design, shorten=regular and not joint)
        for i, adapter in enumerate(composition.adapters):
            if i not in steps:
                estimators.append(None)
                continue
            if measures.share < 1:
                steps[i] = [one.shortened(measures.share, sums.coordinates) for one in steps[i]]
            quadratics.append(tuple(one.quadratic for one in steps[i]))
            estimator, rounding = adapter.write(quadratics[-1], sums.coordinates, after[i])
            estimators.append(estimator)
            lost = math.hypot(lost, rounding)
            class_counts.append(after[i][after[i].present] if composition.classifies else after[i])
            dropped = dropped or any(
                not quadratic.bound.known and quadratic.loss.bounded for quadratic in quadratics[-1]
            )
        new = replace(
            sums,
            class_counts=tuple(class_counts),
            quadratics=tuple(quadratics),
            erased=sums.erased + len(weights),
            strained=measures.strain,
            dropped=dropped,
        )
        return new, composition.write(estimators, after), measures, lost

    def _current_composition(self) -> tuple[Pipeline | None, Composition]:
        """Of `estimator_`, which must be as the last request left it: its sums are of that."""
        transformers, composition = decompose(self.estimator_)
        if digest_linear_models(composition) != self.model_digest_:
            raise ModelMismatch(
                "The estimator was changed since its sums were taken: settings of the objective, classes and "
                "coefficients must stay as they were. Fit the eraser again."
            )
        return transformers, composition

    def _read(
        self, transformers: Pipeline | None, composition: Composition, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, list[np.ndarray], np.ndarray]:
        if transformers is None and getattr(X, "ndim", 2) == 1 and not sparse.issparse(X):  # texts come as a list
            raise InvalidData("X must be a table, one row for each sample: X[[5]], table.loc[[5]], not X[5].")
        if transformers is not None:
            try:
                X = transformers.transform(X)
            except (ValueError, TypeError) as error:
                raise InvalidData(f"X: {error}") from error
        x = composition.inputs(X)
        if y is None:
            raise InvalidData("y is needed: which labels the samples had is part of what is forgotten.")
        columns = composition.columns(y)
        for codes in columns:
            if len(codes) != x.shape[0]:
                raise InvalidData(f"X has {x.shape[0]} samples and y {len(codes)}.")
        return x, columns, sample_weights(sample_weight, x.shape[0])

    def _begin(self, composition: Composition, x: Any, weighted: bool) -> TrainingSums:
        coordinates = Coordinates.choose(x, intercept=composition.intercept, shiftable=composition.shiftable)
        check_memory(
            [size for adapter in composition.adapters for size in adapter.sizes(coordinates.width)], self.memory_budget
        )
        return TrainingSums.empty(composition, coordinates, weighted)

    def _fitted(self) -> TrainingSums:
        if not hasattr(self, "sums_"):
            raise NotFittedError("This Eraser is not fitted: call fit with the training data first.")
        return self.sums_

    def _finished_sums(self) -> TrainingSums:
        self._fitted()
        check_policy(self.policy)
        if not self.sums_.finished:
            self._set(self.estimator_, finish(self.sums_, decompose(self.estimator_)[1]))
        return self.sums_

    def _set(self, estimator: Any, sums: TrainingSums, outcome: Outcome | None = None) -> None:
        self.estimator_: Any = estimator
        self.sums_: TrainingSums = sums
        self.model_digest_: str = digest_linear_models(decompose(estimator)[1])
        if outcome is not None:
            self.outcome_ = outcome
        else:
            self.__dict__.pop("outcome_", None)
        self.n_erased_: int = sums.erased
        self.distance_bound_: float = sums.distance if outcome is None else outcome.distance_bound
        self.leverage_: float | None = 0.0 if outcome is None else outcome.leverage_max


def _whole(old: Any, last: Any) -> Any:
    """In a pipeline, the same transformers, copied, before the new estimator."""
    if not isinstance(old, Pipeline):
        return last
    new = copy.copy(old)
    new.steps = [*copy.deepcopy(old.steps[:-1]), (old.steps[-1][0], last)]
    return new
