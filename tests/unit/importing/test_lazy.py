"""Names of packages that are imported when they are asked for, and libraries that are imported when they are used."""

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

from flows.pipeline.versions import _imports
from importing import Later, later_names, public_names
from tests.support.docs.documents import ROOT

LAZY = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for room in ("adaptive_runtime", "flows", "profiling_agents", "tailor_ir", "tasks")
    for path in (ROOT / room).rglob("__init__.py")
    if "public_names(" in path.read_text(encoding="utf-8")
)
BLOCK = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from json import dumps as written
    from json import loads
else:
    __getattr__ = public_names(__name__, __file__)
"""


def test_a_name_is_imported_when_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "__init__.py"
    file.write_text(BLOCK)
    found = public_names(__name__, str(file))
    assert found("written") is import_module("json").dumps
    assert sys.modules[__name__].written is import_module("json").dumps, "asked for once"
    with pytest.raises(AttributeError, match="has no attribute 'dumps'"):
        found("dumps")


def test_a_library_is_imported_when_something_of_it_is_used() -> None:
    sys.modules.pop("this_is_none", None)
    library = Later("this_is_none")
    with pytest.raises(ModuleNotFoundError):
        library.anything
    assert Later("json").dumps is import_module("json").dumps


@pytest.mark.parametrize("package", LAZY)
def test_names_of_a_package_are_hidden_by_no_module(package: str) -> None:
    folder = ROOT / package
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    names = [alias.asname or alias.name for node in block.body for alias in node.names]  # type: ignore[attr-defined]
    assert names
    for name in names:
        assert not (folder / name).exists(), f"{name}: a module of this name would hide it"
        assert not (folder / f"{name}.py").exists(), f"{name}: a module of this name would hide it"


def test_the_version_of_a_stage_follows_names_that_are_imported_later() -> None:
    later = "if TYPE_CHECKING:\n    from room.stages.one import run\n\n    from room.two import x\nelse:\n    __getattr__ = 1\n"
    for_types = later.partition("else:")[0]
    assert {"room.stages.one", "room.two"} <= set(_imports("room", True, later))
    assert {"room.stages.one", "room.two"}.isdisjoint(_imports("room", True, for_types + "x = 1\n"))


def test_names_for_later_are_called_and_asked_as_what_they_stand_for(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "if TYPE_CHECKING:\n    from fractions import Fraction\n    from importlib import resources\n"
        "    from json import loads\n"
    )
    sys.modules.pop("fractions", None)
    names = later_names(str(file))
    assert "fractions" not in sys.modules, "nothing is imported yet"
    assert names["loads"]("[1]") == [1]
    assert names["Fraction"].from_float(0.5) == names["Fraction"](1, 2)
    assert names["resources"].files is import_module("importlib.resources").files, "also a module"
    with pytest.raises(AttributeError):
        names["loads"].nothing
