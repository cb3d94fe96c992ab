"""Conversion of SubNets to ONNX models, to other formats, and to ExecuTorch, in child processes that can be killed.

ExecuTorch's compiler is an optional extra and slow: starting a child takes 4 s, then an operator 1 s, and a SubNet like
MobileNetV2 8 s. Many programs share a child; each core has one child.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from profiling_agents.backends import installation
from profiling_agents.messages import MIB
from profiling_agents.sensing.machine import available_cores
from profiling_agents.startup import python_path
from tasks.base.errors import UserError

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


PROGRAM, LOWERED, REASON = ".pt2", ".pte", ".txt"
NAME = "executorch"
START_S = 120.0  # to import the compiler, on a busy machine


def require_executorch() -> None:
    """Raise UserError if the extra is not installed."""
    if importlib.util.find_spec(NAME) is None:
        raise UserError(
            "format 'executorch'", "the package 'executorch' is not installed", next_step=installation(NAME)
        )


def lower(programs: Sequence[bytes], limits: ConversionLimits = DEFAULT_LIMITS) -> list[bytes | ConversionError]:
    """Programs (.pte) for XNNPACK from programs of torch.export (.pt2), in order; limits: per program.

    A program that ExecuTorch refuses or that exceeds a limit yields an error. UserError if the extra is not installed.
    """
    require_executorch()
    children = min(len(available_cores()), len(programs))
    results: dict[int, bytes | ConversionError] = {}
    if programs:
        with ThreadPoolExecutor(children) as pool:
            parts = [range(first, len(programs), children) for first in range(children)]
            for found in pool.map(lambda part: _lower({at: programs[at] for at in part}, limits), parts):
                results |= found
    return [results[at] for at in range(len(programs))]


def _lower(programs: dict[int, bytes], limits: ConversionLimits) -> dict[int, bytes | ConversionError]:
    """Results by number. After a program ends its child, it gets the error, and a new child converts the others."""
    results: dict[int, bytes | ConversionError] = {}
    with tempfile.TemporaryDirectory(prefix="autotailor-executorch-") as name:  # mode 0700
        folder = Path(name)
        for number, content in programs.items():
            (folder / f"{number}{PROGRAM}").write_bytes(content)
        while left := [number for number in programs if number not in results]:
            failure = _run(folder, left, limits)
            for number in left:
                found = _result(folder, number)
                if found is None:
                    results[number] = failure
                    break
                results[number] = found
    return results


def _run(folder: Path, numbers: Sequence[int], limits: ConversionLimits) -> ConversionError:
    """Run a child; returns the error for the first program without a result."""
    names = [f"{number}{PROGRAM}" for number in numbers]
    command = [sys.executable, "-P", "-m", "tasks.evaluation.executorch.lowering", f"{limits.wall_s:g}", *names]
    environment = os.environ | {"PYTHONPATH": python_path(os.environ), "OMP_NUM_THREADS": "1"}
    whole = replace(limits, wall_s=START_S + limits.wall_s * len(names))
    try:
        run_limited(command, folder, whole, environment, name=NAME)
    except ConversionError as error:
        if "SIGALRM" in str(error):
            return ConversionError(f"{NAME} took longer than {limits.wall_s:g} s")
        return error
    return ConversionError(f"{NAME} wrote no program")


def _result(folder: Path, number: int) -> bytes | ConversionError | None:
    lowered, reason = (folder / f"{number}{suffix}" for suffix in (LOWERED, REASON))
    if lowered.is_file():
        return lowered.read_bytes()
    return ConversionError(f"{NAME}: {reason.read_text(encoding='utf-8')}") if reason.is_file() else None
