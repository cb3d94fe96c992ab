"""The run time needs numpy, the messages' pydantic, and psutil for sensing; nothing that a device does not have."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import adaptive_runtime

ROOM = Path(adaptive_runtime.__path__[0])
MODULES = [module.name for module in pkgutil.walk_packages([str(ROOM)], "adaptive_runtime.")]
NEEDED = {"numpy", "psutil", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
SERVED = {"anyio", "click", "h11", "idna", "prometheus_client", "sniffio", "starlette", "uvicorn"}
"""What a service needs besides: starlette, uvicorn and the metrics' format, with what these need."""
GENERATED = ("_sysconfigdata", "_cython_", "cython_runtime", "__mp_main__")
"""Modules that an installation of Python and extensions written in Cython (`numpy.random`) make by themselves."""
LISTED = "import sys; before = set(sys.modules); import {module}; print(*sorted(set(sys.modules) - before))"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_the_runtime_brings_few_libraries(module: str) -> None:
    command = [sys.executable, "-c", LISTED.format(module=module)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    first = {name.partition(".")[0] for name in loaded if not name.startswith(GENERATED)}
    first -= set(sys.stdlib_module_names)
    assert "adaptive_runtime" in first
    serves = module.startswith("adaptive_runtime.service")
    commands = module.startswith(("adaptive_runtime.cli", "adaptive_runtime.__main__"))
    assert first <= NEEDED | {"adaptive_runtime", "profiling_agents"} | (SERVED if serves else set())
    agents = {name.split(".")[1] for name in loaded if name.startswith("profiling_agents.")}
    network = {"network"} | ({"checksums"} if serves else set()) if serves or commands else set()
    assert agents <= {"messages", "sensing"} | network
