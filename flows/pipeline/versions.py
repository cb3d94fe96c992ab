"""The version of a stage's code: a digest of the source files it can reach inside this project.

Imports are followed, transitively, so that a stage is repeated after a change in a file that it uses, and after no other
change. They are found by regular expressions, since the syntax trees of hundreds of files take seconds; a file in which the
word `import` occurs elsewhere is parsed.
"""

import ast
import importlib.metadata
import importlib.util
import re
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from tasks.base.artifacts import digest_of
from tasks.base.own_code import INSTALLED, UserModule, file_of

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
"""Optional libraries of extras."""

Statements = tuple[list[str], list[tuple[str, list[str]]]]
"""Modules of `import` statements, and modules of `from` statements with the names taken from them."""
FROM = re.compile(r"^[ \t]*from[ \t]+([.\w]+)[ \t]+import\b[ \t]*(\([^()]*\)|[^()\n;\\]*$)", re.MULTILINE)
PLAIN = re.compile(r"^[ \t]*import\b([^()\n;\\]*)$", re.MULTILINE)
WORD = re.compile(r"\bimport\b")
"""FROM and PLAIN match statements on their own lines; if WORD occurs elsewhere, a statement may be missed."""
FOR_TYPES_ALONE = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+\S.*\n|[ \t]*\n)++(?!else:)", re.MULTILINE)
"""A block for type checkers only. If it has `else:`, its names are loaded on demand (`importing`)."""
_PARSER = threading.Lock()  # CPython 3.11 counts the depth of all threads' syntax trees together


Locate = Callable[[str], Path | None]
"""The file of a module that counts; None for anything else (a name inside a module, a library)."""


@cache
def code_version(*modules: str) -> str:
    """Digest of the source of `modules` and of all project modules that they depend on."""
    return _version(modules, _of_this_project)


def user_code_version(source: UserModule) -> str:
    """Digest of the source of a user's module and of the user's modules that it depends on; libraries do not count."""

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
    """The file of a project module, found by its path, since Python's own search would load the packages around it."""
    room = module.partition(".")[0]
    spec = importlib.util.find_spec(room) if room in ROOMS else None
    return None if spec is None or spec.origin is None else file_of(Path(spec.origin).parents[1], module)


@cache
def _imports(module: str, package: bool, source: str) -> tuple[str, ...]:
    """Candidate names of imported modules; parents count too, because importing a module runs them."""
    parts = module.split(".")
    found = [".".join(parts[:length]) for length in range(1, len(parts))]
    folder = parts if package else parts[:-1]
    plain, of_modules = _statements(FOR_TYPES_ALONE.sub("", source))
    found += plain
    for dots_and_name, names in of_modules:
        name = dots_and_name.lstrip(".")
        level = len(dots_and_name) - len(name)
        above = folder[: len(folder) - level + 1] if level else []
        whole = ".".join([*above, *([name] if name else [])])
        found += [whole, *(f"{whole}.{each}" for each in names)]
    return tuple(found)


def _statements(source: str) -> Statements:
    """All imports of the source; may include more."""
    taken, plain = FROM.findall(source), PLAIN.findall(source)
    if "\\\n" in source or len(WORD.findall(source)) > len(taken) + len(plain):
        return _parsed(source)
    return re.findall(r"[\w.]+", " ".join(plain)), [(name, re.findall(r"\w+", names)) for name, names in taken]


def _parsed(source: str) -> Statements:
    """All imports of the source, from the syntax tree."""
    plain: list[str] = []
    taken: list[tuple[str, list[str]]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            plain += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            taken.append(("." * node.level + (node.module or ""), [alias.name for alias in node.names]))
    return plain, taken


def library_versions() -> dict[str, str]:
    """Installed versions of the libraries that affect the results."""
    extras = [name for name in OPTIONAL_LIBRARIES if any(importlib.metadata.distributions(name=name))]
    return {name: importlib.metadata.version(name) for name in (*LIBRARIES, *extras)}
