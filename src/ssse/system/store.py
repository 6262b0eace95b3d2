"""A folder of safetensors and one JSON manifest: written whole or not at all, checked when read.

What every such folder says of itself is written and read here: its format, its kind, and the versions of the libraries.
The rest of the manifest belongs to what is stored. No time is in it, nor how long anything took: the same content has
the same bytes, so that its digest can be computed again.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ssse.errors import BrokenArtefact
from ssse.system import files
from ssse.system.digests import digest_by_rule_of, digest_json, digest_stored
from ssse.system.environment import versions
from ssse.system.version import __version__

FORMAT_VERSION = 2  # 1: tensors by SHA-256; read as before
READABLE = (1, 2)
MANIFEST = "manifest.json"
FILE = re.compile(r"part-\d{5,}\.safetensors|curvature\.safetensors")


@dataclass(frozen=True)
class Kind:
    """What a folder holds: the word in its manifest, a phrase, and how it is written and read."""

    name: str
    holds: str
    writer: str
    reader: str


CURVATURE = Kind("curvature", "the curvature of a PyTorch model", "Curvature.save", "ssse.Curvature.load(…)")
ERASER = Kind("scikit-learn", "the sums of a scikit-learn model", "Eraser.save", "ssse.sklearn.Eraser.load(…)")
TENSORS = Kind("tensors", "cached tensors", "`ssse reproduce`", "`ssse reproduce`")
CHECKPOINT = Kind("checkpoint", "a part of a fit", "Curvature.fit", "Curvature.fit(…, checkpoint=…)")
KINDS = {kind.name: kind for kind in (CURVATURE, ERASER, TENSORS, CHECKPOINT)}


def write_folder(
    folder: str | os.PathLike[str], kind: Kind, tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]
) -> None:
    """Write to a temporary folder beside the target, fsync, rename; an interruption leaves nothing.

    Raises:
        FileExistsError: if the target exists. OSError: if the disk is full or read-only; the target
            is then as it was.
    """
    target = Path(folder)
    if os.path.lexists(target):
        raise FileExistsError(f"'{target}' exists already; choose another folder or remove it first.")
    target.parent.mkdir(parents=True, exist_ok=True)
    needed = sum(t.numel() * t.element_size() for t in tensors.values())
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"'{target.name}' needs {needed:,} bytes and {free:,} are free", str(target.parent))
    with files.new_folder(target) as temporary:
        parts = _group_into_files(tensors)
        for name, group in parts.items():
            save_file({key: value.detach().cpu().contiguous() for key, value in group.items()}, temporary / name)
        write_manifest(temporary, kind, manifest, described(parts))


@dataclass(frozen=True)
class Described:
    """What a manifest says of tensors: file → tensor → digest, and tensor → dtype and shape."""

    digests: dict[str, dict[str, str]]
    forms: dict[str, list[Any]]

    def __or__(self, other: Described) -> Described:
        return Described(self.digests | other.digests, self.forms | other.forms)


def described(parts: Mapping[str, Mapping[str, Tensor]]) -> Described:
    """`parts`: file → tensors."""
    return Described(_digests(parts), {key: _form(value) for group in parts.values() for key, value in group.items()})


def write_manifest(folder: Path, kind: Kind, manifest: Mapping[str, Any], tensors: Described) -> None:
    about = {"format": FORMAT_VERSION, "kind": kind.name, "library": versions()}
    body = {**about, **manifest, "tensors": tensors.digests, "forms": tensors.forms}
    body["digest"] = _digest_manifest(body)
    (folder / MANIFEST).write_text(json.dumps(body, indent=1, ensure_ascii=False), encoding="utf-8")


def read_folder(
    folder: str | os.PathLike[str], kind: Kind, verify: bool = True, device: torch.device | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Map every tensor and check its digest; with `verify=False` only what is there and its shape.

    Raises:
        BrokenArtefact: names the file that is missing, truncated, altered, or of another format; or it is a folder of
            another kind.
    """
    source = Path(folder)
    manifest = _read_manifest(source / MANIFEST, kind)
    files: dict[str, dict[str, Tensor]] = {}
    for name, expected in manifest["tensors"].items():
        path = source / name
        if not path.is_file():
            raise BrokenArtefact(f"'{path}' is missing.")
        try:
            with safe_open(path, framework="pt") as opened:
                files[name] = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise BrokenArtefact(f"'{path}' is not a whole safetensors file: {error}.") from error
        if set(files[name]) != set(expected):
            raise BrokenArtefact(f"'{path}' holds other tensors than its manifest says.")
        for key, value in files[name].items():
            if _form(value) != manifest["forms"][key]:
                raise BrokenArtefact(f"'{path}' was altered: tensor '{key}' has another shape or dtype.")
    if verify:
        _check_digests(source, files, manifest["tensors"])
    tensors = {key: value for group in files.values() for key, value in group.items()}
    if device is not None and device.type != "cpu":
        tensors = {key: value.to(device) for key, value in tensors.items()}
    return tensors, manifest


@contextmanager
def reading_entries(folder: str | os.PathLike[str], manifest: Mapping[str, Any]) -> Iterator[None]:
    """What is not in the manifest, or not of the form that it should have, is a BrokenArtefact."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise BrokenArtefact(
            f"The manifest of '{os.fspath(folder)}', written by {_writer(manifest)}, lacks {error}. Fit and save it "
            f"again, or read it with the version that wrote it; this is ssse {__version__}."
        ) from error


def _read_manifest(path: Path, kind: Kind) -> dict[str, Any]:
    if not path.is_file():
        raise BrokenArtefact(f"'{path}' is missing; is '{path.parent}' a folder that {kind.writer} wrote?")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError) as error:
        raise BrokenArtefact(f"'{path}' is not a manifest of ours: {error}.") from error
    if version not in READABLE or isinstance(version, bool):
        newer = isinstance(version, int) and version > FORMAT_VERSION
        raise BrokenArtefact(
            f"'{path}' is of format {version}, written by {_writer(manifest)}; this version of ssse ({__version__}) "
            f"reads formats up to {FORMAT_VERSION}. {'Update ssse.' if newer else 'Fit and save it again.'}"
        )
    if manifest.get("digest") != _digest_manifest(manifest):
        raise BrokenArtefact(f"'{path}' was altered: it does not match its own digest.")
    stored = manifest.get("kind", CURVATURE.name)  # at first it was said of the others alone
    if stored != kind.name:
        other = KINDS.get(stored)
        raise BrokenArtefact(
            f"'{path.parent}' holds {other.holds if other else repr(stored)}, not {kind.holds}."
            + (f" Load it with {other.reader}." if other else f" It was written by {_writer(manifest)}: update ssse.")
        )
    for entry in ("tensors", "forms"):
        if not isinstance(manifest.get(entry), dict):
            raise BrokenArtefact(f"'{path}' is not a whole manifest: it lacks '{entry}'.")
    for name in manifest["tensors"]:
        if not FILE.fullmatch(name):  # whoever wrote it may have meant a file that is not in this folder
            raise BrokenArtefact(f"'{path}' names a file that no version of ssse writes: {name!r}.")
    return manifest


def _writer(manifest: Mapping[str, Any]) -> str:
    library = manifest.get("library")
    version = library.get("ssse") if isinstance(library, dict) else None
    return "a version of ssse before 0.2" if version is None else f"ssse {version}"


def _group_into_files(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """One file per numbered part, so that writing needs memory for one part only."""
    files: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number = key.split(".")[0]
        name = f"part-{int(number):05d}.safetensors" if number.isdigit() else "curvature.safetensors"
        files.setdefault(name, {})[key] = value
    return files


def _digests(
    parts: Mapping[str, Mapping[str, Tensor]], stored: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, dict[str, str]]:
    """Of every tensor, by the function that its stored one was made by: in threads, each reading what it hashes.

    Hashing releases the interpreter, and to read the files once is what a checked load costs.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pending = {
            name: {
                key: pool.submit(digest_stored, value)
                if stored is None
                else pool.submit(digest_by_rule_of, stored[name][key], value)
                for key, value in group.items()
            }
            for name, group in parts.items()
        }
        return {name: {key: job.result() for key, job in group.items()} for name, group in pending.items()}


def _check_digests(
    source: Path, read: Mapping[str, Mapping[str, Tensor]], stored: Mapping[str, Mapping[str, str]]
) -> None:
    try:
        found = _digests(read, stored)
    except (ValueError, AttributeError) as error:
        raise BrokenArtefact(f"'{source / MANIFEST}' holds a digest of a kind that is not known: {error}.") from error
    for name, digests in found.items():
        for key, digest in digests.items():
            if digest != stored[name][key]:
                raise BrokenArtefact(f"'{source / name}' was altered: tensor '{key}' does not match its digest.")


def _form(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype), *tensor.shape]


def _digest_manifest(manifest: Mapping[str, Any]) -> str:
    body = {key: value for key, value in manifest.items() if key != "digest"}
    return digest_json(body)
