"""The bars that keep the house easy to walk through: small files, short functions."""

import ast
import re
import tomllib
from pathlib import Path
from statistics import median

import pytest

from tests.support.docs.documents import ROOT

ROOMS = ("adaptive_runtime", "flows", "profiling_agents", "importing", "solvers", "tailor_ir", "tasks")
FOLDERS = (*ROOMS, "benchmarks", "conf", "tests")
OPEN_IR_MODULES = {"axes", "graph", "memory", "subnets", "summary"}
"""Submodules of `tailor_ir` that other rooms import."""
MOST_IR_MODULES = 8
MOST_FUNCTION_LINES = 50
MEDIAN_FILE_LINES = 200
SHARED_NAMES = {
    "Settings": "the settings of one stage, in every stage's package",
}
"""Public class names with several definitions, and why."""


def sources(*folders: str) -> list[Path]:
    """All source files of some folders; without names, of all rooms."""
    paths = (path for folder in folders or ROOMS for path in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in paths if "__pycache__" not in path.parts]


def test_all_folders_have_sources() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in sources(*FOLDERS)} == set(FOLDERS)


def test_few_modules_lie_directly_in_the_ir() -> None:
    direct = [path.name for path in sources() if path.parent == ROOT / "tailor_ir"]
    assert len(direct) <= MOST_IR_MODULES, (
        f"tailor_ir: {len(direct)} modules ({', '.join(direct)}); move some to a package"
    )


def test_each_module_of_the_ir_is_open_or_closed_to_other_rooms() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (face,) = (each for each in rules["contracts"] if each["name"] == "the IR has one public face")
    closed = {name.removeprefix("tailor_ir.") for name in face["forbidden_modules"]}
    there = {path.stem for path in (ROOT / "tailor_ir").iterdir() if not path.stem.startswith("__")}
    assert closed == there - OPEN_IR_MODULES


def test_no_function_is_long() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{node.name}": lines
        for path in sources(*FOLDERS)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_FUNCTION_LINES
    }
    assert not long, f"more than {MOST_FUNCTION_LINES} lines: {long}; divide the function"


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_median_file_of_a_folder_is_short(folder: str) -> None:
    files = [path for path in sources(folder) if path.name != "__init__.py"]
    lines = [path.read_text(encoding="utf-8").count("\n") for path in files]
    assert median(lines) < MEDIAN_FILE_LINES


def named(statement: ast.stmt) -> list[str]:
    """The class or type alias that a statement at the top of a module names; no type variable."""
    match statement:
        case ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name[0].isupper() and not name.isupper():
            variable = isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"
            return [] if variable else [name]
    return []


def test_no_public_class_has_the_name_of_another() -> None:
    classes: set[str] = set()
    homes: dict[str, list[str]] = {}
    for path in sources():
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            for name in named(statement):
                homes.setdefault(name, []).append(str(path.relative_to(ROOT)))
                if isinstance(statement, ast.ClassDef) and not name.startswith("_"):
                    classes.add(name)
    shared = {name for name in classes if len(homes[name]) > 1}
    assert shared == set(SHARED_NAMES), {name: homes[name] for name in shared ^ set(SHARED_NAMES) if name in homes}


def test_all_rooms_tests_and_benchmarks_are_type_checked() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["packages"]
    assert set(packages) == {*ROOMS, "benchmarks", "tests"}
    targets = (ROOT / "Makefile").read_text()
    assert re.search(r"^test:.*\n\t.* types( |$)", targets, re.MULTILINE)
    assert re.search(r"^types:.*\n\t\$\(BIN\)/mypy$", targets, re.MULTILINE), "without words: what pyproject.toml names"
