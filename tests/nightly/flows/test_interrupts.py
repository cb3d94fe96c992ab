"""Ctrl-C in a terminal, where every process of the group gets it, and SIGTERM: one line, the exit code, seconds."""

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.flows.tiny import TINY

LIMIT_SECONDS = 240


MOST_SECONDS = 150
"""Until a command has ended: it waits for its agents, and this machine computes something else, too."""


CHILDREN = {"compile": "tasks.training.finetune.worker", "profile": "profiling_agents"}


LINE = "autotailor: interrupted; the same command goes on from here"


CTRL_C = b"\x03"


REACHED = {"compile": "stages/base/*/history.jsonl", "profile": "stages/profile/*/*.partial"}
"""What is there, and not empty, while a command trains, or measures."""


OWN_SERVER = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING")
"""What a command that began in this process has set: another command would use the same server."""


@dataclass
class Terminal:
    """A command whose terminal is this."""

    process: psutil.Process
    descriptor: int
    shown: bytes = b""

    def read(self) -> bool:
        """What it shows; False at its end."""
        if not select.select([self.descriptor], [], [], 0.1)[0]:
            return True
        try:
            more = os.read(self.descriptor, 2**16)
        except OSError:  # Linux: the other side is closed
            return False
        self.shown += more
        return bool(more)

    def read_until(self, done: Callable[[], bool], seconds: float) -> None:
        """Show until something is so; fails at the end of the command, and after `seconds`."""
        until = time.monotonic() + seconds
        while not done():
            assert self.read(), self.shown.decode()
            assert time.monotonic() < until, self.shown.decode()

    def read_to_end(self, seconds: float) -> int:
        """Exit code."""
        until = time.monotonic() + seconds
        while self.read():
            assert time.monotonic() < until, self.shown.decode()
        return os.waitstatus_to_exitcode(os.waitpid(self.process.pid, 0)[1])

    def end(self) -> None:
        """Leave nothing of the command behind."""
        with suppress(psutil.NoSuchProcess):
            for process in (*self.process.children(recursive=True), self.process):
                process.kill()


def in_terminal(words: list[str]) -> Terminal:
    """A command in a terminal of its own, with a Prefect server of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in OWN_SERVER}
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execve(words[0], words, environment)
    return Terminal(psutil.Process(pid), descriptor)


def command_lines(processes: list[psutil.Process]) -> str:
    """Of those that still run."""
    words: list[str] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            words += process.cmdline()
    return " ".join(words)


@pytest.mark.parametrize(("command", "number"), [("compile", "INT"), ("profile", "INT"), ("compile", "TERM")])
def test_an_interrupted_command_ends_in_seconds_with_one_line(
    command: str, number: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    slow = ["base.epochs=500", "profile.subnet.layers_ms=5000", f"output_dir={tmp_path / 'out'}"]
    terminal = in_terminal([sys.executable, "-m", "flows.cli", command, *TINY, *slow])

    def is_reached() -> bool:
        return any(path.stat().st_size for path in (tmp_path / "out").glob(REACHED[command]))

    request.addfinalizer(terminal.end)
    terminal.read_until(is_reached, LIMIT_SECONDS)
    children = terminal.process.children(recursive=True)
    started = command_lines(children)
    assert "flows.machine.server" in started
    assert CHILDREN[command] in started
    if number == "INT":
        os.write(terminal.descriptor, CTRL_C)
    else:
        terminal.process.send_signal(signal.SIGTERM)
    code = terminal.read_to_end(MOST_SECONDS)
    text = terminal.shown.decode()
    assert code == {"INT": 130, "TERM": 143}[number], text
    assert text.replace("\r", "").rstrip().endswith(LINE)
    assert "Traceback" not in text
    assert "Error logging" not in text
    _, alive = psutil.wait_procs(children, timeout=300)
    assert alive == []
