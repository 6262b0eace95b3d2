"""Samples that were trained on more than once: forgetting one copy leaves the others."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ssse.curvature.curvature import Curvature, known_samples
from ssse.curvature.lowrank import LowRankStructure
from ssse.erasure.request import Samples
from ssse.problem.sample_digests import digest_samples


def note_on_copies(curvature: Curvature, samples: Samples) -> list[str]:
    """How many copies of the forgotten samples stay, where the curvature knows its samples; otherwise that some may."""
    if not curvature.repeats:
        return []
    stay = copies_that_stay(curvature, samples)
    if stay is None:
        return [
            f"Up to {curvature.repeats:,} training samples repeat another one: copies of the forgotten ones that were "
            "not named too are still in the model."
        ]
    return [f"{stay:,} copies of the forgotten samples were not named and are still in the model."] if stay else []


def copies_that_stay(curvature: Curvature, samples: Samples) -> int | None:
    """None where that is not known."""
    stored, structure = known_samples(curvature), curvature.structure
    if stored is None or not isinstance(structure, LowRankStructure):
        return None
    asked = Counter(np.concatenate([digest_samples(batch, structure.salt) for batch in samples.batches]).tolist())
    held = Counter(stored.view(np.uint64).tolist())
    return sum(max(held[digest] - count, 0) for digest, count in asked.items())
