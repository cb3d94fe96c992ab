"""Agents started by their command line, for tests that need the process itself."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psutil

TOKEN = "a-token-for-these-tests-only"
VARIABLE = "AUTOTAILOR_AGENT_TOKEN"


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "profiling_agents", *options]


def environment(token: str | None = TOKEN) -> dict[str, str]:
    rest = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return rest if token is None else rest | {VARIABLE: token}


@contextmanager
def started(
    options: Sequence[str] = ("--backend", "ncnn", "--port", "0"), token: str | None = TOKEN, *, stdin: bool = False
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The process and what it printed ('agent ready', 'agent token'). Terminated at the end if still there."""
    process = subprocess.Popen(
        command(*options),
        stdin=subprocess.PIPE if stdin else None,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(token),
    )
    assert process.stdout is not None
    printed: dict[str, str] = {}
    try:
        while "agent ready" not in printed:
            line = process.stdout.readline()
            assert line, "the agent ended before it was ready"
            name, _, value = line.strip().partition(": ")
            printed[name] = value
        yield process, printed
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
        if process.stdin is not None:
            process.stdin.close()


def refused(*options: str, token: str | None = TOKEN) -> str:
    """The one line of an agent that does not start, which exits with 2."""
    done = subprocess.run(
        command(*options), capture_output=True, text=True, env=environment(token), timeout=300, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


def command_of(process: psutil.Process) -> list[str]:
    """The words of a process's command; none where it has just ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def has_ended(process: psutil.Process) -> bool:
    """Whether a process is gone, or only its parent does not know yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def soon(condition: Callable[[], bool], within_s: float = 180.0) -> bool:
    """Whether the condition becomes true in time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
