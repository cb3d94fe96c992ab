"""A unit test starts no process and opens no connection."""

import sys
import threading
from collections.abc import Iterator

import pytest

FORBIDDEN = {"subprocess.Popen": "starts a process", "os.posix_spawn": "starts a process", "socket.connect": "connects"}
_running: list[str] = []
"""The unit test that runs now, at most one."""
_earlier: set[int] = set()
"""Threads that earlier tests of this worker have left: what they do is not this test's."""


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if not _running or event not in FORBIDDEN or threading.get_ident() in _earlier:
        return
    if arguments[0] != "fc-list":  # matplotlib lists a new machine's fonts once
        raise AssertionError(f"{_running[0]} {FORBIDDEN[event]}: move it to tests/integration")


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Refuses processes and connections while the test runs."""
    _earlier.update(thread.ident or 0 for thread in threading.enumerate() if thread is not threading.current_thread())
    _running.append(request.node.nodeid)
    yield
    _running.clear()
    _earlier.clear()
