"""Imports of the project's packages: telemetry of libraries is disabled first, and public names are imported on demand.

Every package of the project loads this one before anything else. Libraries read most of the settings against telemetry
on loading, so they must be in the environment before. Child processes inherit them. Values set by the user are kept
(docs/security.md). For external commands, `python -m importing` prints the settings.

Names are imported on demand so that settings need none of the libraries that stages need. A package writes, instead of
imports at its top:

    if TYPE_CHECKING:
        from tasks.export.stage import run
    else:
        __getattr__ = public_names(__name__, __file__)

Type checkers, import-linter and `flows.pipeline.versions` read the block; `import tasks.export` runs nothing of it.
"""

import ast
import os
import sys
from collections.abc import Callable, MutableMapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

BLOCK = "TYPE_CHECKING"


def public_names(package: str, file: str) -> Callable[[str], Any]:
    """`__getattr__` of a package with its imports under `if TYPE_CHECKING:` in its file."""
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
    """Each name that the block imports, with its module and its name there."""
    found: dict[str, tuple[str, str]] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.If) and isinstance(statement.test, ast.Name) and statement.test.id == BLOCK:
            for line in statement.body:
                assert isinstance(line, ast.ImportFrom), "imports alone stand there"
                assert line.module, "with their whole names"
                found |= {alias.asname or alias.name: (line.module, alias.name) for alias in line.names}
    return found


def later_names(file: str) -> dict[str, "LaterName"]:
    """Placeholders for the names in a module's block, for its globals.

    A module that calls few of the names that it imports writes, with `from __future__ import annotations` at its top:

        if TYPE_CHECKING:
            from tasks.prediction.layers import Layers
        else:
            globals().update(later_names(__file__))

    Such names are called, or their attributes are used. They must not be constants or base classes.
    """
    places = _places(Path(file).read_text(encoding="utf-8"))
    return {name: LaterName(module, called) for name, (module, called) in places.items()}


class LaterName:
    """A class, function or module of another module, which is loaded on the first call or attribute access."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _found(self) -> Any:
        module = import_module(self._module)
        try:
            return getattr(module, self._name)
        except AttributeError:
            return import_module(f"{self._module}.{self._name}")

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._found()(*given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)


class Later(ModuleType):
    """A library that is loaded on first use, in modules of which settings need only a part.

    Such a module has `from __future__ import annotations`, and imports the library itself under `if TYPE_CHECKING:`.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


SETTINGS = {
    "DO_NOT_TRACK": "1",  # Prefect's client, huggingface_hub
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime from 1.31 on: a device id and a database of events in the user's cache
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "SE_AVOID_STATS": "true",  # Selenium, which the tests use
}
"""Variables that switch telemetry off, with their values."""
MODULES = ("openvino_telemetry",)
"""Modules that send reports when loaded: OpenVINO and NNCF use this one if it is available, and work without it."""


def keep_quiet(environment: MutableMapping[str, str]) -> None:
    """Put the settings into an environment; existing values are kept."""
    for name, value in SETTINGS.items():
        environment[name] = environment.get(name) or value


keep_quiet(os.environ)
for _module in MODULES:
    sys.modules.setdefault(_module, None)  # type: ignore[arg-type]
if "onnxruntime" in sys.modules and os.environ["ORT_DISABLE_TELEMETRY"] == SETTINGS["ORT_DISABLE_TELEMETRY"]:
    sys.modules["onnxruntime"].disable_telemetry_events()  # it has written its files if loaded first: no more events
