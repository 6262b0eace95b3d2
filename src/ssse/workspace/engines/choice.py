"""Which engine a workspace has: its settings say."""

from __future__ import annotations

from ssse.workspace.engines.data import Bench
from ssse.workspace.engines.engine import Engine


def engine_for(bench: Bench) -> Engine:
    """By the settings; what they say that means nothing for this kind is refused."""
    if bench.settings.model.is_estimator:
        from ssse.workspace.engines.sklearn import OfEstimators

        return OfEstimators(bench)
    from ssse.workspace.engines.torch import OfModules

    return OfModules(bench)
