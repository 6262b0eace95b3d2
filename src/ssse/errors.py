"""Every error of ours says what was expected, what came, and the repair."""

from __future__ import annotations

from ssse.verdict import Assessment, way_around


class SSSEError(Exception):
    """Base of all errors that this library raises on purpose."""


class InvalidModel(SSSEError, ValueError):
    """The model cannot be used as it is: training mode, dropout, cross-talk between samples, NaN."""


class InvalidData(SSSEError, ValueError):
    """A batch cannot be used: NaN, wrong shape, wrong label, empty, not repeatable."""


class DoubtfulSetting(UserWarning):
    """A setting that what was measured speaks against; it is used as it was given. Also a note of the curvature."""


class MissingData(SSSEError, FileNotFoundError):
    """A data set is not in the folder; the message says what to download and where to put it."""


class InvalidSetting(SSSEError, ValueError):
    """An argument, or a combination of arguments, has no meaning."""


class MissingExtra(InvalidSetting, ImportError):
    """A library is not there that this part needs; the message names the extra of ssse that brings it."""


class Diverged(InvalidSetting):
    """A training became NaN or infinite: with these settings it leads nowhere. Nothing was changed."""


class InvalidRequest(InvalidData, InvalidSetting):
    """What one request says cannot be: ids that no sample has, an id that stands for other samples.

    `answer`: the same for whoever asked, who may know nothing of the data but what they said themselves.
    """

    def __init__(self, message: str, answer: str | None = None):
        super().__init__(message)
        self.answer: str = message if answer is None else answer


class DoesNotFit(SSSEError, MemoryError):
    """The pre-flight estimate exceeds the memory budget; the message names what would fit."""


class NotPositiveDefinite(SSSEError, ArithmeticError):
    """A damped Gram matrix has no Cholesky factor."""


class PrecisionLost(SSSEError, ArithmeticError):
    """The working precision is too coarse for this curvature and this damping."""


class ModelMismatch(SSSEError, ValueError):
    """The model is not the one that the curvature was computed for."""


class BrokenArtefact(SSSEError, OSError):
    """Something that ssse stored is incomplete, altered, or of another format."""


class GroupBroken(SSSEError):
    """A process of the group has ended, and the others cannot go on."""


class Refused(SSSEError):
    """An erasure that must not be applied. Nothing was changed.

    Attributes:
        diagnostics: what was measured up to the refusal, with verdict `"refused"` and the reasons.
    """

    def __init__(self, diagnostics: Assessment):
        self.diagnostics = diagnostics
        super().__init__(f"Erasure refused, nothing was changed: {self.reason}")

    @property
    def reason(self) -> str:
        """All of them, and what takes the step all the same, where that can be."""
        broken = self.diagnostics.broken
        return " ".join([*self.diagnostics.reasons, *([way_around(broken)] if broken else [])])


class Busy(SSSEError):
    """Another process is at work in the workspace, and we were told not to wait; or in a folder of checkpoints."""


class Damaged(SSSEError):
    """A workspace is not as it was written; the message names the files."""


class NotPublished(SSSEError, OSError):
    """What was asked for is done and in the ledger, and its head did not get to where it is to be kept."""
