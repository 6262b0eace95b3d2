"""Attempts to have code run from what is only data: `python -m tests.support.attempts FOLDER [GROUP/STEP,…]`.

Each is a file, a name or a text that would leave a mark if anything executed it. The commands run in a child, since
what is run may also end its process.
"""

from __future__ import annotations

import json
import os
import pickle
import shlex
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typer.testing import CliRunner

from ssse.cli.app import app
from ssse.cli.console import HINT
from tests.support import workspaces
from tests.support.tally import Tally
from tests.support.workspaces import Made

FINE, TRACEBACK, HARMED = 0, 10, 11
MODEL = ["--model", "torch.nn:Linear", "--argument", "in_features=4", "--argument", "out_features=3", "--device", "cpu"]
DATA = ["--data", "train.npz", "--weight-decay", "0.01"]


class Calls:
    """Unpickling it calls the function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@dataclass(frozen=True)
class Home:
    """Files and a workspace to attack; `mark` is what must not appear."""

    made: Made
    mark: Path

    @property
    def path(self) -> Path:
        return self.made.home

    @property
    def shell(self) -> str:
        return f"touch {shlex.quote(str(self.mark))}"

    @property
    def python(self) -> str:
        return f"open({str(self.mark)!r}, 'w').close()"

    def bombs(self) -> dict[str, Calls]:
        return {
            "Path.touch": Calls(Path.touch, self.mark),
            "os.system": Calls(os.system, self.shell),
            "exec": Calls(exec, self.python),
            "eval": Calls(eval, self.python),
        }

    def write(self, name: str, content: bytes | str) -> str:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    def drop(self, *modules: str) -> None:
        for name in modules:
            self.write(f"{name}.py", f"{self.python}\nraise SystemExit\n")


@dataclass(frozen=True)
class Attempt:
    """`place` puts what it needs into the home and says which commands are to run there."""

    name: str
    place: Callable[[Home], list[list[str]]]


def forgets(name: str) -> list[list[str]]:
    return [["erase", "ws", "--request", "new", "--forget", name]]


def weighs(name: str) -> list[list[str]]:
    """Every way in which a file of weights is read."""
    there = [["evaluate", "ws", "--original", name], ["evaluate", "ws", "--retrained", name]]
    return [["init", "new", *MODEL, "--weights", name, *DATA], ["init", "other", "--weights", name, *DATA[:2]], *there]


def pickles() -> Iterator[Attempt]:
    """Under every extension, as samples and as weights, by several functions and protocols."""
    data = (".npz", ".npy", ".safetensors", ".csv", ".parquet", ".pt", ".pkl", ".joblib", ".json", ".toml", "")
    weights = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".skops", ".npz", ".pkl", ".joblib")
    for turn, (kind, suffix) in enumerate([*(("data", s) for s in data), *(("weights", s) for s in weights)]):
        for which in ("Path.touch", ("os.system", "exec", "eval")[turn % 3]):

            def place(home: Home, suffix: str = suffix, kind: str = kind, which: str = which, turn: int = turn):
                body = {"x": home.bombs()[which], "weight": home.bombs()[which]}
                name = home.write(f"given{suffix}", pickle.dumps(body, protocol=turn % 6))
                return forgets(name) if kind == "data" else weighs(name)

            yield Attempt(f"a pickle of {which} as {kind}{suffix}", place)
    for suffix in (".pt", ".pth", ".bin", ".ckpt"):

        def saved(home: Home, suffix: str = suffix):
            torch.save({"weight": home.bombs()["exec"], "bias": torch.zeros(3)}, home.path / f"given{suffix}")
            return weighs(f"given{suffix}")

        yield Attempt(f"torch.save of more than tensors, {suffix}", saved)


def arrays() -> Iterator[Attempt]:
    """Objects in arrays, headers that are expressions, members that are no arrays."""
    for key in ("x", "y", "id"):
        for form in ("npz", "npy"):

            def objects(home: Home, key: str = key, form: str = form):
                whole = {"x": np.zeros((1, 4)), "y": np.zeros(1, np.int64), "id": np.array(["s3"])}
                held = np.empty(1, object)
                held[0] = home.bombs()["Path.touch"]
                whole[key] = held
                if form == "npz":
                    np.savez(home.path / "given.npz", allow_pickle=True, **whole)
                    return forgets("given.npz")
                (home.path / "given").mkdir()
                for name, value in whole.items():
                    np.save(home.path / "given" / f"{name}.npy", value, allow_pickle=True)
                return forgets("given")

            yield Attempt(f"objects under {key} in {form}", objects)

    def header(home: Home, expression: str) -> bytes:
        text = f"{{'descr': {expression}, 'fortran_order': False, 'shape': (1, 4), }}"
        text += " " * (63 - (len(text) + 10) % 64) + "\n"
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(32)

    for name, expression in {
        "a call": "__import__('os').system({shell!r})",
        "a type that calls": "[('x', {shell!r}), ('y', '<f8')]",
        "an object type": "'|O'",
    }.items():

        def placed(home: Home, expression: str = expression):
            body = header(home, expression.format(shell=home.shell))
            if expression == "'|O'":
                body = body[:-32] + pickle.dumps(home.bombs()["exec"])
            with zipfile.ZipFile(home.path / "given.npz", "w") as archive:
                archive.writestr("x.npy", body)
                archive.writestr("y.npy", pickle.dumps(home.bombs()["eval"]))
            return forgets("given.npz")

        yield Attempt(f"an npy header with {name}", placed)


def skops_files() -> Iterator[Attempt]:
    nodes = {
        "FunctionNode": {"content": {"module_path": "os", "function": "system"}},
        "TypeNode": {},
        "ObjectNode": {"content": None},
        "MethodNode": {"content": {"func": "system", "obj": {"__loader__": "JsonNode", "content": "1"}}},
        "PartialNode": {"content": {"func": None, "args": None, "kwds": None, "namespace": None}},
        "ReduceNode": {"__reduce__": {"args": {"__loader__": "JsonNode", "content": '"x"'}}, "content": None},
        "OperatorFuncNode": {"attrs": {"__loader__": "JsonNode", "content": "[]"}},
    }
    for loader, more in nodes.items():

        def place(home: Home, loader: str = loader, more: dict[str, Any] = more):
            node = {"__class__": "system", "__module__": "os", "__loader__": loader, "__id__": 1, **more}
            schema = {**node, "protocol": 2, "_skops_version": "0.13"}
            with zipfile.ZipFile(home.path / "given.skops", "w") as archive:
                archive.writestr("schema.json", json.dumps(schema))
            return weighs("given.skops")

        yield Attempt(f"skops: a {loader} of os.system", place)

    def pickled_member(home: Home):
        with zipfile.ZipFile(home.path / "given.skops", "w") as archive:
            node = {"__class__": "ndarray", "__module__": "numpy", "__loader__": "NdArrayNode", "type": "numpy"}
            archive.writestr("schema.json", json.dumps({**node, "file": "a.npy", "protocol": 2, "__id__": 1}))
            archive.writestr("a.npy", pickle.dumps(home.bombs()["exec"]))
        return weighs("given.skops")

    yield Attempt("skops: a pickle among its members", pickled_member)


def names() -> Iterator[Attempt]:
    """As ids of requests and samples, on the page, in shells."""
    texts = {
        "a shell's substitution": "$({shell})",
        "backticks": "`{shell}`",
        "a semicolon": "; {shell}",
        "a pipe": "| {shell}",
        "an import": "__import__('os').system({shell!r})",
        "a template": "{{{{ cycler.__init__.__globals__.os.popen({shell!r}).read() }}}}",
        "a template's block": "{{% for x in ().__class__.__base__.__subclasses__() %}}{{{{ x }}}}{{% endfor %}}",
        "a format": "{{0.__class__.__init__.__globals__}}",
        "a script": "<script>x</script><img src=x onerror=alert(1)>",
        "a formula": "=cmd|' /C {shell}'!A0",
        "SQL": "'; ATTACH DATABASE '{mark}' AS m; CREATE TABLE m.t (x); --",
        "a tag of YAML": '!!python/object/apply:os.system ["{shell}"]',
    }
    for what, text in texts.items():

        def place(home: Home, text: str = text):
            name = text.format(shell=home.shell, mark=home.mark)[:200]
            home.write("ids.txt", f"{name}\ns4\n")
            asked = [["erase", "ws", "--request", name, "--ids", "s3"], ["report", "ws"]]
            asked += [["log", "ws"], ["log", "ws", "--request", name], ["verify", "ws"]]
            ids = [["erase", "ws", "--request", "b", "--ids", given] for given in (name, f"@{name}", "@ids.txt")]
            return [*asked, *ids, *forgets(name)]

        yield Attempt(f"a name that is {what}", place)


def specifications() -> Iterator[Attempt]:
    """A request's file is data; pkg.module:name is none. The module lies where the model's is looked for."""
    for name in ("os:abort", "evil:data", "evil:make", "ws.evil:data"):
        for use in (
            ["erase", "ws", "--request", "new", "--forget"],
            ["calibrate", "ws", "--method", "line_search", "--scales", "1", "--forget"],
            ["evaluate", "ws", "--forget"],
        ):

            def place(home: Home, name: str = name, use: list[str] = use):
                home.drop("evil")
                home.write("ws/evil.py", f"{home.python}\n")
                return [[*use, name]]

            yield Attempt(f"{use[0]} --forget {name}", place)

    for use in (["erase", "ws", "--request", "n", "--ids"], ["calibrate", "ws", "--ids", "s3", "--retrained"]):

        def named(home: Home, use: list[str] = use):
            home.drop("evil")
            return [[*use, name] for name in ("evil:data", "@evil:data", "evil.py", "@evil.py")]

        yield Attempt(f"{use[0]} {use[-1]} evil:data", named)


def settings() -> Iterator[Attempt]:
    """Code is named at `init`, or by who types a command; an edited text file names none."""
    for key in ("model.factory", "model.loss", "data.train", "data.test"):

        def place(home: Home, key: str = key):
            home.drop("evil")
            section, name = key.split(".")
            lines = (home.path / "ws" / "ssse.toml").read_text().splitlines()
            lines = [line for line in lines if not line.startswith(f"{name} =")]
            lines.insert(lines.index(f"[{section}]") + 1, f'{name} = "evil:{name}"')
            home.write("ws/ssse.toml", "\n".join(lines) + "\n")
            asked = ["erase", "ws", "--request", "new", "--ids", "s3"]
            return [["fit", "ws", "--again"], asked, ["evaluate", "ws"], ["report", "ws"]]

        yield Attempt(f"{key} edited", place)


def modules() -> Iterator[Attempt]:
    """Files with the names of packages that are imported on the way, where the model's module is looked for."""
    dropped = ("pandas", "polars", "pyarrow", "cupy", "jax", "dask", "xarray", "narwhals", "usercustomize", "mpmath")
    for words in (
        ["fit", "ws", "--again"],
        ["erase", "ws", "--request", "new", "--ids", "s3"],
        ["evaluate", "ws"],
        ["report", "ws"],
        ["init", "new", *MODEL, "--weights", "w.safetensors", *DATA],
    ):

        def place(home: Home, words: list[str] = words):
            home.drop(*dropped)
            return [words]

        yield Attempt(f"modules beside the data, {words[0]}", place)


def texts() -> Iterator[Attempt]:
    """Files of text that some programs execute."""
    bodies = {
        "yaml": 'x: !!python/object/apply:os.system ["{shell}"]\n',
        "csv": "a,b,c,d,y\n=cmd|' /C {shell}'!A0,@SUM(1),+1,-1,0\n",
        "json": '{{"py/object": "posix.system", "py/reduce": [{{"py/function": "os.system"}}, ["{shell}"]]}}',
        "xml": '<!DOCTYPE x [<!ENTITY e SYSTEM "file://{mark}">]><x>&e;</x>',
        "py": "import os; os.system({shell!r})\n",
    }
    for form, body in bodies.items():

        def place(home: Home, form: str = form, body: str = body):
            name = home.write(f"given.{form}", body.format(shell=home.shell, mark=home.mark))
            listed = [["erase", "ws", "--request", "b", "--ids", f"@{name}"]]
            return [*forgets(name), *listed, *weighs(name)]

        yield Attempt(f"a file of {form}", place)

    for key in ("data.batch_size", "fit.memory_budget", "fit.parameters", "data.classes", "evaluate.same"):

        def setting(home: Home, key: str = key):
            section, name = key.split(".")
            body = (home.path / "ws" / "ssse.toml").read_text()
            lines = [line for line in body.splitlines() if not line.startswith(f"{name} =")]
            put = f"{name} = {json.dumps('__import__(' + repr('os') + ').system(' + repr(home.shell) + ')')}"
            if f"[{section}]" not in lines:
                lines.append(f"[{section}]")
            lines.insert(lines.index(f"[{section}]") + 1, put)
            home.write("ws/ssse.toml", "\n".join(lines) + "\n")
            return [["fit", "ws", "--again"], ["evaluate", "ws"], ["erase", "ws", "--request", "new", "--ids", "s3"]]

        yield Attempt(f"an expression in {key}", setting)


def own_files() -> Iterator[Attempt]:
    """Pickles in the place of the workspace's own files."""
    for name in ("seal.json", "samples.safetensors", "ledger.sqlite", "ssse.toml", "current/curvature/manifest.json"):

        def place(home: Home, name: str = name):
            home.write(f"ws/{name}", pickle.dumps(home.bombs()["Path.touch"]))
            return [
                ["erase", "ws", "--request", "new", "--ids", "s3"],
                ["verify", "ws"],
                ["log", "ws"],
                ["report", "ws"],
            ]

        yield Attempt(f"a pickle as {name}", place)


GROUPS: dict[str, Callable[[], Iterator[Attempt]]] = {
    "pickles": pickles,
    "arrays": arrays,
    "skops": skops_files,
    "names": names,
    "specifications": specifications,
    "settings": settings,
    "modules": modules,
    "texts": texts,
    "own": own_files,
}


def run(attempt: Attempt, ready: Made, place: Path, tally: Tally) -> None:
    """In a fresh copy, by a child."""
    tally.ways[attempt.name.split(",")[0]] += 1
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    home = Home(workspaces.copy(ready, place / "home"), place / "mark")
    commands = attempt.place(home)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        ended = HARMED
        try:
            os.chdir(home.path)
            ended = FINE
            for words in commands:
                done = CliRunner().invoke(app, words)
                if not isinstance(done.exception, SystemExit | None) or HINT in done.output:
                    print(attempt.name, words, done.output, repr(done.exception), file=sys.stderr)
                    ended = TRACEBACK
        finally:
            os._exit(ended)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if home.mark.exists() or status not in (FINE, TRACEBACK):
        tally.note("run", f"{attempt.name}: {commands}, {status}")
    elif status == TRACEBACK:
        tally.note("tracebacks", f"{attempt.name}: {commands}")
    page = home.path / "ws" / "report.html"
    if page.exists() and any(text in page.read_text() for text in ("<script>x", "<img src=x")):
        tally.note("run", f"{attempt.name}: on the page")


def main(home: Path, chosen: str) -> Tally:
    """`chosen`: groups, and that every so many-th of each is tried."""
    torch.set_num_threads(1)
    tally, ready = Tally(), workspaces.make(home / "ready", n=12)
    ready.workspace.erase("old", ids=["s1"])  # so that there is something to evaluate
    for group in chosen.split(","):
        name, step = group.split("/")
        for attempt in list(GROUPS[name]())[:: int(step)]:
            run(attempt, ready, home / "place", tally)
    return tally


if __name__ == "__main__":
    which = sys.argv[2] if len(sys.argv) > 2 else ",".join(f"{name}/1" for name in GROUPS)
    print(json.dumps(main(Path(sys.argv[1]), which).to_dict()))
