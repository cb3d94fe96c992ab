"""Conversion of torch programs to ExecuTorch in child processes that can be killed.

ExecuTorch's compiler is an optional extra and slow: starting a child takes 4 s, then an operator 1 s, and a SubNet like
MobileNetV2 8 s. Many programs share a child; each core has one child.
"""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from profiling_agents.backends import installation
from profiling_agents.sensing.machine import available_cores
from profiling_agents.startup import python_path
from tasks.base.errors import UserError
from tasks.evaluation.conversion import DEFAULT_LIMITS, ConversionError, ConversionLimits, run_limited

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
