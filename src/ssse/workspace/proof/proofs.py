"""Proofs as files: that entries belong to a published head, or that one head continues another. Without torch.

Who checks one needs the file, and a public key or a head that they trust; nothing of the workspace. What is read may
come from anybody.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssse.errors import InvalidData, InvalidSetting
from ssse.workspace.proof import merkle
from ssse.workspace.proof.checkpoint import LARGEST_SIZE, Checkpoint, decoded, encoded, parse
from ssse.workspace.proof.keys import PublicKey, signer_of

FORM = 1
LARGEST = 1 << 26  # bytes of a proof's file
LONGEST_PATH = 64  # hashes: a tree of more leaves than there are atoms has no more
MOST = 100_000  # entries of one proof


@dataclass(frozen=True)
class Member:
    """One entry, as others may see it, at its place in the tree, and the hashes that lead to the root."""

    index: int
    leaf: str
    path: tuple[bytes, ...]

    @property
    def shown(self) -> dict[str, Any]:
        """What the leaf says."""
        return json.loads(self.leaf)


@dataclass(frozen=True)
class Proof:
    """Either `members` belong to the head, or the head continues `older`, which `path` shows."""

    head: Checkpoint
    members: tuple[Member, ...] = ()
    older: Checkpoint | None = None
    path: tuple[bytes, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"form": FORM, "head": self.head.note()}
        if self.older is not None:
            return body | {"older": self.older.note(), "path": _texts(self.path)}
        entries = [{"index": one.index, "leaf": one.leaf, "path": _texts(one.path)} for one in self.members]
        return body | {"entries": entries}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n"

    @property
    def heads(self) -> list[Checkpoint]:
        return [self.head] if self.older is None else [self.older, self.head]


@dataclass(frozen=True)
class Checked:
    """`wrong`: why nothing is shown; else `shown` says in a sentence what is."""

    shown: str
    wrong: str = ""

    @property
    def ok(self) -> bool:
        return not self.wrong


def read_proof(path: Path) -> Proof:
    """
    Raises:
        InvalidData: it is no proof as `ssse prove` writes it.
    """
    if not path.is_file():
        raise InvalidSetting(f"There is no file '{path}'.")
    with path.open("rb") as opened:
        content = opened.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise InvalidData(f"'{path}' has more than {LARGEST:,} bytes, and is no proof.")
    try:
        return parse_proof(content)
    except InvalidData as error:
        raise InvalidData(f"'{path}' is no proof as `ssse prove` writes it. {error}") from None


def parse_proof(content: bytes) -> Proof:
    try:
        body = json.loads(content.decode("utf-8"), parse_int=_whole, parse_float=_none, parse_constant=_none)
    except (ValueError, RecursionError):
        raise InvalidData("It is not JSON.") from None
    if not isinstance(body, dict) or body.get("form") != FORM:
        raise InvalidData(f"It is not of form {FORM}.")
    if set(body) == {"form", "head", "older", "path"}:
        older = parse(_text(body["older"]))
        return Proof(parse(_text(body["head"])), older=older, path=_path(body["path"]))
    if set(body) == {"form", "head", "entries"}:
        entries = body["entries"]
        if not isinstance(entries, list) or not 0 < len(entries) <= MOST:
            raise InvalidData("It has no entries.")
        return Proof(parse(_text(body["head"])), tuple(map(_member, entries)))
    raise InvalidData("It has other fields.")


def check_proof(proof: Proof, keys: Sequence[PublicKey] = (), trusted: Sequence[Checkpoint] | None = None) -> Checked:
    """With no workspace at hand. `keys`: of which one must have signed its heads. `trusted`: heads that one has from
    elsewhere, of which one must be a head of the proof.

    Raises:
        InvalidSetting: neither was given, and then anybody could have made the proof.
    """
    if not keys and trusted is None:
        raise InvalidSetting(
            "Give --key with the public key, or --head with a head that you have from elsewhere: without them anybody "
            "could have made this proof."
        )
    wrong = _wrong(proof) or _not_vouched_for(proof, keys, trusted)
    if wrong:
        return Checked("", wrong)
    if proof.older is not None and not keys:
        return Checked(_in_words_by_heads(proof, proof.older, trusted or ()))
    return Checked(f"{_in_words(proof)} {_who(proof, keys, trusted)}")


def _wrong(proof: Proof) -> str:
    head = proof.head
    if proof.older is not None:
        if proof.older.origin != head.origin:
            return "The two heads are of different ledgers."
        if not merkle.continues(proof.older.size, head.size, proof.path, proof.older.root, head.root):
            return (
                f"The head of {head.size} entries does not continue that of {proof.older.size}, or the path is wrong."
            )
        return ""
    for one in proof.members:
        hashed = merkle.leaf_hash(one.leaf.encode())
        if not merkle.includes(hashed, one.index, head.size, one.path, head.root):
            return f"Entry {one.index + 1} does not belong to the head, or its path is wrong."
    return ""


def _not_vouched_for(proof: Proof, keys: Sequence[PublicKey], trusted: Sequence[Checkpoint] | None) -> str:
    if keys:
        for head in proof.heads:
            if signer_of(head, keys) is None:
                return f"The head of {head.size} entries has no signature of the key that was given."
    if trusted is not None and not any(head.same_tree(one) for head in proof.heads for one in trusted):
        return "None of the heads that were given is that of the proof."
    return ""


def _in_words(proof: Proof) -> str:
    head = proof.head
    if proof.older is not None:
        return (
            f"The ledger {head.origin} with {head.size} entries ({head.time}) begins with the {proof.older.size} that "
            f"it had on {proof.older.time}: none of them was changed or taken out."
        )
    which = ", ".join(str(one.index + 1) for one in proof.members[:5])
    more = f" and {len(proof.members) - 5} more" if len(proof.members) > 5 else ""
    several = "Entries" if len(proof.members) > 1 else "Entry"
    belong = "belong" if len(proof.members) > 1 else "belongs"
    return (
        f"{several} {which}{more} {belong} to the ledger {head.origin}, which had {head.size} entries on {head.time}, "
        "exactly as shown here."
    )


def _in_words_by_heads(proof: Proof, older: Checkpoint, trusted: Sequence[Checkpoint]) -> str:
    """Without a key only a head that was given is known, and its time with it: the other came in the proof."""
    newer = proof.head
    knows_older, knows_newer = (any(head.same_tree(one) for one in trusted) for head in (older, newer))
    if knows_older and knows_newer:
        return f"{_in_words(proof)} Both are heads that you have from elsewhere."
    if knows_newer:
        return (
            f"The ledger {newer.origin} with {newer.size} entries ({newer.time}), a head that you have from elsewhere, "
            f"begins with the {older.size} of the older head in the proof: none of them was changed or taken out. "
            "Nobody vouches for when it had no more than those."
        )
    return (
        f"The {older.size} entries that the ledger {older.origin} had on {older.time}, a head that you have from "
        f"elsewhere, are the first of the {newer.size} of the newer head in the proof. Nobody vouches for that one: "
        "who made the proof may have put anything behind them. --key, or a newer head from elsewhere, says more."
    )


def _who(proof: Proof, keys: Sequence[PublicKey], trusted: Sequence[Checkpoint] | None) -> str:
    said = []
    if keys and (key := signer_of(proof.head, keys)) is not None:
        said.append(f"the key {key.fingerprint[:12]}… signed {'the newer head' if proof.older else 'it'}")
    if trusted is not None:
        which = [f"that of {head.size} entries" for head in proof.heads if any(head.same_tree(one) for one in trusted)]
        said.append(f"{' and '.join(which)} you have from elsewhere" if proof.older else "you have it from elsewhere")
    text = ", and ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _member(body: Any) -> Member:
    if not isinstance(body, dict) or set(body) != {"index", "leaf", "path"}:
        raise InvalidData("An entry has other fields than index, leaf and path.")
    index, leaf = body["index"], _text(body["leaf"])
    if not isinstance(index, int) or isinstance(index, bool):
        raise InvalidData("The place of an entry is not a number.")
    try:
        shown = json.loads(leaf, parse_int=_whole_or_text)
        leaf.encode()
    except (ValueError, RecursionError):
        raise InvalidData("What an entry shows is not JSON.") from None
    if not isinstance(shown, dict) or shown.get("seq") != index + 1:
        raise InvalidData("An entry is not at the place that it says.")
    return Member(index, leaf, _path(body["path"]))


def _path(body: Any) -> tuple[bytes, ...]:
    if not isinstance(body, list) or len(body) > LONGEST_PATH:
        raise InvalidData(f"A path is a list of at most {LONGEST_PATH} hashes.")
    return tuple(decoded(_text(one), merkle.LENGTH, "A hash of the path") for one in body)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidData("Something that should be text is not.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidData("It is not Unicode text.") from None
    return value


def _whole(digits: str) -> int:
    if len(digits) > len(str(LARGEST_SIZE)):
        raise ValueError(digits[:20])
    return int(digits)


def _whole_or_text(digits: str) -> int | str:
    """A leaf may hold numbers of any size; they are shown and not computed with."""
    return int(digits) if len(digits) <= len(str(LARGEST_SIZE)) else digits


def _none(_: str) -> None:
    raise ValueError


def _texts(path: Sequence[bytes]) -> list[str]:
    return [encoded(one) for one in path]
