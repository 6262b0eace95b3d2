"""What a reproduction leaves: figures, tables, findings and the numbers behind them, all in plain words and numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ssse.rendering.document import PageFigure, PageTable, as_plain

Verdict = Literal["yes", "partly", "no"]
Form = Literal["full", "small", "classes", "large"]
STAND_IN = "digits"  # the name of the data set that comes with scikit-learn


@dataclass(frozen=True)
class Finding:
    """One line: the paper says · we find · where. `holds` is judged by the numbers in `found`."""

    paper: str
    found: str
    where: str
    holds: Verdict
    reason: str = ""  # why it does not hold, where it does not


@dataclass(frozen=True)
class Target:
    """A number that was promised, and what was measured."""

    what: str
    wanted: str
    measured: str
    met: bool
    reason: str = ""


@dataclass(frozen=True)
class SummaryRow:
    """One row of the summary: a method on a data set at a removal rate.

    Attributes:
        scale: ε in words ("1", "best of 33: 0.4–1.3"). gap: mean absolute accuracy difference to the retrained model
            over the four splits, in points, averaged over the requests; gap_spread: its standard deviation over them.
        ratio: γ (1 = retrained) or δ (0 = retrained), as ratio_name says. distance: normalised parameter distance.
        needs: what the method reads when a request comes ("S", "S and D").
    """

    data: str
    removed: str
    method: str
    scale: str
    gap: float | None
    gap_spread: float | None
    ratio_name: str
    ratio: float | None
    distance: float | None
    erase_seconds: float | None
    retrain_seconds: float | None
    needs: str = "S"
    group: str = ""  # "paper", "baseline", "ours", "floor"


@dataclass
class Result:
    """One experiment, run.

    Attributes:
        data: one line for each data set, in words. differs: how they differ from the paper's, beside the figures.
        numbers: everything that was measured, by request and method; the figures are drawn from it.
        stand_in: whether scikit-learn's digits stand in for the paper's data. page: where the page was written.
    """

    experiment: str
    title: str
    form: Form
    stand_in: bool = False
    data: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    figures: list[PageFigure] = field(default_factory=list)
    tables: list[PageTable] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    summary: list[SummaryRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    command: str = ""
    seconds: float = 0.0
    date: str = ""
    machine: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    page: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it: figures by the name of their file, NaN as null."""
        shown = ("experiment", "title", "form", "stand_in", "command", "seed", "date", "seconds", "machine", "versions")
        body: dict[str, Any] = {name: getattr(self, name) for name in (*shown, "data", "differs", "notes")}
        for name in ("findings", "targets", "summary", "tables"):
            body[name] = [asdict(entry) for entry in getattr(self, name)]
        body["figures"] = [
            {"file": f"{d.name}.svg", "title": d.title, "caption": d.caption, "paper": d.paper} for d in self.figures
        ]
        body["numbers"] = self.numbers
        return as_plain(body)
