"""Linear models: train to the minimum, fit the curvatures once, answer every request by every method."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssse import baselines
from ssse.curvature.curvature import Curvature
from ssse.metrics.gaps import divergences, mean_gap
from ssse.paper import linear, study
from ssse.paper.cache import engine, key_of
from ssse.paper.linear import Linear, as_model
from ssse.paper.settings import Settings
from ssse.paper.steps import erase
from ssse.paper.study import WIDE, Curve, Method, Removal, Scanner, accuracies, timed
from ssse.rows.kinds import RowChoice
from ssse.system.digests import digest_tensors

PAPER = Method("paper", "SSSE, empirical, over D (the paper)", "paper")
PAPER_GAP = Method("paper", "the same at the ε of its smallest gap", "paper", "gap")
PAPER_OUT = Method("empirical_out", "SSSE, empirical, over D∖S", "past the paper")
HESSIAN = Method("hessian", "influence update, Hessian over D", "paper", 1.0)
MORE = Method("default", "expected rows over D∖S, damping nλ, ε = 1", "past the paper", 1.0)
EXACT = Method("exact", "the same with damping (n−k)λ, ε = 1", "ours", 1.0)
SEARCHED = Method("exact", "the same, ε by the loss along the step", "ours", "searched", "S, 4,096 of D")
ASCENT = Method("ascent", "gradient ascent, one step", "baseline", "gap")
DIAGONAL = Method("diagonal", "SSSE with the diagonal alone", "baseline", "gap")
SCRUBBING = Method("scrubbing", "scrubbing (Fisher noise)", "baseline", "gap")
TUNING = Method("tuning", "fine-tuning, one epoch", "baseline", 1.0, "S and D")
DAMPENING = Method("dampening", "selective synaptic dampening", "baseline", 1.0)
METHODS = (
    PAPER,
    PAPER_GAP,
    PAPER_OUT,
    HESSIAN,
    MORE,
    EXACT,
    SEARCHED,
    ASCENT,
    DIAGONAL,
    SCRUBBING,
    TUNING,
    DAMPENING,
)
NOISE = np.geomspace(1e-5, 1e1, 37)
BATCH = 4096


@dataclass(frozen=True)
class Tabular:
    """Features and labels, as the experiment trains on them, in float64."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    names: tuple[str, ...]
    title: str

    @cached_property
    def digest(self) -> str:
        return digest_tensors({name: getattr(self, name) for name in ("x", "y", "test_x", "test_y")})

    @property
    def member(self) -> Tensor:
        """(n, kinds): whether a sample has the attribute, or is of the class."""
        return self._member(self.y)

    @property
    def test_member(self) -> Tensor:
        return self._member(self.test_y)

    def _member(self, y: Tensor) -> Tensor:
        return y > 0 if y.dim() == 2 else y[:, None] == torch.arange(len(self.names))


@dataclass(frozen=True)
class Fits:
    """How each curvature is held: settings of `Curvature.fit`.

    Attributes:
        empirical: the paper's. expected: ours, from S alone. exact: without any blocks that cut what belongs together;
            where that is `matrix_free`, a request reads the training data.
    """

    empirical: Mapping[str, Any]
    expected: Mapping[str, Any]
    exact: Mapping[str, Any]


@dataclass
class Convex:
    settings: Settings
    data: Tabular
    loss: str
    decay: float
    fits: Fits
    fitted: dict[str, Curvature] = field(default_factory=dict)

    @cached_property
    def solver(self) -> Linear:
        return Linear.of(self.data.x, self.data.y, self.decay)

    @cached_property
    def trained(self) -> dict[str, Any]:
        return self._train(torch.arange(len(self.data.x)))

    @cached_property
    def model(self) -> nn.Module:
        return as_model(self.trained["weights"])

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        return _batches(self.data.x, self.data.y)

    def splits(self, removal: Removal) -> dict[str, list[tuple[Tensor, Tensor]]]:
        x, y, same = self.data.test_x, self.data.test_y, removal.same
        return {
            "retained": _batches(self.data.x[removal.keep], self.data.y[removal.keep]),
            "forgotten": _batches(self.data.x[removal.forget], self.data.y[removal.forget]),
            "test_other": _batches(x[~same], y[~same]),
            "test_same": _batches(x[same], y[same]),
        }

    def retrained(self, removal: Removal) -> tuple[nn.Module, float]:
        """From scratch, without S; and the seconds that it took."""
        trained = self._train(removal.keep)
        return as_model(trained["weights"]), float(trained["seconds"])

    def curvature(self, name: str, rows: RowChoice, **how: Any) -> Curvature:
        """Fitted when first asked for, and kept."""
        if name not in self.fitted:
            key = key_of(f"curvature-{name}", self._base, rows, {k: str(v) for k, v in how.items()})

            def fit() -> Curvature:
                return Curvature.fit(
                    self.model,
                    self.loss,
                    self.batches,
                    weight_decay=self.decay,
                    rows=rows,
                    progress=self.settings.show_progress,
                    **how,
                )

            # A matrix-free curvature holds no numbers of its own: it is made anew, and bound to the data.
            free = how.get("structure") == "matrix_free"
            self.fitted[name] = fit() if free else self.settings.cache.curvature(key, fit)
        return self.fitted[name]

    def answer(self, removal: Removal) -> dict[str, Any]:
        """Every method on one request, as numbers."""
        key = key_of("request", self._base, *removal.parts, *_SOURCES)
        return self.settings.cache.numbers(key, lambda: self._answer(removal))

    def floor(self, removal: Removal) -> dict[str, float]:
        """How far two models are apart that differ in the seed alone, trained as the paper does, by SGD."""
        key = key_of("floor", self._base, *removal.parts, *_SOURCES)
        return self.settings.cache.numbers(key, lambda: self._floor(removal))

    @cached_property
    def _base(self) -> list[Any]:
        fits = [sorted((k, str(v)) for k, v in fit.items()) for fit in vars(self.fits).values()]
        return [self.data.digest, self.loss, self.decay, self.settings.seed, fits, engine()]

    def _train(self, keep: Tensor) -> dict[str, Any]:
        key = key_of("linear", self.data.digest, self.decay, keep, linear)

        def make() -> dict[str, Tensor]:
            trained = self.solver.train(keep)
            return {"weights": trained.weights, "seconds": torch.tensor(trained.seconds, dtype=torch.float64)}

        return self.settings.cache.tensors(key, make)

    def _answer(self, removal: Removal) -> dict[str, Any]:
        retrained, retrain_seconds = self.retrained(removal)
        scanner = Scanner(self.model, self.loss, self.splits(removal), retrained)
        curves = self._ours(removal, scanner) | self._baselines(scanner)
        return scanner.describe(removal, len(self.data.x), retrain_seconds) | {"curves": curves}

    def _ours(self, removal: Removal, scanner: Scanner) -> dict[str, Curve]:
        forget, n, k = scanner.splits["forgotten"], len(self.data.x), len(removal.forget)
        curves: dict[str, Curve] = {}
        empirical = self.curvature("empirical", "empirical", **self.fits.empirical)
        for name, leave_out in (("paper", False), ("empirical_out", True)):
            step, seconds = timed(
                lambda how=leave_out: erase(self.model, empirical, self.loss, forget, leave_out=how, progress=False)
            )
            curves[name] = scanner.curve(step.direction, seconds)
        expected = self.curvature("expected", "expected", **self.fits.expected)
        # What training minimised without S has the damping (n−k)w; here nw stays, to see what that is worth.
        more = expected.with_damping(expected.damping * n / (n - k))
        step, seconds = timed(lambda: erase(self.model, more, self.loss, forget, progress=False))
        curves["default"] = scanner.curve(step.direction, seconds)

        exact = self.curvature("exact", "expected", **self.fits.exact)
        data = self.batches if self.fits.exact["structure"] == "matrix_free" else None
        step, seconds = timed(
            lambda: erase(self.model, exact, self.loss, forget, leave_out=False, data=data, progress=False)
        )
        curves["hessian"] = scanner.curve(step.direction, seconds)
        step, seconds = timed(lambda: erase(self.model, exact, self.loss, forget, data=data, progress=False))
        (searched, why), searching = timed(lambda: scanner.search(exact, step.direction, self.batches))
        scales = np.union1d(study.SCALES, [searched])
        curves["exact"] = scanner.curve(
            step.direction,
            seconds,
            scales,
            searched=searched,
            search_seconds=searching,
            why=why,
            verdict=step.diagnostics.verdict,
        )
        return curves

    def _baselines(self, scanner: Scanner) -> dict[str, Curve]:
        forget, model, loss = scanner.splits["forgotten"], self.model, self.loss
        squares = self.curvature("diagonal-empirical", "empirical", structure="diagonal")
        fisher = self.curvature("diagonal-expected", "expected", structure="diagonal")
        ascent = baselines.gradient_ascent(model, None, loss, forget, weight_decay=self.decay)
        diagonal = baselines.diagonal_ssse(model, squares, loss, forget, leave_out=False)
        noise = baselines.scrubbing(model, fisher, loss, forget, noise=1.0, rule="paper", seed=self.settings.seed)
        tuned = baselines.fine_tuning(
            model, None, loss, forget, data=self.batches, learning_rate=0.5, weight_decay=self.decay, progress=False
        )
        damped = baselines.selective_synaptic_dampening(model, squares, loss, forget)
        assert ascent.direction is not None
        assert diagonal.direction is not None
        return {
            "ascent": scanner.curve(ascent.direction, ascent.seconds, WIDE),
            "diagonal": scanner.curve(diagonal.direction, diagonal.seconds, WIDE),
            "scrubbing": scanner.curve(noise.step, noise.seconds, NOISE),
            "tuning": scanner.point(tuned.step, tuned.seconds),
            "dampening": scanner.point(damped.step, damped.seconds),
        }

    def _floor(self, removal: Removal) -> dict[str, float]:
        two = [self.solver.train_sgd(removal.keep, self.settings.seed + seed) for seed in (1, 2)]
        splits = self.splits(removal)
        models = [as_model(one.weights) for one in two]
        first, second = (accuracies(model, splits) for model in models)
        x, y = self.data.x[removal.forget], self.data.y[removal.forget]
        logits = [(x @ one.weights.mT).numpy() for one in two]
        return {
            "gap": 100 * mean_gap(first, second),
            "divergence": float(divergences(logits[0], [logits[1]], y.numpy()).mean()),
            "gradient_norm": float(np.mean([one.gradient_norm for one in two])),
            "seconds": float(np.mean([one.seconds for one in two])),
        }


def _batches(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


_SOURCES = (sys.modules[__name__], study, linear)  # they decide the numbers, too
