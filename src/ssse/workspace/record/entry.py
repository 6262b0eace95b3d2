"""One entry of the ledger: what is hashed, and what others may see of it. Nothing here imports torch."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ssse.system.digests import digest_bytes

FIRST = "0" * 64  # the hash before the first entry
BLIND, SHOWN = "blind", "shown"  # what `append` adds to the details


@dataclass(frozen=True)
class Entry:
    seq: int
    time: str
    kind: str
    request: str | None
    details: dict[str, Any]
    previous: str
    hash: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def expected_hash(self) -> str:
        return digest_bytes(canonical([self.seq, self.time, self.kind, self.request, self.details, self.previous]))

    def hashed(self) -> Entry:
        return replace(self, hash=self.expected_hash())


def canonical(value: Any) -> str:
    """The same text for the same content. NaN has no place in it: JSON does not know it."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def blind(salt: str, previous: str) -> dict[str, str]:
    """A secret for the details, the same in every run: else who sees a hash could try out what it hides.

    Nothing where there is no salt: a ledger that no workspace made hides nothing.
    """
    return {BLIND: hmac.new(bytes.fromhex(salt), previous.encode(), "sha256").hexdigest()} if salt else {}


def digest_shown(shown: Mapping[str, Any]) -> str:
    """Of what others may see of an entry but its hash: by it that hash says what the leaf is."""
    return digest_bytes(canonical({key: value for key, value in shown.items() if key != "hash"}))
