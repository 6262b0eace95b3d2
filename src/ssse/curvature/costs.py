"""What is to be computed, counted; and how long that takes here, from a few speeds that are measured once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Work:
    """Floating-point operations of matrix products and of factors, bytes moved besides them, and calls into torch."""

    products: float = 0.0
    factors: float = 0.0
    moved: float = 0.0
    calls: float = 0.0

    @property
    def operations(self) -> float:
        """The same on every machine."""
        return self.products + self.factors

    def __add__(self, other: Work) -> Work:
        return Work(
            self.products + other.products,
            self.factors + other.factors,
            self.moved + other.moved,
            self.calls + other.calls,
        )

    def __mul__(self, times: float) -> Work:
        return Work(self.products * times, self.factors * times, self.moved * times, self.calls * times)


@dataclass(frozen=True)
class Speeds:
    """A second's worth of each: operations in products, in factors, bytes moved, calls."""

    products: float
    factors: float
    moved: float
    calls: float

    def seconds(self, work: Work) -> float:
        return (
            work.products / self.products
            + work.factors / self.factors
            + work.moved / self.moved
            + work.calls / self.calls
        )


_SPEEDS: dict[tuple[str, torch.dtype], Speeds] = {}


def speeds_of(device: torch.device, dtype: torch.dtype) -> Speeds:
    """Of rows with themselves, of a medium Cholesky factor, of a pass over what no cache holds, of a tiny product."""
    key = (device.type, dtype)
    if key not in _SPEEDS:
        size = 768 if device.type == "cpu" else 4096
        square = torch.ones(size, size, dtype=dtype, device=device)
        tall = torch.ones(2 * size, size, dtype=dtype, device=device)
        definite = square + size * torch.eye(size, dtype=dtype, device=device)
        long = torch.ones(2**24, dtype=dtype, device=device)
        small = torch.ones(2, 2, dtype=dtype, device=device)
        _SPEEDS[key] = Speeds(
            2 * tall.shape[0] * size**2 / _quickest(lambda: tall.mT @ tall),
            size**3 / 3 / _quickest(lambda: torch.linalg.cholesky_ex(definite)[0]),
            2 * long.numel() * long.element_size() / _quickest(lambda: long.mul_(1.0)),
            1 / _quickest(lambda: small @ small),
        )
    return _SPEEDS[key]


def _quickest(function: Callable[[], torch.Tensor]) -> float:
    """Seconds, of three; reading a number waits for the device."""
    best = math.inf
    for _ in range(3):
        began = time.perf_counter()
        result = function()
        result[(0,) * result.dim()].item()
        best = min(best, time.perf_counter() - began)
    return best


def factor_of(size: float, bytes_each: int) -> Work:
    """A damped square and its factor in one: `DampedGram.factorise`."""
    return Work(factors=size**3 / 3, moved=10 * size**2 * bytes_each, calls=12)


def solves_of(size: float, columns: float, bytes_each: int) -> Work:
    """Both triangular solves with a factor: products where there are many columns, reading the factor where few."""
    return Work(products=2 * size**2 * columns, moved=2 * size**2 * bytes_each, calls=6)
