"""The samples to forget, seen at the θ* that the curvature belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ssse.curvature.curvature import Curvature
from ssse.curvature.lowrank import LowRankStructure
from ssse.erasure.request import Samples
from ssse.erasure.stages import Stages
from ssse.errors import DoesNotFit
from ssse.problem.problem import Problem
from ssse.problem.sample_digests import digest_samples
from ssse.rows.held import HeldRows, StackedRows
from ssse.rows.kinds import Measured, margin_slope, measure, measure_held
from ssse.rows.score_sums import ScoreSums
from ssse.system.memory import human_bytes, spare_memory


@dataclass(frozen=True)
class Request:
    """The samples to forget, seen at the θ* that the curvature belongs to."""

    problem: Problem
    curvature: Curvature
    samples: Samples

    def rows(self) -> Iterator[HeldRows]:
        """Their rows, computed anew; for conjugate gradients they are not formed."""
        for rows, _ in self._measured(Stages()):
            yield rows

    def measured(self, stages: Stages) -> tuple[StackedRows, Tensor, float, ScoreSums | None]:
        """All rows, Σ∇ℓ, Σℓ, and what goes from the sums that are kept of a linear model."""
        parts, sums = zip(*self._measured(stages), strict=True)
        scores = [part.scores for part in sums if part.scores is not None]
        return StackedRows(list(parts)), *self._summed(sums), sum(scores, ScoreSums()) if scores else None

    def slope(self, stages: Stages) -> tuple[Tensor, float]:
        """Σ∇ℓ and Σℓ alone."""
        empirical = replace(self.curvature.kind, name="empirical")
        return self._summed([measure(self.problem, empirical, batch) for batch in stages.each(self.samples.batches)])

    def push(self, stages: Stages, power: float) -> Tensor:
        """Σ(1−p)^power ∇φ of all margins."""
        parts = [margin_slope(self.problem, batch, power) for batch in stages.each(self.samples.batches)]
        return torch.stack(parts).sum(0)

    def check_memory(self) -> None:
        """Whether the rows of all samples can be held at once; of a linear model they are small."""
        at, curvature, count = self.problem, self.curvature, self.samples.count
        if at.linear is not None or curvature.structure.reads_data:
            return
        per_sample = curvature.kind.rows_per_sample(at.loss, at.outputs)
        needed = 2 * count * per_sample * at.layout.dim * (torch.finfo(at.dtype).bits // 8)
        budget = spare_memory(at.device)
        if needed > budget:
            raise DoesNotFit(
                f"The rows of {count} samples need {human_bytes(needed)}, of {human_bytes(budget)} that are free. "
                "Erase in smaller groups with policy='joint', which gives the same model, or use matrix_free."
            )

    def missing(self) -> int:
        """Samples that the curvature does not know, where it knows its samples."""
        structure = self.curvature.structure
        if not isinstance(structure, LowRankStructure) or self.curvature.kind.per_batch > 1:
            return 0
        batches = self.samples.batches
        digests = [torch.from_numpy(digest_samples(batch, structure.salt).view(np.int64)) for batch in batches]
        return structure.count_missing(torch.cat(digests))

    def _summed(self, sums: Iterable[Measured]) -> tuple[Tensor, float]:
        gradient = torch.stack([part.gradient for part in sums]).sum(0, dtype=torch.float64)
        return gradient.to(self.problem.dtype), sum(part.loss for part in sums)

    def _measured(self, stages: Stages) -> Iterator[tuple[HeldRows, Measured]]:
        structure = self.curvature.structure
        salt = structure.salt if isinstance(structure, LowRankStructure) else None
        for batch in stages.each(self.samples.batches):
            if structure.reads_data:
                part = measure(self.problem, self.curvature.kind, batch)
                yield part.rows, part  # type: ignore[misc]  # as they are: only multiplied with
            else:
                yield measure_held(self.problem, self.curvature.kind, batch, salt)


def at_origin(problem: Problem, curvature: Curvature) -> Problem:
    """Where the rows of the curvature are: at the model's θ, or where its joint stream began."""
    return problem if curvature.joint is None else problem.moved(curvature.joint.theta)
