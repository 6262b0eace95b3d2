"""skops files: read where skops trusts every type in them by itself, and written with the same bytes each time."""

from __future__ import annotations

import io
import json
import zipfile
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from ssse.errors import InvalidData
from ssse.intake.messages import listing, reading
from ssse.intake.unfolding import check_parts
from ssse.system.extras import needed_for
from ssse.system.files import open_to_owner, sync

SKOPS = "a skops file"
SCHEMA = "schema.json"
AGAIN = "Save the model again with skops.io.dump."
CONSTANTS = ("JsonNode", "TypeNode")  # whether two of them are one object depends on the interpreter


def read_skops(path: Path) -> Any:
    """What the file holds.

    Raises:
        InvalidData: not such a file, damaged, or with types that skops does not trust. MissingExtra: no skops.
    """
    skops = _skops()
    with reading(path, SKOPS):
        with zipfile.ZipFile(path) as packed:
            check_parts(path, packed, packed.infolist(), SKOPS, AGAIN)
        untrusted = skops.get_untrusted_types(file=path)
        if untrusted:
            raise InvalidData(
                f"'{path}' holds {listing(untrusted, 5)}, which skops does not trust: to build it could run any code. "
                "Save the model without it."
            )
        return skops.load(path, trusted=[])


def write_skops(path: Path, model: Any) -> None:
    """The same bytes for the same model, where skops would name its parts by places in memory and the time.

    On the disk when this returns, but not atomic: write into a fresh folder.
    """
    with zipfile.ZipFile(io.BytesIO(_skops().dumps(model))) as packed, zipfile.ZipFile(path, "w") as out:
        schema = json.loads(packed.read(SCHEMA))
        names = _renamed(schema, set(packed.namelist()))
        for old, new in names.items():
            out.writestr(zipfile.ZipInfo(new), packed.read(old))
        out.writestr(zipfile.ZipInfo(SCHEMA), json.dumps(schema, indent=1))
    open_to_owner(path)
    sync(path)


def _renamed(schema: Any, files: set[str]) -> dict[str, str]:
    """Number objects and files in the order in which the schema names them. Returns old names and new ones."""
    numbers = count(1)
    ids: dict[int, int] = {}
    names: dict[str, str] = {}

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for inner in node:
                walk(inner)
        if not isinstance(node, dict):
            return
        if isinstance(node.get("__id__"), int):
            number, constant = next(numbers), node.get("__loader__") in CONSTANTS
            node["__id__"] = number if constant else ids.setdefault(node["__id__"], number)
        if isinstance(node.get("file"), str) and node["file"] in files:
            old = node["file"]
            node["file"] = names.setdefault(old, f"{len(names)}{Path(old).suffix}")
        for inner in node.values():
            walk(inner)

    walk(schema)
    return names


def _skops() -> ModuleType:
    with needed_for("Reading a .skops file"):
        import skops.io
    return skops.io
