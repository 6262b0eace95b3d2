"""The ways that are taken for one model, each found at its first use."""

from __future__ import annotations

import contextlib

from torch import Tensor

from ssse.errors import InvalidModel, InvalidSetting
from ssse.problem.batch_forms import Inputs
from ssse.problem.derivatives.layerwise import CONVOLUTIONS, Layerwise
from ssse.problem.derivatives.loop import Loop
from ssse.problem.derivatives.products import Backward, DoubleBackward, ForwardMode
from ssse.problem.derivatives.trial import (
    Pairs,
    Passed,
    check_rows,
    check_times,
    check_transposed,
    first_that_agrees,
)
from ssse.problem.derivatives.vectorised import Vectorised
from ssse.problem.derivatives.ways import CoresOf, ProductWay, RowWay, TransposedWay, own_parameters
from ssse.problem.view import ModelView

ROW_WAYS: tuple[RowWay, ...] = (
    Vectorised(), Layerwise(), Vectorised(portable=True), Layerwise(portable=True),
    Vectorised(patient=True), Vectorised(portable=True, patient=True), Loop(), Loop(portable=True),
)  # fmt: skip
ROW_WAYS_OF_CONVOLUTIONS: tuple[RowWay, ...] = (ROW_WAYS[1], ROW_WAYS[0], *ROW_WAYS[2:])
PRODUCT_WAYS: tuple[ProductWay, ...] = (
    ForwardMode(), ForwardMode(portable=True), DoubleBackward(), DoubleBackward(portable=True),
)  # fmt: skip
TRANSPOSED_WAYS: tuple[TransposedWay, ...] = (Backward(), Backward(portable=True))


class Derivatives:
    """Rows and products of one model at any θ, by ways that were tried.

    A way is chosen at its first use, on two of the samples then at hand: the first that runs and agrees with a loop
    of single backward passes. A fit asks for all it will need before its long pass. Nothing of the samples is kept.

    Attributes:
        row_way, product_way, transposed_way: None until they are chosen. passed: what was tried before them.
    """

    def __init__(self) -> None:
        self.row_way: RowWay | None = None
        self.product_way: ProductWay | None = None
        self.transposed_way: TransposedWay | None = None
        self.passed: tuple[Passed, ...] = ()

    def rows(self, view: ModelView, x: Inputs, cores: CoresOf) -> tuple[Tensor, Tensor]:
        """VJ of every sample, shape (n, r, d), with V = cores(z, places), and the outputs z, shape (n, c)."""
        return self.choose_rows(view, x).rows(view, x, cores)

    def times(self, view: ModelView, x: Inputs, v: Tensor) -> Tensor:
        """Jv, shape (n, c)."""
        return self.choose_products(view, x).times(view, x, v)

    def transposed_times(self, view: ModelView, x: Inputs, u: Tensor) -> Tensor:
        """Jᵀu, shape (d,), for u of shape (n, c)."""
        return self.choose_transposed(view, x).transposed_times(view, x, u)

    @property
    def in_words(self) -> str:
        """How rows are taken, where it is not the usual way; empty where it is."""
        return "" if self.row_way in (None, ROW_WAYS[0]) else str(self.row_way)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen after something else was tried, and why not that."""
        notes = []
        for what, way, ways in (
            ("Rows", self.row_way, ROW_WAYS),
            ("Products with the Jacobian", self.product_way, PRODUCT_WAYS),
        ):
            first = next((passed for passed in self.passed if passed.way is ways[0]), None)
            if way is not None and first is not None:
                notes.append(f"{what} are taken {'by ' * isinstance(way, ProductWay)}{way}; not {first}.")
        return tuple(notes)

    def choose(self, view: ModelView, x: Inputs) -> None:
        """All of them, against the same backward passes; products may have none, which is told when they are asked."""
        pairs = Pairs(view, x)
        self.choose_rows(view, x, pairs)
        self.choose_transposed(view, x, pairs)
        with contextlib.suppress(InvalidSetting):
            self.choose_products(view, x, pairs)

    def choose_rows(self, view: ModelView, x: Inputs, pairs: Pairs | None = None) -> RowWay:
        if self.row_way is None:
            way, passed = first_that_agrees(view, x, row_ways(view), check_rows, pairs)
            if way is None:
                raise _no_gradient(view, passed[-1])
            self.row_way, self.passed = way, self.passed + passed
        return self.row_way

    def choose_products(self, view: ModelView, x: Inputs, pairs: Pairs | None = None) -> ProductWay:
        if self.product_way is None:
            way, passed = first_that_agrees(view, x, PRODUCT_WAYS, check_times, pairs)
            if way is None:
                raise _no_products(passed[-1])
            self.product_way, self.passed = way, self.passed + passed
        return self.product_way

    def choose_transposed(self, view: ModelView, x: Inputs, pairs: Pairs | None = None) -> TransposedWay:
        if self.transposed_way is None:
            way, passed = first_that_agrees(view, x, TRANSPOSED_WAYS, check_transposed, pairs)
            if way is None:
                raise _no_gradient(view, passed[-1])
            self.transposed_way, self.passed = way, self.passed + passed
        return self.transposed_way


def row_ways(view: ModelView) -> tuple[RowWay, ...]:
    """In the order in which they are tried.

    Mapped over samples, a convolution's gradient is one with a group for each sample. On a GPU that takes several times
    as long as the product of each sample's windows with the gradient of its outputs.
    """
    wanted = {id(p) for p in own_parameters(view)}
    convolutions = (m for m in view.model.modules() if isinstance(m, CONVOLUTIONS))
    slow = view.device.type == "cuda" and any(id(p) in wanted for m in convolutions for p in m.parameters())
    return ROW_WAYS_OF_CONVOLUTIONS if slow else ROW_WAYS


def _no_gradient(view: ModelView, last: Passed) -> InvalidModel:
    where = last.layer or f"the model ({type(view.model).__name__})"
    return InvalidModel(
        f"The gradient of a single sample cannot be taken: {where} ends with “{last.why}”. Its forward must be "
        "differentiable by torch.autograd with a batch of one; repair it, or leave the parameters in and before it "
        "out of θ with parameters=[…]."
    )


def _no_products(last: Passed) -> InvalidSetting:
    where = f"{last.layer} has" if last.layer else "one of its layers has"
    return InvalidSetting(
        f"structure='matrix_free' needs derivatives along a direction, and {where} neither a forward-mode derivative "
        f"nor one of its backward pass (“{last.why}”). Use structure='lowrank' or 'dense', which need rows alone."
    )
