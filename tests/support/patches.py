"""A monkeypatch that notices patches without effect: a name that nobody looks up proves nothing.

A function put in the place of another must have been called when the test ends. One that must not be called is made by
`Forbidden`, and then the code under test must at least contain that name; so it must for constants.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, ModuleType
from typing import Any, NoReturn

import pytest

UNSET: Any = object()


@dataclass(frozen=True)
class Forbidden:
    """A replacement that fails when it is called; `by` names the module that would look it up."""

    message: str
    by: str

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        pytest.fail(self.message)


class CheckedMonkeyPatch(pytest.MonkeyPatch):  # type: ignore[misc]  # final, to type checkers alone
    """As pytest's own, in every other respect."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def setattr(self, target: Any, name: Any, value: Any = UNSET, raising: bool = True) -> None:
        if value is UNSET:  # "package.module.name", replacement
            path, value = target, name
            target, name = resolve(path)
        label = f"{getattr(target, '__name__', type(target).__name__)}.{name}"
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(function, Forbidden):
            assert looks_up(import_module(function.by), target, name), f"{function.by} never looks up {label}."
        elif inspect.isroutine(function):
            value = self._counted(label, value, function)
        else:
            readers = [module for key, module in sys.modules.items() if key.split(".")[0] == "ssse"]
            readers += [target] if isinstance(target, ModuleType) else []
            assert any(looks_up(module, target, name) for module in readers), f"Nothing looks up {label}."
        super().setattr(target, name, value, raising)

    def _counted(self, label: str, value: Any, function: Callable[..., Any]) -> Any:
        self.calls[label] = 0

        @functools.wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[label] += 1
            return function(*arguments, **named)

        return type(value)(counted) if isinstance(value, classmethod | staticmethod) else counted

    @classmethod
    @contextmanager
    def context(cls) -> Iterator[CheckedMonkeyPatch]:
        own = cls()
        try:
            yield own
        finally:
            own.undo()
        own.check()

    def check(self) -> None:
        never = [label for label, calls in self.calls.items() if not calls]
        assert not never, f"Patched and never called: {', '.join(never)}. Is it the name that the code looks up?"


def resolve(path: str) -> tuple[Any, str]:
    """The object that has the last name of a dotted path as its attribute."""
    *names, last = path.split(".")
    for place in range(len(names), 0, -1):  # a module before a function of its name
        try:
            found = import_module(".".join(names[:place]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, names[place:], found), last
    raise ModuleNotFoundError(path)


def looks_up(module: ModuleType, owner: Any, name: str) -> bool:
    """Whether the module's code contains the name, and comes to its owner: itself, a global, or a class's instance."""
    if not any(name in code.co_names for code in codes(module.__name__)):
        return False
    if module is owner or not isinstance(owner, ModuleType):
        return True
    reached = [value for value in vars(module).values() if isinstance(value, ModuleType)]
    inner = [part for value in reached for part in vars(value).values() if isinstance(part, ModuleType)]
    return any(value is owner for value in (*reached, *inner))


@functools.cache
def codes(module: str) -> list[CodeType]:
    """All code of a module, functions and classes inside included."""
    file = sys.modules[module].__file__
    assert file is not None
    with open(file, encoding="utf-8") as opened:
        found = [compile(opened.read(), file, "exec")]
    for code in found:
        found += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found
