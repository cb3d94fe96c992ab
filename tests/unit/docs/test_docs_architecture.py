"""Every path, module and name that `docs/architecture.md` mentions exists."""

import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import mlflow  # noqa: F401  asks the system for the processor, which unit tests may not

from flows.pipeline.stages import PIPELINE
from tests.support.docs.documents import FENCE, ROOT

DOCUMENT = ROOT / "docs" / "architecture.md"
ROOMS = (
    "adaptive_runtime", "conf", "flows", "profiling_agents", "importing", "solvers", "tailor_ir", "tasks", "tests",
)  # fmt: skip
FOLDERS = (*ROOMS, "benchmarks", "docs", "notebooks")
PATH = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*")
DOTTED = re.compile(rf"(?:{'|'.join(ROOMS)})(?:\.\w+)+")


def code() -> Iterator[str]:
    """What the page shows as code: inline, and the lines of fenced blocks."""
    text = DOCUMENT.read_text(encoding="utf-8")
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for block in FENCE.finditer(text):
        yield from block.group(2).splitlines()


PATHS = sorted({path for shown in code() for path in PATH.findall(shown) if path in shown.split()})
NAMES = sorted({name for shown in code() for name in DOTTED.findall(shown) if "/" not in shown})
STAGES = re.findall(r"^\| `([\w/]+)` \| `tasks/", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
"""First cells of the table of stages."""
PACKAGES = [
    (folder, name)
    for table in re.findall(
        r"^\| package \| content \|\n((?:\|.*\n)+)", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE
    )
    for folder, content in re.findall(r"^\| `([\w/]+)/` \| (.*) \|$", table, re.MULTILINE)
    for name in re.findall(r"`([a-z0-9_]+)`", content)
]
"""Each package of the tables of packages, with each module that its row names."""


def test_the_page_mentions_paths_and_names() -> None:
    assert len(PATHS) > 40
    assert len(NAMES) > 15


def test_the_table_has_every_stage_of_a_run_in_order() -> None:
    names = dict.fromkeys(spec.title or spec.name for spec in PIPELINE)
    assert [stage.partition("/")[0] for stage in STAGES] == [*names, "report"]


def test_every_mentioned_path_exists() -> None:
    assert not [path for path in PATHS if not (ROOT / path).exists()]


def test_the_rows_of_packages_name_modules_and_packages_in_them() -> None:
    assert len(PACKAGES) > 200
    assert not [(folder, name) for folder, name in PACKAGES if not is_module(ROOT / folder / name)]


def is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_every_mentioned_name_is_that_of_a_module_class_function_or_constant() -> None:
    assert not [name for name in NAMES if not has(name)]


def has(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something inside the longest module at its front."""
    found: object = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        module = ".".join(parts[:count])
        if found is None or (hasattr(found, "__path__") and importlib.util.find_spec(module) is not None):
            found = importlib.import_module(module)
        elif hasattr(found, parts[count - 1]):
            found = getattr(found, parts[count - 1])
        else:
            return parts[count - 1] in getattr(found, "__annotations__", {}) and count == len(parts)
    return True
