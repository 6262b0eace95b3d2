"""Images → features of any torch backbone → an npz file that the loaders read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from ssse.paper.data.npz import features_of, matrix_of, texts_of
from ssse.system.files import new_file


@torch.no_grad()
def extract_features(
    backbone: nn.Module,
    images: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Outputs of the backbone in evaluation mode, flattened to (n, p), on the CPU; and the labels, if there are any.

    Args:
        images: batches x, or pairs (x, y), in the order in which the rows shall come.
        device: where to compute; by default where the backbone is. It is moved back afterwards.

    Raises:
        InvalidModel: an output is not a float tensor with a row for every image, or is NaN or infinite.
        InvalidData: a batch is not of that form, or there is none.
    """
    home = next((tensor.device for tensor in [*backbone.parameters(), *backbone.buffers()]), torch.device("cpu"))
    there = home if device is None else torch.device(device)
    modes = {module: module.training for module in backbone.modules()}
    features, labels = [], []
    try:
        if device is not None:
            backbone.to(there)
        backbone.eval()
        for number, batch in enumerate(_watched(images, progress)):
            x, y = _parts(batch, number)
            features.append(_flattened(backbone(x.to(there)), len(x), number))
            labels.append(y)
    finally:
        if device is not None:
            backbone.to(home)
        for module, training in modes.items():  # one by one: parts of a model may be frozen in another mode
            module.training = training
    if not features:
        raise InvalidData("There was no batch of images. An iterator can be used once: pass a list or a DataLoader.")
    widths = {part.shape[1] for part in features}
    if len(widths) > 1:
        raise InvalidModel(
            f"The backbone gave {sorted(widths)} features for different batches. Resize the images alike."
        )
    known = [y for y in labels if y is not None]
    if known and len(known) < len(labels):
        raise InvalidData("Some batches have labels and some have not. Pass either pairs (x, y) or only x.")
    return torch.cat(features), torch.cat(known) if known else None


def _watched(images: Iterable[Any], progress: bool) -> Iterable[Any]:
    console = Console(stderr=True)
    total = len(images) if hasattr(images, "__len__") else None  # type: ignore[arg-type]  # just asked
    hidden = not (progress and console.is_terminal)
    return track(images, "Extracting features", total, console=console, transient=True, disable=hidden)


def _parts(batch: Any, number: int) -> tuple[Tensor, Tensor | None]:
    x, y = batch if isinstance(batch, (tuple, list)) and len(batch) == 2 else (batch, None)
    if not isinstance(x, Tensor) or x.ndim == 0 or not (y is None or isinstance(y, Tensor)):
        raise InvalidData(
            f"Batch {number} must be a tensor x, or a pair of tensors (x, y), not {type(batch).__name__}."
        )
    if y is not None and (y.ndim == 0 or len(y) != len(x)):
        raise InvalidData(f"Batch {number} has {len(x)} images and labels of shape {tuple(y.shape)}.")
    return x, None if y is None else y.detach().cpu()


def _flattened(output: Any, n: int, number: int) -> Tensor:
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.ndim == 0 or len(output) != n:
        came = f"{output.dtype} of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise InvalidModel(
            f"The backbone must give a float tensor with a row for each of the {n} images of batch {number}, not "
            f"{came}. Wrap it in a module that returns the features alone."
        )
    rows = output.detach().reshape(n, -1)
    if not torch.isfinite(rows).all():
        raise InvalidModel(
            f"The features of batch {number} have NaN or infinite values. Look at the images and at the backbone's "
            "weights; half precision overflows at 65,504."
        )
    return rows.cpu() if rows.dtype == torch.float64 else rows.float().cpu()


def save_features(
    path: str | os.PathLike[str],
    features: Tensor,
    *,
    labels: Tensor | None = None,
    attributes: Tensor | None = None,
    split: Tensor | None = None,
    names: Sequence[str] | None = None,
    files: Sequence[str] | None = None,
) -> None:
    """Write the npz file that `read_features` reads: whole or not at all, replacing a file of that name.

    Args:
        labels: classes, shape (n,). attributes: 0 and 1, shape (n, a). Neither, if `files` shall bring them.
        split: 0 train, 1 validation, 2 test, shape (n,). names: of the classes or attributes.
        files: the images' file names, to be matched with the official lists of CelebA.
    """
    target = Path(path)
    if target.suffix != ".npz":
        raise InvalidSetting(f"'{target}' must end in .npz, as the loaders expect it.")
    if features.dtype == torch.bfloat16:  # which numpy has not
        features = features.float()
    arrays = {"features": _array(features)}
    arrays |= {
        key: _array(value)
        for key, value in (("labels", labels), ("attributes", attributes), ("split", split))
        if value is not None
    }
    arrays |= {key: np.array(list(value)) for key, value in (("names", names), ("files", files)) if value is not None}
    # What could not be read again is not written.
    if files is not None and len(texts_of(arrays["files"], "files", str(target))) != len(features):
        raise InvalidData(f"{len(features)} rows of features and {len(files)} files. Name the file of every row.")
    if files is not None and labels is None and attributes is None:
        matrix_of(arrays, str(target))
    else:
        features_of(arrays, str(target), target.name)
    with new_file(target) as opened:
        np.savez(opened, **arrays)  # type: ignore[arg-type]  # no array is named allow_pickle


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
