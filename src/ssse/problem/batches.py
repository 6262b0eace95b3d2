"""What a data loader yields → (x, y) pairs of tensors, regrouped to the size we want to work in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ssse.errors import InvalidData
from ssse.problem.batch_forms import Inputs, as_inputs, as_label_tensor, parts_of
from ssse.problem.labels import Labels, WeightedLabels, checked_weights, join_labels, label_values, label_weights
from ssse.problem.rereading import refuse_changing_samples

Batch = tuple[Inputs, Labels]


def read_batch(batch: Any, device: torch.device | None) -> Batch:
    """One batch of the user's, checked, as tensors on the device; None leaves them where they are."""
    x, y, weights = parts_of(batch)
    labels = as_label_tensor(y, device)
    inputs = as_inputs(x, device, len(labels) if labels.dim() else 0)
    _check(inputs, labels)
    if weights is None:
        return inputs, labels
    return inputs, WeightedLabels(labels, checked_weights(as_label_tensor(weights, device), len(labels)))


def given_form(batch: Batch) -> Any:
    """As a user has it: (x, y), or (x, y, weight)."""
    x, y = batch
    return (x, y.values, y.weights) if isinstance(y, WeightedLabels) else batch


def without_weights(batch: Batch) -> tuple[Inputs, Tensor]:
    return batch[0], label_values(batch[1])


def named_inputs(x: Inputs) -> dict[str, Tensor]:
    """Every tensor of them, by the name that messages give it."""
    if isinstance(x, tuple):
        return {f"x[{i}]": value for i, value in enumerate(x)}
    return x if isinstance(x, dict) else {"x": x}


def map_inputs(change: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The same inputs with every tensor changed."""
    if isinstance(x, tuple):
        return tuple(change(value) for value in x)
    return {key: change(value) for key, value in x.items()} if isinstance(x, dict) else change(x)


def slice_batch(x: Inputs, part: slice) -> Inputs:
    return map_inputs(lambda value: value[part], x)


def take_samples(batch: Batch, index: Tensor) -> Batch:
    """The samples of a batch whose places are in `index`, in that order."""
    return map_inputs(lambda value: value[index], batch[0]), batch[1][index]


def shuffled_places(count: int, size: int, seed: int, device: torch.device, smallest: int = 1) -> Iterator[Tensor]:
    """Places of mini-batches, endlessly: each once a pass, in an order drawn on the CPU, the same on every device.

    The last batch of a pass may be smaller; with fewer than `smallest` samples it joins the one before.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = [len(part) for part in torch.arange(count).split(size)]
    if len(sizes) > 1 and sizes[-1] < smallest:
        sizes[-2:] = [sizes[-2] + sizes[-1]]
    while True:
        yield from torch.randperm(count, generator=generator).to(device).split(sizes)


def shuffled(samples: Batch, size: int, seed: int) -> Iterator[Batch]:
    """Mini-batches, endlessly, as `shuffled_places` has them."""
    for places in shuffled_places(len(samples[1]), size, seed, samples[1].device):
        yield take_samples(samples, places)


def join_batches(parts: list[Batch]) -> Batch:
    """As one batch.

    Raises:
        InvalidData: they have several shapes, as sequences of several lengths do.
    """
    if len(parts) == 1:
        return parts[0]
    shapes = {shapes_of(x) for x, _ in parts}
    if len(shapes) > 1:
        one, other = sorted(map(dict, shapes), key=str)[:2]
        raise InvalidData(
            f"These samples are needed in one batch, and they have several shapes, {one} and {other} for instance. Pad "
            "all of them to one length."
        )
    entries = [named_inputs(x) for x, _ in parts]
    joined = {key: torch.cat([inputs[key] for inputs in entries]) for key in entries[0]}
    labels, first = join_labels([y for _, y in parts]), parts[0][0]
    if isinstance(first, dict):
        return joined, labels
    return tuple(joined.values()) if isinstance(first, tuple) else joined["x"], labels


def regroup(batches: Iterable[Batch], size: int, *, ragged: bool = True) -> Iterator[Batch]:
    """The same samples in the same order, `size` at a time; the last group may be smaller.

    What follows then cannot depend on how the user's loader happened to cut the data. Sequences that come in batches of
    several lengths are `ragged`: a group ends where the shape changes, so that no group mixes shapes, and is then
    smaller than `size`. The order stays; who sorts by length has larger groups, which are faster.
    """
    held: list[Batch] = []
    count, first, current = 0, None, None
    for x, y in batches:
        form = _form(x, y)
        first, current = first or form, current or form
        if form != first and not (ragged and _alike(form, first)):
            raise InvalidData(
                f"Every batch must hold samples of one shape and dtype; one has {form}, those before it {first}."
            )
        if form != current and held:
            yield join_batches(held)
            held, count = [], 0
        current = form
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
        return sum((*as_label_tensor(parts_of(batch)[1], None).shape, 0)[0] for batch in data)
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


Form = dict[str, tuple[tuple[int, ...], torch.dtype]]


def shapes_of(x: Inputs) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Of one sample: each input's."""
    return tuple((key, tuple(value.shape[1:])) for key, value in named_inputs(x).items())


def _form(x: Inputs, y: Labels) -> Form:
    entries = [*named_inputs(x).items(), ("labels", label_values(y))]
    if (weights := label_weights(y)) is not None:
        entries.append(("weights", weights))
    return {key: (tuple(value.shape[1:]), value.dtype) for key, value in entries}


def _alike(one: Form, other: Form) -> bool:
    """But for the sizes of dimensions: the same entries, of as many dimensions, of the same dtypes."""
    kinds = [{key: (len(shape), dtype) for key, (shape, dtype) in form.items()} for form in (one, other)]
    return kinds[0] == kinds[1]


def _check(x: Inputs, y: Tensor) -> None:
    entries = named_inputs(x)
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
