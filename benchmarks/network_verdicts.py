"""Verdict against truth, of networks: what an erasure says of itself, and what a retrained twin says of it.

Small networks (tanh and ReLU, one to three layers, convolutions, with and without BatchNorm, trained to the end and
not), requests from one sample to a whole class, with the right λ and ε and with wrong ones. A twin has the same first
weights and is trained on what stays, all samples at once: it differs by the forgotten samples alone. The distance of
two networks is that of their predicted probabilities, √(mean over S + mean over held-out samples of the classes that
stay).

    good     at most half as far from the twin as the network before was, or no further than a twin that began with
             other weights
    harmful  more than 1.1 times as far as both; or 5 points fewer right, of what stays or of what was held out, than
             both the network before and the twin have
    usable   what is neither
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import ssse
from network_problems import TO_CHOOSE, Net, Split, nets, requests, splits, train
from record import Report, run_alone
from ssse.erasure.networks import TRUSTED_MARGINS, TRUSTED_MARGINS_OF_PROBE

Quality = Literal["good", "usable", "harmful"]
QUALITIES: tuple[Quality, ...] = ("good", "usable", "harmful")
VERDICTS = ("ok", "caution", "refused")
HALF, FURTHER, BROKEN = 0.5, 1.1, 0.05
KINDS: tuple[set[str], ...] = ({"harmful"}, {"good"})
FACTS = {
    "relative_step": "length of the step over ‖θ‖",
    "margin_error": "margins of S against the tangent",
    "probe_margin_error": "margins of the probe against the tangent",
    "leverage_max": "largest leverage",
    "imbalance": "n‖∇L(θ*)‖ over ‖g_S‖",
}
AS_MEANT = (("expected", 1.0, 1.0), ("margin", 1.0, 1.0))
# λ over the weight decay, and ε. Two of them for each request, in turn.
WRONG = (("margin", 0.1, 1.0), ("margin", 10.0, 1.0), ("expected", 0.01, 1.0), ("margin", 100.0, 1.0),
         ("expected", 1.0, 4.0), ("margin", 1.0, 20.0))  # fmt: skip


@dataclass(frozen=True)
class Setting:
    rows: Any
    damping: float
    scale: float

    @property
    def meant(self) -> bool:
        return self.damping == 1 and self.scale == 1


@dataclass(frozen=True)
class Case:
    """One erasure. distance, floor: over that of the network before; `floor`: of a twin from other first weights.

    verdict: with a probe of held-out samples. alone: without one.
    """

    data: str
    net: str
    request: str
    rows: str
    damping: float
    scale: float
    k: int
    n: int
    verdict: str
    alone: str
    quality: Quality
    distance: float
    floor: float
    lost: float
    probe_worse: bool
    relative_step: float | None = None
    margin_error: float | None = None
    probe_margin_error: float | None = None
    imbalance: float | None = None
    leverage_max: float | None = None

    @property
    def meant(self) -> bool:
        return self.damping == 1 and self.scale == 1

    @property
    def chosen_on(self) -> bool:
        return self.data in TO_CHOOSE


@dataclass(frozen=True)
class Truth:
    """What an erased network is held against: the one before, its twin, and a twin from other first weights."""

    groups: dict[str, tuple[Tensor, Tensor]]
    before: nn.Module
    twin: nn.Module
    other: nn.Module

    def distance(self, model: nn.Module) -> float:
        squares = [
            (model(x).softmax(1) - self.twin(x).softmax(1)).square().sum(1).mean()
            for name, (x, _) in self.groups.items()
            if name != "stays"
        ]
        return float(torch.stack(squares).sum().sqrt())

    def lost(self, model: nn.Module) -> float:
        """The larger share, of what stays and of what was held out, that is no longer right."""
        return max(
            min(_right(self.before, *self.groups[name]), _right(self.twin, *self.groups[name]))
            - _right(model, *self.groups[name])
            for name in ("stays", "held out")
        )

    @torch.no_grad()
    def judged(self, model: nn.Module) -> tuple[Quality, float, float, float]:
        before, floor, now = (self.distance(one) for one in (self.before, self.other, model))
        lost = self.lost(model)
        quality: Quality = "usable"
        if lost > BROKEN or not now <= FURTHER * max(before, floor):
            quality = "harmful"
        elif now <= max(HALF * before, floor):
            quality = "good"
        return quality, now / before, floor / before, lost


def main(folder: Path) -> None:
    report = Report("network_verdicts", "Verdict against truth, of networks")
    torch.set_num_threads(1)
    cases: list[Case] = []
    for number, data in enumerate(splits(folder)):
        for net in nets(data, number):
            cases += cases_of(data, net, number, len(cases))
        print(f"{data.name}: {len(cases)} erasures so far", flush=True)
    write(report, cases)


def cases_of(data: Split, net: Net, number: int, turn: int) -> list[Case]:
    everything, out = torch.arange(len(data.y)), []
    model = train(net, data, everything, number)
    fitted = {rows: fit(model, data, net, rows) for rows in ("expected", "margin")}
    for place, (name, places) in enumerate(requests(data, np.random.default_rng([number, len(net.name)]))):
        forget = torch.from_numpy(np.sort(places))
        stays = everything[~torch.isin(everything, forget)]
        twins = [train(net, data, stays, seed) for seed in (number, number + 100)]
        truth = Truth(groups(data, forget, stays), model, *twins)
        wrong = [WRONG[(2 * (turn + place) + i) % len(WRONG)] for i in (0, 1)]
        for setting in (Setting(*one) for one in (*AS_MEANT, *wrong)):
            curvature = fitted[setting.rows].with_damping(setting.damping * net.decay)
            out.append(case(data, net, name, forget, curvature, setting, truth))
    return out


def fit(model: nn.Module, data: Split, net: Net, rows: Any) -> ssse.Curvature:
    with warnings.catch_warnings():  # of a weight decay that a network which was trained badly contradicts
        warnings.simplefilter("ignore", ssse.DoubtfulSetting)
        return ssse.Curvature.fit(
            model, "cross_entropy", [(data.x, data.y)], rows=rows, weight_decay=net.decay, n=len(data.y),
            structure="lowrank" if rows == "margin" else "auto", progress=False,
        )  # fmt: skip


def groups(data: Split, forget: Tensor, stays: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Without held-out samples of a class of which a quarter goes: a retrained network knows less of them too."""
    gone = data.y[forget].bincount(minlength=data.classes) > 0.25 * data.y.bincount(minlength=data.classes)
    held_x, held_y = data.held_x[1::2], data.held_y[1::2]
    kept = ~gone[held_y]
    return {
        "forgotten": (data.x[forget], data.y[forget]),
        "stays": (data.x[stays], data.y[stays]),
        "held out": (held_x[kept], held_y[kept]),
    }


def case(
    data: Split, net: Net, request: str, forget: Tensor, curvature: ssse.Curvature, setting: Setting, truth: Truth
) -> Case:
    probe = [(data.held_x[::2], data.held_y[::2])]  # networks are compared on the others
    forced = ssse.erase(  # what is refused is measured as the others
        truth.before, curvature, forget=[(data.x[forget], data.y[forget])], scale=setting.scale, probe=probe,
        override=ssse.BOUNDS, progress=False,
    )  # fmt: skip
    found = forced.diagnostics
    quality, distance, floor, lost = truth.judged(forced.model)
    alone = "refused" if set(found.overridden) - {"probe"} else "caution"  # nothing else looks at a probe
    return Case(
        data.name, net.name, request, setting.rows, setting.damping, setting.scale, len(forget), len(data.y),
        "refused" if found.overridden else found.verdict, alone, quality, distance, floor, lost,
        bool(found.probe_worse), found.relative_step, found.margin_error, found.probe_margin_error, found.imbalance,
        found.leverage_max,
    )  # fmt: skip


@torch.no_grad()
def _right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).double().mean())


def write(report: Report, cases: list[Case]) -> None:
    chosen, others = [c for c in cases if c.chosen_on], [c for c in cases if not c.chosen_on]
    columns = ("", *QUALITIES, "all")
    for title, some in (
        ("Data sets that the limits were chosen on, with a probe", chosen),
        ("The other data sets, with a probe", others),
        ("The other data sets, λ = w and ε = 1, with a probe", [c for c in others if c.meant]),
    ):
        report.table(title, columns, confusion(some, "verdict"))
    report.table("The other data sets, without a probe", columns, confusion(others, "alone"))
    for title, key in (("By request", "request"), ("By network", "net")):
        names = dict.fromkeys(getattr(c, key) for c in cases)
        report.table(
            f"{title}, λ = w and ε = 1, all data sets",
            ("", *QUALITIES, "ok", "refused", "distance", "two twins"),
            [row_of(name, [c for c in cases if c.meant and getattr(c, key) == name]) for name in names],
        )
    report.table(
        "How well one number tells what is harmful, or good, from what is not (0.5: not at all)",
        ("", "harmful, all", "harmful, λ = w and ε = 1", "good, λ = w and ε = 1"),
        [
            [words, separation(cases, key, {"harmful"}), *(separation(meant, key, kind) for kind in KINDS)]
            for meant in [[c for c in cases if c.meant]]
            for key, words in FACTS.items()
        ],
    )
    vouched = [c for c in others if c.verdict == "ok"]
    report.at_least("erasures with a retrained twin", len(cases), 60)
    report.at_most("other data sets: ok and harmful", sum(c.quality == "harmful" for c in vouched), 0)
    report.at_least("other data sets: ok is good", percent(c.quality == "good" for c in vouched), 80, " %")
    refused = [c for c in others if c.verdict == "refused"]
    report.at_least("other data sets: refused is harmful", percent(c.quality == "harmful" for c in refused), 95, " %")
    harmful = [c for c in others if c.quality == "harmful"]
    report.at_least("other data sets: harmful ones refused", percent(c.verdict == "refused" for c in harmful), 50, " %")
    report.notes.append(
        f"Limits: margins of S {TRUSTED_MARGINS:g}, of the probe {TRUSTED_MARGINS_OF_PROBE:g}, beside the other "
        f"reasons of a verdict. Chosen on {', '.join(TO_CHOOSE)}. Refused steps were taken by force and measured as "
        "the others. Distance and two twins: medians, over the distance of the network before; two twins: of a twin "
        "that began with other weights. One half of the held-out samples is the probe, the other what networks are "
        "compared on."
    )
    names = [field.name for field in fields(Case)]
    report.numbers = {
        "columns": ", ".join(names),
        "cases": [", ".join(plain(getattr(c, n)) for n in names) for c in cases],
    }
    report.finish()


def confusion(cases: Sequence[Case], key: str) -> list[list[Any]]:
    rows = []
    for verdict in VERDICTS:
        mine = [c for c in cases if getattr(c, key) == verdict]
        rows.append([verdict, *(sum(c.quality == quality for c in mine) for quality in QUALITIES), len(mine)])
        if verdict == "caution" and key == "verdict":
            worse = [c for c in mine if c.probe_worse]
            rows.append(
                [
                    "… of these, the probe does worse",
                    *(sum(c.quality == q for c in worse) for q in QUALITIES),
                    len(worse),
                ]
            )
    return rows


def row_of(name: str, cases: Sequence[Case]) -> list[Any]:
    counts = [sum(c.quality == quality for c in cases) for quality in QUALITIES]
    said = [sum(c.verdict == verdict for c in cases) for verdict in ("ok", "refused")]
    return [
        name,
        *counts,
        *said,
        float(np.median([c.distance for c in cases])),
        float(np.median([c.floor for c in cases])),
    ]


def separation(cases: Sequence[Case], key: str, kind: set[str]) -> float:
    """The chance that, of one of this kind and one that is not, the number is larger for the first (AUC); `good` is to
    have the smaller one."""
    values = [(getattr(c, key), c.quality in kind) for c in cases if getattr(c, key) is not None]
    mine, others = (np.array([v for v, inside in values if inside is wanted]) for wanted in (True, False))
    larger = float(((mine[:, None] > others) + 0.5 * (mine[:, None] == others)).mean())
    return 1 - larger if kind == {"good"} else larger


def percent(flags: Iterable[bool]) -> float:
    values = list(flags)
    return 100 * sum(values) / len(values) if values else 100.0


def plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value).replace(",", ";")


if __name__ == "__main__":
    run_alone(main, __doc__)
