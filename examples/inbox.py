"""An inbox of requests
====================

An inbox of deletion requests, answered one after another: a folder of files, each with the samples to forget.

python examples/inbox.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import ssse
from ssse.demo import Digits, prepare


def main(home: Path) -> None:
    prepare(home)  # train.npz, w.safetensors and more: what a user would have
    chosen = {"model.factory": "ssse.demo:softmax", "data.train": "../train.npz", "fit.weight_decay": 1e-3}
    created = ssse.Workspace.init(home / "ws", chosen, home / "w.safetensors")
    workspace, seen = created.workspace, created.seen
    workspace.fit()
    print(f"{seen['samples']} samples, {seen['parameters']} parameters\n")
    fill(home / "inbox")
    for file in sorted((home / "inbox").glob("*.npz")):
        answer = workspace.erase(file.stem, forget=file)
        already = f", {sum(answer.already.values())} erased before" if answer.already else ""
        print(f"{file.stem}: {answer.outcome}{already}. {answer.details.get('verdict', answer.reason)}")
    checked = workspace.verify()
    print(f"\nverified: {checked.ok}, {checked.entries} entries, head {checked.head}")


def fill(inbox: Path) -> None:
    """Four requests: two good ones, one that repeats a sample, one that names a sample that was never trained on."""
    digits = Digits.load()
    inbox.mkdir()
    for name, places in {"alice": [3, 4, 5], "bob": [100], "carol": [5, 6]}.items():
        np.savez(inbox / f"{name}.npz", x=digits.x[places].numpy(), y=digits.y[places].numpy())
    np.savez(inbox / "dave.npz", x=digits.test_x[:1].numpy(), y=digits.test_y[:1].numpy())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
