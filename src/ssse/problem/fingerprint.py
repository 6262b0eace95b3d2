"""The fingerprint that ties a curvature to its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from ssse.errors import ModelMismatch
from ssse.problem.view import ModelView
from ssse.problem.wrappers import aliases
from ssse.system.digests import digest_tensors


@dataclass(frozen=True)
class Fingerprint:
    """Which model: the parameters in θ, their values, and everything else in its state."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    theta: str
    rest: str

    @classmethod
    def of(cls, view: ModelView) -> Fingerprint:
        """By its names and values without wrappers, in its own dtypes."""
        return cls._of(view, view.working.inner, {name: name for name in view.layout.names})

    @classmethod
    def _of(cls, view: ModelView, model: nn.Module, called: Mapping[str, str]) -> Fingerprint:
        """`called`: the parameters in θ → their names in `model`."""
        parameters = {called[name]: value for name, value in view.stored_parameters().items()}
        state = model.state_dict(keep_vars=False)
        rest = {name: value for name, value in state.items() if name not in parameters and isinstance(value, Tensor)}
        return cls(
            tuple(parameters),
            view.layout.shapes,
            ", ".join(sorted({str(value.dtype) for value in parameters.values()})),
            digest_tensors(parameters),
            digest_tensors(rest),
        )

    def check(self, view: ModelView) -> None:
        """Raise ModelMismatch, naming the first thing that differs."""
        other = Fingerprint.of(view)
        given = view.working.given
        outer = {name: outer for outer, name in aliases(given, view.working.inner).items()}
        if self.names != other.names and self.names == tuple(outer[name] for name in view.layout.names):
            other = Fingerprint._of(view, given, outer)  # of a version that kept the names that wrappers give
        if self.names != other.names or self.shapes != other.shapes:
            mine = dict(zip(self.names, self.shapes, strict=True))
            theirs = dict(zip(other.names, other.shapes, strict=True))
            lines = [
                f"{name}: {mine.get(name, 'absent')} in the curvature, {theirs.get(name, 'absent')} in the model"
                for name in [*mine, *(n for n in theirs if n not in mine)]
                if mine.get(name) != theirs.get(name)
            ]
            raise ModelMismatch("The model's parameters are not the curvature's: " + "; ".join(lines[:5]) + ".")
        if self.dtype != other.dtype:
            raise ModelMismatch(f"The curvature was fitted in {self.dtype}; the model is in {other.dtype}.")
        if self.theta != other.theta:
            raise ModelMismatch(
                "The model's parameter values are not those the curvature was fitted at. Pass the model exactly as "
                "it was then; after an erasure, continue with erasure.model and erasure.curvature."
            )
        if self.rest != other.rest:
            raise ModelMismatch(
                "The model's frozen parameters or buffers (BatchNorm statistics?) are not those the curvature was "
                "fitted with."
            )
