"""The way of one argument of `autotailor run` to an exported file: the modules that pass it on, and its names there.

    python -m benchmarks.argument_path [--override export.check_images=37] [--file .onnx] [words of the run ...]

The run is a real one, in this process. A module is on the way if one of its functions has a parameter that is the argument, or
holds it (a config, settings, a request), at one of two moments: while the words become the validated config (each call that
makes something else of them), and when the exported file is opened for writing (the functions that are still on the stacks
of this thread and the main one: Prefect runs a stage in a thread of its own).
Names are those of these parameters. Calls that only check the argument are not on the way: they give back nothing, or the
same object.
"""

import argparse
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import BaseModel

REPOSITORY = Path(__file__).resolve().parent.parent
ROOMS = ("flows", "tasks", "tailor_ir", "adaptive_runtime", "profiling_agents", "solvers")
DEEPEST = 5
"""Levels of records in which the argument is looked for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--override", default="export.check_images=37")
    parser.add_argument("--file", default=".onnx", help="the end of the exported file's name")
    parser.add_argument("words", nargs="*", default=["+preset=quick"])
    options = parser.parse_args()

    from flows.cli import main as autotailor

    way = Way(options.override, options.file)
    with tempfile.TemporaryDirectory() as folder:
        sys.addaudithook(way.opened)
        sys.argv = ["autotailor", "run", *options.words, options.override, f"output_dir={folder}"]
        sys.setprofile(way.returned)
        code = autotailor()
    if code or not way.stack:
        sys.exit(f"exit code {code}, {len(way.stack)} functions on the stack of the exported file")
    rows = dict.fromkeys((*way.composed, *reversed(way.stack)))
    for module, function, name in rows:
        print(f"{module}:{function} as {name}")
    modules, names = {module for module, _, _ in rows}, {name for _, _, name in rows}
    print(f"{len(modules)} modules, {len(names)} names: {', '.join(sorted(names))}")


class Way:
    """Functions on the stack that hold the argument when a file of the wanted kind is opened below the exports."""

    def __init__(self, override: str, suffix: str) -> None:
        self.override, self.suffix = override, suffix
        self.value = override.partition("=")[2]
        self.composed: list[tuple[str, str, str]] = []
        self.stack: list[tuple[str, str, str]] = []

    def returned(self, frame: FrameType, event: str, answer: Any) -> None:
        """The profile function while the config is made: calls that are given the argument and make something else of it."""
        if event != "return" or not _module(frame) or not self._holds(answer, DEEPEST):
            return
        self.composed += [row for row in self._of(frame) if frame.f_locals[row[2]] is not answer]
        if (_module(frame), frame.f_code.co_name) == ("flows/cli/composed.py", "validated"):
            sys.setprofile(None)

    def opened(self, event: str, given: tuple[Any, ...]) -> None:
        """The audit hook: reads the stack once, when the stage that exports writes its first file."""
        if event != "open" or self.stack or self.suffix not in Path(str(given[0])).name or "r" in str(given[1] or "r"):
            return
        frames = list(_frames(sys._getframe(1)))
        if any(_module(frame).startswith("tasks/export/") for frame in frames):
            waiting = _frames(sys._current_frames()[threading.main_thread().ident or 0])
            self.stack = [row for frame in (*frames, *waiting) for row in self._of(frame)]

    def _of(self, frame: FrameType) -> Iterator[tuple[str, str, str]]:
        code = frame.f_code
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            if name in frame.f_locals and self._holds(frame.f_locals[name], DEEPEST):
                yield _module(frame), code.co_name, name

    def _holds(self, value: Any, depth: int) -> bool:
        if isinstance(value, (str, int)):
            return str(value) in (self.value, self.override)
        if depth == 0:
            return False
        return any(self._holds(part, depth - 1) for part in _parts(value))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if _module(frame):
            yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    """The path of a module of the product; empty for other code."""
    path = frame.f_code.co_filename.removeprefix(f"{REPOSITORY}/")
    return path if path.split("/")[0] in ROOMS else ""


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, BaseModel):
        yield from dict(value).values()
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, field.name, None) for field in fields(value))
    elif isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value[:20]
    elif type(value).__module__.split(".")[0] in ROOMS:
        yield from vars(value).values() if hasattr(value, "__dict__") else ()


if __name__ == "__main__":
    main()
