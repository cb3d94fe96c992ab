"""The bars that keep the house easy to walk through: few modules of the IR, small files, short functions."""

import ast
import re
import tomllib
from pathlib import Path
from statistics import median

import pytest

from benchmarks.house import House, read, rows
from tests.support.docs.documents import ROOT

ROOMS = ("adaptive_runtime", "autotailor", "flows", "profiling_agents", "importing", "solvers", "tailor_ir", "tasks")
FOLDERS = (*ROOMS, "benchmarks", "conf", "tests")
OPEN_IR_MODULES = {"axes", "graph", "memory", "subnets", "summary"}
"""Submodules of `tailor_ir` that other rooms import."""
MOST_IR_MODULES = 8
MOST_FUNCTION_LINES = 50
MEDIAN_FILE_LINES = 300
MOST_FILES = 650
MOST_FILES_A_THOUSAND_LINES = 6.0
MOST_SHORT_MODULES = 15
DEPLOYED = "flows.operations.deployments.deployed"
PUBLIC_FACES = {
    "adaptive_runtime.model.opening:load",
    *(f"autotailor.calls:{function}" for function in ("resume", "tailor")),
    *(f"{DEPLOYED}:{flow}" for flow in ("adapt_nightly", "retarget_to", "run", "stream_to", "work_nightly")),
    *(f"tailor_ir.reading.symbolics:{operator}" for operator in ("_attention", "_instance_norm")),
    *(f"tailor_ir.reading.torch_functions:{function}" for function in ("_embedding_bag", "_istft", "_stft")),
}
"""Functions with more than 7 parameters: `adaptive_runtime.load`, `autotailor.tailor` and `resume`, flows whose parameters are
fields of Prefect's page, and functions with torch's own parameters."""
MOST_ARROWS = {"tasks": (15, 75), "adaptive_runtime": (18, 60), "flows": (8, 20)}
"""Room -> most packages, and most pairs of packages of which the first imports the second."""


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


def test_all_rooms_tests_and_benchmarks_are_type_checked() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["packages"]
    assert set(packages) == {*ROOMS, "benchmarks", "tests"}
    targets = (ROOT / "Makefile").read_text()
    assert re.search(r"^test:.*\n\t.* types( |$)", targets, re.MULTILINE)
    assert re.search(r"^types:.*\n\t\$\(BIN\)/mypy$", targets, re.MULTILINE), "without words: what pyproject.toml names"


@pytest.fixture(scope="module")
def house() -> House:
    return read()


def test_the_product_has_few_files_for_its_lines(house: House) -> None:
    _, files, lines = rows(house)[-1]
    assert files <= MOST_FILES
    assert 1000 * files / lines <= MOST_FILES_A_THOUSAND_LINES


def test_a_short_module_with_one_importer_is_part_of_it(house: House) -> None:
    short = house.short_modules()
    assert len(short) <= MOST_SHORT_MODULES, f"{short}; move some into their importers"


def test_few_arrows_join_the_packages_of_a_room(house: House) -> None:
    for room, (most_packages, most_arrows) in MOST_ARROWS.items():
        arrows = house.arrows(room)
        assert len({part for arrow in arrows for part in arrow}) <= most_packages, room
        assert len(arrows) <= most_arrows, room
        assert not [(a, b) for a, b in arrows if (b, a) in arrows], f"{room}: packages that import each other"


def test_a_package_hands_on_more_than_one_module(house: House) -> None:
    assert not house.handing_on()


def test_only_public_faces_have_many_parameters(house: House) -> None:
    assert house.parameters().keys() == PUBLIC_FACES
