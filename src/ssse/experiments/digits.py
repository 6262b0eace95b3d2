"""scikit-learn's digits in the place of faces and animals: the small forms, for where the data is missing."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from ssse.experiments.npz import Features
from ssse.fingerprint import digest_tensors

LOOPS, CURVED, ANGULAR = (0, 6, 8, 9), (0, 2, 3, 5, 6, 8, 9), (1, 4, 7)
WORDS = "scikit-learn's 1,797 digits of 8×8 pixels: not the paper's data, and far smaller"


def digit_classes() -> Features:
    """Ten classes."""
    x, y = load_digits(return_X_y=True)
    pixels, labels = torch.from_numpy(x / 16.0), torch.from_numpy(y).long()
    names = tuple(f"digit {d}" for d in range(10))
    return Features(pixels, labels, None, names, WORDS, digest_tensors({"x": pixels, "y": labels}))


def digit_attributes() -> Features:
    """Fifteen attributes: which digit it is, ten rare ones, and five that half of the digits have or so."""
    found = digit_classes()
    common = {
        "even": (0, 2, 4, 6, 8),
        "at least five": (5, 6, 7, 8, 9),
        "has a loop": LOOPS,
        "curved": CURVED,
        "angular": ANGULAR,
    }
    columns = [found.y == d for d in range(10)]
    columns += [torch.isin(found.y, torch.tensor(digits)) for digits in common.values()]
    y = torch.stack(columns, dim=1).double()
    return Features(found.x, y, None, (*found.names, *common), WORDS, digest_tensors({"x": found.x, "y": y}))
