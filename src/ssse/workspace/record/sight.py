"""What a measurement could see at all: where a model that knew the samples and one that never did do alike, a measure
has nothing to see, and that it finds nothing says nothing. From the table as it may be shown. Nothing imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ORIGINAL, ERASED, RETRAINED = "original", "erased", "retrained"  # as `ssse evaluate` calls them
ATTACKS = ("attack", "calibrated_attack")
LEAST_SAMPLES = 2  # by which accuracies must differ: one may fall on either side by rounding
LEAST_KL = 1e-3  # nats: by Pinsker's inequality, predictions that differ by 2.3 % at most
LEFT = 0.1  # of the way from the original to the retrained model, that may be left

Table = Mapping[str, Any]


@dataclass(frozen=True)
class Sight:
    """One measure on the erased samples.

    Attributes:
        key, title: of the measure. before, after, goal: of the original, the erased and the retrained model.
        sees: whether it tells the original from the retrained model; of an attack, whether it finds the samples in the
            original. reached: whether it does not tell the erased model from the retrained one; of an attack, whether
            it does not find them in the erased model; None where that is not judged.
    """

    key: str
    title: str
    before: float
    after: float
    goal: float | None
    sees: bool
    reached: bool | None

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("key", "title", "before", "after", "goal", "sees", "reached")}


def sights(table: Table) -> list[Sight]:
    """Of the measures on the erased samples that the table has for both sides."""
    found = (_accuracy(table), _divergence(table), *(_attack(table, key) for key in ATTACKS), _rise(table))
    return [*(one for one in found if one is not None), *_distance(table)]


def failed_audits(table: Table) -> list[str]:
    """Titles of attacks that find the erased samples in the erased model; not where a retrained model fails too."""
    found = [key for key in ATTACKS if _fails(table, key, ERASED) and not _fails(table, key, RETRAINED)]
    return [_title(table, key) for key in found]


def void_audits(table: Table) -> list[str]:
    """Those that a model which never saw the samples fails: they tell other things than membership."""
    return [_title(table, key) for key in ATTACKS if _fails(table, key, RETRAINED)]


def failures(table: Table, key: str) -> list[str]:
    """Models that fail an audit."""
    return [name for name in table.get("models") or () if _fails(table, key, name)]


def lacking(table: Table) -> list[str]:
    """Models without which it cannot be said whether a measure has anything to see."""
    return [name for name in (ORIGINAL, RETRAINED) if name not in (table.get("models") or ())]


def _accuracy(table: Table) -> Sight | None:
    before, after, goal = (_value(table, "accuracy_forgotten", name) for name in (ORIGINAL, ERASED, RETRAINED))
    if before is None or after is None or goal is None:
        return None
    noise = max(_samples(table, LEAST_SAMPLES), 2 * (_cell(table, "accuracy_forgotten", RETRAINED)["spread"] or 0.0))
    away = abs(before - goal)
    reached = abs(after - goal) <= max(noise, LEFT * away)
    return Sight("accuracy_forgotten", TITLES["accuracy_forgotten"], before, after, goal, away > noise, reached)


def _divergence(table: Table) -> Sight | None:
    key = "kl_forgotten"
    before, after = (_value(table, key, name) for name in (ORIGINAL, ERASED))
    if before is None or after is None:
        return None
    limit = max(LEAST_KL, 2 * ((table.get("noise_floor") or {}).get(key) or 0.0))
    return Sight(key, _title(table, key), before, after, 0.0, before > limit, after <= max(limit, LEFT * before))


def _attack(table: Table, key: str) -> Sight | None:
    before, after, goal = (_value(table, key, name) for name in (ORIGINAL, ERASED, RETRAINED))
    if before is None or after is None:
        return None
    sees = _fails(table, key, ORIGINAL) and not _fails(table, key, RETRAINED)
    return Sight(key, _title(table, key), before, after, goal, sees, not _fails(table, key, ERASED))


def _rise(table: Table) -> Sight | None:
    """Along a harmless training: whether the erased model comes to know the samples again."""
    key, first = "resurfacing_rise", "resurfacing_accuracy_0"
    known, start = _value(table, first, ORIGINAL), _value(table, first, RETRAINED)
    before, after, goal = (_value(table, key, name) for name in (ORIGINAL, ERASED, RETRAINED))
    if known is None or start is None or before is None or after is None or goal is None:
        return None
    noise = _samples(table, LEAST_SAMPLES)
    sees = known - (start + goal) > noise
    return Sight(key, TITLES[key], before, after, goal, sees, after - goal <= noise)


def _distance(table: Table) -> list[Sight]:
    """The weights always differ; by how much they may is not for a threshold."""
    before, after = (_value(table, "distance", name) for name in (ORIGINAL, ERASED))
    if before is None or after is None:
        return []
    return [Sight("distance", _title(table, "distance"), before, after, 0.0, True, None)]


def _samples(table: Table, number: int) -> float:
    """As a share of S, in percent."""
    return 100 * number / max(1, (table.get("counts") or {}).get("forgotten") or 1)


def _fails(table: Table, key: str, model: str) -> bool:
    """Most of its seeds. Entries of the first versions have the word alone."""
    cell = _cell(table, key, model)
    passed, of = (cell["detail"].get(name) for name in ("passed", "of"))
    if passed is None or of is None:
        return cell["word"] == "FAIL"
    return 2 * passed < of


def _value(table: Table, key: str, model: str) -> float | None:
    return _cell(table, key, model)["value"]


def _cell(table: Table, key: str, model: str) -> dict[str, Any]:
    cell = ((table.get("values") or {}).get(key) or {}).get(model) or {}
    return {
        "value": cell.get("value"),
        "spread": cell.get("spread"),
        "word": cell.get("note", ""),
        "detail": cell.get("detail") or {},
    }


def _title(table: Table, key: str) -> str:
    titles = (m["title"] for m in table.get("measures") or () if m["key"] == key)
    return TITLES.get(key) or next(titles, key)


TITLES = {
    "accuracy_forgotten": "the accuracy on the erased samples",
    "attack": "the attack by confidence",
    "calibrated_attack": "the attack by confidence, less that of a retrained model",
    "kl_forgotten": "the divergence of the predictions from a retrained model's (KL)",
    "resurfacing_rise": "what comes back along a harmless training",
    "distance": "the distance of the weights from a retrained model's",
}
