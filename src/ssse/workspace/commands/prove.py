"""`ssse prove`: a file that shows somebody one request, or that nothing was changed since. Reads only, no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ssse.errors import Damaged, InvalidSetting
from ssse.system import files
from ssse.system.lock import locked
from ssse.workspace.proof import merkle
from ssse.workspace.proof.proofs import Member, Proof
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record.anchors import contradicts, read_heads
from ssse.workspace.record.folder import Folder
from ssse.workspace.record.heads import Heads
from ssse.workspace.record.holdings import with_settlements
from ssse.workspace.results import Proved


def prove(
    folder: Folder,
    *,
    request: str | None = None,
    entry: int | None = None,
    since: Path | None = None,
    output: Path | None = None,
    wait: bool = True,
    waiting: Callable[[], None] = lambda: None,
) -> Proved:
    """That the entries of a request, or one entry, belong to the newest head; or that it continues an older one.

    Raises:
        Damaged: the ledger is; or it does not continue the older head.
    """
    if (request is not None) + (entry is not None) + (since is not None) != 1:
        raise InvalidSetting("Name what to prove: a request, an entry, or since which head; one of the three.")
    folder.check()
    with locked(folder.path, shared=True, wait=wait, waiting=waiting), folder.read() as ledger:
        if damages := ledger.damages():
            raise Damaged(f"'{folder.ledger}': {damages[0]}. `ssse verify` says more.")
        heads = Heads.of(ledger)
    if since is not None:
        proof = _continues(heads, since)
    else:
        proof = Proof(heads.newest(), tuple(member(heads, place) for place in _places(heads, request, entry)))
    if output is not None:
        files.write_atomically(output, proof.to_json())
    return Proved(proof, output)


def _places(heads: Heads, request: str | None, entry: int | None) -> list[int]:
    if request is not None:
        own = [one for one in heads.entries if one.request == request]
        if not own:
            raise InvalidSetting(f"There is no request '{request}' in the ledger.")
        return [one.seq - 1 for one in with_settlements(own, heads.entries)]
    assert entry is not None
    if not 0 < entry <= heads.size:
        raise InvalidSetting(f"There is no entry {entry}; {ledgers.FILE} has {heads.size}.")
    return [entry - 1]


def member(heads: Heads, place: int) -> Member:
    """One entry with its proof, by its place from 0."""
    return Member(place, heads.leaves[place], tuple(merkle.inclusion_proof(place, heads.hashes)))


def _continues(heads: Heads, since: Path) -> Proof:
    if not since.is_file():
        raise InvalidSetting(f"There is no file of heads '{since}'.")
    found = read_heads(since).heads
    if not found:
        raise InvalidSetting(f"'{since}' holds no head.")
    if contradiction := contradicts(heads, found):
        raise Damaged(f"'{since}' {contradiction}")
    older = found[-1]
    return Proof(heads.newest(), older=older, path=tuple(merkle.consistency_proof(older.size, heads.hashes)))
