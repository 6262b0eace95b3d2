"""ssse: erase samples from a trained model in one second-order step.

    curvature = ssse.Curvature.fit(model, loss_fn, train_loader, weight_decay=1e-4)   # once
    erasure = ssse.erase(model, curvature, loss_fn, forget_loader)                     # per request

Names are loaded when first used, so that importing the package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssse import baselines as baselines
    from ssse import metrics as metrics
    from ssse import sklearn as sklearn
    from ssse.calibration import Calibration as Calibration
    from ssse.calibration import calibrate as calibrate
    from ssse.curvature import Curvature as Curvature
    from ssse.curvature import plan as plan
    from ssse.diagnostics import Diagnostics as Diagnostics
    from ssse.erasure import Erasure as Erasure
    from ssse.erasure import erase as erase
    from ssse.errors import Refused as Refused
    from ssse.errors import SSSEError as SSSEError
    from ssse.errors import Undecided as Undecided
    from ssse.evaluation import evaluate as evaluate
    from ssse.reproduction import reproduce as reproduce
    from ssse.scanning import Scan as Scan
    from ssse.scanning import scan as scan
    from ssse.splits import four_splits as four_splits
    from ssse.table import Evaluation as Evaluation
    from ssse.workspace.api import Workspace as Workspace

__version__ = "0.1.0"

_PACKAGES = ("baselines", "metrics", "sklearn")
_HOMES = {
    "Calibration": "ssse.calibration",
    "calibrate": "ssse.calibration",
    "Evaluation": "ssse.table",
    "evaluate": "ssse.evaluation",
    "Scan": "ssse.scanning",
    "four_splits": "ssse.splits",
    "scan": "ssse.scanning",
    "Undecided": "ssse.errors",
    "Curvature": "ssse.curvature",
    "plan": "ssse.curvature",
    "reproduce": "ssse.reproduction",
    "Diagnostics": "ssse.diagnostics",
    "Erasure": "ssse.erasure",
    "erase": "ssse.erasure",
    "Refused": "ssse.errors",
    "SSSEError": "ssse.errors",
    "Workspace": "ssse.workspace.api",
}

__all__ = [
    "Calibration",
    "Curvature",
    "Diagnostics",
    "Erasure",
    "Evaluation",
    "Refused",
    "SSSEError",
    "Scan",
    "Undecided",
    "Workspace",
    "baselines",
    "calibrate",
    "erase",
    "evaluate",
    "four_splits",
    "metrics",
    "plan",
    "reproduce",
    "scan",
    "sklearn",
]


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"ssse.{name}")
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'ssse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
