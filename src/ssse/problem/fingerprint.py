"""The fingerprint that ties a curvature to its model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ssse.errors import ModelMismatch
from ssse.problem.view import ModelView
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
        parameters = view.parameters()
        state = view.model.state_dict(keep_vars=False)
        rest = {name: value for name, value in state.items() if name not in parameters and isinstance(value, Tensor)}
        return cls(
            view.layout.names,
            view.layout.shapes,
            str(view.dtype),
            digest_tensors(parameters),
            digest_tensors(rest),
        )

    def check(self, view: ModelView) -> None:
        """Raise ModelMismatch, naming the first thing that differs."""
        other = Fingerprint.of(view)
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
