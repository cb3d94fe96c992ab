"""The version of a stage's code follows what it imports, and nothing else."""

import importlib
import uuid
from pathlib import Path

import pytest

from flows.pipeline import versions
from flows.pipeline.versions import code_version, user_code_version
from tasks.base.own_code import source_of


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of its own name in which stage imports helper, and other stands alone."""
    room = tmp_path / f"room_{uuid.uuid4().hex}"
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "stage.py").write_text(f"def run() -> None:\n    from {room.name}.helper import x\n")
    (room / "helper.py").write_text("x = 1\n")
    (room / "other.py").write_text("y = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(versions, "ROOMS", (room.name,))
    code_version.cache_clear()
    return room


@pytest.mark.parametrize(
    ("changed", "expected"), [("stage", True), ("helper", True), ("__init__", True), ("other", False)]
)
def test_a_change_counts_when_the_stage_can_reach_it(project: Path, changed: str, expected: bool) -> None:
    before = code_version(f"{project.name}.stage")
    code_version.cache_clear()
    (project / f"{changed}.py").write_text("x = 2\n")
    assert (code_version(f"{project.name}.stage") != before) == expected


@pytest.mark.parametrize("solver", ["exact", "chain"])
def test_a_change_in_a_solver_is_another_version_of_the_search(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_version("tasks.search")
    changed = Path(str(importlib.import_module(f"solvers.{solver}").__file__)).resolve()
    read_text = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda file: read_text(file) + ("x = 1\n" if file.resolve() == changed else "")
    )
    code_version.cache_clear()
    try:
        assert code_version("tasks.search") != before
    finally:
        code_version.cache_clear()


HIDDEN = {
    "on one line": "if 1 > 2: import room.a\n",
    "behind a semicolon": "x = 1; from room import a\n",
    "in a function": "def f():\n\n    import room.a as b, room.c\n",
    "with comments": "from room import (  # of many\n    c,  # the third (of three)\n    a,\n)\n",
    "on two lines": "from room \\\n    import a\n",
    "behind what looks like it": '"""\nimport that\n"""\nimport os, room.a\n',
    "with all names": "from room.a import *\n",
    "from the same package": "from . import a\n",
    "from the package around it": "from ..a import x\n",
}


@pytest.mark.parametrize("source", HIDDEN.values(), ids=HIDDEN.keys())
def test_an_import_is_found_wherever_it_stands(source: str) -> None:
    assert "room.a" in versions._imports("room.stages.one" if ".." in source else "room.stage", False, source)


def test_what_only_types_need_does_not_run() -> None:
    types = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import room.a\n\n    import room.b\n\nimport room.c\n"
    found = versions._imports("room.stage", False, types)
    assert "room.c" in found
    assert {"room.a", "room.b"}.isdisjoint(found)


def test_versions_of_the_libraries_are_known() -> None:
    assert set(versions.library_versions()) >= {"torch", "onnx", "ncnn", "onnxruntime", "prefect", "mlflow"}


def test_a_users_network_counts_with_what_it_imports_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mine_networks"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "layers.py").write_text("WIDTH = 8\n")
    (package / "blocks.py").write_text("from . import layers\nimport shared_by_mine\n")
    (package / "unused.py").write_text("")
    (package / "network.py").write_text("import torch.nn\nfrom mine_networks.blocks import layers\n")
    (tmp_path / "shared_by_mine.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    source = source_of("mine_networks.network:make")
    assert source is not None
    before = user_code_version(source)
    (package / "unused.py").write_text("X = 1\n")
    assert user_code_version(source) == before
    seen = {before}
    for file in (package / "layers.py", tmp_path / "shared_by_mine.py", package / "network.py"):
        file.write_text(file.read_text() + "Y = 2\n")
        seen.add(user_code_version(source))
    assert len(seen) == 4
    assert source_of("mine_networks.nothing:make") is None
    assert source_of("no_such_module_of_mine:make") is None
