"""Sentences of an entry as they may be shown: without the numbers that were measured on samples.

Nothing is taken to be harmless because of how it reads: every number goes, but for words of the text itself (`FIXED`).
"""

from __future__ import annotations

import re

LEFT_OUT = "…"
# Numbers that stand in the text whatever was measured.
FIXED = (
    "(1/n) Σ loss + (w/2)‖θ‖²",
    "the Newton step is at 1.",
    "1 is right for expected and margin rows alone",
    "the step at scale 1 usually",
    "the 10% up to which",
)
# Numbers that are of the settings, of the curvature of all samples, or counts that an entry shows anyway.
_NUMBER = r"[-+−]?[\d.,]*\d(?:e[-+]?\d+)?"
KNOWN = (
    rf"weight decay of {_NUMBER}",
    rf"weight_decay={_NUMBER}",
    rf"by its gradient rather with {_NUMBER}",
    rf"the damping is {_NUMBER}",
    rf"The request takes {_NUMBER}% of the {_NUMBER} samples that the curvature stands for, more than the {_NUMBER}%",
    rf"{_NUMBER}% of the training data is forgotten by now",
)
_FIXED = re.compile("(" + "|".join([*map(re.escape, FIXED), *KNOWN]) + ")")
# A word may end in digits (float64, layers.0.weight); what begins with one is a number, with its sign and its unit.
_WORD_OR_NUMBER = re.compile(r"(?P<word>[^\W\d][\w.]*)|[-+−]?\.?\d\w*(?:[.,]\d\w*)*(?:(?<=e)[-+]\d+)?(?:\s?%)?")
_SEVERAL = re.compile(rf"{LEFT_OUT}(?:\s?{LEFT_OUT})+")


def without_numbers(text: str) -> str:
    """The same sentence with `LEFT_OUT` where it has a number."""
    parts = _FIXED.split(text)
    parts[::2] = [_SEVERAL.sub(LEFT_OUT, _WORD_OR_NUMBER.sub(_kept, part)) for part in parts[::2]]
    return "".join(parts)


def _kept(found: re.Match[str]) -> str:
    return found["word"] or LEFT_OUT
