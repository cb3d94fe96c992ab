"""The version of a stage's code: a digest of the source files it can reach inside this project.

Imports are followed, transitively, so that a change in any file that a stage uses, and in no other, makes that stage
run again. They are found by their words, since the syntax trees of hundreds of files take seconds; a file in which the word
`import` stands anywhere else is parsed.
"""

import ast
import importlib.metadata
import importlib.util
import re
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

Statements = tuple[list[str], list[tuple[str, list[str]]]]
"""What `import` names, and what `from` names with all that is taken of it."""
FROM = re.compile(r"^[ \t]*from[ \t]+([.\w]+)[ \t]+import\b[ \t]*(\([^()]*\)|[^()\n;\\]*$)", re.MULTILINE)
PLAIN = re.compile(r"^[ \t]*import\b([^()\n;\\]*)$", re.MULTILINE)
WORD = re.compile(r"\bimport\b")
"""FROM and PLAIN are statements on lines of their own; where WORD is outside of them, a statement may be missed."""
FOR_TYPES_ALONE = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+\S.*\n|[ \t]*\n)++(?!else:)", re.MULTILINE)
"""A block that type checkers alone read. With `else:` its names are imported when they are asked for (`importing.lazy`)."""
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
    """At least all that the source imports."""
    taken, plain = FROM.findall(source), PLAIN.findall(source)
    if "\\\n" in source or len(WORD.findall(source)) > len(taken) + len(plain):
        return _parsed(source)
    return re.findall(r"[\w.]+", " ".join(plain)), [(name, re.findall(r"\w+", names)) for name, names in taken]


def _parsed(source: str) -> Statements:
    """The same from the syntax tree."""
    plain: list[str] = []
    taken: list[tuple[str, list[str]]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            plain += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            taken.append(("." * node.level + (node.module or ""), [alias.name for alias in node.names]))
    return plain, taken


def library_versions() -> dict[str, str]:
    """Installed versions of the libraries that decide the results."""
    extras = [name for name in OPTIONAL_LIBRARIES if any(importlib.metadata.distributions(name=name))]
    return {name: importlib.metadata.version(name) for name in (*LIBRARIES, *extras)}
