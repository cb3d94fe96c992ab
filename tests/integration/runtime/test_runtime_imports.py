"""The run time needs numpy, the messages' pydantic, and psutil for sensing; nothing that a device does not have.

Gradients are left out: whoever asks for them installs torch.
"""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import adaptive_runtime

ROOM = Path(adaptive_runtime.__path__[0])
GRADIENTS = "adaptive_runtime.weights.gradients"
MODULES = [
    module.name
    for module in pkgutil.walk_packages([str(ROOM)], "adaptive_runtime.")
    if not module.name.startswith(GRADIENTS)
]
SERVICE, COMMANDS = ("adaptive_runtime.server",), ("adaptive_runtime.cli", "adaptive_runtime.__main__")
NEEDED = {"numpy", "psutil", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
SERVED = {"anyio", "click", "h11", "idna", "prometheus_client", "sniffio", "starlette", "uvicorn"}
"""What a service needs besides: starlette, uvicorn and the metrics' format, with what these need."""
GENERATED = ("_sysconfigdata", "_cython_", "cython_runtime", "__mp_main__")
"""Modules that an installation of Python and extensions written in Cython (`numpy.random`) make by themselves."""
LISTED = """
import sys
before = set(sys.modules)
import {modules}
print(*sorted(name for name, module in sys.modules.items() if module and name not in before))
"""


@pytest.mark.parametrize(
    ("begin", "libraries", "agents"),
    [
        (None, NEEDED, {"lines", "messages", "sensing", "streams"}),
        (COMMANDS, NEEDED, {"lines", "messages", "sensing", "network", "streams", "startup", "checksums"}),
        (SERVICE, NEEDED | SERVED, {"lines", "messages", "sensing", "network", "streams", "checksums", "frames"}),
    ],
    ids=["rest", "commands", "service"],
)
def test_modules_of_the_runtime_bring_few_libraries(
    begin: tuple[str, ...] | None, libraries: set[str], agents: set[str]
) -> None:
    """Those of a group in one process: what any of them brings is there in the end. begin: None: what is in no other group."""
    modules = [
        name for name in MODULES if (name.startswith(begin) if begin else not name.startswith(SERVICE + COMMANDS))
    ]
    command = [sys.executable, "-c", LISTED.format(modules=", ".join(modules))]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert set(modules) <= set(loaded)
    first = {name.partition(".")[0] for name in loaded if not name.startswith(GENERATED)}
    first -= set(sys.stdlib_module_names)
    assert first <= libraries | {"adaptive_runtime", "importing", "profiling_agents"}
    assert {name.split(".")[1] for name in loaded if name.startswith("profiling_agents.")} <= agents
