"""SubNets as ONNX models, and conversion of these to other formats, in child processes that can be killed."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from profiling_agents.messages import MIB

if TYPE_CHECKING:
    from tailor_ir import Config, Statistics, SuperNet

CHILD_NICENESS = 10  # conversion runs beside measuring, perhaps on the same machine


class ConversionError(Exception):
    """A model cannot be converted to another format; the message is one line."""


@dataclass(frozen=True, slots=True)
class ConversionLimits:
    """The limits of one conversion."""

    wall_s: float = 120.0
    memory_mib: int = 8192


DEFAULT_LIMITS = ConversionLimits()


def onnx_of(
    net: SuperNet,
    config: Config,
    statistics: Statistics | None = None,
    batch: int | None = None,
    *,
    weights: bool = True,
) -> bytes:
    """ONNX model of one SubNet, BatchNorm folded. batch: the SuperNet's own by default. Without weights: only for timing."""
    with tempfile.TemporaryDirectory(prefix="autotailor-export-") as folder:
        path = Path(folder) / "subnet.onnx"
        net.export(dict(config), path, statistics=statistics, fold_batch_norm=True, batch=batch, weights=weights)
        return path.read_bytes()


def run_limited(
    command: Sequence[str], folder: Path, limits: ConversionLimits, environment: Mapping[str, str], *, name: str
) -> str:
    """The output of a child in `folder`; ConversionError if it died or was killed. name: of the child, for messages."""
    with (
        subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child,
        _killed_at_exit(child),
    ):
        _restrict(child.pid, limits)
        try:
            output, _ = child.communicate(timeout=limits.wall_s)
        except subprocess.TimeoutExpired as error:
            raise ConversionError(f"{name} took longer than {limits.wall_s:g} s") from error
    log = output.decode(errors="replace")
    if child.returncode < 0:
        signal_name = signal.Signals(-child.returncode).name
        raise ConversionError(f"{name} died of {signal_name} within {limits.memory_mib} MiB ({last_line(log)})")
    if child.returncode:
        raise ConversionError(f"{name} ended with code {child.returncode} ({last_line(log)})")
    return log


def last_line(log: str) -> str:
    """The last line of a child's output, truncated if it is long."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"


@contextlib.contextmanager
def _killed_at_exit(child: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def _restrict(pid: int, limits: ConversionLimits) -> None:
    """Set memory limit and low priority from outside: none of our code runs between fork and exec."""
    with contextlib.suppress(ProcessLookupError):
        memory = limits.memory_mib * MIB
        resource.prlimit(pid, resource.RLIMIT_AS, (memory, memory))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        os.setpriority(os.PRIO_PROCESS, pid, CHILD_NICENESS)
