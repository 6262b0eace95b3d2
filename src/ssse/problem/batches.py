"""What a data loader yields → (x, y) pairs of tensors, regrouped to the size we want to work in."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ssse.errors import InvalidData
from ssse.problem.rereading import refuse_changing_samples

Inputs = Tensor | dict[str, Tensor]
Batch = tuple[Inputs, Tensor]

LABEL_KEYS = ("y", "label", "labels", "target", "targets")


def read_batch(batch: Any, device: torch.device | None) -> Batch:
    """One batch of the user's, checked, as tensors on the device; None leaves them where they are."""
    x, y = _parts(batch)
    inputs = {key: _tensor(value, device) for key, value in x.items()} if isinstance(x, Mapping) else _tensor(x, device)
    labels = _tensor(y, device)
    _check(inputs, labels)
    return inputs, labels


def _parts(batch: Any) -> tuple[Any, Any]:
    """A pair (x, y), or a mapping with the labels under a usual name."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    if not isinstance(batch, Mapping):
        size = f" of length {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        raise InvalidData(
            f"A batch must be a pair (x, y) or a mapping with labels, not a {type(batch).__name__}{size}."
        )
    labels = [key for key in LABEL_KEYS if key in batch]
    if len(labels) != 1:
        raise InvalidData(
            f"A mapping batch needs its labels under one of {', '.join(LABEL_KEYS)}; its keys are "
            f"{', '.join(map(str, batch))}."
        )
    rest = {key: value for key, value in batch.items() if key != labels[0]}
    if not rest:
        raise InvalidData(f"A mapping batch needs inputs besides its labels; its only key is {labels[0]}.")
    return (next(iter(rest.values())) if len(rest) == 1 else rest), batch[labels[0]]


def slice_batch(x: Inputs, part: slice) -> Inputs:
    return {key: value[part] for key, value in x.items()} if isinstance(x, dict) else x[part]


def take_samples(batch: Batch, index: Tensor) -> Batch:
    """The samples of a batch whose places are in `index`, in that order."""
    x, y = batch
    return ({key: value[index] for key, value in x.items()} if isinstance(x, dict) else x[index]), y[index]


def shuffled(samples: Batch, size: int, seed: int) -> Iterator[Batch]:
    """Mini-batches, endlessly: every sample once a pass, in an order drawn on the CPU, the same on every device.

    The last batch of a pass may be smaller.
    """
    generator, device = torch.Generator().manual_seed(seed), samples[1].device
    while True:
        for part in torch.randperm(len(samples[1]), generator=generator).split(size):
            yield take_samples(samples, part.to(device))


def join_batches(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    labels = torch.cat([y for _, y in parts])
    mappings = [x for x, _ in parts if isinstance(x, dict)]
    if mappings:
        return {key: torch.cat([x[key] for x in mappings]) for key in mappings[0]}, labels
    return torch.cat([x for x, _ in parts if isinstance(x, Tensor)]), labels


def regroup(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """The same samples in the same order, `size` at a time; the last group may be smaller.

    What follows then cannot depend on how the user's loader happened to cut the data.
    """
    held: list[Batch] = []
    count, first = 0, None
    for x, y in batches:
        form = _form(x, y)
        first = first or form
        if form != first:
            raise InvalidData(
                f"Every batch must hold samples of one shape and dtype; one has {form}, those before it {first}."
            )
        start, length = 0, len(y)
        while count + length - start >= size:
            stop = start + size - count
            yield join_batches([*held, (slice_batch(x, slice(start, stop)), y[start:stop])])
            held, count, start = [], 0, stop
        if start < length:
            held.append((slice_batch(x, slice(start, length)), y[start:]))
            count += length - start
    if held:
        yield join_batches(held)


class Peeked:
    """Data of which the first batches were read already: they come first, and nothing is read twice."""

    def __init__(self, data: Any, seen: list[Any], rest: Iterator[Any]):
        self._data, self._batches = data, itertools.chain(seen, rest)

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def __getattr__(self, name: str) -> Any:
        """Its sampler and data set, for those who count samples."""
        return getattr(self._data, name)


def peek(data: Iterable[Any], device: torch.device | None) -> tuple[Batch | None, Iterable[Any]]:
    """The first batch that is not empty, None where there is none; and the data, to be read once, that batch in it."""
    stream, seen, first = iter(data), [], None
    for raw in stream:
        seen.append(raw)
        batch = read_batch(raw, device)
        if len(batch[1]):
            first = batch
            break
    return first, data if isinstance(data, (list, tuple)) else Peeked(data, seen, stream)


def count_samples(data: Any) -> int | None:
    """How many samples an iterable of batches holds, where that can be known without reading it all."""
    for holder in ("sampler", "dataset"):  # a sampler may take a part of the data set only
        held = getattr(data, holder, None)
        if held is not None and hasattr(held, "__len__"):
            return len(held)
    if isinstance(data, (list, tuple)):
        return sum((*_tensor(_parts(batch)[1], None).shape, 0)[0] for batch in data)
    return None


def check_repeatable(data: Any, confirmed: int | None = None) -> None:
    """Refuse loaders that drop samples, see only a share of them, or return another value for the same index.

    `confirmed`: how many samples the user expects; a share is then meant, and counted.
    """
    batch_sampler = getattr(data, "batch_sampler", None)
    samplers = [getattr(data, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    if getattr(data, "drop_last", False) or getattr(batch_sampler, "drop_last", False):
        raise InvalidData(
            "The data loader has drop_last=True, so some samples would never be seen. Use drop_last=False."
        )
    if getattr(getattr(data, "sampler", None), "replacement", False):
        raise InvalidData(
            "The data loader draws samples with replacement, so some would count twice and others never be seen. Use a "
            "sampler that passes over each sample once."
        )
    for sampler in samplers:
        processes = getattr(sampler, "num_replicas", None) or getattr(sampler, "num_processes", None) or 1
        if processes > 1:
            _check_share(data, sampler, processes, confirmed)
            break
    refuse_changing_samples(data)


def _check_share(data: Any, sampler: Any, processes: int, confirmed: int | None) -> None:
    """Of samplers for training on several devices. What a last round lacks they drop, or fill up with repeats."""
    name, length = type(sampler).__name__, count_samples(data)
    if confirmed is None:
        raise InvalidData(
            f"The data loader's {name} deals the samples out to {processes} processes, and this one sees "
            f"{'a part' if length is None else length} of them; counted as all, every step would be {processes} times "
            "too long. Use a loader without it. Only a curvature may be of a part: fit each with its own n=, "
            "and join them with Curvature.merge."
        )
    if getattr(sampler, "drop_last", False) and len(getattr(data, "dataset", ())) % processes:
        raise InvalidData(f"The data loader's {name} has drop_last=True, so some samples are in no part. Use False.")


def _form(x: Inputs, y: Tensor) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    entries = x if isinstance(x, dict) else {"x": x}
    return {key: (tuple(value.shape[1:]), value.dtype) for key, value in [*entries.items(), ("labels", y)]}


def _tensor(value: Any, device: torch.device | None) -> Tensor:
    try:
        return torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidData(f"A batch holds a {type(value).__name__}, which is not a tensor or array.") from error


def _check(x: Inputs, y: Tensor) -> None:
    entries = x if isinstance(x, dict) else {"x": x}
    if y.dim() == 0 or any(value.dim() == 0 for value in entries.values()):
        raise InvalidData("A batch must have the samples along its first dimension; found a scalar.")
    lengths = {key: len(value) for key, value in entries.items()}
    if any(length != len(y) for length in lengths.values()):
        raise InvalidData(f"Inputs and labels differ in length: {lengths} inputs, {len(y)} labels.")
    for key, value in [*entries.items(), ("labels", y)]:
        # A finite sum has finite terms, and costs one pass; only an infinite one is looked into.
        if value.is_floating_point() and not (bool(value.sum().isfinite()) or bool(value.isfinite().all())):
            finite = torch.isfinite(value).reshape(len(value), -1).all(1)
            raise InvalidData(
                f"{key}: sample {int((~finite).nonzero()[0])} of a batch of {len(y)} holds NaN or infinity. "
                "Remove or repair it first."
            )
