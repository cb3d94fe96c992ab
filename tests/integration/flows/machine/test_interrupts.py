"""Ctrl-C in a terminal, where every process of the group gets it, and SIGTERM: one line, the exit code, seconds.

Each signal is sent in a process of its own: one that comes late, or twice, ends the process that it meets.
"""

import signal
import subprocess
import sys

import pytest

from flows.machine import AT_ONCE, interruptible_again

START = """
import asyncio, atexit, os, signal, sys, time
from contextlib import suppress
from flows.machine import Terminated, interruptible, interruptible_again, is_interrupted
def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)
"""
LIBRARY_CATCHES_CANCELLATIONS = """
async def request():
    interrupt()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(5)
with interruptible():
    try:
        asyncio.run(request())
    except KeyboardInterrupt:
        print("interrupted")
"""
LIBRARY_CATCHES_THE_INTERRUPTION = """
from flows.pipeline.progress import Stopped
try:
    with interruptible():
        print(is_interrupted())
        with suppress(KeyboardInterrupt):
            interrupt(signal.SIGTERM)
        print(is_interrupted())
        raise Stopped
except Terminated:
    print("terminated", is_interrupted())
"""
FLOW_HAS_A_HANDLER = """
from flows.pipeline.progress import Stopped
def of_flow(number, frame):
    print("the handler of the flow")
try:
    with interruptible():
        signal.signal(signal.SIGTERM, of_flow)
        with interruptible_again():
            with suppress(KeyboardInterrupt):
                interrupt(signal.SIGTERM)
            print(is_interrupted())
        print(signal.getsignal(signal.SIGTERM) is of_flow)
        raise Stopped
except Terminated:
    print("terminated")
"""
TWICE_IN_A_LIBRARY_THAT_TIDIES_UP = """
with interruptible():
    try:
        interrupt()
    except KeyboardInterrupt:
        interrupt()
        time.sleep(30)
"""
TWICE_WHILE_PYTHON_ENDS = """
from flows.cli import entry
def leave():
    interrupt()
    time.sleep(30)
atexit.register(leave)
entry._execute = lambda _: interrupt()
sys.argv = ["autotailor", "run"]
sys.exit(entry.main())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        pytest.param(
            LIBRARY_CATCHES_CANCELLATIONS, "interrupted", id="a library that catches cancellations has no part"
        ),
        pytest.param(LIBRARY_CATCHES_THE_INTERRUPTION, "False True terminated False", id="a library that catches it"),
        pytest.param(FLOW_HAS_A_HANDLER, "True True terminated", id="the handler of a flow is replaced and put back"),
    ],
)
def test_an_interruption_ends_the_command_at_its_next_step(code: str, printed: str) -> None:
    ended = run(code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == printed.split()


def test_a_flow_that_no_command_started_keeps_its_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interruptible_again():
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("code", [TWICE_IN_A_LIBRARY_THAT_TIDIES_UP, TWICE_WHILE_PYTHON_ENDS])
def test_a_second_interrupt_ends_the_command_at_once_in_one_line(code: str) -> None:
    ended = run(code)
    first = ["autotailor: interrupted; the same command goes on from here"] if code is TWICE_WHILE_PYTHON_ENDS else []
    assert ended.returncode == 130, ended.stderr
    assert list(filter(None, ended.stderr.splitlines())) == [*first, AT_ONCE]
