"""A device whose times are made up, for the logic of the choice alone."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from profiling_agents.client import ModelJob
from profiling_agents.messages import Engine, Measurement, MeasureSettings, Timing
from tasks.base.progress import Silent
from tasks.measuring.runtime_options.timing import EngineTimer

FASTEST_MS, SLOWEST_MS = 1.0, 5.0
Cost = Callable[[Mapping[str, str]], float]


class MadeDevice:
    """Takes `cost(choices)` times as long as by default, and drifts slowly. noise: the standard deviation of each time."""

    def __init__(self, cost: Cost, noise: float, seed: int = 0) -> None:
        self._cost, self._noise = cost, noise
        self._rng = np.random.default_rng(seed)
        self.timed = 0

    def measure(self, jobs: Iterable[ModelJob], settings: MeasureSettings | None = None) -> Iterator[Measurement]:
        for job in jobs:
            self.timed += 1
            drift = 1 + 0.2 * math.sin(self.timed / 200)
            choices = (job.engine or Engine()).choices
            p50_ms = float(job.key) * drift * self._cost(choices) * math.exp(self._rng.normal(0, self._noise))
            timing = Timing(p50_ms=p50_ms, p90_ms=p50_ms, spread=0.0, n=5, repeats=1, noisy=False)
            yield Measurement.ok(job.key, timing)


def timer(device: MadeDevice, file: Path, subnets: int = 5) -> EngineTimer:
    """Times SubNets on it that take 1 to 5 ms by default, the largest first."""
    keys = [f"{takes_ms:.2f}" for takes_ms in np.linspace(SLOWEST_MS, FASTEST_MS, subnets)]
    job = {"format": "onnx", "files": (b"",), "input_names": (), "input_shapes": (), "output_names": ("out0",)}
    jobs = {key: ModelJob(key=key, **job) for key in keys}  # type: ignore[arg-type]
    with Silent().bar("runtime_options", 1) as bar:
        return EngineTimer(device, jobs, MeasureSettings(), file, bar)  # type: ignore[arg-type]
