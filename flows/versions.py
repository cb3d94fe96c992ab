"""The version of a stage's code: a digest of the source files it can reach inside this project.

Imports are read from the syntax tree, transitively, so that a change in any file that a stage uses, and in no
other, makes that stage run again.
"""

import ast
import importlib.metadata
import importlib.util
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tasks.artifacts import digest_of

ROOMS = ("tasks", "tailor_ir", "profiling_agents")
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

_PARSER = threading.Lock()  # CPython 3.11 counts the depth of all threads' syntax trees together


def code_version(*modules: str) -> str:
    """Digest of the source of `modules` and of everything of this project that they import."""
    with _PARSER:
        return _code_version(*modules)


@cache
def _code_version(*modules: str) -> str:
    reached: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in reached or (file := _source(module)) is None:
            continue
        reached[module] = file
        waiting.extend(_imports(module, file))
    return digest_of(*(part for module in sorted(reached) for part in (module, reached[module].read_text())))


def _source(module: str) -> Path | None:
    """The file of a module of this project; None for anything else (a name inside a module, a library)."""
    if module.split(".")[0] not in ROOMS:
        return None
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin else None


def _imports(module: str, file: Path) -> Iterator[str]:
    """Candidate names of imported modules; parents count too, because importing a module runs them."""
    yield from (module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1))
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def library_versions() -> dict[str, str]:
    """Installed versions of the libraries that decide the results."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES}
