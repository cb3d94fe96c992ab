"""Timing one model reliably.

Warm-up by time and count, inner repeats until a sample is long enough to be timed, blocks spread over time, p50/p90 over
samples, stop when p50 is known well enough. After TVM's min_repeat_ms, TFLite benchmark_model, MLPerf Mobile.
A sample is interrupted when the system gives the core to another process meanwhile. With one thread, an interrupted sample
counts as the time for which the model had the core. With several threads, an interrupted sample is left out while enough
other samples remain. A sample on a core that other processes slow down (`profiling_agents.sensing.pace`) is left out, too.
"""

import gc
import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from profiling_agents.messages import MeasureSettings, Timing
from profiling_agents.sensing.pace import Pace, Repeat

RULES_VERSION = 3
"""Part of a device's fingerprint; raise it when a change here moves the numbers."""

REMEASURE_PAUSE_S = 0.01
NORMAL_QUANTILE_95 = 1.96


def measure(
    repeat: Repeat,
    settings: MeasureSettings,
    *,
    one_thread: bool = False,
    prepare: Callable[[], None] | None = None,
    pace: Pace | None = None,
) -> Timing:
    """Time `repeat(n)`, which runs the model n times; measure a second time when the spread is above the limit.

    one_thread: the calling thread alone computes, so its CPU time is the CPU time of the model. prepare: called before each
    sample, which is then a single run. pace: speed of the core; None for models that run on several cores.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        repeats = _warm_up(repeat, settings)
        if prepare is not None:
            repeats = 1
        timing = _sample(repeat, repeats, settings, _Samples(one_thread, prepare, pace)).summary(repeats, settings)
        if timing.noisy:
            time.sleep(REMEASURE_PAUSE_S)
            repeat(repeats)
            again = _sample(repeat, repeats, settings, _Samples(one_thread, prepare, pace)).summary(repeats, settings)
            timing = min(timing, again, key=lambda one: (one.noisy, one.spread))
        return timing
    finally:
        if collecting:
            gc.enable()


def _timed(repeat: Repeat, runs: int) -> float:
    """Duration of `runs` runs [s]."""
    start = time.perf_counter_ns()
    own_s = repeat(runs)
    host_s = (time.perf_counter_ns() - start) * 1e-9
    return host_s if own_s is None else own_s


def _warm_up(repeat: Repeat, settings: MeasureSettings) -> int:
    """Run until time and count are reached; return how many runs make one sample of `sample_us`."""
    target_s = settings.sample_us * 1e-6
    until = time.perf_counter() + settings.warmup_ms * 1e-3
    runs, fastest_s, repeats = 0, math.inf, 1
    while runs < settings.warmup_runs or time.perf_counter() < until:
        duration_s = _timed(repeat, repeats)
        fastest_s = min(fastest_s, duration_s / repeats)
        runs += repeats
        if duration_s < target_s:
            repeats = max(2 * repeats, math.ceil(target_s / max(fastest_s, 1e-9)))
    return max(1, math.ceil(target_s / max(fastest_s, 1e-9)))


@dataclass(slots=True)
class _Samples:
    """Durations [s per run]: calm samples, and separately samples that were interrupted or slowed down."""

    one_thread: bool
    prepare: Callable[[], None] | None
    pace: Pace | None
    calm: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)

    def add(self, repeat: Repeat, repeats: int, wait_until_s: float) -> None:
        if self.pace is not None and self.pace.wait(wait_until_s):
            repeat(1)  # other processes ran meanwhile and changed the caches
        if self.prepare is not None:
            self.prepare()
        before, cpu_s = _interruptions(), time.thread_time()
        duration_s = _timed(repeat, repeats)
        cpu_s = time.thread_time() - cpu_s
        calm = _interruptions() == before
        if not calm and self.one_thread:
            calm, duration_s = True, min(duration_s, cpu_s)
        calm = (self.pace is None or self.pace.calm()) and calm
        (self.calm if calm else self.disturbed).append(duration_s / repeats)

    def summary(self, repeats: int, settings: MeasureSettings) -> Timing:
        """The timing of the calm samples; if there are too few, the timing of all samples, flagged noisy."""
        enough = len(self.calm) >= settings.min_samples
        counted = np.array(self.calm if enough else self.calm + self.disturbed)
        p10, p50, p90 = (float(value) for value in np.quantile(counted, (0.1, 0.5, 0.9)) * 1e3)
        spread = (p90 - p10) / p50
        noisy = not enough or spread > settings.spread_limit
        return Timing(p50_ms=p50, p90_ms=p90, spread=spread, n=len(counted), repeats=repeats, noisy=noisy)


def _interruptions() -> int:
    """How often the system has taken a core from this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _sample(repeat: Repeat, repeats: int, settings: MeasureSettings, samples: _Samples) -> _Samples:
    """Fill `samples` in blocks with pauses, until p50 is known well enough or the time is up."""
    calm, disturbed = samples.calm, samples.disturbed
    until = time.perf_counter() + settings.time_cap_ms * 1e-3
    patience = 0.0 if samples.pace is None else settings.patience
    end = until + patience * settings.time_cap_ms * 1e-3
    block = 0
    while True:
        for _ in range(settings.samples_per_block):
            samples.add(repeat, repeats, end)
            now, most = time.perf_counter(), len(calm) + len(disturbed)
            if now >= until and (len(calm) >= settings.min_samples or (now >= end and most >= settings.min_samples)):
                return samples
        block += 1
        enough = block >= settings.min_blocks and len(calm) >= settings.min_samples
        if enough and relative_half_width(np.array(calm)) <= settings.confidence:
            return samples
        time.sleep(settings.block_pause_ms * 1e-3)


def relative_half_width(samples: np.ndarray) -> float:
    """Half the 95 % confidence interval of the median (by order statistics), relative to the median."""
    ordered = np.sort(samples)
    count = len(ordered)
    reach = NORMAL_QUANTILE_95 * math.sqrt(count) / 2
    low = max(0, math.floor((count - 1) / 2 - reach))
    high = min(count - 1, math.ceil((count - 1) / 2 + reach))
    return float((ordered[high] - ordered[low]) / 2 / np.median(ordered))
