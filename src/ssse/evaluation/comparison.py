"""From records to rows of the table: what differs from the retrained models, and what an attacker still sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from torch import nn

from ssse.errors import InvalidData
from ssse.evaluation.records import Key, Records
from ssse.evaluation.splits import HELD_OUT, SPLITS
from ssse.evaluation.table import Cell, Measure
from ssse.metrics.attacks import Attack, member_rate, reference_attack, threshold_attack
from ssse.metrics.confusion import confusion_ratio, confusions
from ssse.metrics.distance import parameter_distance, same_parameters
from ssse.metrics.gaps import mean_gap, tug_of_war
from ssse.metrics.klom import EMPTY, klom
from ssse.metrics.scores import Flagged
from ssse.metrics.similarity import attribute_auc, share, similarity_of
from ssse.metrics.ulira import u_lira

OTHER_CLASSES = 0.5  # total variation between the classes of S and of the held-out samples
FEW = 10  # samples of which the classes say little
LARGEST_KLOM = float(-np.log(EMPTY))
DISTRIBUTION = 4  # models of a kind from which on their distributions are compared


@dataclass
class Row:
    measure: Measure
    cells: dict[str, Cell]
    floor: Cell = field(default_factory=lambda: Cell(None))


@dataclass
class Comparison:
    """All models against the retrained ones; a retrained model itself is compared with the others of its kind.

    Attributes:
        notes: which models a flag of a measure is about, by (measure, flag).
    """

    records: Records
    original: str
    retrained: str
    level: float
    notes: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    right: ClassVar[str] = "accuracy, %"  # what the records' `right` and `confidences` are called
    confidence: ClassVar[str] = "confidence"

    def rows(self) -> Iterator[Row]:
        yield from self.accuracies()
        if self.goal:
            yield from self.gaps()
            yield from self.ratios()
        if "forgotten" in self.records.splits:
            yield from self.attacks()
            yield from self.distributions()

    @property
    def flags(self) -> list[str]:
        return [f"{key} of {', '.join(names)}: {flag}." for (key, flag), names in self.notes.items()]

    @property
    def goal(self) -> list[Key]:
        return self.records.seeds(self.retrained)

    def others(self, key: Key) -> list[Key]:
        return [other for other in self.goal if other != key]

    def references(self, key: Key) -> list[list[Key]]:
        """The groups of retrained models whose average the model is held against: all but one, for each one.

        A retrained model is held against all but itself. An average of all would be nearer to every other model than
        one of all but one is to a retrained model, and the floor too high.
        """
        if key in self.goal or len(self.goal) == 1:
            return [self.others(key)]
        return [self.others(one) for one in self.goal]

    def accuracies(self) -> Iterator[Row]:
        for split in self.records.splits:
            measure = Measure(f"accuracy_{split}", SPLITS[split], self.right)
            yield self.row(measure, lambda key, split=split: 100 * self.records.accuracies(key)[split])

    def gaps(self) -> Iterator[Row]:
        group = f"difference to '{self.retrained}'"

        def gap(key: Key) -> float:
            own = self.records.accuracies(key)
            return float(np.mean([100 * mean_gap(own, self.mean_accuracies(group)) for group in self.references(key)]))

        yield self.gap_row(Measure("mean_gap", "mean accuracy gap, points", group, gap=True), gap)
        if {"forgotten", "retained"} <= self.records.splits.keys() and self.records.whole_test:
            yield self.gap_row(Measure("tow", "ToW (1 = retrained)", group, 3, gap=True), self.tow)
        for split, records in self.records.splits.items():
            measure = Measure(f"kl_{split}", f"KL(retrained ‖ model), {SPLITS[split]}", group, 4, gap=True)
            yield self.gap_row(measure, lambda key, records=records: _mean(records[key].divergence))

    def mean_accuracies(self, keys: Sequence[Key]) -> dict[str, float]:
        each = [self.records.accuracies(key) for key in keys]
        return {split: float(np.mean([accuracies[split] for accuracies in each])) for split in self.records.splits}

    def tow(self, key: Key) -> float:
        def three(keys: Sequence[Key]) -> dict[str, float]:
            test = [self.records.accuracy_on_test(other) for other in keys]
            mean = self.mean_accuracies(keys)
            whole = float(np.mean([value for value in test if value is not None]))
            return {"forgotten": mean["forgotten"], "retained": mean["retained"], "test": whole}

        return float(np.mean([tug_of_war(three([key]), three(group)) for group in self.references(key)]))

    def ratios(self) -> Iterator[Row]:
        """γ or δ, and the parameter distance: where something is between the original and the retrained model."""
        start = self.records.seeds(self.original)
        if not start:
            return
        group = f"between '{self.original}' and '{self.retrained}'"
        if "forgotten" in self.records.splits:
            classes = self.records.task == "classes"
            ratio: Callable[..., Flagged] = confusion_ratio if classes else similarity_of
            title = "δ on S (0 = retrained)" if classes else "γ on S (1 = retrained)"
            measure = Measure("delta" if classes else "gamma", title, group, 3, gap=True)
            performances = self.performances(measure)

            def of_performance(key: Key) -> float | None:
                three = [(key, start[key.seed % len(start)], other) for other in self.others(key)]
                return _mean_flagged(
                    ratio(*(performances[k] for k in keys)) for keys in three if performances.keys() >= {*keys}
                )

            yield self.gap_row(measure, of_performance)
        yield from self.distances()

    def distances(self) -> Iterator[Row]:
        """The parameters', where original, retrained and this model have the same ones."""
        start = self.records.seeds(self.original)
        if not start:
            return
        group = f"between '{self.original}' and '{self.retrained}'"
        modules = {key: model for key, model in self.records.models.items() if isinstance(model, nn.Module)}
        first = modules.get(start[0])
        if first is None or next(first.parameters(), None) is None:
            return
        comparable = {key: module for key, module in modules.items() if same_parameters(module, first)}
        if not comparable.keys() >= {*start, *self.goal}:
            return

        def of_parameters(key: Key) -> float | None:
            if key not in comparable:
                return None
            away = parameter_distance(comparable[key], comparable[start[key.seed % len(start)]])
            remaining = (parameter_distance(comparable[key], comparable[other]) for other in self.others(key))
            return _mean_flagged(share(distance, away) for distance in remaining)

        yield self.gap_row(Measure("distance", "parameter distance (0 = retrained)", group, 3, gap=True), of_parameters)

    def performances(self, measure: Measure) -> dict[Key, Any]:
        """Confusion matrix or AUCs of every model on S; a model that has none is left out, with a note."""
        performance, performances = confusions if self.records.task == "classes" else attribute_auc, {}
        for key, record in self.records.splits["forgotten"].items():
            try:
                performances[key] = performance(record.logits, self.records.labels)
            except InvalidData as error:  # one sample, attributes that are all the same, a model constant on S
                self.note(measure, key.name, [str(error)])
        return performances

    def attacks(self) -> Iterator[Row]:
        """Each is an audit: a model that never saw S passes it with probability 1 − level."""
        group = f"attacks on S: AUC, audit at {100 * self.level:g} %"
        forgotten, held = self.records.splits["forgotten"], self.records.held_out
        if held is None:
            return
        self.note_other_classes()

        def by_confidence(key: Key) -> Attack:
            return threshold_attack(forgotten[key].phi, held[key].phi, level=self.level)

        yield self.audit_row(Measure("attack", self.confidence, group, 3), by_confidence)
        if self.goal:

            def calibrated(key: Key) -> Attack | None:
                others = self.others(key)
                if not others:
                    return None
                references = (np.stack([records[other].phi for other in others]) for records in (forgotten, held))
                return reference_attack(forgotten[key].phi, held[key].phi, *references, level=self.level)

            title = f"{self.confidence}, less that of '{self.retrained}'"
            measure = Measure("calibrated_attack", title, group, 3)
            if len(self.goal) == 2:
                mirrored = "two of them mirror each other, so their mean is 0.5 by construction"
                self.note(measure, self.retrained, [mirrored])
            yield self.audit_row(measure, calibrated)
        if "retained" in self.records.splits and self.records.whole_test:
            members, test = self.records.splits["retained"], self.records.whole_test

            def rate(key: Key) -> float:
                # Samples of all kinds on both sides: the threshold is to tell members, not kinds.
                never = np.concatenate([records[key].phi for records in test])
                called = member_rate(forgotten[key].phi, members[key].phi, never)
                return Flagged(100 * called, *called.flags)

            yield self.row(Measure("member_rate", "called members by a threshold, %", group), rate)

    def note_other_classes(self) -> None:
        """Audits are nominal where S and the held-out samples are alike; other classes are not."""
        shares = self.records.shares
        held = next(split for split in HELD_OUT if split in self.records.splits)
        if "forgotten" not in shares or self.records.counts["forgotten"] < FEW:
            return
        apart = float(np.abs(shares["forgotten"] - shares[held]).sum() / 2)
        if apart > OTHER_CLASSES:
            flag = (
                f"S and the held-out samples ('{held}') share only {1 - apart:.0%} of their classes, so this attack "
                "tells classes apart rather than members; pass test samples of S's classes as 'test_same'"
            )
            self.notes["attack", flag] = self.records.names

    def distributions(self) -> Iterator[Row]:
        """KLoM and U-LiRA, which compare many models of each kind, and say nothing about one."""
        forgotten = self.records.splits["forgotten"]
        if len(self.goal) < DISTRIBUTION:
            return
        oracle = np.stack([forgotten[key].phi for key in self.goal])
        group = "distributions over models, on S"
        many = [n for n in self.records.names if len(self.records.seeds(n)) >= DISTRIBUTION and n != self.retrained]
        phi = {name: np.stack([forgotten[key].phi for key in self.records.seeds(name)]) for name in many}
        if not many:
            return
        least = min(map(len, phi.values()))  # KLoM falls with the number of models: as many of each, and one floor
        margins = {name: klom(phi[name][:least], oracle) for name in many}
        cells = {name: Cell(margin.mean) for name, margin in margins.items()}
        measure, floor = Measure("klom", "KLoM, mean", group, 3, gap=True), next(iter(margins.values())).floor_mean
        if floor > LARGEST_KLOM / 2:
            few = f"its floor is {floor:.1f} of at most {LARGEST_KLOM:.1f}: too few models to tell anything apart"
            self.note(measure, self.retrained, [few])
        yield Row(measure, cells, Cell(floor))
        attacks = {name: u_lira(phi[name], oracle, level=self.level) for name in many}
        cells = {
            name: Cell(100 * attack.accuracy, note=f"[{100 * attack.low:.0f}, {100 * attack.high:.0f}]")
            for name, attack in attacks.items()
        }
        chance = Cell(None)
        if len(oracle) >= 2 * DISTRIBUTION:
            half = len(oracle) // 2
            chance = Cell(100 * u_lira(oracle[:half], oracle[half : 2 * half], level=self.level).accuracy)
        measure = Measure("u_lira", "U-LiRA, % right (50 = cannot tell)", group, 1, gap=True)
        for name, attack in attacks.items():
            self.note(measure, name, attack.flags)
        yield Row(measure, cells, chance)

    def row(self, measure: Measure, of: Callable[[Key], float | None]) -> Row:
        return Row(measure, {name: self.cell(measure, name, of) for name in self.records.names})

    def gap_row(self, measure: Measure, of: Callable[[Key], float | None]) -> Row:
        """As `row`; the retrained models among themselves are the floor."""
        names = [name for name in self.records.names if name != self.retrained]
        cells = {name: self.cell(measure, name, of) for name in names}
        floor = self.cell(measure, self.retrained, of) if len(self.goal) > 1 else Cell(None)
        if len(self.goal) == 2:  # each against the other, twice the same
            floor = replace(floor, spread=None)
        return Row(measure, cells, floor)

    def cell(self, measure: Measure, name: str, of: Callable[[Key], float | None]) -> Cell:
        """Mean and standard deviation over the seeds; what the numbers are flagged with is noted."""
        values = [of(key) for key in self.records.seeds(name)]
        for value in values:
            if isinstance(value, Flagged):
                self.note(measure, name, value.flags)
        return summary(values)

    def audit_row(self, measure: Measure, of: Callable[[Key], Attack | None]) -> Row:
        cells = {}
        for name in self.records.names:
            attacks = [attack for attack in map(of, self.records.seeds(name)) if attack is not None]
            if attacks:
                passed = sum(attack.passed for attack in attacks)
                note = f"{passed}/{len(attacks)} pass" if len(attacks) > 1 else ("pass" if passed else "FAIL")
                detail: dict[str, float] = {"passed": passed, "of": len(attacks)}
                if len(attacks) == 1:
                    detail |= {"p_value": attacks[0].p_value, "low": attacks[0].low, "high": attacks[0].high}
                cells[name] = replace(summary([attack.auc for attack in attacks]), note=note, detail=detail)
                if name == self.retrained and 2 * passed < len(attacks):
                    void = (
                        "they never saw S and fail: S and the held-out samples are not alike, or this is chance (5 in "
                    )
                    self.note(measure, name, [f"{void}100); the verdicts of this row say little"])
                if name not in (self.original, self.retrained):  # the others took a step that can be smaller
                    for attack in attacks:
                        self.note(measure, name, attack.flags)
        return Row(measure, cells)

    def note(self, measure: Measure, name: str, flags: Iterable[str]) -> None:
        for flag in flags:
            about = self.notes.setdefault((measure.key, flag.removesuffix(".")), [])
            if name not in about:
                about.append(name)


def summary(values: Sequence[float | None]) -> Cell:
    known = [value for value in values if value is not None]
    if not known:
        return Cell(None)
    return Cell(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else None)


def _mean_flagged(values: Iterable[Flagged]) -> Flagged | None:
    """The mean, with every flag that one of them carries; None of nothing."""
    known = list(values)
    flags = dict.fromkeys(flag for value in known for flag in value.flags)
    return Flagged(float(np.mean(known)), *flags) if known else None


def _mean(values: np.ndarray | None) -> float | None:
    return None if values is None else float(values.mean())
