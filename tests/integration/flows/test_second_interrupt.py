"""A second Ctrl-C ends a command at once, in one line, whatever the first one is still busy with."""

import subprocess
import sys

import pytest

from flows.machine.signals import AT_ONCE

BUSY = {
    "in a library that tidies up": """
import os, signal, time
from flows.machine.signals import interruptible
with interruptible():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
""",
    "while Python ends": """
import atexit, os, signal, sys, time
from flows.cli import entry
def interrupted(_):
    os.kill(os.getpid(), signal.SIGINT)
def leave():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
atexit.register(leave)
entry._execute = interrupted
sys.argv = ["autotailor", "run"]
sys.exit(entry.main())
""",
}


@pytest.mark.parametrize("when", BUSY)
def test_a_second_interrupt_is_one_line(when: str) -> None:
    ended = subprocess.run([sys.executable, "-c", BUSY[when]], capture_output=True, text=True, timeout=300)
    first = ["autotailor: interrupted; the same command goes on from here"] if when == "while Python ends" else []
    assert ended.returncode == 130, ended.stderr
    assert list(filter(None, ended.stderr.splitlines())) == [*first, AT_ONCE]
