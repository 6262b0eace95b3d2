"""The paper's Eq. 7, word for word: F⁻¹ by rank-one Sherman–Morrison updates.

It reads and writes the whole matrix for every row, so it runs at the speed of memory. It is the
reference that the other structures are tested against; not for use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ssse.curvature.structure import Builder, Gap, LeftOut, Structure
from ssse.errors import InvalidSetting, NotPositiveDefinite
from ssse.problem.parameters import Block, LinearShape
from ssse.rows.held import HeldRows


class RecurrenceBuilder(Builder):
    """F₀⁻¹ = λ⁻¹ I, then F⁻¹ ← F⁻¹ − F⁻¹g gᵀF⁻¹ / (n + gᵀF⁻¹g) for every row g; n is needed beforehand."""

    def __init__(self, blocks: Sequence[Block], n: int, damping: float, dtype: torch.dtype, device: torch.device):
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self.n: int = n
        self.damping: float = damping
        self.inverses: list[Tensor] = [torch.eye(b.size, dtype=dtype, device=device) / damping for b in blocks]

    def add(self, rows: HeldRows) -> None:
        matrix = rows.matrix()
        for block, inverse in zip(self.blocks, self.inverses, strict=True):
            for g in block.take(matrix, dim=1).to(inverse.dtype):
                rank_one_update(inverse, g, self.n)

    def build(self, ridge: float) -> RecurrenceStructure:
        if abs(ridge - self.n * self.damping) > 1e-9 * ridge:
            raise InvalidSetting(
                f"The recurrence was started for {self.n} samples; the data held {ridge / self.damping:.0f}."
            )
        return RecurrenceStructure(self.blocks, self.inverses, self.n, ridge)

    def since_last(self) -> dict[str, Tensor]:
        return {f"{i}.inverse": inverse for i, inverse in enumerate(self.inverses)}

    def take_in(self, tensors: dict[str, Tensor]) -> None:
        """Only before the first row: one recurrence goes on, and two cannot be joined."""
        self.inverses = [tensors[f"{i}.inverse"] for i in range(len(self.inverses))]


def rank_one_update(inverse: Tensor, g: Tensor, n: float) -> None:
    u = inverse @ g
    leverage = float(g @ u)
    if n < 0 and leverage >= -n:
        raise NotPositiveDefinite("A row to remove carries more curvature than the recurrence holds.")
    inverse.addr_(u, u, alpha=-1.0 / (n + leverage))


class RecurrenceStructure(Structure):
    kind = "recurrence"
    holds = "the published recurrence, word for word: meant as a reference"

    def __init__(self, blocks: Sequence[Block], inverses: Sequence[Tensor], n: int, ridge: float):
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self.inverses: tuple[Tensor, ...] = tuple(inverses)
        self.n: int = n
        self.ridge: float = ridge

    def solve_measured(self, v: Tensor) -> tuple[Tensor, float | None]:
        """Without a residual: it holds M⁻¹ alone, and nothing to multiply the solution with."""
        out = torch.empty_like(v)
        for block, inverse in zip(self.blocks, self.inverses, strict=True):
            block.put(out, (inverse @ block.take(v).to(inverse.dtype) / self.n).to(v.dtype))
        return out, None

    def leave_out(self, rows: HeldRows, v: Tensor, ridge: float) -> LeftOut:
        out = torch.empty_like(v)
        worst, where, total, indefinite = torch.zeros(1, dtype=torch.float64), "", 0.0, False
        matrix = rows.matrix()
        for block, inverse in zip(self.blocks, self.inverses, strict=True):
            part = block.take(matrix, dim=1).to(inverse.dtype)
            spread = inverse @ part.mT / self.n
            gap = Gap.of(part @ spread)
            block.put(out, torch.full_like(block.take(v), torch.nan))
            try:
                without = self._damped(inverse + self.n * spread @ gap.solve(spread.mT), ridge, block.name)
                block.put(out, (without @ block.take(v).to(inverse.dtype) / self.n).to(v.dtype))
            except NotPositiveDefinite:
                indefinite = True
            total += float(gap.leverages.sum())
            if not where or float(gap.leverages[0]) > float(worst[0]):
                worst, where = gap.leverages, block.name
        return LeftOut(out, worst, total, where, indefinite=indefinite or bool(worst[0] >= 1))

    def remove(self, rows: Iterable[HeldRows], ridge: float) -> RecurrenceStructure:
        inverses = [inverse.clone() for inverse in self.inverses]
        for part in rows:
            matrix = part.matrix()
            for block, inverse in zip(self.blocks, inverses, strict=True):
                for g in block.take(matrix, dim=1).to(inverse.dtype):
                    rank_one_update(inverse, g, -self.n)  # −n turns the addition of ggᵀ/n into its removal
        return self._with(inverses, ridge)

    def with_ridge(self, ridge: float) -> RecurrenceStructure:
        return self._with(self.inverses, ridge)

    def _with(self, inverses: Sequence[Tensor], ridge: float) -> RecurrenceStructure:
        changed = [self._damped(f, ridge, block.name) for block, f in zip(self.blocks, inverses, strict=True)]
        return RecurrenceStructure(self.blocks, changed, self.n, ridge)

    def _damped(self, inverse: Tensor, ridge: float, name: str) -> Tensor:
        """(F + cI)⁻¹ = (I + cF⁻¹)⁻¹F⁻¹ with c = (ridge − self.ridge)/n: of full rank, so no rank-one updates."""
        c = (ridge - self.ridge) / self.n
        factor, info = torch.linalg.cholesky_ex(torch.eye(len(inverse)).to(inverse) + c * inverse)
        if int(info) != 0:
            raise NotPositiveDefinite(f"Block '{name}' is not positive definite with the damping nλ = {ridge:.3g}.")
        return torch.cholesky_solve(inverse, factor)

    def state(self) -> dict[str, Tensor]:
        return {f"{i}.inverse": inverse for i, inverse in enumerate(self.inverses)}

    def settings(self) -> dict[str, Any]:
        return {"n": self.n, "blocks": [[block.name, [list(r) for r in block.ranges]] for block in self.blocks]}

    @classmethod
    def from_state(
        cls, state: dict[str, Tensor], settings: dict[str, Any], ridge: float, linear: LinearShape | None = None
    ) -> RecurrenceStructure:
        blocks = [Block(name, tuple((a, b) for a, b in ranges)) for name, ranges in settings["blocks"]]
        return cls(blocks, [state[f"{i}.inverse"] for i in range(len(blocks))], settings["n"], ridge)

    def to(self, device: torch.device) -> RecurrenceStructure:
        return RecurrenceStructure(self.blocks, [f.to(device) for f in self.inverses], self.n, self.ridge)
