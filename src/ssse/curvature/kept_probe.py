"""A probe that is kept with a curvature: samples that every request is to look at, handed over once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData
from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import Batch, check_repeatable, map_inputs, named_inputs, read_batch, without_weights
from ssse.problem.sample_digests import digest_samples

PREFIX = "probe."


@dataclass(frozen=True)
class KeptProbe:
    """Inputs and labels as they were given, in the memory of the machine; nothing of what a model says of them."""

    batches: tuple[tuple[Inputs, Tensor], ...]

    @classmethod
    def of(cls, batches: Iterable[Any]) -> KeptProbe:
        check_repeatable(batches)
        read = (without_weights(read_batch(raw, torch.device("cpu"))) for raw in batches)
        kept = tuple((map_inputs(_own, x), _own(y)) for x, y in read if len(y))
        if not kept:
            raise InvalidData("The probe is empty; there is nothing to keep.")
        return cls(kept)

    @property
    def count(self) -> int:
        return sum(len(y) for _, y in self.batches)

    def holds(self, batches: Iterable[Batch]) -> int:
        """How many of these samples are among its own."""
        own = np.concatenate([digest_samples(batch, b"") for batch in self.batches])
        return sum(int(np.isin(digest_samples(without_weights(batch), b""), own).sum()) for batch in batches)

    def tensors(self) -> dict[str, Tensor]:
        """As they are stored: `forms` says what they were."""
        out = {}
        for place, (x, y) in enumerate(self.batches):
            out[f"{PREFIX}{place}.y"] = y
            out |= {f"{PREFIX}{place}.{i}": value for i, value in enumerate(named_inputs(x).values())}
        return out

    def forms(self) -> list[list[str] | int | None]:
        """Of each batch: the names of its inputs, how many there are without names, None for one tensor."""
        return [list(x) if isinstance(x, dict) else len(x) if isinstance(x, tuple) else None for x, _ in self.batches]

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], forms: list[list[str] | int | None]) -> KeptProbe:
        """Takes its own out of the tensors."""
        out: list[tuple[Inputs, Tensor]] = []
        for place, form in enumerate(forms):
            count = len(form) if isinstance(form, list) else form or 1
            values = [tensors.pop(f"{PREFIX}{place}.{i}") for i in range(count)]
            x: Inputs = values[0] if form is None else tuple(values)
            if isinstance(form, list):
                x = dict(zip(form, values, strict=True))
            out.append((x, tensors.pop(f"{PREFIX}{place}.y")))
        return cls(tuple(out))


def _own(value: Tensor) -> Tensor:
    """A copy: what the user goes on to do with theirs is not seen here."""
    return value.detach().clone().contiguous()
