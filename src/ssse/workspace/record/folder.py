"""The workspace on disk: what lies where, and how it goes from one whole state to the next.

    ssse.toml             the settings
    ledger.sqlite         what was done, entry by entry
    samples.safetensors   salted digests of the training samples, sorted
    states/000005/        weights.safetensors or model.skops, and curvature/, as entry 5 of the ledger made them
    current               → states/000005
    seal.json             digests of the files that change in place

What counts is the ledger: its newest entry that made a state says which one is current. That state is whole on the disk
before the entry is written, and what it replaces goes afterwards. So a killed process leaves the old state or the new
one, and at most something to tidy up, which the next command does first. Nothing here imports torch.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ssse.errors import Damaged, InvalidSetting
from ssse.system import files
from ssse.system.digests import digest_named
from ssse.workspace import settings as toml
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record.database import LOG
from ssse.workspace.record.heads import Heads
from ssse.workspace.record.ledger import Entry, Ledger
from ssse.workspace.record.seal import FILE as SEAL
from ssse.workspace.record.seal import Seal

WEIGHTS, SKOPS, CURVATURE = "weights.safetensors", "model.skops", "curvature"
MODELS = (WEIGHTS, SKOPS)  # names that the model of a state may have
SAMPLES, PAGE = "samples.safetensors", "report.html"
MAKERS = ("created", "fitted", "calibrated", "erased", "repaired", "reverted")  # entries that make a state
# Beginnings of names before the rename; of ssse.toml with a sign that no editor puts behind its own.
FITTING = ".fit"  # what an interrupted fit has done; gone before anything is erased
TEMPORARY = (FITTING, *(f".{name}" for name in (SEAL, PAGE, SAMPLES, "current", f"{toml.FILE}-")))
STATES = "states"
OTHERS = 0o077  # of a mode: what is not the owner's
SPARE = 1 << 20  # bytes beside the state: ledger, seal


@dataclass(frozen=True)
class Folder:
    path: Path

    @property
    def ledger(self) -> Path:
        return self.path / ledgers.FILE

    @property
    def states(self) -> Path:
        return self.path / STATES

    @property
    def current(self) -> Path:
        return self.path / "current"

    def state(self, entry: Entry) -> Path:
        return self.states / state_name(entry)

    def check(self) -> None:
        if not self.path.exists():
            raise InvalidSetting(f"There is no workspace '{self.path}'; `ssse init` makes one.")
        if not self.ledger.is_file() and not (self.path / toml.FILE).is_file():
            raise InvalidSetting(f"'{self.path}' is not a workspace: it has no ledger. `ssse init` makes one.")

    @contextmanager
    def read(self) -> Iterator[Ledger]:
        """The ledger, to read; also while another command is at work."""
        self.check()
        with Ledger.read(self.ledger) as ledger:
            yield ledger

    def refuse_altered(self, seal: Seal) -> None:
        """Of a workspace at rest, the ledger's file is as it was sealed."""
        if seal.command is not None:
            return
        if toml.FILE not in seal.files or not seal.fits(self.path, self.ledger.name) or files.size(self.path / LOG):
            raise Damaged(f"'{self.ledger}' is not as it was written. Restore a backup; `ssse verify` says more.")

    def refuse_damaged(self, ledger: Ledger, seal: Seal) -> None:
        """What is about to be relied on. After a kill also what the old state is about to be removed for."""
        expected: dict[str, str] = {}
        if seal.command is not None:
            if damages := ledger.damages():
                raise Damaged(f"'{self.ledger}': {damages[0]}. `ssse verify` says more.")
            if ledger.has_leaves and (bad := next(Heads.of(ledger).badly_signed(), None)) is not None:
                raise Damaged(f"'{self.ledger}': entry {bad} is not signed by the key that the ledger names.")
            made = ledger.last(*MAKERS)
            if made is not None:
                expected |= {f"states/{state_name(made)}/{name}": d for name, d in made.details["files"].items()}
        if (fitted := ledger.last("fitted")) is not None:
            expected[SAMPLES] = fitted.details["samples_file"]
        for name in Seal(expected).altered(self.path):
            raise Damaged(f"'{self.path / name}' is not as it was written. Restore a backup; `ssse verify` says more.")

    def check_link(self) -> None:
        """`current` as a folder of its own would go on serving the old model; and states elsewhere are not ours."""
        self.refuse_linked(STATES)
        if self.current.exists() and not self.current.is_symlink():
            raise Damaged(
                f"'{self.current}' should be a link and is a copy: copy workspaces with their links, as cp -a does. "
                "Remove it and run the command again."
            )

    def check_target(self, made: Entry) -> None:
        """At rest; a link that is gone misleads nobody, and the next state brings it back."""
        target = f"states/{state_name(made)}"
        for name in made.details["files"]:
            self.refuse_linked(f"{target}/{name}")
        if self.current.is_symlink() and os.readlink(self.current) != target:
            raise Damaged(
                f"'{self.current}' points to '{os.readlink(self.current)}', and the ledger says '{target}': another "
                "model is served. If `ssse verify` names nothing else, remove the link; the next state makes it again."
            )

    def refuse_linked(self, name: str) -> None:
        """What should be in the workspace is not somewhere else."""
        if files.behind_link(self.path, name):
            raise Damaged(
                f"'{self.path / name}' is a symbolic link, or lies behind one, which no command of ssse made. Put the "
                "folder back, or restore a backup; `ssse verify` says more."
            )

    def check_disk(self) -> None:
        """Before SQLite opens the ledger: on such a disk it says less, and leaves files that cannot be used."""
        if os.statvfs(self.path).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, "The disk is read-only", str(self.path))
        for path in (self.path, self.ledger):
            if path.exists() and not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, "You may not write to it", str(path))
        self.check_space(0)

    def check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.path).free
        if free < needed + SPARE:
            raise OSError(errno.ENOSPC, f"This needs {needed + SPARE:,} bytes and {free:,} are free", str(self.path))


def settle_state(state: Path) -> None:
    """The modes of a new state. Who serves the model may be somebody else; the rest is its owner's alone."""
    allowed, _ = files.usual_modes(state)
    models = {state / name for name in MODELS}
    files.settle_modes(state, lambda path: allowed if path in models else files.private_mode(path))


def restrict(workspace: Path) -> None:
    """Its owner's alone, as `init` makes it, but for the models in its states: those keep their modes. Links stay."""
    models = _models(workspace)
    files.settle_modes(workspace, lambda path: _mode(path) if path in models else files.private_mode(path))


def open_to_others(workspace: Path) -> list[str]:
    """What `restrict` would close: nothing where nobody else may enter the folder."""
    if not _mode(workspace) & OTHERS:
        return []
    inside = {path for path in workspace.rglob("*") if not path.is_symlink()} - _models(workspace)
    return sorted(path.relative_to(workspace).as_posix() for path in {workspace, *inside} if _mode(path) & OTHERS)


def _models(workspace: Path) -> set[Path]:
    return {path for name in MODELS for path in workspace.glob(f"{STATES}/*/{name}")}


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:  # SQLite takes its own files away when the last reader is done
        return 0


def link_model(old: Path, new: Path) -> None:
    """The same weights in a new state: the file itself under another name, so that a later request has one to erase."""
    name = model_file({path.name: "" for path in old.iterdir()})
    try:
        os.link(old / name, new / name)
    except OSError:  # not on every disk
        shutil.copyfile(old / name, new / name)


def state_name(entry: Entry) -> str:
    return f"{entry.seq:06d}"


def summary(made: Mapping[str, str]) -> dict[str, str | None]:
    """The digests of a state's two parts."""
    curvature = {name: digest for name, digest in made.items() if name.startswith(f"{CURVATURE}/")}
    return {"weights": made[model_file(made)], "curvature": digest_named(curvature) if curvature else None}


def model_file(made: Mapping[str, str]) -> str:
    """Under which name the files of a state hold the model."""
    return SKOPS if SKOPS in made and WEIGHTS not in made else WEIGHTS
