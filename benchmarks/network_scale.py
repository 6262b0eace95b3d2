"""Which rows a small network's step wants, and whether the loss along it can choose ε: against retrained networks.

Digits, 64–32–10 with tanh, float64. Requests of 1 %, 5 %, a tenth, half and all of a class, each retrained from the
same initial weights; how near the predictions come is their KL divergence from the retrained network's, on S and on
test data. Trained to a minimum with w = 10⁻³, or 60 epochs by SGD with w = 10⁻⁶, where steps at ε = 1 ruin the network.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import ssse
from record import Report, run_alone
from ssse.calibration.search import loss_along_step
from ssse.rows.kinds import RowName

LOSS = "cross_entropy"
ROWS: tuple[RowName, ...] = ("expected", "margin", "sampled", "empirical")
Measures = dict[str, float]


@dataclass(frozen=True)
class Setting:
    name: str
    decay: float
    seeds: int
    train: Callable[[Tensor, Tensor, float, int], nn.Module]


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double()


def by_newton(x: Tensor, y: Tensor, decay: float, seed: int) -> nn.Module:
    model = network(seed)
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=400, history_size=20, tolerance_grad=1e-6, tolerance_change=0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), y) + decay / 2 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    optimiser.step(closure)  # type: ignore[arg-type]  # torch wants a float, and takes the tensor
    return model.eval()


def by_sgd(x: Tensor, y: Tensor, decay: float, seed: int, epochs: int = 60) -> nn.Module:
    model, generator = network(seed), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.2, total_steps=epochs + 1)
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=generator).split(64):
            optimiser.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimiser.step()
        schedule.step()
    return model.eval()


def requests(y: Tensor, seed: int) -> Iterator[tuple[str, Tensor]]:
    lot = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    yield "1 %", lot[:14]
    yield "5 %", lot[-70:]
    for place, (name, share) in enumerate((("a tenth of a class", 0.1), ("half of one", 0.5), ("all of one", 1.0))):
        members = torch.nonzero(y == (seed + 5 + place) % 10).flatten()
        yield name, members[: int(share * len(members))]


@torch.no_grad()
def apart(model: nn.Module, retrained: nn.Module, x: Tensor) -> float:
    p, q = retrained(x).log_softmax(1), model(x).log_softmax(1)
    return float((p.exp() * (p - q)).sum(1).mean())


@torch.no_grad()
def gap(model: nn.Module, retrained: nn.Module, splits: list[tuple[Tensor, Tensor]]) -> float:
    """Mean absolute difference of accuracies, in points."""
    rates = [[float((m(x).argmax(1) == y).double().mean()) for x, y in splits] for m in (model, retrained)]
    return 100 * sum(abs(a - b) for a, b in zip(*rates, strict=True)) / len(splits)


def along(setting: Setting, found: dict[str, list[Measures]], split: list[Tensor]) -> None:
    x, test, y, test_y = split
    for seed in range(setting.seeds):
        model, data = setting.train(x, y, setting.decay, seed), [(x, y)]
        settings = {"weight_decay": setting.decay, "structure": "dense", "blocks": "one", "progress": False}
        curvatures = {rows: ssse.Curvature.fit(model, LOSS, data, rows=rows, **settings) for rows in ROWS}
        for _, s in requests(y, seed):
            keep = torch.ones(len(y), dtype=torch.bool)
            keep[s] = False
            forget = [(x[s], y[s])]
            retrained = setting.train(x[keep], y[keep], setting.decay, seed)
            splits = [(x[keep], y[keep]), *forget, (test, test_y)]

            def note(name: str, other: nn.Module, scale: float, decided: bool = True) -> None:
                found[name].append(
                    {
                        "scale": scale,
                        "S": apart(other, retrained, forget[0][0]),  # noqa: B023
                        "test": apart(other, retrained, test),  # noqa: B023
                        "gap": gap(other, retrained, splits),  # noqa: B023
                        "decided": float(decided),
                    }
                )

            note("nothing", model, 0.0)
            for rows, curvature in curvatures.items():
                erasure = ssse.erase(
                    model, curvature, forget=forget, scale=1.0, override=ssse.BOUNDS
                )  # looked at, also if bad
                note(f"{rows}, ε = 1", erasure.model, 1.0)
                searched = loss_along_step(model, curvature, LOSS, forget, erasure.direction, data, residual=False)
                scale, decided = searched.by_loss()[0], True
                try:
                    options = {"method": "loss_search", "data": data, "progress": False}
                    ssse.calibrate(model, curvature, LOSS, forget, **options)
                except ssse.Undecided:
                    decided = False
                note(
                    f"{rows}, loss search",
                    ssse.erase(model, curvature, forget=forget, scale=scale, override=ssse.BOUNDS).model,
                    scale,
                    decided,
                )


def main(_: Path) -> None:
    torch.set_num_threads(1)
    features, labels = load_digits(return_X_y=True)
    parts = train_test_split(features / 16.0, labels, test_size=0.2, random_state=0, stratify=labels)
    split = [torch.from_numpy(part) for part in parts]
    report = Report("network_scale", "ε of a network's step: rows, and the loss along it (digits, 64–32–10)")
    for setting in (Setting("at a minimum", 1e-3, 3, by_newton), Setting("far from one", 1e-6, 1, by_sgd)):
        found: dict[str, list[Measures]] = defaultdict(list)
        along(setting, found, split)
        count = len(found["nothing"])
        lines = []
        for name, measured in found.items():
            better = [m["S"] < nothing["S"] for m, nothing in zip(measured, found["nothing"], strict=True)]
            values = [median(m[key] for m in measured) for key in ("scale", "S", "test", "gap")]
            lines.append((name, *values, f"{sum(better)} of {count}"))
        report.table(
            f"{setting.name}, w = {setting.decay:g}: medians over {count} requests",
            ("step", "ε", "KL on S", "KL on test data", "gap, points", "nearer on S than nothing"),
            lines,
        )
        judged = []
        for rows in ROWS:
            one, other = found[f"{rows}, ε = 1"], found[f"{rows}, loss search"]
            worse = sum(b["S"] > a["S"] for a, b in zip(one, other, strict=True))
            judged.append((rows, f"{worse} of {count}", f"{count - sum(m['decided'] for m in other):.0f} of {count}"))
        report.table(
            f"{setting.name}: the ε of the loss search against ε = 1",
            ("rows", "further off on S", "calibrate is undecided"),
            judged,
        )
        report.numbers[setting.name] = dict(found)
    report.finish()


if __name__ == "__main__":
    run_alone(main, __doc__)
