"""Public names of a package that are imported when they are asked for, so that settings need none of the libraries beside them.

A package writes, instead of imports at its top:

    if TYPE_CHECKING:
        from tasks.export.stage import run
    else:
        __getattr__ = public_names(__name__, __file__)

Type checkers, import-linter and `flows.versions` read the block; `import tasks.export` runs nothing of it.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

BLOCK = "TYPE_CHECKING"


def public_names(package: str, file: str) -> Callable[[str], Any]:
    """`__getattr__` of a package whose imports stand under `if TYPE_CHECKING:` of its file."""
    places = _places(Path(file).read_text(encoding="utf-8"))

    def found(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module, called = places[name]
        value = getattr(import_module(module), called)
        setattr(sys.modules[package], name, value)
        return value

    return found


def _places(source: str) -> dict[str, tuple[str, str]]:
    """Module and name there of each name that the block imports."""
    found: dict[str, tuple[str, str]] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.If) and isinstance(statement.test, ast.Name) and statement.test.id == BLOCK:
            for line in statement.body:
                assert isinstance(line, ast.ImportFrom), "imports alone stand there"
                assert line.module, "with their whole names"
                found |= {alias.asname or alias.name: (line.module, alias.name) for alias in line.names}
    return found


class Later(ModuleType):
    """A library that is imported when something of it is used, in modules of which settings need a part.

    Such a module has `from __future__ import annotations`, and imports the library itself under `if TYPE_CHECKING:`.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)
