"""`pkg.module:name` → the user's object."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ssse.errors import InvalidSetting
from ssse.intake.messages import cause, did_you_mean

DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
SPEC = re.compile(rf"({DOTTED}):({DOTTED})")

_imported_from: dict[str, Path] = {}  # module → the folder that it was imported from by us


def is_spec(text: str) -> bool:
    return SPEC.fullmatch(text) is not None


@contextmanager
def searching(folder: Path | None) -> Iterator[None]:
    """The folder comes last where modules are looked for: no file in it can take the place of an installed module."""
    if folder is None:
        yield
        return
    entry = str(folder.resolve())
    sys.path.append(entry)
    try:
        yield
    finally:
        if entry in sys.path:  # the user's module may have changed it as well
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(entry)]  # the last: it may have been there before us


def import_object(spec: str, search: Path | None, what: str) -> Any:
    """The object that `pkg.module:name` names.

    Args:
        search: a folder to look in after the installed packages. what: the word for messages, as "model".
    Raises:
        InvalidSetting: not of that form, no such module or name, one in the folder that has the name of an installed
            one, or the import itself raised.
    """
    match = SPEC.fullmatch(spec)
    if match is None:
        raise InvalidSetting(
            f"The {what} must be given as pkg.module:name, for instance my_project.training:{what}, not {spec!r}."
        )
    module_name, name = match.groups()
    module = _import(module_name, search, f"The {what} '{spec}'")
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            home = getattr(module, "__file__", None) or "built into Python"
            raise InvalidSetting(
                f"The {what} '{spec}': '{module_name}' ({home}) has no '{name}'.{did_you_mean(part, _public(target))}"
            )
        target = getattr(target, part)
    return target


def _import(name: str, search: Path | None, label: str) -> ModuleType:
    folder = None if search is None else search.resolve()
    if folder is not None:
        _forget_other_folders(folder)
        _refuse_hidden(name, folder, label)
    before = set(sys.modules)
    importlib.invalidate_caches()  # the file may have been written a moment ago
    try:
        with searching(folder):
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise InvalidSetting(
                f"{label}: importing '{name}' raised {cause(error)}. Install what it needs beside ssse ({sys.prefix})."
            ) from error
        places = "the installed packages" if folder is None else f"the installed packages and '{folder}'"
        near = [] if folder is None or not folder.is_dir() else [p.stem for p in folder.iterdir() if _importable(p)]
        raise InvalidSetting(
            f"{label}: there is no module '{error.name}' in {places}.{did_you_mean(error.name, sorted(near))}"
        ) from error
    except (Exception, SystemExit) as error:  # a script without a guard may leave by sys.exit
        raise InvalidSetting(
            f"{label}: importing '{name}' raised {cause(error)}. Make the module importable without side effects."
        ) from error
    finally:
        if folder is not None:
            _note_modules_of(folder, before)
    return module


def _forget_other_folders(folder: Path) -> None:
    """A model.py of one folder must not answer for the model.py of another."""
    for name in [name for name, home in _imported_from.items() if home != folder]:
        sys.modules.pop(name, None)
        del _imported_from[name]


def _refuse_hidden(name: str, folder: Path, label: str) -> None:
    """The user means the module in the folder, and Python finds an installed one first."""
    first = name.split(".")[0]
    own = next((path for path in (folder / f"{first}.py", folder / first / "__init__.py") if path.is_file()), None)
    if own is None:
        return
    try:
        found = importlib.util.find_spec(first)
    except (ImportError, ValueError):  # a module that was made by hand
        return
    if found is None or (found.has_location and found.origin is not None and Path(found.origin).resolve() == own):
        return
    raise InvalidSetting(
        f"{label}: '{first}' is also an installed module ({found.origin or 'a package'}), and installed modules come "
        f"first. Rename '{own}'."
    )


def _note_modules_of(folder: Path, before: set[str]) -> None:
    """What came new from the folder itself; installed packages may lie deeper in it (.venv) and stay imported."""
    for name in [name for name in sys.modules if name.split(".")[0] not in before]:
        place = folder.joinpath(*name.split("."))
        file = getattr(sys.modules[name], "__file__", None)
        of_the_folder = file in (f"{place}.py", str(place / "__init__.py"))
        if of_the_folder or (file is None and place.is_dir()):  # a package may do without __init__.py
            _imported_from[name] = folder


def _importable(path: Path) -> bool:
    return path.suffix == ".py" or (path.is_dir() and path.name.isidentifier())


def _public(owner: Any) -> list[str]:
    return [name for name in dir(owner) if not name.startswith("_")]
