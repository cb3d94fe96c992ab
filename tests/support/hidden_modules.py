"""Processes in which an installed package cannot be imported."""

import os
from pathlib import Path

import pytest

HIDING = """
import sys

class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Hiding)
"""


def hide(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that start from now on cannot import this package."""
    (folder / "sitecustomize.py").write_text(HIDING.format(name=name))
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), before])))
