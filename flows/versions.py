"""The version of a stage's code: a digest of the source files it can reach inside this project.

Imports are read from the syntax tree, transitively, so that a change in any file that a stage uses, and in no
other, makes that stage run again.
"""

import ast
import importlib.metadata
import importlib.util
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from tasks.artifacts import digest_of
from tasks.models.own_code import INSTALLED, UserModule, file_of

ROOMS = ("tasks", "tailor_ir", "adaptive_runtime", "profiling_agents", "solvers")
LIBRARIES = (
    "torch",
    "timm",
    "onnx",
    "onnxruntime",
    "ncnn",
    "pnnx",
    "onnx2torch",
    "onnx-graphsurgeon",
    "prefect",
    "mlflow",
)
OPTIONAL_LIBRARIES = ("executorch", "openvino")
"""Libraries of extras, which need not be there."""

_PARSER = threading.Lock()  # CPython 3.11 counts the depth of all threads' syntax trees together


Locate = Callable[[str], Path | None]
"""The file of a module that counts; None for anything else (a name inside a module, a library)."""


@cache
def code_version(*modules: str) -> str:
    """Digest of the source of `modules` and of everything of this project that they import."""
    return _version(modules, _of_this_project)


def user_code_version(source: UserModule) -> str:
    """Digest of the source of a user's module and of what it imports of the user's; libraries do not count."""

    def beside(name: str) -> Path | None:
        file = next(filter(None, (file_of(folder, name) for folder in source.folders)), None)
        return None if file is None or INSTALLED.intersection(file.parts) else file

    return _version((source.module,), beside)


def _version(modules: Sequence[str], locate: Locate) -> str:
    reached: dict[str, Path] = {}
    waiting = list(modules)
    with _PARSER:
        while waiting:
            module = waiting.pop()
            if module in reached or (file := locate(module)) is None:
                continue
            reached[module] = file
            waiting.extend(_imports(module, file.name == "__init__.py", file.read_text()))
    return digest_of(*(part for module in sorted(reached) for part in (module, reached[module].read_text())))


@cache
def _of_this_project(module: str) -> Path | None:
    """Looked up beside the room, since Python's own way to find a module would import the packages around it."""
    room = module.partition(".")[0]
    spec = importlib.util.find_spec(room) if room in ROOMS else None
    return None if spec is None or spec.origin is None else file_of(Path(spec.origin).parents[1], module)


@cache
def _imports(module: str, package: bool, source: str) -> tuple[str, ...]:
    """Candidate names of imported modules; parents count too, because importing a module runs them."""
    parts = module.split(".")
    found = [".".join(parts[:length]) for length in range(1, len(parts))]
    folder = parts if package else parts[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else []
            name = ".".join([*above, *([node.module] if node.module else [])])
            found.append(name)
            found.extend(f"{name}.{alias.name}" for alias in node.names)
    return tuple(found)


def library_versions() -> dict[str, str]:
    """Installed versions of the libraries that decide the results."""
    extras = [name for name in OPTIONAL_LIBRARIES if any(importlib.metadata.distributions(name=name))]
    return {name: importlib.metadata.version(name) for name in (*LIBRARIES, *extras)}
