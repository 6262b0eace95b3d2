"""Inputs that nobody meant: `python -m tests.support.fuzz FOLDER COUNT SEED` tries so many, kind after kind.

Whatever is typed, configured, handed in or lies in the folder: the command ends with a documented exit code and one
line of error, and a workspace that it could not work on is as it was.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import skops.io
import torch
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from ssse.cli.app import app
from ssse.cli.console import HINT
from tests.support import data_files, workspaces
from tests.support.tally import Tally
from tests.support.workspaces import Made, snapshot

DOCUMENTED = range(7)
UNCHANGED = (1, 2, 4, 5)  # exit codes after which all is as it was
WORDS = [
    *("", " ", "\0", "-", "--", "-q", "@", "@.", "@/dev/null", "@\0", ",", "s1,,s2", "s1,s1", "s3,s4", "\ufffd", "nan"),
    *("x" * 10_000, "9" * 5000, "-1", "1e999", "inf", "../..", "/", ".", "~", "'; DROP TABLE entries; --", "$(true)"),
    *("\x1b[31m", "\u202eoben", "a\nb", "a\rb", "💥", "é" * 300, "[red]x[/]", "{0}", "%s%n", "<script>", "os:system"),
    *("[" * 3000, "a" + ".a" * 3000, "0x10", "1_000", "١٢٣", "\ud800", "\u2028", "COM1", "con.npz", "s3\ts4"),
]
OPTIONS = {
    "fit": ["--damping", "--rows", "--structure", "--set", "--again"],
    "calibrate": ["--forget", "--ids", "--retrained", "--held-out", "--method", "--scales", "--dampings", "--set"],
    "erase": ["--request", "--forget", "--ids", "--scale", "--policy", "--accept", "--old-weights", "--set"],
    "evaluate": ["--test", "--retrained", "--original", "--forget", "--request", "--same", "--set"],
    "log": ["--request"],
    "verify": ["--head"],
    "report": ["--output"],
}
WRITING = [["fit", "--again"], ["erase", "--request", "new", "--ids", "s3"], ["evaluate"], ["report"]]
READING = [["log"], ["verify"]]


def mutated(body: bytes, chooser: random.Random) -> bytes:
    """Cut, flipped, doubled, filled, exchanged or written anew."""
    start = chooser.randrange(len(body) + 1)
    end = min(len(body), start + chooser.choice((0, 1, 4, 32, 500)))
    put = chooser.choice(
        [
            *(b"", b"\0", b"\xff" * 8, b"9" * 400, b"-1", b"nan", b'"', b"\n", b"{", b"[" * 3000, b"PK\3\4"),
            *(chooser.randbytes(chooser.randrange(1, 40)), body[start : start + 200], b"1e400", b"\xed\xa0\x80"),
        ]
    )
    whole = body[:start] + put + body[end:]
    way = chooser.randrange(8)
    if way == 0:
        return chooser.randbytes(chooser.randrange(300))
    if way == 1:
        return body[:start]
    if way == 2:
        return b""
    if way == 3:
        flipped = bytearray(body)
        for _ in range(chooser.randrange(1, 9)):
            flipped[chooser.randrange(len(body))] ^= chooser.randrange(1, 256)
        return bytes(flipped)
    return whole


def mutated_members(body: bytes, chooser: random.Random) -> bytes:
    """An archive that is whole, with one of its members mutated, gone, doubled or renamed."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(body)) as old, zipfile.ZipFile(made, "w") as new:
        names = old.namelist()
        chosen, way = chooser.choice(names), chooser.randrange(5)
        for name in names:
            content = old.read(name)
            if name != chosen:
                new.writestr(name, content)
            elif way == 0:
                new.writestr(chooser.choice(("other.npy", "../x.npy", "/x.npy", "x" * 300, "schema.json")), content)
            elif way > 1:
                new.writestr(name, mutated(content, chooser))
    return made.getvalue()


@dataclass(frozen=True)
class Ground:
    """`ready`: files and a workspace that nobody touches. `made`: a copy to try things on."""

    ready: Made
    made: Made

    @classmethod
    def make(cls, home: Path) -> Ground:
        ready = workspaces.make(home / "ready", n=12)
        ready.workspace.erase("old", ids=["s1"])
        model = LogisticRegression(C=1.0, max_iter=1000).fit(ready.x.numpy(), ready.y.numpy())
        skops.io.dump(model, ready.home / "model.skops")
        for form in data_files.FORMATS:
            (ready.home / form).mkdir()
            columns = dict(zip("abcd", ready.x[:3].numpy().T, strict=True))
            table = form in ("csv", "parquet")
            arrays: dict[str, Any] = columns if table else {"x": ready.x[:3].numpy()}
            data_files.write(ready.home / form, form, **arrays, y=ready.y[:3].numpy())
        (ready.home / "ids.txt").write_text("s3\ns4\n")
        made = workspaces.copy(ready, home / "made")
        os.chdir(made.home)  # what is typed may name a file of this folder, and no other
        return cls(ready, made)

    def restore(self) -> None:
        for path in self.made.home.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        shutil.copytree(self.ready.home, self.made.home, symlinks=True, dirs_exist_ok=True)

    def mutate(self, name: str, chooser: random.Random, members: bool = False) -> None:
        path = self.made.home / name
        body = path.read_bytes()
        path.write_bytes((mutated_members if members and chooser.random() < 0.7 else mutated)(body, chooser))


Kind = Callable[[Ground, random.Random], list[str]]


def _settings(ground: Ground, chooser: random.Random) -> list[str]:
    ground.mutate("ws/ssse.toml", chooser)
    return _on(ground, chooser.choice(WRITING))


def _on(ground: Ground, words: list[str]) -> list[str]:
    return [words[0], str(ground.made.path), *words[1:]]


def _request(form: str) -> Kind:
    def kind(ground: Ground, chooser: random.Random) -> list[str]:
        name = f"{form}/data/{chooser.choice('xy')}.npy" if form == "npy" else f"{form}/data.{form}"
        ground.mutate(name, chooser, members=form == "npz")
        given = "npy/data" if form == "npy" else name
        use = chooser.choice(
            [
                ["erase", "--request", "new", "--forget", given],
                ["calibrate", "--method", "line_search", "--scales", "1", "--forget", given],
                ["evaluate", "--test", given],
            ]
        )
        return _on(ground, use)

    return kind


def _ids(ground: Ground, chooser: random.Random) -> list[str]:
    ground.mutate("ids.txt", chooser)
    return _on(ground, ["erase", "--request", "new", "--ids", "@ids.txt"])


def _weights(ground: Ground, chooser: random.Random) -> list[str]:
    ground.mutate("w.safetensors", chooser)
    words = ["--model", "torch.nn:Linear", "--argument", "in_features=4", "--argument", "out_features=3"]
    made = ["init", "new", *words, "--weights", "w.safetensors", "--data", "train.npz", "--device", "cpu"]
    uses = [_on(ground, ["evaluate", f"--{name}", "w.safetensors"]) for name in ("original", "retrained")]
    return chooser.choice([[*made, "--weight-decay", "0.01"], *uses])


def _skops(ground: Ground, chooser: random.Random) -> list[str]:
    ground.mutate("model.skops", chooser, members=True)
    return ["init", "new", "--weights", "model.skops", "--data", "train.npz"]


def _own_file(name: str) -> Kind:
    def kind(ground: Ground, chooser: random.Random) -> list[str]:
        path = ground.made.path / name
        if chooser.random() < 0.2:
            path.write_bytes(chooser.randbytes(chooser.randrange(5000)))
        else:
            ground.mutate(f"ws/{name}", chooser)
        return _on(ground, chooser.choice(WRITING + READING))

    return kind


def _words(ground: Ground, chooser: random.Random) -> list[str]:
    command = chooser.choice(list(OPTIONS))
    words = [command, str(ground.made.path)]
    if command == "erase":
        words += ["--request", "new"]
    for _ in range(chooser.randrange(1, 4)):
        text = "".join(chr(chooser.choice((chooser.randrange(256), chooser.randrange(0x3000)))) for _ in range(6))
        words += [chooser.choice(OPTIONS[command]), chooser.choice([*WORDS, text, str(chooser.gauss(0, 1e3))])]
    return [*words, "--json"] if chooser.random() < 0.5 else words


OWN = {  # files of the workspace: who does not need one leaves it as it is
    "seal.json": _own_file("seal.json"),
    "manifest.json": _own_file("current/curvature/manifest.json"),
    "samples.safetensors": _own_file("samples.safetensors"),
    "the ledger": _own_file("ledger.sqlite"),
}
KINDS: dict[str, Kind] = {
    "ssse.toml": _settings,
    **{f"a request in {form}": _request(form) for form in data_files.FORMATS},
    "a file of ids": _ids,
    "weights": _weights,
    "a skops file": _skops,
    **OWN,
    "words typed": _words,
}


def ended(ground: Ground, kind: str, words: list[str], tally: Tally) -> None:
    """Run it, and note what must not be."""
    tally.ways[kind] += 1
    made = ground.made
    before = snapshot(made.home)
    done = CliRunner().invoke(app, words)
    what = f"{kind}: {[word[:80] for word in words]} ends with {done.exit_code}: {done.stderr[:500]!r}"
    if not isinstance(done.exception, SystemExit | None) or HINT in done.output or "Traceback" in done.output:
        tally.note("tracebacks", f"{what} {done.exception!r}")
        return
    after = snapshot(made.home)
    if done.exit_code not in DOCUMENTED:
        tally.note("not told", what)
    elif done.exit_code in UNCHANGED:
        line = done.stderr
        told = re.fullmatch(r"Error: [^\n]*\n", line) and line[:-1].isprintable()
        if words[0] != "verify" and not told:  # whose result it is that something is damaged
            tally.note("not told", what)
        if after != before:
            tally.note("lost", f"{what}, and something was written")
    elif after != before and kind not in OWN and not made.workspace.verify().ok:
        tally.note("lost", f"{what}, and the workspace is damaged")
    if "--json" in words and done.exit_code in DOCUMENTED:
        try:
            json.loads(done.stdout)
        except ValueError:
            tally.note("not told", f"{what}: {done.stdout[:200]!r} is no JSON")


def attempt(ground: Ground, count: int, seed: int) -> Tally:
    tally, chooser = Tally(), random.Random(seed)
    for turn in range(count):
        kind = list(KINDS)[turn % len(KINDS)]
        ended(ground, kind, KINDS[kind](ground, chooser), tally)
        ground.restore()
    return tally


def main(home: Path, count: int, seed: int) -> Tally:
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    return attempt(Ground.make(home), count, seed)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).to_dict()))
