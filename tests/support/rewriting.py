"""Histories written anew, looked at with a key and an anchor: `python -m tests.support.rewriting FOLDER`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch

from ssse.workspace.workspace import Workspace
from tests.support import keyed
from tests.support.rewrites import REWRITES
from tests.support.tally import Tally


def main(home: Path) -> Tally:
    """Each must pass for whole without them, else nothing was tried."""
    torch.set_num_threads(1)
    tally, kept = Tally(), keyed.make(home)
    assert kept.made.workspace.erase("r-1", ids=["s3", "s11"]).outcome == "erased"
    earlier, path = kept.made.home / "earlier", kept.made.home / "copy"
    shutil.copytree(kept.path, earlier, symlinks=True)
    assert kept.made.workspace.erase("r-2", ids=["s7"]).outcome == "erased"
    for name, rewrite in REWRITES.items():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(kept.path, path, symlinks=True)
        assert Workspace(path).verify(keys=[kept.public], anchor=kept.anchor).ok
        rewrite(path, earlier)
        assert Workspace(path).verify().ok, name
        tally.ways[name] += 1
        if Workspace(path).verify(keys=[kept.public], anchor=kept.anchor).ok:
            tally.note("unseen", name)
    return tally


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1])).to_dict()))
