"""Sequences of several lengths in one batch: what is padding, by its attention mask, is no part of a sample.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ssse.errors import InvalidModel, SSSEError

if TYPE_CHECKING:
    from torch import Tensor

    from ssse.problem.view import ModelView

MASK = "attention_mask"


def padding_mask(x: Any) -> Tensor | None:
    """Whether each place of each sequence is its own, shape (n, T), where the batch says so and some place is not."""
    mask = x.get(MASK) if isinstance(x, dict) else None
    if mask is None or mask.dim() != 2 or not mask.numel():
        return None
    own = mask != 0
    return None if bool(own.all()) else own


def without_padding(x: Any, y: Tensor) -> Iterator[tuple[Tensor | slice, Any, Tensor]]:
    """The samples of a batch as they would be alone: those of one length together, with their places in the batch.

    Of inputs and labels that have an entry a place, those where the mask is not zero. Such labels say themselves that
    they are ignored at padding, by being negative there (−100); others are taken for something else, and stay whole.
    Without a mask, or where it lets everything through, the batch stays as it is.
    """
    own = padding_mask(x)
    if own is None:
        yield slice(None), x, y
        return
    lengths = own.sum(1)
    by_place = _has_places(y, own) and bool((y[~own] < 0).all())
    for length in lengths.unique().tolist():
        places = (lengths == length).nonzero()[:, 0]
        inputs = {
            key: _own(value, own, places) if _has_places(value, own) else value[places] for key, value in x.items()
        }
        yield places, inputs, _own(y, own, places) if by_place else y[places]


def _has_places(value: Tensor, own: Tensor) -> bool:
    """Token ids, masks and the like, or a vector a token; numbers that are as many by chance are floating ones."""
    return value.shape[:2] == own.shape and (value.dim() > 2 or not value.is_floating_point())


def _own(value: Tensor, own: Tensor, places: Tensor) -> Tensor:
    """Of samples with equally many places of their own."""
    return value[places][own[places]].reshape(len(places), -1, *value.shape[2:])


def refuse_read_padding(view: ModelView, x: Any, outputs: Tensor, tolerance: float) -> None:
    """Cut the sample with the most padding to its own tokens: what the model says of it must stay the same.

    Else a sample's gradient is not its own, but that of the batch that it happened to come in.

    Args:
        outputs: of all samples, as the model gives them; with a dimension for the tokens, or without.
    """
    own = padding_mask(x)
    if own is None or not bool(own.any()):
        return
    lengths = own.sum(1)
    place = int(lengths.masked_fill(lengths == 0, own.shape[1] + 1).argmin())
    _, alone, _ = next(without_padding({key: value[place : place + 1] for key, value in x.items()}, lengths[:1]))
    try:
        cut = view.outputs_of(alone).detach()
    except SSSEError:
        raise
    except Exception:  # a model of one length, which all of its batches have
        return
    whole = outputs[place : place + 1]
    if outputs.dim() > 2 and outputs.shape[1] == own.shape[1]:
        whole = whole[:, own[place]]
    if whole.shape == cut.shape and not bool(((whole - cut).abs() > tolerance).any()):
        return
    left = " Left of the tokens it shifts their positions: pad on the right, or pass position_ids." * (
        not bool(own[place, 0])
    )
    raise InvalidModel(
        f"The model reads its padding: cut to its own {int(lengths[place])} of {own.shape[1]} tokens, a sample has "
        f"other outputs, so that its gradient depends on its batch. Use the attention_mask in forward().{left}"
    )
