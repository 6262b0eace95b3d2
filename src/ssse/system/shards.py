"""A folder as `system.store` writes it, by several processes: one file of tensors each, and the manifest of all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ssse.errors import InvalidSetting
from ssse.system import files
from ssse.system.group import Group
from ssse.system.store import Kind, described, write_manifest


def write_shards(
    folder: str | os.PathLike[str], kind: Kind, mine: Mapping[str, Tensor], manifest: Mapping[str, Any], group: Group
) -> None:
    """All processes together; `mine`: the tensors that this one writes. The manifest is the first one's.

    Raises:
        FileExistsError: on all processes, if the target exists. InvalidSetting: they do not share a file system.
    """
    target = Path(folder)
    with group.together():
        if group.first and os.path.lexists(target):
            raise FileExistsError(f"'{target}' exists already; choose another folder or remove it first.")
    with _unfinished(target, group) as there:
        name = f"part-{group.rank:05d}.safetensors"
        with group.together():
            if not there.is_dir():
                raise InvalidSetting(
                    f"'{there.parent}' is not the folder that rank 0 writes to: a curvature that is held by several "
                    "processes is saved to a file system that all of them see."
                )
            held = {key: value.detach().cpu().contiguous() for key, value in mine.items()}
            if held:
                save_file(held, there / name)
        told = group.gather(described({name: held} if held else {}))
        if group.first:
            write_manifest(there, kind, manifest, reduce(or_, told))
    with group.together():  # nobody reads it before it has its name
        pass


@contextmanager
def _unfinished(target: Path, group: Group) -> Iterator[Path]:
    if not group.first:
        yield Path(group.from_first(str))
        return
    with files.new_folder(target) as temporary:
        group.from_first(lambda: str(temporary.resolve()))
        yield temporary
