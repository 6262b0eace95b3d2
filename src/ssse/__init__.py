"""ssse: erase samples from a trained model in one second-order step.

    curvature = ssse.Curvature.fit(model, loss_fn, train_loader, weight_decay=1e-4)   # once
    erasure = ssse.erase(model, curvature, loss_fn, forget_loader)                     # per request

Names are loaded when first used, so that importing the package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ssse.system.version import __version__ as __version__

if TYPE_CHECKING:
    from ssse import baselines as baselines
    from ssse import metrics as metrics
    from ssse import sklearn as sklearn
    from ssse.calibration.calibrate import Calibration as Calibration
    from ssse.calibration.calibrate import calibrate as calibrate
    from ssse.calibration.criteria import Undecided as Undecided
    from ssse.calibration.lasting import LastingErasure as LastingErasure
    from ssse.calibration.lasting import erase_and_repair as erase_and_repair
    from ssse.comparison.compare import compare as compare
    from ssse.comparison.table import MethodComparison as MethodComparison
    from ssse.curvature import Curvature as Curvature
    from ssse.curvature import plan as plan
    from ssse.curvature.choices import Dense as Dense
    from ssse.curvature.choices import Diagonal as Diagonal
    from ssse.curvature.choices import LowRank as LowRank
    from ssse.curvature.choices import MatrixFree as MatrixFree
    from ssse.curvature.choices import Recurrence as Recurrence
    from ssse.erasure.diagnostics import Diagnostics as Diagnostics
    from ssse.erasure.erase import erase as erase
    from ssse.erasure.outcome import Erasure as Erasure
    from ssse.erasure.recalibrate import recalibrate as recalibrate
    from ssse.erasure.refine import Refinement as Refinement
    from ssse.erasure.refine import refine as refine
    from ssse.erasure.repair import Repair as Repair
    from ssse.erasure.repair import repair as repair
    from ssse.errors import DoubtfulSetting as DoubtfulSetting
    from ssse.errors import Refused as Refused
    from ssse.errors import SSSEError as SSSEError
    from ssse.evaluation.evaluate import evaluate as evaluate
    from ssse.evaluation.scan import Scan as Scan
    from ssse.evaluation.scan import scan as scan
    from ssse.evaluation.splits import four_splits as four_splits
    from ssse.evaluation.table import Evaluation as Evaluation
    from ssse.intake.file_batches import FileBatches as FileBatches
    from ssse.paper.reproduce import reproduce as reproduce
    from ssse.problem.sharded import ShardedHead as ShardedHead
    from ssse.problem.short_training import Training as Training
    from ssse.verdict import BOUNDS as BOUNDS
    from ssse.workspace.workspace import Workspace as Workspace

_PACKAGES = ("baselines", "metrics", "sklearn")
_HOMES = {
    "LastingErasure": "ssse.calibration.lasting",
    "erase_and_repair": "ssse.calibration.lasting",
    "Calibration": "ssse.calibration.calibrate",
    "calibrate": "ssse.calibration.calibrate",
    "Evaluation": "ssse.evaluation.table",
    "evaluate": "ssse.evaluation.evaluate",
    "Scan": "ssse.evaluation.scan",
    "four_splits": "ssse.evaluation.splits",
    "scan": "ssse.evaluation.scan",
    "Undecided": "ssse.calibration.criteria",
    "MethodComparison": "ssse.comparison.table",
    "compare": "ssse.comparison.compare",
    "Curvature": "ssse.curvature",
    "Dense": "ssse.curvature.choices",
    "Diagonal": "ssse.curvature.choices",
    "LowRank": "ssse.curvature.choices",
    "MatrixFree": "ssse.curvature.choices",
    "Recurrence": "ssse.curvature.choices",
    "plan": "ssse.curvature",
    "reproduce": "ssse.paper.reproduce",
    "Diagnostics": "ssse.erasure.diagnostics",
    "Erasure": "ssse.erasure.outcome",
    "erase": "ssse.erasure.erase",
    "Refinement": "ssse.erasure.refine",
    "refine": "ssse.erasure.refine",
    "recalibrate": "ssse.erasure.recalibrate",
    "Repair": "ssse.erasure.repair",
    "repair": "ssse.erasure.repair",
    "FileBatches": "ssse.intake.file_batches",
    "ShardedHead": "ssse.problem.sharded",
    "Training": "ssse.problem.short_training",
    "DoubtfulSetting": "ssse.errors",
    "Refused": "ssse.errors",
    "SSSEError": "ssse.errors",
    "BOUNDS": "ssse.verdict",
    "Workspace": "ssse.workspace.workspace",
}

__all__ = [
    "BOUNDS",
    "Calibration",
    "Curvature",
    "Dense",
    "Diagnostics",
    "Diagonal",
    "Erasure",
    "Evaluation",
    "FileBatches",
    "LastingErasure",
    "LowRank",
    "MatrixFree",
    "MethodComparison",
    "Recurrence",
    "Refinement",
    "Refused",
    "Repair",
    "SSSEError",
    "Scan",
    "ShardedHead",
    "Training",
    "Undecided",
    "Workspace",
    "baselines",
    "calibrate",
    "compare",
    "erase",
    "erase_and_repair",
    "evaluate",
    "four_splits",
    "metrics",
    "plan",
    "recalibrate",
    "refine",
    "repair",
    "reproduce",
    "scan",
    "sklearn",
]


def __getattr__(name: str) -> object:
    if name in _PACKAGES or name in _HOMES:
        from ssse.system.extras import needed_for

        with needed_for(f"ssse.{name}"):
            home = import_module(_HOMES.get(name, f"ssse.{name}"))
        value = home if name in _PACKAGES else getattr(home, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'ssse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
