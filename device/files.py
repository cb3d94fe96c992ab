"""The files of the wheel: the runtime, and the modules of other packages that it imports, found by following imports."""

import importlib.util
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
ROOM = "adaptive_runtime"
PAGES = "adaptive_runtime/server/pages"
PLOTLY = "plotly.min.js"
"""Draws the charts of the live page, without a network. It is the only file of the package plotly in the wheel."""


def wheel_files() -> dict[Path, str]:
    """Path of each file, and its place in the wheel. Includes all of `ROOM`, since pages have files that are not modules."""
    finder = ModuleFinder(path=[str(ROOT)])
    own = [file for file in sorted((ROOT / ROOM).rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
    for file in own:
        if file.suffix == ".py":
            finder.import_hook(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    reached = [Path(module.__file__) for module in finder.modules.values() if module.__file__]
    return {file: str(file.relative_to(ROOT)) for file in (*own, *reached)} | {_plotly(): f"{PAGES}/{PLOTLY}"}


def _plotly() -> Path:
    """The path of plotly's script. FileNotFoundError if the package is not installed at build time."""
    package = importlib.util.find_spec("plotly")
    for place in (package and package.submodule_search_locations) or ():
        if (file := Path(place) / "package_data" / PLOTLY).is_file():
            return file
    raise FileNotFoundError(f"{PLOTLY}: install plotly, which has it")


class WheelFiles(BuildHookInterface):
    """Adds the files to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called once, before the wheel is written."""
        build_data["force_include"].update({str(file): place for file, place in wheel_files().items()})
