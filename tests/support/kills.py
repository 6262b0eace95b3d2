"""Commands that are killed again and again, all from one workspace: `python -m tests.support.kills FOLDER GROUP`.

In a process of its own, for it forks: the children find torch imported and die within milliseconds. What they leave is
looked at, finished by the same command, and compared with a run that nobody killed. One JSON object of counts is the
output; whatever does not hold is a traceback.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors.torch import save_file

from ssse.intake import skops as skops_files
from ssse.intake import weights
from ssse.system import files, lock, store
from ssse.workspace.commands import settle
from ssse.workspace.commands import upgrade as upgrades
from ssse.workspace.proof.keys import make_pair
from ssse.workspace.record import (
    anchors,
    configuration,
    database,
    folder,
    holdings,
    ledger,
    membership,
    page_sum,
    seal,
)
from ssse.workspace.record import transaction as transactions
from ssse.workspace.results import Verification
from ssse.workspace.workspace import Workspace
from tests.support import keyed, workspaces

WATCHED = {
    module.__file__
    for module in (
        *(anchors, database, files, folder, holdings, transactions, ledger, lock, membership, page_sum, seal, settle),
        *(configuration, skops_files, store, upgrades, weights),
    )
}
FORGET = [3, 11]
MEASURED = ("seconds", "blind", "shown")  # in details: what was measured, and what follows from the hashes
N, P = 32, 3


@dataclass(frozen=True)
class Operation:
    """`run`: one command. `makes`: the entry that it is about. `prepare`: what was done before.

    `verify`: what must hold at any moment; `finished`: at the end, where that is more. `beside`: files next to the
    workspace that the command writes, too.
    """

    makes: str
    run: Callable[[Workspace], object]
    prepare: Callable[[Workspace], object] = lambda workspace: None
    options: dict[str, Any] = field(default_factory=dict)
    fit: bool = True
    make: Callable[..., workspaces.Made] = workspaces.make
    verify: Callable[[Workspace], Verification] = Workspace.verify
    finished: Callable[[Workspace], Verification] | None = None
    beside: tuple[str, ...] = ()


def erase(workspace: Workspace) -> None:
    assert workspace.erase("r-1", ids=[f"s{place}" for place in FORGET]).outcome in ("erased", "repeated")


def erase_another(workspace: Workspace) -> None:
    assert workspace.erase("r-0", ids=["s5", "s6", "s30"]).outcome == "erased"


def hold_another(workspace: Workspace) -> None:
    workspace.erase("r-0", ids=["s5", "s6", "s30"], options={"erase.confirm": "always"})


def hold_two(workspace: Workspace) -> None:
    hold_another(workspace)
    workspace.erase("r-2", ids=["s7"], options={"erase.confirm": "always"})


def report(workspace: Workspace) -> None:
    """As `ssse report` does, with a page that costs nothing."""
    with transactions.open_transaction(workspace.folder, "report") as transaction:
        last = transaction.ledger.last()
        assert last is not None
        transaction.write_page(f"<p>{last.hash}</p>")


def report_before(workspace: Workspace) -> None:
    with transactions.open_transaction(workspace.folder, "report") as transaction:
        transaction.write_page("<p>as it was</p>")


def calibrate(workspace: Workspace) -> None:
    retrained = workspace.folder.path.parent / "retrained.safetensors"
    _, y = workspaces.data(N, P)
    ids = [f"s{place}" for place in torch.nonzero(y == 0).flatten().tolist()]
    workspace.calibrate(ids=ids, retrained=retrained)


def retrain(workspace: Workspace) -> None:
    x, y = workspaces.data(N, P)
    model = workspaces.train(x[y > 0], y[y > 0], 3)
    save_file(model.state_dict(), workspace.folder.path.parent / "retrained.safetensors")


HELD: dict[str, Any] = {"erase__confirm": "always"}
SENT = "sent.txt"  # what the anchor's command got
OTHER = "other.txt"  # the anchor from a change on


def make_keyed(home: Path, **options: Any) -> workspaces.Made:
    """With a key, an anchor, and a command that gets the heads as well."""
    command = f"/bin/sh -c 'cat >> {home / SENT}; echo >> {home / SENT}'"
    return keyed.make(home, record__anchor_command=command, **options).made


def verify_keyed(workspace: Workspace) -> Verification:
    """Whatever was published, in part or whole, is of this ledger."""
    home = workspace.folder.path.parent
    sent = workspace.verify(anchor=home / SENT)
    assert sent.ok, sent.damages
    return workspace.verify(keys=[home / "key.pem.pub"], anchor=home / "heads.txt")


def finished_keyed(workspace: Workspace) -> Verification:
    seen = verify_keyed(workspace)
    home = workspace.folder.path.parent
    for name in (SENT, "heads.txt"):
        found = anchors.read_heads(home / name)
        assert (found.heads[-1].size, found.rest) == (seen.entries, b""), name
    return seen


def make_to_change(home: Path, **options: Any) -> workspaces.Made:
    """With a key and an anchor; beside it another key, and a file that is to be the anchor."""
    make_pair(home / "new.pem")
    (home / OTHER).touch()
    return keyed.make(home, **options).made


def change_key(workspace: Workspace) -> None:
    home = workspace.folder.path.parent
    workspace.upgrade(key=home / "new.pem", anchor=home / OTHER)


def finished_change(workspace: Workspace) -> Verification:
    home = workspace.folder.path.parent
    assert workspace.settings().record.anchor == str(home / OTHER)
    return workspace.verify(keys=[home / "key.pem.pub", home / "new.pem.pub"], anchor=home / OTHER)


def make_old(home: Path, **_: Any) -> workspaces.Made:
    """As an earlier version left it."""
    shutil.copytree(BEFORE / "torch", home, symlinks=True)
    return workspaces.Made(home, Workspace(home / "ws"), *workspaces.data(N, P))


BEFORE = Path(__file__).parents[1] / "before"
KEPT: dict[str, Any] = {"erase__old_weights": "keep", "erase__old_curvature": "keep"}
OPERATIONS = {
    "fit": Operation("fitted", Workspace.fit, fit=False),
    "fit again": Operation("fitted", lambda workspace: workspace.fit(again=True), erase_another),
    "erase": Operation("erased", erase),
    "erase lowrank": Operation("erased", erase, options={"fit__structure": "lowrank"}),
    "erase joint": Operation("erased", erase, erase_another, options={"erase__policy": "joint"}),
    "erase after a fit": Operation("erased", erase, erase_another, options={"erase__refit": 1}),
    "erase and keep": Operation("erased", erase, erase_another, options=KEPT),
    "erase and hold": Operation("erased", erase, options=HELD),
    "erase and hold another": Operation("erased", erase, hold_another, options=HELD),
    "erase and settle": Operation("erased", erase, hold_two, options={"erase__confirm": "never"}),
    "confirm": Operation("confirmed", Workspace.confirm, hold_two),
    "revert": Operation("reverted", Workspace.revert, hold_two),
    "calibrate": Operation("calibrated", calibrate, retrain),
    "repair": Operation("repaired", Workspace.repair, erase_another),
    "report": Operation("", report, report_before),
    "fit estimator": Operation("fitted", Workspace.fit, fit=False, make=workspaces.make_estimator),
    "erase estimator": Operation("erased", erase, make=workspaces.make_estimator),
    "revert estimator": Operation("reverted", Workspace.revert, hold_two, make=workspaces.make_estimator),
    "erase estimator and keep": Operation(
        "erased", erase, erase_another, options={**KEPT, "erase__policy": "joint"}, make=workspaces.make_estimator
    ),
    "erase with key": Operation(
        "erased", erase, make=make_keyed, verify=verify_keyed, finished=finished_keyed, beside=("heads.txt", SENT)
    ),
    "change key": Operation(
        "configured", change_key, make=make_to_change, finished=finished_change, beside=("heads.txt", OTHER)
    ),
    "upgrade": Operation("upgraded", Workspace.upgrade, make=make_old),
}


@dataclass
class Rehearsal:
    """A workspace before an operation, and what it is after one that nobody killed."""

    home: Path
    operation: Operation
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        made = self.operation.make(self.home, fit=self.operation.fit, n=N, p=P, **self.operation.options)
        self.operation.prepare(made.workspace)
        self.pristine, self.trial = made.path, self.home / "trial"  # beside each other: both see ../train.npz
        self.beside = {self.home / name: (self.home / name).read_bytes() for name in self.operation.beside}
        self.start()
        self.before, self.size = workspaces.snapshot(self.trial), len(self.entries())
        self.old = self.weights()
        self.operation.run(Workspace(self.trial))
        self.after, self.new, self.names = self.essence(), self.weights(), set(workspaces.snapshot(self.trial))
        self.notes = self.checked().notes  # of requests that wait

    def start(self) -> None:
        if self.trial.exists():
            shutil.rmtree(self.trial)
        shutil.copytree(self.pristine, self.trial, symlinks=True)
        for path, content in self.beside.items():
            path.write_bytes(content)

    def checked(self) -> Verification:
        """By what holds when the command has come to its end."""
        return (self.operation.finished or self.operation.verify)(Workspace(self.trial))

    def fingerprint(self) -> str:
        return fingerprint(self.trial, *self.beside)

    def entries(self) -> list[Any]:
        """All but what was measured, and the hashes that follow from it."""
        found = [entry.to_dict() for entry in Workspace(self.trial).log().entries]
        return [without({**entry, "hash": "", "previous": "", "time": ""}, MEASURED) for entry in found]

    def weights(self) -> bytes:
        current = self.trial / "current"
        return next(path for path in current.iterdir() if path.is_file()).read_bytes()

    def essence(self) -> Any:
        found = workspaces.snapshot(self.trial)
        volatile = ("ledger.sqlite", "seal.json", "report.html")  # follow from the hashes
        return self.entries(), {name: body for name, body in found.items() if name not in volatile}

    def attempt(self, prepare: Callable[[], None] = lambda: None, delay: float | None = None) -> bool:
        """Run it in a child; killed after the delay, or when `prepare` sees to it. Whether it was killed."""
        sys.stdout.flush()
        child = os.fork()
        if not child:
            try:
                prepare()
                self.operation.run(Workspace(self.trial))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        if delay is not None:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), status
        return status == signal.SIGKILL

    def duration(self) -> float:
        self.start()
        started = time.perf_counter()
        assert not self.attempt()
        return time.perf_counter() - started

    def check_killed(self) -> bool:
        """Whether the kill came between the first byte written and the last."""
        found = workspaces.snapshot(self.trial)
        seen = self.operation.verify(Workspace(self.trial))
        assert seen.ok, seen.damages
        assert workspaces.snapshot(self.trial) == found, "verify wrote something"
        assert self.weights() in (self.old, self.new)
        return found != self.before and (seen.interrupted is not None or seen.notes != [])

    def finish(self) -> None:
        """The same command, or any other where its entry is there: that one is not to be made twice."""
        workspace = Workspace(self.trial)
        kinds = [entry["kind"] for entry in self.entries()[self.size :]]
        if self.operation.makes in kinds or not self.operation.makes:
            again = Workspace.repair if self.operation.makes == "repaired" else Workspace.fit
            again(workspace)  # done already: only finishes what is unfinished
            assert self.operation.verify(workspace).ok
        if self.operation.makes not in kinds:
            self.operation.run(workspace)
        if self.operation.makes == "erased":
            erase(workspace)  # is a repetition now, and says so
        seen = self.checked()
        assert seen.ok, seen.damages
        assert seen.interrupted is None
        assert seen.notes == self.notes, seen.notes
        strange = set(workspaces.snapshot(self.trial)) ^ self.names
        assert not strange, strange
        entries, rest = self.essence()
        assert entries == self.after[0], [entry["kind"] for entry in entries]
        assert rest == self.after[1]

    # ------------------------------------------------------------------------------- the ways to die

    def at_random(self, wanted: int, chooser: random.Random, twice: bool = False) -> None:
        """Kills over the whole length of the command and a little beyond; `twice`: what is left is killed again.

        How long the command takes changes with what else the machine does: it is measured again when a kill came too
        late, and there are trials enough for any luck.
        """
        longest = self.duration()
        for _ in range(20 * wanted):
            self.start()
            middle = killed = 0
            for _ in range(1 + twice):
                died = self.attempt(delay=chooser.uniform(0, 1.2 * longest))
                killed += died
                middle += self.check_killed()
                if not died:
                    longest *= 0.9
            if killed == 1 + twice and middle == 0:
                longest *= 1.1
            self.finish()
            self.counts += Counter(killed=killed, middle=middle, twice=int(middle == 2), trials=1)
            enough = self.counts["twice"] >= twice and self.counts["middle"] >= max(1, wanted // 5)
            if self.counts["killed"] >= wanted and enough:
                return

    def at_every_line(self, every: int = 1) -> None:
        """At each line of what writes, or every so many, as far as the disk is another one than at the line before."""
        self.start()
        changing: list[int] = []
        last = self.fingerprint()

        def look(line: int) -> None:
            nonlocal last
            found = self.fingerprint()
            if found != last:
                changing.append(line)
                last = found

        lines = traced(look, lambda: self.operation.run(Workspace(self.trial)))
        chosen = changing[::every]
        for line in chosen:
            self.start()
            assert self.attempt(lambda line=line: dies_at(line))
            self.counts["middle"] += self.check_killed()
            self.finish()
        self.counts += Counter(killed=len(chosen), lines=lines)


def fingerprint(folder: Path, *beside: Path) -> str:
    """Of all that lies in a folder, and of files beside it."""
    found = hashlib.sha256()
    for name, body in workspaces.snapshot(folder).items():
        if not name.endswith("-shm"):  # locks alone
            found.update(name.encode())
            found.update(body if isinstance(body, bytes) else body.encode())
    for path in beside:
        found.update(path.read_bytes())
    return found.hexdigest()


def without(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: without(inner, names) for key, inner in value.items() if key not in names}
    return value


def look_at_every_line(look: Callable[[int], None]) -> None:
    """Call `look` with the count before every line of the modules that write."""
    lines = 0

    def watch(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            lines += 1
            look(lines)
        return watch

    sys.settrace(watch)


def traced(look: Callable[[int], None], work: Callable[[], object]) -> int:
    """`look` at every line of the work; how many there were."""
    last = 0

    def count(line: int) -> None:
        nonlocal last
        last = line
        look(line)

    look_at_every_line(count)
    try:
        work()
    finally:
        sys.settrace(None)
    return last


def dies_at(last: int) -> None:
    look_at_every_line(lambda line: os.kill(os.getpid(), signal.SIGKILL) if line == last else None)


def main(home: Path, group: str) -> dict[str, dict[str, int]]:
    torch.set_num_threads(1)
    found = {}
    way, *names = group.split(",")
    for name in names:
        rehearsal = Rehearsal(home / name.replace(" ", "_"), OPERATIONS[name])
        if way.startswith("lines"):
            rehearsal.at_every_line(int(way.removeprefix("lines") or 1))
        else:
            rehearsal.at_random(int(way.removeprefix("twice")), random.Random(name), twice=way.startswith("twice"))
        found[name] = dict(rehearsal.counts)
        shutil.rmtree(rehearsal.home)
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
