"""The Merkle tree of Certificate Transparency (RFC 9162, section 2.1), over SHA-256. Nothing here imports torch.

A leaf's hash is SHA-256(0x00 ‖ leaf), a node's SHA-256(0x01 ‖ left ‖ right); the left subtree of n leaves has the
largest power of two below n. So a leaf cannot pass for a node, and every later tree contains that of the first leaves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LENGTH = 32  # bytes of a hash
EMPTY = hashlib.sha256(b"").digest()


def leaf_hash(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True)
class Frontier:
    """A tree that grows: the roots of its whole subtrees, largest first, of which the next leaf needs no more."""

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    def add(self, leaf: bytes) -> Frontier:
        """`leaf`: its hash."""
        peaks, node, size = list(self.peaks), leaf, self.size
        while size & 1:  # as when 1 is added to a binary number: subtrees of the same size become one
            node, size = node_hash(peaks.pop(), node), size >> 1
        return Frontier(self.size + 1, (*peaks, node))

    def to_text(self) -> str:
        return b"".join(self.peaks).hex()

    @classmethod
    def from_text(cls, size: int, text: str) -> Frontier:
        """Raises: ValueError: it is not one of a tree of that size."""
        joined = bytes.fromhex(text)
        if len(joined) != LENGTH * size.bit_count():
            raise ValueError(f"A tree of {size} leaves has {size.bit_count()} whole subtrees.")
        return cls(size, tuple(joined[i : i + LENGTH] for i in range(0, len(joined), LENGTH)))

    def root(self) -> bytes:
        if not self.peaks:
            return EMPTY
        *rest, root = self.peaks
        for peak in reversed(rest):
            root = node_hash(peak, root)
        return root


def frontier(leaves: Iterable[bytes]) -> Frontier:
    grown = Frontier()
    for leaf in leaves:
        grown = grown.add(leaf)
    return grown


def root(leaves: Sequence[bytes]) -> bytes:
    """Of the leaves' hashes."""
    return frontier(leaves).root()


def inclusion_proof(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    """PATH(m, D[n]): the hashes that lead from leaf `index`, counted from 0, to the root."""
    if not 0 <= index < len(leaves):
        raise ValueError(f"There is no leaf {index} among {len(leaves)}.")
    if len(leaves) == 1:
        return []
    k = _split(len(leaves))
    if index < k:
        return [*inclusion_proof(index, leaves[:k]), root(leaves[k:])]
    return [*inclusion_proof(index - k, leaves[k:]), root(leaves[:k])]


def consistency_proof(first: int, leaves: Sequence[bytes]) -> list[bytes]:
    """PROOF(m, D[n]): that the tree of the first m leaves is a part of the tree of all; none is needed for all."""
    if not 0 < first <= len(leaves):
        raise ValueError(f"A tree of {len(leaves)} leaves continues none of {first}.")
    return _subproof(first, leaves, whole=True)


def _subproof(first: int, leaves: Sequence[bytes], whole: bool) -> list[bytes]:
    if first == len(leaves):
        return [] if whole else [root(leaves)]
    k = _split(len(leaves))
    if first <= k:
        return [*_subproof(first, leaves[:k], whole), root(leaves[k:])]
    return [*_subproof(first - k, leaves[k:], whole=False), root(leaves[:k])]


def includes(leaf: bytes, index: int, size: int, path: Sequence[bytes], tree: bytes) -> bool:
    """Whether the path shows that the leaf's hash is at `index` in the tree of that size and root (2.1.3.2)."""
    if not 0 <= index < size:
        return False
    place, last, node = index, size - 1, leaf
    for step in path:
        if last == 0:
            return False
        if place & 1 or place == last:
            node = node_hash(step, node)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            node = node_hash(node, step)
        place, last = place >> 1, last >> 1
    return last == 0 and node == tree


def continues(first: int, size: int, path: Sequence[bytes], older: bytes, newer: bytes) -> bool:
    """Whether the path shows that the tree of `size` begins with the tree of `first` (2.1.4.2)."""
    if not 0 < first <= size:
        return False
    if first == size:
        return not path and older == newer
    steps = list(path)
    if first & (first - 1) == 0:
        steps.insert(0, older)
    if not steps:
        return False
    place, last = first - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = steps[0]
    for step in steps[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old, new = node_hash(step, old), node_hash(step, new)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, step)
        place, last = place >> 1, last >> 1
    return last == 0 and old == older and new == newer


def _split(size: int) -> int:
    """The largest power of two below it."""
    return 1 << (size - 1).bit_length() - 1
