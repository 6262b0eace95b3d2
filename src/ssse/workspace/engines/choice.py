"""Which engine a workspace has: its settings say."""

from __future__ import annotations

from ssse.system.extras import needed_for
from ssse.workspace.engines.data import UserData
from ssse.workspace.engines.engine import Engine


def engine_for(user_data: UserData) -> Engine:
    """By the settings; what they say that means nothing for this kind is refused."""
    if user_data.settings.model.is_estimator:
        with needed_for("A workspace of an estimator"):
            from ssse.workspace.engines.sklearn import SklearnEngine

        return SklearnEngine(user_data)
    from ssse.workspace.engines.torch import TorchEngine

    return TorchEngine(user_data)
