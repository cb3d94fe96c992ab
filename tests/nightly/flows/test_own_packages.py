"""The command line in a folder that has packages with the names of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main
from tests.support.flows.tiny import TINY

NETS = """
from torch import nn
from flows import width

def make(num_classes, in_chans):
    body = (nn.Conv2d(in_chans, width.WIDTH, 3, padding=1), nn.BatchNorm2d(width.WIDTH), nn.ReLU())
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width.WIDTH, num_classes))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Packages `tasks` and `flows` of a user's, one a folder alone."""
    for name, text in {"tasks/nets.py": NETS, "flows/__init__.py": "", "flows/width.py": "WIDTH = 8\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_command_line_takes_networks_of_such_packages(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    words = ["model=callable", "model.name=tasks.nets:make", "space={}", "output_dir=out"]
    assert main(["compile", *(word for word in TINY if not word.startswith(("model", "space"))), *words]) == 0
    assert list(project.glob("out/stages/compile/*/supernet"))


@pytest.mark.parametrize("room", ["tasks", "solvers"])
def test_such_packages_on_the_python_path_are_named(room: str, project: Path) -> None:
    """The command's script lies in another folder; what it finds first is the path's."""
    (project / "flows").rename(project / "others")
    (project / "tasks").rename(project / room)
    (project / room / "__init__.py").write_text("")
    command = "import sys; from flows.cli import main; sys.exit(main(['run']))"
    path = os.pathsep.join((str(project), *filter(None, sys.path)))
    ended = subprocess.run(
        [sys.executable, "-P", "-c", command],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        f"autotailor: PYTHONPATH: '{project / room}' hides AutoTailor's package '{room}'; take its"
    )
    assert ended.stderr.count("\n") == 1
