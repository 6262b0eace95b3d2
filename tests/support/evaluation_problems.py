"""Shared by the tests of `ssse.evaluate`: a problem of two kinds, and a plain recomputation of every number."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import confusion_matrix, roc_auc_score
from torch import Tensor, nn

import ssse
from ssse import metrics

FEATURES = 6
SIZES = {"retained": 40, "forgotten": 12, "test_other": 25, "test_same": 11}


# ── a problem of two kinds, and plain recomputation ───────────────────────────────────────────────────────────────


@dataclass
class Case:
    """Models that say something about data they have not seen: nothing here has to be trained to be measured."""

    task: str
    data: dict[str, tuple[Tensor, Tensor]]

    @property
    def splits(self) -> dict[str, list[tuple[Tensor, Tensor]]]:
        return {split: [pair] for split, pair in self.data.items()}

    def part(self, *names: str) -> dict[str, list[tuple[Tensor, Tensor]]]:
        return {split: batches for split, batches in self.splits.items() if split in names}


OUTPUTS = 4


def model(seed: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    found = nn.Linear(FEATURES, OUTPUTS).to(dtype)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return found.eval()


def near(base: nn.Module, seed: int, size: float = 0.5) -> nn.Module:
    found, other = copy.deepcopy(base), model(seed)
    with torch.no_grad():
        for mine, noise in zip(found.parameters(), other.parameters(), strict=True):
            mine += size * noise
    return found


def make(task: str, sizes: Mapping[str, int] = SIZES, dtype: torch.dtype = torch.float64) -> Case:
    generator = torch.Generator().manual_seed(11)
    truth, data = model(0), {}
    for split, n in sizes.items():
        x = torch.randn(n, FEATURES, generator=generator, dtype=torch.float64)
        z = truth(x).detach() + torch.randn(n, OUTPUTS, generator=generator, dtype=torch.float64)
        y = z.argmax(1) if task == "classes" else (z > 0.5).long()
        data[split] = x.to(dtype), y
    return Case(task, data)


CASES = {task: make(task) for task in ("classes", "attributes")}
WHOLE = {split: n for split, n in SIZES.items() if not split.startswith("test")} | {"test": 30}


def family(retrained: int = 1, erased: int = 1, original: int = 1) -> dict[str, Any]:
    """Original and erased models around one place, retrained ones around another; one model alone is not a list."""
    first, goal = model(0), near(model(0), 50, 0.4)

    def several(base: nn.Module, count: int, seed: int) -> Any:
        found = [near(base, seed + i, 0.3) for i in range(count)]
        return found if count > 1 else found[0]

    return {
        "original": several(first, original, 100),
        "erased": several(goal, erased, 200),
        "retrained": several(goal, retrained, 300),
    }


def seeds(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def logits(model: nn.Module, x: Tensor) -> np.ndarray:
    return model(x).detach().double().numpy()


class Plain:
    """The table again, a number at a time, from logits alone."""

    def __init__(self, models: Mapping[str, Any], data: Mapping[str, tuple[Tensor, Tensor]], task: str):
        self.models, self.data, self.task = models, data, task

    def accuracy(self, model: nn.Module, *splits: str) -> float:
        right = []
        for split in splits:
            x, y = self.data[split]
            z = logits(model, x)
            right += list(z.argmax(1) == y.numpy() if self.task == "classes" else ((z > 0) == y.numpy()).mean(1))
        return float(np.mean(right))

    def accuracies(self, model: nn.Module) -> list[float]:
        return [self.accuracy(model, split) for split in self.data]

    def gap(self, model: nn.Module, references: list[nn.Module]) -> float:
        means = np.mean([self.accuracies(other) for other in references], axis=0)
        return 100 * float(np.mean(np.abs(np.array(self.accuracies(model)) - means)))

    def tow(self, model: nn.Module, references: list[nn.Module]) -> float:
        test = [split for split in self.data if split.startswith("test")]
        product = 1.0
        for splits in (["forgotten"], ["retained"], test):
            mean = np.mean([self.accuracy(other, *splits) for other in references])
            product *= 1 - abs(self.accuracy(model, *splits) - float(mean))
        return product

    def kl(self, model: nn.Module, references: list[nn.Module], split: str) -> float:
        x, _ = self.data[split]
        z, others = torch.tensor(logits(model, x)), [torch.tensor(logits(other, x)) for other in references]
        if self.task == "classes":
            mean = torch.stack([other.softmax(1) for other in others]).mean(0)
            return float(F.kl_div(z.log_softmax(1), mean, reduction="batchmean"))
        mean = torch.stack([other.sigmoid() for other in others]).mean(0)
        yes = F.kl_div(F.logsigmoid(z), mean, reduction="batchmean")
        return float(yes + F.kl_div(F.logsigmoid(-z), 1 - mean, reduction="batchmean"))

    def profile(self, model: nn.Module) -> np.ndarray:
        x, y = self.data["forgotten"]
        z, truth = logits(model, x), y.numpy()
        if self.task == "classes":
            return confusion_matrix(truth, z.argmax(1), labels=range(OUTPUTS)).astype(float)
        both = [a for a in range(OUTPUTS) if 0 < truth[:, a].mean() < 1]
        return np.array([roc_auc_score(truth[:, a], z[:, a]) if a in both else 0.0 for a in range(OUTPUTS)])

    def ratio(self, model: nn.Module, original: nn.Module, references: list[nn.Module]) -> float:
        """δ or γ."""
        found = []
        for other in references:
            away, left = (float(np.abs(self.profile(model) - self.profile(m)).sum()) for m in (original, other))
            part = left if self.task == "classes" else away
            found.append(part / (away + left) if away + left else 0.5)
        return float(np.mean(found))

    def distance(self, model: nn.Module, original: nn.Module, references: list[nn.Module]) -> float:
        theta, start, *goals = (
            torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in (model, original, *references)
        )
        found = [(theta - goal).norm() / ((theta - start).norm() + (theta - goal).norm()) for goal in goals]
        return float(torch.stack(found).mean())

    def phi(self, model: nn.Module, split: str) -> np.ndarray:
        x, y = self.data[split]
        z = torch.tensor(logits(model, x))
        if self.task == "classes":
            p = z.softmax(1)[torch.arange(len(y)), y]
        else:
            p = torch.where(y == 1, z.sigmoid(), 1 - z.sigmoid()).prod(1)
        return (p.log() - (1 - p).log()).numpy()

    def attack(self, model: nn.Module, references: list[nn.Module] | None = None) -> float:
        sides = []
        for split in ("forgotten", "test_same" if "test_same" in self.data else "test"):
            level = np.mean([self.phi(other, split) for other in references], axis=0) if references else 0.0
            sides.append(self.phi(model, split) - level)
        return float(roc_auc_score([1] * len(sides[0]) + [0] * len(sides[1]), np.concatenate(sides)))

    def member_rate(self, model: nn.Module) -> float:
        test = np.concatenate([self.phi(model, split) for split in self.data if split.startswith("test")])
        return 100 * float(metrics.member_rate(self.phi(model, "forgotten"), self.phi(model, "retained"), test))


def expected_values(plain: Plain) -> tuple[dict[tuple[str, str], tuple[float, float | None]], dict[str, float]]:
    """(model, measure) → mean and standard deviation over seeds; and the floors, by leaving one out."""
    goal = seeds(plain.models["retrained"])
    start = seeds(plain.models["original"])

    def measures(seed: int, model: nn.Module, others: list[nn.Module]) -> dict[str, float]:
        origin = start[seed % len(start)]
        found = {"mean_gap": plain.gap(model, others), "tow": plain.tow(model, others)}
        found |= {f"kl_{split}": plain.kl(model, others, split) for split in plain.data}
        found["delta" if plain.task == "classes" else "gamma"] = plain.ratio(model, origin, others)
        return found | {"distance": plain.distance(model, origin, others)}

    def averaged(seed: int, model: nn.Module) -> dict[str, float]:
        """Against the average of all retrained models but one, for each one: as the retrained models are."""
        groups = [[other for other in goal if other is not one] for one in goal] if len(goal) > 1 else [goal]
        each = [measures(seed, model, group) for group in groups]
        return {key: float(np.mean([found[key] for found in each])) for key in each[0]}

    values: dict[tuple[str, str], tuple[float, float | None]] = {}
    for name, given in plain.models.items():
        rows: list[dict[str, float]] = []
        for seed, model in enumerate(seeds(given)):
            others = [other for other in goal if other is not model]
            row = {f"accuracy_{split}": 100 * plain.accuracy(model, split) for split in plain.data}
            row |= {"attack": plain.attack(model), "member_rate": plain.member_rate(model)}
            row |= {"calibrated_attack": plain.attack(model, others)} if others else {}
            rows.append(row if name == "retrained" else row | averaged(seed, model))
        for key in rows[0]:
            column = [row[key] for row in rows]
            values[name, key] = float(np.mean(column)), float(np.std(column, ddof=1)) if len(column) > 1 else None
    floors = {}
    if len(goal) > 1:
        left_out = [measures(i, goal[i], goal[:i] + goal[i + 1 :]) for i in range(len(goal))]
        floors = {key: float(np.mean([found[key] for found in left_out])) for key in left_out[0]}
    return values, floors


def evaluate(models: Mapping[str, Any], splits: Any, **options: Any) -> ssse.Evaluation:
    return ssse.evaluate(models, splits, **{"progress": False, **options})


def number(found: ssse.Evaluation, name: str, key: str) -> float:
    value = found[name, key]
    assert value is not None
    return value


def values_of(found: ssse.Evaluation) -> dict[str, float]:
    """All numbers, floors and notes in one mapping, to compare tables."""
    flat = {f"{m}, {key}": cell.value for key, row in found.cells.items() for m, cell in row.items()}
    flat |= {f"{m}, {key} ±": cell.spread for key, row in found.cells.items() for m, cell in row.items()}
    flat |= {f"floor, {key}": value for key, value in found.floors.items()}
    return {key: -1.0 if value is None else value for key, value in flat.items()}


def notes_of(found: ssse.Evaluation) -> dict[tuple[str, str], str]:
    return {(m, key): cell.note for key, row in found.cells.items() for m, cell in row.items()}
