"""Libraries that only parts of ssse need. Whoever misses one is told the command that brings it, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ssse.errors import MissingExtra

# By the name that is imported: the name on its package, and the extra of pyproject.toml that brings it.
LIBRARIES = {
    "typer": ("typer", "cli"),
    "rich": ("rich", "cli"),
    "pydantic": ("pydantic", "cli"),
    "pydantic_core": ("pydantic", "cli"),
    "tomli_w": ("tomli-w", "cli"),
    "cryptography": ("cryptography", "cli"),
    "jinja2": ("jinja2", "cli"),
    "markupsafe": ("jinja2", "cli"),
    "sklearn": ("scikit-learn", "sklearn"),
    "threadpoolctl": ("threadpoolctl", "sklearn"),
    "matplotlib": ("matplotlib", "plots"),
    "pandas": ("pandas", "frames"),
    "pyarrow": ("pyarrow", "tables"),
    "skops": ("skops", "skops"),
}


@contextmanager
def needed_for(what: str, otherwise: str = "") -> Iterator[None]:
    """Around imports of libraries that not everybody has.

    Args: what: what they are needed for, the subject of the sentence. otherwise: what does without them.
    Raises: MissingExtra: with the command.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in LIBRARIES:
            raise
        name, extra = LIBRARIES[library]
        alternative = f", or {otherwise}" if otherwise else ""
        raise MissingExtra(f"{what} needs {name}: pip install 'ssse[{extra}]'{alternative}.") from error
