"""Small workspaces with a key and an anchor, for tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssse.workspace.proof.keys import make_pair, public_path
from tests.support import workspaces


@dataclass(frozen=True)
class Keyed:
    """`public`: of the key. `anchor`: the file of its heads."""

    made: workspaces.Made
    public: Path
    anchor: Path

    @property
    def path(self) -> Path:
        return self.made.path


def make(home: Path, *, anchored: bool = True, **options: Any) -> Keyed:
    """Beside each other in `home`: the workspace, key.pem, key.pem.pub, heads.txt."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "key.pem").exists():
        make_pair(home / "key.pem")
    named: dict[str, Any] = {"record__key": "../key.pem"}
    named |= {"record__anchor": "../heads.txt"} if anchored else {}
    made = workspaces.make(home, n=options.pop("n", 24), p=options.pop("p", 3), **named, **options)
    return Keyed(made, public_path(home / "key.pem"), home / "heads.txt")


def set_record(path: Path, **settings: str | None) -> None:
    """Edit the section [record] of ssse.toml, as who can write the folder would."""
    toml = path / "ssse.toml"
    text = re.sub(r"\n?\[record\]\n(?:\w+ = .*\n)*", "", toml.read_text())
    lines = "".join(f'{name} = "{value}"\n' for name, value in settings.items() if value is not None)
    toml.write_text(f"{text}\n[record]\n{lines}")
