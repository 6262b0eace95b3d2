"""Sequences of several lengths: no group mixes shapes, and a sample is the same one however it is padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.errors import InvalidData, InvalidModel
from ssse.problem.batches import Batch, join_batches, regroup
from ssse.problem.labels import label_values
from ssse.problem.sample_digests import digest_inputs, digest_samples
from ssse.rows.kinds import uniforms_of_samples
from tests.support.refusals import refused

LENGTHS = (3, 5, 2, 5, 4, 1, 5, 3, 4, 2, 5, 4)


class Bag(nn.Module):
    """A text classifier: the mean over a sequence's own tokens, through a hidden layer."""

    def __init__(self, masked: bool = True, positions: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.hidden, self.head = nn.Embedding(20, 4), nn.Linear(4, 5), nn.Linear(5, 3)
        self.place = nn.Embedding(20, 4) if positions else None
        self.masked = masked
        self.double().eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        tokens = self.embed(input_ids)
        if self.place is not None:
            tokens = tokens + self.place(torch.arange(input_ids.shape[1]))
        own = (attention_mask if self.masked else torch.ones_like(attention_mask)).to(tokens.dtype).unsqueeze(2)
        return self.head(torch.tanh(self.hidden((tokens.tanh() * own).sum(1) / own.sum(1))))


def sequences() -> list[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randint(1, 20, (length,), generator=generator), int(torch.randint(3, (), generator=generator)))
        for length in LENGTHS
    ]


def padded(
    chosen: list[tuple[Tensor, int]], to: int | None = None, left: bool = False, fill: int = 0
) -> dict[str, Tensor]:
    """One batch, as a tokenizer pads it: to its longest, or to a length."""
    width = to or max(len(tokens) for tokens, _ in chosen)
    ids, mask = torch.full((len(chosen), width), fill), torch.zeros(len(chosen), width, dtype=torch.long)
    for i, (tokens, _) in enumerate(chosen):
        place = slice(width - len(tokens), None) if left else slice(0, len(tokens))
        ids[i, place], mask[i, place] = tokens, 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([label for _, label in chosen])}


def cut(sizes: list[int], **how: Any) -> list[dict[str, Tensor]]:
    rest, batches = sequences(), []
    for size in sizes:
        batches.append(padded(rest[:size], **how))
        rest = rest[size:]
    return batches


# ------------------------------------------------------------------------------------------ groups


def test_a_group_ends_where_the_shape_changes_and_nothing_is_lost():
    forms = [(3, 2), (2, 2), (4, 5), (1, 5), (2, 2)]
    batches: list[Batch] = [
        (torch.full((n, width), float(i)), torch.full((n,), i)) for i, (n, width) in enumerate(forms)
    ]
    groups = list(regroup(batches, 4))
    assert [tuple(x.shape) for x, _ in groups if isinstance(x, Tensor)] == [(4, 2), (1, 2), (4, 5), (1, 5), (2, 2)]
    assert [label for _, y in groups for label in label_values(y).tolist()] == [0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 4]


def test_other_dtypes_dimensions_and_keys_stay_refused():
    x, y = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    for other in ((x.double(), y), (x[:, :, None], y), ({"x": x, "a": x}, y), ((x, x), y), (x, y[:, None])):
        with pytest.raises(InvalidData, match="one shape and dtype"):
            list(regroup([(x, y), other], 2))  # type: ignore[list-item]


def test_rows_of_mini_batches_want_one_shape():
    with pytest.raises(InvalidData, match="one shape and dtype"):
        ssse.Curvature.fit(
            Bag(), "cross_entropy", cut([1, 11]), damping=0.1, rows="empirical", rows_per_batch=2, progress=False
        )


def test_what_needs_one_batch_says_that_shapes_differ():
    with pytest.raises(InvalidData, match=r"several shapes.*Pad all of them to one length"):
        join_batches([(torch.zeros(2, 3), torch.zeros(2)), (torch.zeros(2, 4), torch.zeros(2))])


# ------------------------------------------------------------------------------------------ the same erasure


@pytest.mark.parametrize("rows", ["expected", "margin", "empirical", "sampled"])
@pytest.mark.parametrize("structure", ["dense", "lowrank", "matrix_free"])
def test_however_sequences_are_cut_and_padded_the_erasure_is_the_same(rows, structure):
    model = Bag()

    def erased(data: list[dict[str, Tensor]], forget: list[dict[str, Tensor]]) -> ssse.Erasure:
        how = {"rows": rows, "structure": structure, "damping": 0.1, "progress": False}
        curvature = ssse.Curvature.fit(model, "cross_entropy", data, **how)
        return ssse.erase(model, curvature, forget=forget, override=ssse.BOUNDS, scale=1.0)

    whole = erased(cut([12]), [padded(sequences()[2:4])])
    assert float(whole.step.norm()) > 1e-4
    for data, forget in [
        (cut([5, 4, 3]), [padded(sequences()[2:4], to=9)]),
        (cut([1] * 12), [padded(sequences()[2:3]), padded(sequences()[3:4])]),
        (cut([2, 6, 4], to=8, left=True), [padded(sequences()[2:4], fill=7)]),
    ]:
        torch.testing.assert_close(erased(data, forget).step, whole.step, rtol=1e-5, atol=1e-9)


def test_a_shape_that_the_model_cannot_take_is_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).eval()
    data = [(torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 0])), (torch.randn(3, 7), torch.tensor([0, 1, 1]))]
    for rows in ("expected", "empirical", "margin"):
        with refused(InvalidData, r"cannot take a batch .*'x': \(7,\)\}, after the shape \{'x': \(4,\)\}", model):
            ssse.Curvature.fit(model, "cross_entropy", data, rows=rows, damping=0.1, progress=False)


# ------------------------------------------------------------------------------------------ digests


def digests(batch: dict[str, Tensor]) -> list[int]:
    x = {key: value for key, value in batch.items() if key != "labels"}
    return digest_samples((x, batch["labels"]), b"salt").tolist()


def test_a_digest_does_not_depend_on_padding():
    some = sequences()[:5]
    alone = [digests(padded([one]))[0] for one in some]
    assert len(set(alone)) == 5
    for left in (False, True):
        for fill in (0, 9):
            assert digests(padded(some, left=left, fill=fill)) == alone
            assert digests(padded(some, to=11, left=left, fill=fill)) == alone


def test_without_padding_it_is_the_digest_that_it_always_was():
    """Those of stored curvatures and ledgers."""
    tokens, labels = torch.arange(10).view(2, 5), torch.tensor([1, 2])
    x = {"a": tokens, "attention_mask": torch.ones_like(tokens)}
    assert digest_samples((x, labels), b"salt").tolist() == [9560316109193303656, 16632838479991482039]
    numbers = torch.arange(6.0).view(2, 3)
    assert digest_samples((numbers, labels), b"salt").tolist() == [8560323062802291648, 11430029318388836845]


def test_labels_of_tokens_are_cut_where_they_are_ignored():
    some = sequences()[:5]

    def with_token_labels(to: int, ignored: int = -100) -> list[int]:
        batch = padded(some, to=to)
        mask = batch["attention_mask"]
        return digests({**batch, "labels": torch.where(mask != 0, batch["input_ids"] + 1, ignored)})

    assert with_token_labels(5) == with_token_labels(9)
    assert len({*with_token_labels(5), *with_token_labels(9)}) == 5
    assert with_token_labels(9, ignored=3) != with_token_labels(9)  # then they are no padding


def test_an_entry_that_is_as_long_by_chance_stays_whole():
    some = sequences()[:5]
    extra = torch.arange(25.0).view(5, 5)
    short, long = padded(some, to=5), padded(some, to=8)
    assert digests({**short, "extra": extra}) == digests({**long, "extra": extra})


def test_drawn_labels_do_not_depend_on_padding():
    some = sequences()[:5]
    short, long = ({k: v for k, v in padded(some, to=to).items() if k != "labels"} for to in (5, 9))
    assert np.array_equal(uniforms_of_samples(short, 3, 0), uniforms_of_samples(long, 3, 0))
    assert np.array_equal(digest_inputs(short, b""), digest_inputs(long, b""))


def test_copies_are_found_with_other_padding():
    """A repeated sample that was padded otherwise is the same sample."""
    data = [padded(sequences()[:6]), padded(sequences()[2:3] + sequences()[6:], to=9)]
    curvature = ssse.Curvature.fit(Bag(), "cross_entropy", data, damping=0.1, progress=False)
    assert curvature.repeats == 1


# ------------------------------------------------------------------------------------------ models that read padding


@pytest.mark.parametrize("left", [False, True])
def test_a_model_that_does_not_use_its_mask_is_refused(left):
    model = Bag(masked=False)
    with refused(InvalidModel, "reads its padding: cut to its own 1 of 5 tokens, .*attention_mask in forward", model):
        ssse.Curvature.fit(model, "cross_entropy", cut([12], left=left), damping=0.1, progress=False)


def test_absolute_positions_want_padding_on_the_right():
    model = Bag(positions=True)
    ssse.Curvature.fit(model, "cross_entropy", cut([12]), damping=0.1, progress=False)
    with refused(InvalidModel, "reads its padding.*shifts their positions: pad on the right", model):
        ssse.Curvature.fit(model, "cross_entropy", cut([12], left=True), damping=0.1, progress=False)


class Tokens(Bag):
    """An output a token."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mean = super().forward(input_ids, attention_mask)
        return mean[:, None, :] + self.head(torch.tanh(self.hidden(self.embed(input_ids))))


@pytest.mark.parametrize("masked", [False, True])
def test_outputs_a_token_are_compared_at_the_tokens(masked):
    model, data = Tokens(masked=masked), cut([12])
    for batch in data:
        batch["labels"] = torch.where(batch["attention_mask"] != 0, batch["input_ids"] % 3, -100)

    def loss(z: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(z.transpose(1, 2), y, reduction="sum")

    if masked:
        ssse.Curvature.fit(model, loss, data, damping=0.1, rows="empirical", progress=False)
        return
    with refused(InvalidModel, "reads its padding", model):
        ssse.Curvature.fit(model, loss, data, damping=0.1, rows="empirical", progress=False)
