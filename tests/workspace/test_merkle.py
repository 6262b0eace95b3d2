"""The Merkle tree of RFC 9162: against its recursive definition, the published vectors, and every tampering."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest

from ssse.workspace.proof import merkle
from tests.support.sizes import sized

MOST = sized(41, 65)


def leaves(size: int) -> list[bytes]:
    return [merkle.leaf_hash(f"leaf {i}".encode()) for i in range(size)]


def by_definition(hashes: list[bytes]) -> bytes:
    """MTH of section 2.1.1, word for word; of leaves that are hashed already."""
    if not hashes:
        return hashlib.sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = 1
    while 2 * k < len(hashes):
        k *= 2
    return hashlib.sha256(b"\x01" + by_definition(hashes[:k]) + by_definition(hashes[k:])).digest()


# The reference tests of Certificate Transparency: eight leaves, the roots of the first 1, 2, …, and some proofs.
REFERENCE = [
    *(b"", b"\x00", b"\x10", b"\x20\x21", b"\x30\x31", b"\x40\x41\x42\x43"),
    *(b"\x50\x51\x52\x53\x54\x55\x56\x57", bytes(range(0x60, 0x70))),
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
PATHS = {  # (leaf, size) → path; counted from 0
    (0, 1): [],
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
}
CONTINUED = {  # (older, newer) → path
    (1, 1): [],
    (1, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}


def test_the_reference_vectors():
    hashes = [merkle.leaf_hash(leaf) for leaf in REFERENCE]
    assert merkle.root([]) == merkle.EMPTY == hashlib.sha256(b"").digest()
    for size, wanted in enumerate(ROOTS, start=1):
        assert merkle.root(hashes[:size]).hex() == wanted
    for (index, size), wanted in PATHS.items():
        path = merkle.inclusion_proof(index, hashes[:size])
        assert [step.hex() for step in path] == wanted
        assert merkle.includes(hashes[index], index, size, path, bytes.fromhex(ROOTS[size - 1]))
    for (first, size), wanted in CONTINUED.items():
        path = merkle.consistency_proof(first, hashes[:size])
        assert [step.hex() for step in path] == wanted
        assert merkle.continues(first, size, path, *(bytes.fromhex(ROOTS[n - 1]) for n in (first, size)))


def test_every_size_has_the_root_of_the_definition():
    grown = merkle.Frontier()
    for size in range(MOST + 1):
        hashes = leaves(size)
        assert merkle.root(hashes) == by_definition(hashes) == grown.root()
        assert grown == merkle.frontier(hashes)
        assert len(grown.peaks) == size.bit_count()
        grown = grown.add(merkle.leaf_hash(f"leaf {size}".encode()))


def flipped(path: list[bytes]) -> list[list[bytes]]:
    """With one bit of one hash altered; with one hash less, one more, and two in each other's place."""
    found = [[*path[:i], bytes([path[i][0] ^ 1]) + path[i][1:], *path[i + 1 :]] for i in range(len(path))]
    found += [path[:i] + path[i + 1 :] for i in range(len(path))]
    found += [[*path, bytes(32)], [bytes(32), *path], [*path, *path[-1:]] if path else [b""]]
    swaps = range(len(path) - 1)
    return found + [[*path[:i], path[i + 1], path[i], *path[i + 2 :]] for i in swaps if path[i] != path[i + 1]]


def test_every_leaf_of_every_tree_is_shown_to_be_in_it_and_nothing_else_is():
    for size in range(1, MOST):
        hashes = leaves(size)
        tree = by_definition(hashes)
        for index in range(size):
            path = merkle.inclusion_proof(index, hashes)
            assert merkle.includes(hashes[index], index, size, path, tree)
            assert len(path) <= (size - 1).bit_length()
            assert not any(merkle.includes(hashes[index], index, size, other, tree) for other in flipped(path))
            assert not merkle.includes(merkle.leaf_hash(b"another"), index, size, path, tree)
            assert not merkle.includes(hashes[index], index, size, path, bytes(32))
            places = {index - 1, index + 1, -1, size}
            assert not any(merkle.includes(hashes[index], place, size, path, tree) for place in places)


def test_every_tree_is_shown_to_continue_every_smaller_one_and_no_other():
    for size in range(1, MOST):
        hashes = leaves(size)
        newer = by_definition(hashes)
        for first in range(1, size + 1):
            older, path = by_definition(hashes[:first]), merkle.consistency_proof(first, hashes)
            assert merkle.continues(first, size, path, older, newer)
            assert not any(merkle.continues(first, size, other, older, newer) for other in flipped(path))
            assert not merkle.continues(first, size, path, bytes(32), newer)
            assert not merkle.continues(first, size, path, older, bytes(32))
            if first < size:
                assert not merkle.continues(first, size, path, newer, older)
                rewritten = by_definition([merkle.leaf_hash(b"x"), *hashes[1:first]])
                assert not merkle.continues(first, size, path, rewritten, newer)


def test_a_path_of_another_size_shows_nothing():
    """But where both trees have the same way to the leaf, as the RFC allows: the root is another one then."""
    for smaller, larger in pairwise(range(2, MOST)):
        hashes = leaves(larger)
        path = merkle.inclusion_proof(0, hashes[:smaller])
        assert not merkle.includes(hashes[0], 0, larger, path, merkle.root(hashes))
        assert not merkle.continues(smaller, larger, [], merkle.root(hashes[:smaller]), merkle.root(hashes))


def test_a_node_does_not_pass_for_a_leaf():
    hashes = leaves(2)
    assert merkle.leaf_hash(hashes[0] + hashes[1]) != merkle.root(hashes)


@pytest.mark.parametrize(("index", "size"), [(-1, 3), (3, 3), (0, 0)])
def test_there_is_no_proof_of_what_is_not_there(index, size):
    with pytest.raises(ValueError, match="no leaf"):
        merkle.inclusion_proof(index, leaves(size))


@pytest.mark.parametrize(("first", "size"), [(0, 3), (4, 3), (-1, 3)])
def test_a_tree_continues_no_larger_and_no_empty_one(first, size):
    with pytest.raises(ValueError, match="continues none"):
        merkle.consistency_proof(first, leaves(size))
    assert not merkle.continues(first, size, [], merkle.EMPTY, merkle.root(leaves(size)))


def test_ten_thousand_leaves_are_added_one_by_one_without_beginning_anew(monkeypatch):
    """A root takes as many hashes as the tree is high."""
    grown = merkle.frontier(leaves(10_000))
    hashed, real = [], merkle.node_hash
    monkeypatch.setattr(merkle, "node_hash", lambda left, right: hashed.append(1) or real(left, right))
    grown.add(bytes(32)).root()
    assert len(hashed) <= 2 * 14
