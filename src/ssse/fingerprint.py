"""Digests of tensors, and the fingerprint that ties a curvature to its model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssse.errors import ModelMismatch
from ssse.problem import Problem


def digest_tensor(tensor: Tensor) -> str:
    """SHA-256 of dtype, shape and values; independent of how and where the tensor is stored."""
    hasher = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.numel():
        hasher.update(bytes_of(tensor.reshape(1, -1)).data)
    return hasher.hexdigest()


def bytes_of(tensor: Tensor) -> np.ndarray:
    """The raw values, one line of bytes per entry of the first dimension; without a copy where possible."""
    lines = tensor.detach().cpu().reshape(len(tensor), -1)
    if lines.stride() != (lines.shape[1], 1):  # a dimension of size one may have any stride
        lines = torch.empty(lines.shape, dtype=lines.dtype).copy_(lines)
    return lines.view(torch.uint8).numpy()


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        hasher.update(f"{name}={digest_tensor(tensors[name])};".encode())
    return hasher.hexdigest()


@dataclass(frozen=True)
class Fingerprint:
    """Which model: the parameters in θ, their values, and everything else in its state."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    theta: str
    rest: str

    @classmethod
    def of(cls, problem: Problem) -> Fingerprint:
        parameters = problem.parameters()
        state = problem.model.state_dict(keep_vars=False)
        rest = {name: value for name, value in state.items() if name not in parameters and isinstance(value, Tensor)}
        return cls(
            problem.layout.names,
            problem.layout.shapes,
            str(problem.dtype),
            digest_tensors(parameters),
            digest_tensors(rest),
        )

    def check(self, problem: Problem) -> None:
        """Raise ModelMismatch, naming the first thing that differs."""
        other = Fingerprint.of(problem)
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
