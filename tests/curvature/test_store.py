"""The stored curvature: whole or not at all, checked when read, mapped rather than copied."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import ssse
from ssse.errors import BrokenArtefact
from ssse.system import store
from ssse.system.digests import digest_tensor
from tests.support import problems
from tests.support.refusals import fit, refused, snapshot

STRUCTURES = [
    ("dense", {"blocks": "output"}),
    ("lowrank", {}),
    ("lowrank", {"blocks": 7}),
    (ssse.LowRank(rank=4), {}),
    ("diagonal", {}),
]
every_structure = pytest.mark.parametrize(("structure", "options"), STRUCTURES)


def small(structure: Any = "dense", **options) -> ssse.Curvature:
    """λ = 10⁻⁵ so that the manifest holds a number with an exponent."""
    return fit(problems.linear("cross_entropy", n=12), structure=structure, damping=1e-5, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small(blocks="output").save(tmp_path / "curvature")
    return tmp_path / "curvature"


def same(a: ssse.Curvature, b: ssse.Curvature) -> bool:
    left, right = a.structure.state(), b.structure.state()
    tensors = left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)
    pairs = [(a.gradient, b.gradient)]
    if a.joint is not None and b.joint is not None:
        pairs += [(a.joint.theta, b.joint.theta), (a.joint.removed_gradient, b.joint.removed_gradient)]
    gradients = all((p is None) == (q is None) and (p is None or torch.equal(p, q)) for p, q in pairs)  # type: ignore[arg-type]
    return tensors and gradients and a._manifest() == b._manifest() and (a.joint is None) == (b.joint is None)


# ---------------------------------------------------------------------------------------- round trip


@every_structure
@pytest.mark.parametrize("verify", [True, False])
def test_round_trip(structure, options, verify, tmp_path):
    curvature = small(structure, **options)
    curvature.save(tmp_path / "deep" / "curvature")
    assert same(ssse.Curvature.load(tmp_path / "deep" / "curvature", verify=verify), curvature)
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["curvature"]


def test_streams_are_stored_as_they_stand(tmp_path):
    sample = problems.linear("cross_entropy")
    for policy in ("rebase", "joint"):
        first = ssse.erase(sample.model, fit(sample), sample.loss, sample.part(slice(0, 2)), policy=policy)
        first.curvature.save(tmp_path / policy)
        loaded = ssse.Curvature.load(tmp_path / policy)
        assert same(loaded, first.curvature)
        again = [
            ssse.erase(first.model, curvature, sample.loss, sample.part(slice(2, 4)), policy=policy).step
            for curvature in (first.curvature, loaded)
        ]
        torch.testing.assert_close(*again, rtol=1e-11, atol=1e-13)  # a BLAS may add in another order in mapped memory


@every_structure
def test_a_loaded_curvature_can_be_stored_again(structure, options, tmp_path):
    small(structure, **options).save(tmp_path / "first")
    loaded = ssse.Curvature.load(tmp_path / "first")
    loaded.save(tmp_path / "second")
    assert same(ssse.Curvature.load(tmp_path / "second"), loaded)


@every_structure
def test_nothing_that_is_done_with_a_mapped_curvature_writes_to_its_file(structure, options, tmp_path):
    sample = problems.linear("cross_entropy", n=12)
    small(structure, **options).save(tmp_path / "curvature")
    before = {path.name: path.read_bytes() for path in (tmp_path / "curvature").iterdir()}
    loaded = ssse.Curvature.load(tmp_path / "curvature")
    erasure = ssse.erase(sample.model, loaded, sample.loss, sample.part(slice(0, 2)), override=ssse.BOUNDS)
    erasure.curvature.solve(torch.ones(18, dtype=torch.float64))
    loaded.with_damping(0.1).solve(torch.ones(18, dtype=torch.float64))
    if structure != ssse.LowRank(rank=4):
        ssse.Curvature.merge([loaded, loaded], n=24)
    assert {path.name: path.read_bytes() for path in (tmp_path / "curvature").iterdir()} == before


# --------------------------------------------------------------------------------------------- damage


def test_missing_things(folder, tmp_path):
    with pytest.raises(BrokenArtefact, match=r"nowhere/manifest\.json' is missing; is .*a folder that Curvature\.save"):
        ssse.Curvature.load(tmp_path / "nowhere")
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(BrokenArtefact, match=f"{path.name}' is missing"):
            ssse.Curvature.load(folder)
        path.write_bytes(content)
    ssse.Curvature.load(folder)


@pytest.mark.parametrize("verify", [True, False])
def test_truncated_files(folder, verify):
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for length in (0, 1, 7, 8, 20, len(content) // 2, len(content) - 8, len(content) - 1):
            path.write_bytes(content[:length])
            with pytest.raises(BrokenArtefact, match=path.name):
                ssse.Curvature.load(folder, verify=verify)
        path.write_bytes(content)


@pytest.mark.parametrize(("structure", "options"), STRUCTURES[:2])
def test_one_altered_byte_is_noticed_or_means_nothing(structure, options, tmp_path):
    """Seed 0. What is not noticed must be JSON that reads the same: white space, or 1e-05 as 1E-05."""
    folder = tmp_path / "curvature"
    curvature = small(structure, **options)
    curvature.save(folder)
    chooser = random.Random(0)
    unnoticed, tried = [], 0
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        length = len(content)
        positions = {*range(24), *chooser.sample(range(length), 60), *range(length - 8, length)}
        for position in sorted(positions):
            altered = bytearray(content)
            altered[position] ^= chooser.choice([0x01, 0x20, 0x29, 0x80, 0xFF, chooser.randrange(1, 256)])
            path.write_bytes(altered)
            tried += 1
            try:
                loaded = ssse.Curvature.load(folder)
            except BrokenArtefact as error:
                assert path.name in str(error)  # noqa: PT017
            else:
                unnoticed.append((path.name, position, content[position], altered[position]))
                assert same(loaded, curvature)
        path.write_bytes(content)
    assert tried >= 200
    for name, position, before, after in unnoticed:
        assert {chr(before), chr(after)} <= set(" \t\n\r") or {chr(before), chr(after)} == set("eE"), (name, position)
    assert same(ssse.Curvature.load(folder), curvature)


def test_bytes_that_are_added(folder):
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content + b"x")
        with pytest.raises(BrokenArtefact, match=path.name):
            ssse.Curvature.load(folder)
        path.write_bytes(content)


def test_tensors_of_another_shape_are_noticed_without_digests_as_well(folder):
    path = folder / "part-00000.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "0.square": tensors["0.square"].reshape(-1)}, path)
    with pytest.raises(BrokenArtefact, match=path.name):
        ssse.Curvature.load(folder, verify=False)


def test_swapped_files_and_tensors(folder):
    first, second = folder / "part-00000.safetensors", folder / "part-00001.safetensors"
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    with pytest.raises(BrokenArtefact, match=r"part-00000.*holds other tensors than its manifest says"):
        ssse.Curvature.load(folder, verify=False)
    first.write_bytes(one)
    a, b = load_file(first), load_file(second)
    save_file({"0.square": b["1.square"], "0.pivots": a["0.pivots"]}, first)
    with pytest.raises(BrokenArtefact, match=r"part-00000.*altered: tensor '0\.square' does not match its digest"):
        ssse.Curvature.load(folder)


def test_a_newer_format_says_update(folder):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["format"] = store.FORMAT_VERSION + 1
    manifest["digest"] = store._digest_manifest(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(BrokenArtefact, match=r"format 3, written by ssse .*reads formats up to 2\. Update ssse"):
        ssse.Curvature.load(folder)


def rewritten(folder: Path, **changes: Any) -> None:
    """As somebody who may write to the folder can: the manifest's own digest fits again."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8")) | changes
    manifest["digest"] = store._digest_manifest(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def test_what_version_1_wrote_is_read_and_checked(folder):
    """Its tensors had digests by SHA-256, without a word before them."""
    tensors = {path.name: load_file(path) for path in folder.glob("*.safetensors")}
    digests = {name: {key: digest_tensor(t) for key, t in group.items()} for name, group in tensors.items()}
    before = ssse.Curvature.load(folder)
    rewritten(folder, format=1, tensors=digests)
    assert same(ssse.Curvature.load(folder), before)
    path = folder / "part-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BrokenArtefact, match=r"part-00001.*altered: tensor '1\.\w+' does not match its digest"):
        ssse.Curvature.load(folder)


@pytest.mark.parametrize("digest", ["md5:0", "blake3", "BLAKE3:0", 3, None, ["blake3:0"]])
def test_a_digest_of_another_kind_is_no_digest(folder, digest):
    stored = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["tensors"]
    stored["part-00000.safetensors"]["0.square"] = digest
    rewritten(folder, tensors=stored)
    with pytest.raises(BrokenArtefact, match="digest"):
        ssse.Curvature.load(folder)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/tmp/outside.safetensors", "part-1.safetensors", "x"])
def test_a_manifest_names_no_file_but_those_of_its_folder(folder, name):
    stored = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["tensors"]
    stored[name] = stored.pop("part-00000.safetensors")
    rewritten(folder, tensors=stored)
    (folder.parent / "outside.safetensors").write_bytes((folder / "part-00000.safetensors").read_bytes())
    with pytest.raises(BrokenArtefact, match="names a file that no version of ssse writes"):
        ssse.Curvature.load(folder, verify=False)


@pytest.mark.parametrize("change", [{"tensors": []}, {"tensors": {}}, {"forms": None}, {"format": True}])
def test_a_manifest_cannot_promise_less_than_it_holds(folder, change):
    rewritten(folder, **change)
    with pytest.raises(BrokenArtefact, match=r"manifest"):
        ssse.Curvature.load(folder)


NOT_MANIFESTS = [
    b"",
    b"hello",
    b"[]",
    b"3",
    b"null",
    b'"format"',
    b"{}",
    b'{"format": 1}',
    b'{"format": "1"}',
    b"\xff\xfe",
]
NOT_MANIFESTS += [b"[" * 100_000]


@pytest.mark.parametrize("content", NOT_MANIFESTS, ids=lambda content: repr(content[:12]))
def test_manifests_that_are_none(folder, content):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(BrokenArtefact, match=r"manifest\.json"):
        ssse.Curvature.load(folder)


@pytest.mark.parametrize("entry", ["n", "model", "structure", "rows", "linear", "notes", "tensors"])
def test_a_manifest_that_lacks_something(folder, entry):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest[entry]
    manifest["digest"] = store._digest_manifest(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(BrokenArtefact, match=f"manifest.*lacks .*{entry}|manifest.*{entry}"):
        ssse.Curvature.load(folder)


class Payload:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch '{self.marker}'",)


@pytest.mark.parametrize("name", ["part-00000.safetensors", "curvature.safetensors", "manifest.json"])
@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_a_pickle_in_disguise_is_never_run(folder, tmp_path, name, how):
    marker = tmp_path / "ran"
    if how == "pickle":
        (folder / name).write_bytes(pickle.dumps(Payload(marker)))
    else:
        torch.save(Payload(marker), folder / name)
    for verify in (True, False):
        with pytest.raises(BrokenArtefact, match=name):
            ssse.Curvature.load(folder, verify=verify)
    assert not marker.exists()
    pickle.loads(pickle.dumps(Payload(marker)))  # it would have
    assert marker.exists()


# -------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("kind", ["full", "empty", "file", "link"])
def test_a_target_that_exists_stays_as_it_is(folder, kind):
    target = folder.parent / kind
    if kind == "full":
        target = folder
    elif kind == "empty":
        target.mkdir()
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(folder.parent / "gone")  # a link to nothing is something as well
    listing = sorted(path.name for path in folder.parent.iterdir())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(FileExistsError, match=f"{target.name}' exists already; choose another folder"):
        small("diagonal").save(target)
    assert sorted(path.name for path in folder.parent.iterdir()) == listing
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_parent_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        small().save(tmp_path / "file" / "curvature")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_is_too_small_is_noticed_beforehand(tmp_path, monkeypatch):
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: store.shutil._ntuple_diskusage(1000, 990, 10))  # type: ignore[attr-defined]
    with pytest.raises(OSError, match=r"needs [\d,]+ bytes and 10 are free") as caught:
        small().save(tmp_path / "curvature")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


STEPS = [("save_file", 0), ("save_file", 2), ("_digests", 0), ("sync", 0), ("sync", 3), ("rename", 0)]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize(("step", "call"), STEPS)
def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch, step, call, error):
    curvature = small(blocks="output")
    home = {"rename": store.os, "sync": store.files}.get(step, store)
    original, calls = getattr(home, step), iter(range(100))

    def failing(*args, **kwargs):
        if next(calls) == call:
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(home, step, failing)
    with pytest.raises(type(error)):
        curvature.save(tmp_path / "curvature")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(home, step, original)
    curvature.save(tmp_path / "curvature")  # and the next attempt works
    assert same(ssse.Curvature.load(tmp_path / "curvature"), curvature)


@pytest.mark.parametrize("where", ["data", "model", "solver"])
def test_an_interrupted_fit_leaves_model_and_disk_as_they_were(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sample = problems.linear("cross_entropy") if where != "model" else problems.conv()
    before = snapshot(sample.model)

    def interrupted_data():
        yield from [(sample.x[:8], sample.y[:8])] * 3
        raise KeyboardInterrupt

    forward, calls = sample.model.forward, iter(range(10_000))

    def interrupted(*arguments):
        if next(calls) == (6 if where == "model" else 0):
            raise KeyboardInterrupt
        return forward(*arguments)

    if where == "model":
        monkeypatch.setattr(sample.model, "forward", interrupted)
    elif where == "solver":
        monkeypatch.setattr(torch.linalg, "cholesky_ex", interrupted)
    data = interrupted_data() if where == "data" else [(sample.x[:4], sample.y[:4]), (sample.x[4:], sample.y[4:])]
    with pytest.raises(KeyboardInterrupt):
        fit(sample, data=data, structure="dense")
    assert snapshot(sample.model) == before
    assert list(tmp_path.iterdir()) == []


def test_a_refused_fit_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sample = problems.linear("cross_entropy")
    with refused(ssse.SSSEError, "damping", sample.model):
        fit(sample, damping=0.0)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from typing import Any
import torch
import ssse
from ssse.system import store
from tests.support import problems
from tests.support.refusals import fit

torch.set_num_threads(1)
home = Path(sys.argv[1])
curvature = fit(problems.linear("cross_entropy", n=60, p=300, c=3), structure="dense", blocks="output")

def attempt(target, prepare=lambda: None, wait=None):
    child = os.fork()
    if child == 0:
        prepare()
        curvature.save(target)
        os._exit(0)
    if wait is not None:
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    if target.exists():
        ssse.Curvature.load(target)  # checks every digest
    return target.exists(), killed

def dies_at(name, call, owner):
    def prepare():
        original, calls = getattr(owner, name), iter(range(99))
        def dying(*args, **kwargs):
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)
        setattr(owner, name, dying)
    return prepare

steps = [("save_file", 0, store), ("save_file", 1, store), ("_digests", 0, store), ("write_text", 0, Path)]
steps += [("sync", call, store.files) for call in range(6)] + [("rename", 0, os)]
for step in steps:
    assert attempt(home / f"{step[0]}-{step[1]}", dies_at(*step)) == (False, True), step
# The seventh is that of the parent, after the rename.
assert attempt(home / "after", dies_at("sync", 6, store.files)) == (True, True)

started = time.perf_counter()
curvature.save(home / "whole")
duration = time.perf_counter() - started
chooser = random.Random(0)
found = [attempt(home / f"random-{i}", wait=chooser.uniform(0, 1.5 * duration))[0] for i in range(20)]
print("kept", sum(found), "of", len(found), "in", round(duration, 4))
"""


def run(script: str, *arguments: object) -> str:
    root = Path(__file__).parents[2]
    paths = [os.environ.get("PYTHONPATH", ""), str(root)]
    alone = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}  # a forked child has no threads
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **alone}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_killed_save_leaves_no_folder_or_a_whole_one(tmp_path):
    assert "kept" in run(KILLED, tmp_path)


MAPPED = """
import os, sys
import torch
import ssse
from ssse.curvature.dense import DenseStructure
from ssse.curvature.gram import DampedGram
from ssse.problem.parameters import Block
from dataclasses import replace
from tests.support import problems
from tests.support.refusals import fit

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

torch.set_num_threads(1)  # those of the parent are not there in a child that it forks
size = 7168  # 205 MB in float32
small = fit(problems.linear("mse", n=4), structure="dense")  # also loads whatever is loaded late
if os.fork() == 0:
    gram = DampedGram(torch.ones(size, size), torch.ones(size), 1.0, "all")
    replace(small, structure=DenseStructure([Block("all", ((0, size),))], [gram], 1.0)).save(sys.argv[1])
    os._exit(0)
assert os.wait()[1] == 0
before = resident()
curvature = ssse.Curvature.load(sys.argv[1], verify=False)
print("RSS", resident() - before)
square = curvature.structure.grams[0].square
assert float(square[::256].sum()) == size * size / 256  # the numbers are there when asked for
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_loading_maps_rather_than_reads(tmp_path):
    lines = dict(line.split() for line in run(MAPPED, tmp_path / "large").splitlines())
    size = (tmp_path / "large" / "part-00000.safetensors").stat().st_size
    assert size > 200e6
    assert int(lines["RSS"]) < 0.1 * size


# -------------------------------------------------------------------------------------------- digests


def test_digests_are_of_content_and_not_of_files(folder):
    before = ssse.Curvature.load(folder)
    for path in folder.glob("*.safetensors"):
        tensors, content = load_file(path), path.read_bytes()
        turned = dict(reversed(tensors.items()))
        save_file(turned, path, metadata={"written by": "somebody else", "format": "pt"})
        assert path.read_bytes() != content
    assert same(ssse.Curvature.load(folder), before)
    manifest = folder / "manifest.json"
    body = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps(dict(reversed(body.items()))), encoding="utf-8")
    assert same(ssse.Curvature.load(folder), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_digests_do_not_depend_on_strides(dtype):
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(6, 4, generator=generator).mul(3).to(dtype)
    digest = digest_tensor(tensor)
    wide = torch.zeros(12, 8, dtype=dtype)
    wide[::2, ::2] = tensor
    for view in (tensor.T.contiguous().T, wide[::2, ::2], tensor.clone(memory_format=torch.contiguous_format)):
        assert digest_tensor(view) == digest
    row = tensor[:1]
    assert digest_tensor(row.as_strided((1, 4), (999, 1))) == digest_tensor(row)
    assert digest_tensor(tensor[0, :1].expand(5)) == digest_tensor(tensor[0, :1].repeat(5))


def test_digests_see_dtype_shape_and_every_value():
    tensor = torch.arange(12, dtype=torch.float64)
    digests = {digest_tensor(t) for t in (tensor, tensor.view(3, 4), tensor.view(4, 3), tensor.long(), tensor.flip(0))}
    digests |= {digest_tensor(torch.empty(shape)) for shape in ((0,), (0, 3), (3, 0))}
    digests |= {digest_tensor(torch.tensor(value)) for value in (0.0, -0.0)}
    assert len(digests) == 10


def test_names_of_any_alphabet_survive_any_locale(tmp_path, monkeypatch):
    """A locale without Unicode: text files are then written in ASCII unless told otherwise."""
    model = nn.Sequential()
    model.add_module("größe_λ_層", nn.Linear(5, 3))
    curvature = fit(replace(problems.linear("cross_entropy"), model=model.double().eval()))
    monkeypatch.setattr(io, "text_encoding", lambda encoding, stacklevel=2: encoding or "ascii")
    curvature.save(tmp_path / "curvature")
    assert same(ssse.Curvature.load(tmp_path / "curvature"), curvature)


def test_who_may_read_the_folder_may_read_its_files(tmp_path):
    """safetensors makes files for their owner alone."""
    small().save(tmp_path / "curvature")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "curvature").iterdir()}
    (tmp_path / "usual").touch()
    assert set(modes.values()) == {(tmp_path / "usual").stat().st_mode & 0o777}, modes
