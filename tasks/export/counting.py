"""The child process that counts memory: `python -m tasks.export.counting DEFAULT PLANNED INPUT RESULT`, files in its folder.

onnxruntime keeps a registered allocator until its process ends, so counting needs its own process.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from tailor_ir.memory.planned_file import session_options
from tailor_ir.memory.runtime_memory import runtime

RUNS = 5


def running(
    content: bytes, options: onnxruntime.SessionOptions, feeds: Mapping[str, np.ndarray]
) -> Callable[[], object]:
    """A function that runs a model once."""
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(feeds))


def by_turns(*runs: Callable[[], object]) -> list[float]:
    """The least time of each function [ms] in several alternating runs."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(RUNS):
        for run, own in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            own.append((time.perf_counter() - start) * 1e3)
    return [min(own) for own in times]


def main(default: str, planned: str, given: str, result: str) -> None:
    """Peaks [bytes] in a first run and times [ms] of two files, each run in its intended way."""
    contents = Path(default).read_bytes(), Path(planned).read_bytes()
    x_BCHW = np.load(given, allow_pickle=False)
    feeds = {onnx.load_model_from_string(contents[0]).graph.input[0].name: x_BCHW}
    peaks = [runtime().peaks(contents[0], x_BCHW).asked, runtime().peaks(contents[1], x_BCHW, as_it_stands=True).asked]
    options = session_options(optimised=False), session_options()
    runs = (running(content, option, feeds) for content, option in zip(contents, options, strict=True))
    times_ms = by_turns(*runs)
    Path(result).write_text(json.dumps({"peaks": peaks, "times_ms": times_ms}))


if __name__ == "__main__":
    main(*sys.argv[1:])
