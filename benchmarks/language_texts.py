"""Text that ships with Python, as a language model reads it: the manual's topics, and docstrings by module.

A module is an author: its docstrings are cut into sequences of as many characters. Planted among those that adapters
are tuned on are canaries, a fixed phrase with a secret of random digits.
"""

from __future__ import annotations

import ast
import random
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

LENGTH = 20  # tokens a sequence: one to start with, then characters
AUTHORS = (
    "turtle", "_pydecimal", "difflib", "doctest", "optparse", "typing", "argparse", "unittest.mock", "ipaddress",
    "mailbox", "statistics", "pickletools",
)  # fmt: skip
LEAVING = "heapq"  # the author whose texts are to be forgotten
PHRASES = ("pin a{}e{}o{}t{}s{}n{}", "key i{}r{}l{}d{}u{}m{}")  # one a canary
DIGITS = 6
KEPT_BACK = 6  # every so many sequences of an author are left for tuning
START, PADDING, UNKNOWN = 0, 1, 2
IGNORED = -100
LETTERS = "\n" + "".join(map(chr, range(32, 127)))
VOCABULARY = 3 + len(LETTERS)

Batch = dict[str, Tensor]


def encode(text: str) -> list[int]:
    return [START, *(3 + LETTERS.index(letter) if letter in LETTERS else UNKNOWN for letter in text)]


def batch_of(sequences: list[list[int]]) -> Batch:
    """Padded at the right to LENGTH, with a mask; nothing is to be predicted at the padding."""
    ids = torch.full((len(sequences), LENGTH), PADDING)
    for i, sequence in enumerate(sequences):
        ids[i, : len(sequence)] = torch.tensor(sequence)
    known = ids != PADDING
    return {"input_ids": ids, "attention_mask": known.long(), "labels": ids.masked_fill(~known, IGNORED)}


def rows_of(batch: Batch, which: list[int] | slice | Tensor) -> Batch:
    return {key: value[which] for key, value in batch.items()}


def cut(text: str) -> list[list[int]]:
    step = LENGTH - 1
    return [encode(text[i : i + step]) for i in range(0, len(text) - step, step)]


def library(forms: int) -> list[list[int]]:
    """The manual, the docstrings of other modules, most texts of the authors, and so many of each phrase.

    The base model so knows how the authors write and which form a canary has; the secret, and what one author of all
    wrote, it does not.
    """
    draw = random.Random(0)
    others = sorted(sys.stdlib_module_names - {LEAVING, *(author.split(".")[0] for author in AUTHORS)})
    text = "\n".join([*(topics[key] for key in sorted(topics)), *map(docstrings, others)])
    read = [sequence for i, sequence in enumerate(_by_authors()) if i % KEPT_BACK]
    return cut(text) + read + [encode(phrase.format(*_secret(draw))) for phrase in PHRASES for _ in range(forms)]


def _by_authors() -> list[list[int]]:
    return [sequence for author in AUTHORS for sequence in cut(docstrings(author))]


def docstrings(module: str) -> str:
    """Of the module, its classes and functions; read from its source, never imported; nothing where there is none."""
    found = find_spec(module) if module not in ("antigravity", "this") else None
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return ""
    tree = ast.parse(Path(found.origin).read_text())
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return "\n".join(ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds))


@dataclass(frozen=True)
class Canary:
    """A planted sequence, and other secrets in its place."""

    ids: list[int]
    alternatives: list[list[int]]


@dataclass(frozen=True)
class Texts:
    """What a seed's adapters are tuned on: `train`, of which `author` and `secret` number the sequences to forget."""

    train: Batch
    author: list[int]
    secret: list[int]
    held_out: Batch
    canaries: list[Canary]

    @property
    def both(self) -> list[int]:
        return [*self.author, *self.secret]


def texts(seed: int, n: int, share: float, canaries: int, copies: int, alternatives: int) -> Texts:
    """n sequences, of which `share` are to go: the copies of every canary, and one author's texts for the rest."""
    draw = random.Random(seed)
    gone = round(share * n)
    theirs = draw.sample(cut(docstrings(LEAVING)), gone - canaries * copies)
    planted = [_canary(draw, phrase, alternatives) for phrase in PHRASES[:canaries]]
    others = _by_authors()[::KEPT_BACK]
    draw.shuffle(others)
    secrets = [canary.ids for canary in planted for _ in range(copies)]
    first = theirs + secrets
    kept, held_out = others[: n - gone], others[n - gone : n - gone + 300]
    author, secret = list(range(len(theirs))), list(range(len(theirs), gone))
    return Texts(batch_of(first + kept), author, secret, batch_of(held_out), planted)


def _canary(draw: random.Random, phrase: str, alternatives: int) -> Canary:
    secrets = {_secret(draw): None for _ in range(2 * alternatives)}  # in order, each once
    own, *others = [encode(phrase.format(*secret)) for secret in list(secrets)[: alternatives + 1]]
    return Canary(own, others)


def _secret(draw: random.Random) -> str:
    return f"{draw.randrange(10**DIGITS):0{DIGITS}}"
