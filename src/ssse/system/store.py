"""A folder of safetensors and one JSON manifest: written whole or not at all, checked when read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ssse.errors import BrokenArtefact
from ssse.system import files
from ssse.system.digests import digest_tensor

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


def write_folder(folder: str | os.PathLike[str], tensors: Mapping[str, Tensor], manifest: dict[str, Any]) -> None:
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
        raise OSError(errno.ENOSPC, f"The curvature needs {needed:,} bytes and {free:,} are free", str(target.parent))
    with files.new_folder(target) as temporary:
        parts = _group_into_files(tensors)
        for name, group in parts.items():
            save_file({key: value.detach().cpu().contiguous() for key, value in group.items()}, temporary / name)
        digests = _digests({name: {k: v for k, v in group.items()} for name, group in parts.items()})
        forms = {key: _form(value) for key, value in tensors.items()}
        body = {"format": FORMAT_VERSION, **manifest, "tensors": digests, "forms": forms}
        body["digest"] = _digest_manifest(body)
        (temporary / MANIFEST).write_text(json.dumps(body, indent=1, ensure_ascii=False), encoding="utf-8")


def read_folder(
    folder: str | os.PathLike[str], verify: bool = True, device: torch.device | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Map every tensor and check its digest; with `verify=False` only what is there and its shape.

    Raises:
        BrokenArtefact: names the file that is missing, truncated, altered, or of a newer format.
    """
    source = Path(folder)
    manifest = _read_manifest(source / MANIFEST)
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
        for name, found in _digests(files).items():
            for key, digest in found.items():
                if digest != manifest["tensors"][name][key]:
                    raise BrokenArtefact(f"'{source / name}' was altered: tensor '{key}' does not match its digest.")
    tensors = {key: value for group in files.values() for key, value in group.items()}
    if device is not None and device.type != "cpu":
        tensors = {key: value.to(device) for key, value in tensors.items()}
    return tensors, manifest


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise BrokenArtefact(f"'{path}' is missing; is '{path.parent}' a folder that Curvature.save wrote?")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError) as error:
        raise BrokenArtefact(f"'{path}' is not a manifest of ours: {error}.") from error
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise BrokenArtefact(
            f"'{path}' is of format {version}; this version of ssse reads up to {FORMAT_VERSION}. Update ssse."
        )
    if manifest.get("digest") != _digest_manifest(manifest):
        raise BrokenArtefact(f"'{path}' was altered: it does not match its own digest.")
    for entry in ("tensors", "forms"):
        if entry not in manifest:
            raise BrokenArtefact(f"'{path}' is not a whole manifest: it lacks '{entry}'.")
    return manifest


def _group_into_files(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """One file per numbered part, so that writing needs memory for one part only."""
    files: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        head = key.split(".")[0]
        name = f"part-{int(head):05d}.safetensors" if head.isdigit() else "curvature.safetensors"
        files.setdefault(name, {})[key] = value
    return files


def _digests(files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, str]]:
    """In threads: hashing releases the interpreter, and is what a checked load costs."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pending = {
            name: {key: pool.submit(digest_tensor, value) for key, value in group.items()}
            for name, group in files.items()
        }
        return {name: {key: job.result() for key, job in group.items()} for name, group in pending.items()}


def _form(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype), *tensor.shape]


def _digest_manifest(manifest: Mapping[str, Any]) -> str:
    body = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
