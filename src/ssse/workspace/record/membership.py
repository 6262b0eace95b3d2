"""Which samples were trained on and which are erased already, by salted digests alone. Nothing here imports torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ssse.errors import BrokenArtefact, InvalidData
from ssse.problem.sample_digests import take_due
from ssse.system import files
from ssse.workspace.record.ledger import Ledger

KEY = "digests"


@dataclass(frozen=True)
class Standing:
    """How the samples of a request stand.

    Attributes:
        fresh: places of those that can be erased. already: those that are erased, by the request that did it.
        unknown: places of those that were never in the training data, or more often now than then.
    """

    fresh: np.ndarray
    already: dict[str, int]
    unknown: list[int]


class Membership:
    """Digests of the training samples at the first fit, sorted; a sample that was there twice is there twice."""

    def __init__(self, digests: np.ndarray):
        self.digests = digests

    @classmethod
    def load(cls, path: Path) -> Membership:
        try:
            return cls(load_file(path)[KEY])
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise BrokenArtefact(f"'{path}' cannot be read: {error}.") from error

    @staticmethod
    def save(path: Path, digests: np.ndarray) -> None:
        content = save({KEY: np.sort(digests)})  # save_file leaves names of its own when killed
        files.write_atomically(path, content, private=True)

    def times(self, wanted: np.ndarray) -> np.ndarray:
        """How often each was trained on."""
        first, behind = (np.searchsorted(self.digests, wanted, side) for side in ("left", "right"))
        return behind - first

    def standing(self, wanted: np.ndarray, ledger: Ledger) -> Standing:
        """Each occurrence counts once: a sample that was trained on twice can be erased twice."""
        erased = ledger.erased(wanted.tolist())
        trained = dict(zip(wanted.tolist(), self.times(wanted).tolist(), strict=True))
        due = Counter({digest: times - len(erased.get(digest, ())) for digest, times in trained.items()})
        fresh: list[int] = []
        unknown: list[int] = []
        already: Counter[str] = Counter()
        requests = {digest: iter(by) for digest, by in erased.items()}
        for place, (digest, can_go) in enumerate(zip(wanted.tolist(), take_due(wanted.tolist(), due), strict=True)):
            if can_go:
                fresh.append(place)
            elif (request := next(requests.get(digest, iter(())), None)) is not None:
                already[request] += 1
            else:
                unknown.append(place)
        return Standing(np.array(fresh, dtype=np.int64), dict(already), unknown)

    def remaining(self, data: np.ndarray, erased: Counter[int]) -> np.ndarray:
        """Places in the data of the samples that were trained on and are not erased.

        Of copies of one sample the last are taken, as many as stay; what is erased may have left the data or not.

        Raises:
            InvalidData: the data holds samples that the first fit did not know, or not that often, or lacks some that
                stay.
        """
        stays = Counter(
            dict(zip(*(part.tolist() for part in np.unique(self.digests, return_counts=True)), strict=True))
        )
        present = Counter(data.tolist())
        unknown = sum(max(0, count - stays[digest]) for digest, count in present.items() if not erased[digest])
        if unknown:
            raise InvalidData(
                f"{unknown} samples of the training data are not those that the first fit saw, or are there more "
                "often. The curvature is of what the model was trained on; for other data make a new workspace."
            )
        stays.subtract(erased)
        surplus = take_due(data.tolist(), present - stays)
        lacking = sum(max(0, count - present[digest]) for digest, count in stays.items())
        if lacking:
            raise InvalidData(
                f"The training data lacks {lacking} samples that were trained on and are not erased. To forget them, "
                "erase them first."
            )
        return np.flatnonzero(~np.array(surplus, dtype=bool))


def places_that_stay(path: Path, ledger: Ledger, data: np.ndarray) -> np.ndarray:
    """Places in the data of the samples that were trained on and that no request has erased. `path`: of the digests."""
    return Membership.load(path).remaining(data, ledger.erased_samples())


def places_among(data: np.ndarray, wanted: Counter[int]) -> np.ndarray:
    """Places in the data of the wanted samples, each as often as it is wanted and there."""
    return np.flatnonzero(np.array(take_due(data.tolist(), Counter(wanted)), dtype=bool))


def shown(places: Sequence[int]) -> str:
    """A few of them, in words."""
    few = ", ".join(str(place) for place in places[:5])
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    return f"at place{'s' if len(places) > 1 else ''} {few}{more}"
