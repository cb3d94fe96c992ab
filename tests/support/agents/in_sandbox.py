"""A process that enters its sandbox and then tries what a foreign model must not do: `in_sandbox.py REQUEST` (JSON).

It prints, as JSON, the sandbox and how each attempt ended: "done", or the class of the error.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiling_agents.sandbox import seccomp
from profiling_agents.sandbox.entering import PlannedSandbox, enter_sandbox

PR_SET_DUMPABLE = 4

libc = ctypes.CDLL(None, use_errno=True)


def connect(family: int, kind: int, address: tuple[str, int] | str) -> None:
    with socket.socket(family, kind) as attempt:
        attempt.settimeout(5)
        attempt.connect(address)


def run_program() -> None:
    """By the system call itself: a library's answer to a failure is its own."""
    child = os.fork()
    if child == 0:
        try:
            os.execv("/bin/true", ["true"])
        except OSError as error:
            os._exit(100 + (error.errno or 0))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code > 100:
        raise OSError(code - 100, "refused")


def trace_parent() -> None:
    attach = 16
    if libc.ptrace(attach, os.getppid(), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "refused")


def attempts(request: dict[str, Any]) -> dict[str, Callable[[], object]]:
    own, outside = Path(request["plan"]["folder"]), Path(request["outside"])
    return {
        "read /etc/passwd": lambda: Path("/etc/passwd").read_bytes(),
        "read a file beside its folder": lambda: (outside / "secret").read_bytes(),
        "list the folder around its own": lambda: os.listdir(outside),
        "read the environment of its parent": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "write outside": lambda: (outside / "new").write_bytes(b"x"),
        "write over a file outside": lambda: (outside / "secret").write_bytes(b"x"),
        "write a device's setting": lambda: Path("/proc/sys/kernel/core_pattern").write_text("x"),
        "connect by TCP": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", request["port"])),
        "connect by UDP": lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", request["port"])),
        "connect to a file's socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, str(outside / "socket")),
        "make a local socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "name a thread": lambda: Path(f"/proc/self/task/{os.getpid()}/comm").write_text("model"),
        "run a program": run_program,
        "trace its parent": trace_parent,
        "signal its parent": lambda: os.kill(os.getppid(), 0),
        "become root": lambda: os.setuid(0) if os.getuid() else os.setgroups([0]),
        "make a namespace": lambda: seccomp.unshare(0x10000000),
        "write into its folder": lambda: (own / "new").write_bytes(b"x"),
        "read from its folder": lambda: (own / "model").read_bytes(),
        "read the processor's facts": lambda: Path("/proc/cpuinfo").read_bytes(),
        "signal itself": lambda: os.kill(os.getpid(), signal.SIGCONT),
        "fill random bytes": lambda: Path("/dev/urandom").open("rb").read(8),
    }


def ended(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "done"


def main(request: dict[str, Any]) -> None:
    if request["user"]:
        os.setgroups([])
        os.setgid(request["user"])
        os.setuid(request["user"])
        seccomp.process_control(PR_SET_DUMPABLE, 1)  # as a program that this user starts
    if request["lacking"]:  # a filter that answers as kernels without these calls do
        kept = dict(seccomp.REFUSED)
        seccomp.REFUSED.clear()
        seccomp.REFUSED.update({str(number): (number, number) for number in request["lacking"]})
        seccomp.process_control(seccomp.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.restrict()
        seccomp.REFUSED.clear()
        seccomp.REFUSED.update(kept)
    plan = PlannedSandbox.of(request["plan"])
    report = enter_sandbox(plan)
    results = {name: ended(attempt) for name, attempt in attempts(request).items()}
    print(json.dumps({"standing": report.standing, "missing": report.missing, "user": os.getuid(), "results": results}))


main(json.loads(sys.argv[1]))
