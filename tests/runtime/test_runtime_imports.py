"""Deciding needs numpy and the messages' pydantic, sensing psutil as well; nothing that a device does not have."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import adaptive_runtime

ROOM = Path(adaptive_runtime.__path__[0])
MODULES = [module.name for module in pkgutil.walk_packages([str(ROOM)], "adaptive_runtime.")]
SENSING = "adaptive_runtime.sensing"
NEEDED = {"numpy", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
GENERATED = ("_sysconfigdata", "_cython_", "cython_runtime")
"""Modules that an installation of Python and extensions written in Cython (`numpy.random`) make by themselves."""
LISTED = "import sys; before = set(sys.modules); import {modules}; print(*sorted(set(sys.modules) - before))"


@pytest.mark.parametrize("senses", [False, True])
def test_modules_of_the_runtime_bring_few_libraries(senses: bool) -> None:
    """All in one process: what any of them brings is there in the end."""
    modules = [name for name in MODULES if name.startswith(SENSING) is senses]
    command = [sys.executable, "-c", LISTED.format(modules=", ".join(modules))]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    first = {name.partition(".")[0] for name in loaded if not name.startswith(GENERATED)}
    first -= set(sys.stdlib_module_names)
    assert set(modules) <= set(loaded)
    assert first <= NEEDED | {"adaptive_runtime", "profiling_agents"} | ({"psutil"} if senses else set())
    agents = {name.split(".")[1] for name in loaded if name.startswith("profiling_agents.")}
    assert agents <= {"messages"} | ({"sensing"} if senses else set())
