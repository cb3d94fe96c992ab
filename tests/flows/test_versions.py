"""The version of a stage's code follows what it imports, and nothing else."""

import uuid
from pathlib import Path

import pytest

from flows import versions
from flows.versions import code_version, user_code_version


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
    before = user_code_version("mine_networks.network")
    assert before is not None
    (package / "unused.py").write_text("X = 1\n")
    assert user_code_version("mine_networks.network") == before
    seen = {before}
    for file in (package / "layers.py", tmp_path / "shared_by_mine.py", package / "network.py"):
        file.write_text(file.read_text() + "Y = 2\n")
        seen.add(user_code_version("mine_networks.network"))
    assert len(seen) == 4
    assert user_code_version("mine_networks.nothing") is None
    assert user_code_version("no_such_module_of_mine") is None
