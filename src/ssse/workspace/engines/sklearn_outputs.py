"""A linear estimator as `ssse.evaluate` takes models: from inputs to logits over the classes of the first model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.multiclass import OneVsRestClassifier
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidSetting
from ssse.intake.sources import Batches
from ssse.problem.labels import label_values
from ssse.sklearn.adapters import ClassifierAdapter, class_indices
from ssse.sklearn.composition import decompose

FAR = 50.0  # below the largest logit: where a class is that the model does not know


def classes_of(model: Any) -> list[np.ndarray]:
    """Of each output; of a regression none. Several yes-or-no outputs are what evaluate calls attributes."""
    composition = decompose(model)[1]
    last = composition.estimator
    if not isinstance(composition.adapters[0], ClassifierAdapter):
        return []
    if isinstance(last, OneVsRestClassifier) and last.label_binarizer_.y_type_.startswith("multilabel"):
        return [np.arange(2) for _ in composition.adapters]
    found = last.classes_
    return list(found) if isinstance(found, list) else [found]


class Outputs(nn.Module):
    """`classes`: of each output of the first model. One without some of them may come later."""

    def __init__(self, model: Any, classes: Sequence[Sequence[Any]]):
        super().__init__()
        check_comparable(classes)
        transformers, composition = decompose(model)
        own = classes_of(model)
        if len(own) != len(classes):
            raise InvalidData(f"A model has {len(own)} outputs with classes, and the first one has {len(classes)}.")
        coef = np.vstack([np.atleast_2d(adapter.estimator.coef_) for adapter in composition.adapters])
        intercept = np.concatenate(
            [
                np.broadcast_to(adapter.estimator.intercept_, len(np.atleast_2d(adapter.estimator.coef_)))
                for adapter in composition.adapters
            ]
        )
        self.transformers: Any | None = transformers
        self.attributes: bool = len(classes) > 1
        self.places: Tensor | None = None
        if not self.attributes:
            self.places = torch.from_numpy(class_indices(own[0], np.array(classes[0])))
        self.outputs: int = len(classes[0])
        self.linear: nn.Linear = nn.Linear(coef.shape[1], len(coef), dtype=torch.float64)
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(coef.astype(np.float64)))
            self.linear.bias.copy_(torch.from_numpy(intercept.astype(np.float64)))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        z = self.linear(self._features(x))
        if self.places is None:
            return z
        if z.shape[1] == 1:
            z = torch.cat([torch.zeros_like(z), z], dim=1)
        if len(self.places) == self.outputs:
            return z
        known = (z.amax(1, keepdim=True) - FAR).repeat(1, self.outputs)
        return known.index_copy(1, self.places, z)

    def _features(self, x: Tensor) -> Tensor:
        if self.transformers is None:
            return x.double()
        found = self.transformers.transform(x.numpy())
        dense = found.toarray() if sparse.issparse(found) else np.asarray(found)
        return torch.from_numpy(np.ascontiguousarray(dense, dtype=np.float64))


class Coded:
    """Batches whose labels are places among the classes of the first model.

    Attributes:
        sampler: the places to read, under the name by which samples are counted.
    """

    def __init__(self, data: Batches, classes: Sequence[Sequence[Any]], names: Sequence[str]):
        """`names`: of the classes, where they are words."""
        check_comparable(classes)
        self.sampler: range | np.ndarray = data.sampler
        self._data, self._names = data, np.array(list(names))
        self._classes = [np.array(part) for part in classes]

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        for x, y in self._data:
            yield x, torch.from_numpy(self._places(label_values(y).numpy()))

    def _places(self, y: np.ndarray) -> np.ndarray:
        if len(self._classes) == 1:
            y, words = y.reshape(len(y)), self._classes[0].dtype.kind not in "biuf"
            return class_indices(self._names[y] if words else y, self._classes[0])
        if y.ndim != 2 or y.shape[1] != len(self._classes):
            raise InvalidData(f"Labels have the shape {y.shape}; the model has {len(self._classes)} outputs.")
        return np.stack([class_indices(y[:, i], part) for i, part in enumerate(self._classes)], axis=1)


def check_comparable(classes: Sequence[Sequence[Any]]) -> None:
    if not classes:
        raise InvalidSetting(
            "`ssse evaluate` compares classifiers; how far a regression is from a refit, its request says: `ssse log`."
        )
    if len(classes) > 1 and any(len(part) != 2 for part in classes):
        raise InvalidSetting(
            "`ssse evaluate` takes one output with classes, or several with two each; this model has several with more."
        )
