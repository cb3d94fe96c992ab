"""A unit test starts no process and opens no connection."""

import sys
from collections.abc import Iterator

import pytest

FORBIDDEN = {"subprocess.Popen": "starts a process", "os.posix_spawn": "starts a process", "socket.connect": "connects"}
_running: list[str] = []
"""The unit test that runs now, at most one."""


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if _running and event in FORBIDDEN and arguments[0] != "fc-list":  # matplotlib lists a new machine's fonts once
        raise AssertionError(f"{_running[0]} {FORBIDDEN[event]}: move it to tests/integration")


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Refuses processes and connections while the test runs."""
    _running.append(request.node.nodeid)
    yield
    _running.clear()
