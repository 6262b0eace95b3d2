"""scikit-learn's digits in the place of faces and animals: the small forms, for where the data is missing."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from ssse.paper.data.npz import Features
from ssse.system.digests import digest_tensors

RARE = 0.15
WORDS = "scikit-learn's 1,797 digits of 8×8 pixels: not the paper's data, and far smaller"


def digit_classes() -> Features:
    """Ten classes."""
    x, y = load_digits(return_X_y=True)
    pixels, labels = torch.from_numpy(x / 16.0), torch.from_numpy(y).long()
    names = tuple(f"digit {d}" for d in range(10))
    return Features(pixels, labels, None, names, WORDS, digest_tensors({"x": pixels, "y": labels}))


def digit_attributes() -> Features:
    """Fifteen attributes: ten common ones, what the digit is, and five rare ones, how it is drawn.

    The rare ones are removed. They cut across the digits, as glasses cut across faces: if all removed samples were of
    one digit, every other attribute would be the same for all of them, and γ would not be defined.
    """
    classes = digit_classes()
    image = classes.x.view(-1, 8, 8)
    drawn = {
        "much ink": image.sum((1, 2)),
        "heavy at the top": image[:, :4].sum((1, 2)) - image[:, 4:].sum((1, 2)),
        "heavy at the left": image[:, :, :4].sum((1, 2)) - image[:, :, 4:].sum((1, 2)),
        "wide": (image.amax(1) > 0.3).sum(1) + image.sum((1, 2)) / 100,
        "light in the middle": -image[:, 3:5, 3:5].sum((1, 2)),
    }
    shapes = {
        "has a loop": (0, 6, 8, 9),
        "curved": (0, 2, 3, 5, 6, 8, 9),
        "angular": (1, 4, 7),
        "even": (0, 2, 4, 6, 8),
        "at least five": (5, 6, 7, 8, 9),
        "a prime": (2, 3, 5, 7),
        "below three": (0, 1, 2),
        "three to five": (3, 4, 5),
        "a multiple of three": (0, 3, 6, 9),
        "a square": (0, 1, 4, 9),
    }
    columns = [torch.isin(classes.y, torch.tensor(digits)) for digits in shapes.values()]
    columns += [value > value.quantile(1 - RARE) for value in drawn.values()]
    y = torch.stack(columns, dim=1).double()
    return Features(classes.x, y, None, (*shapes, *drawn), WORDS, digest_tensors({"x": classes.x, "y": y}))
