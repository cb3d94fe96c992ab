"""Timing one model so that the number can be believed.

Warm-up by time and count, inner repeats until a sample can be timed, blocks spread over time, p50/p90 over
samples, stop when p50 is known well enough. After TVM's min_repeat_ms, TFLite benchmark_model, MLPerf Mobile.
"""

import gc
import math
import time
from collections.abc import Callable

import numpy as np

from profiling_agents.messages import MeasureSettings, Timing

RULES_VERSION = 1
"""Part of a device's fingerprint; raise it when a change here moves the numbers."""

REMEASURE_PAUSE_S = 0.01
NORMAL_QUANTILE_95 = 1.96

Repeat = Callable[[int], float | None]
"""Runs the model n times; returns the duration [s] where the runtime's own clock is better than ours."""


def measure(repeat: Repeat, settings: MeasureSettings) -> Timing:
    """Time `repeat(n)`, which runs the model n times; once more when the spread is above the limit."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        repeats = _warm_up(repeat, settings)
        timing = _summary(_sample(repeat, repeats, settings), repeats, settings)
        if timing.noisy:
            time.sleep(REMEASURE_PAUSE_S)
            repeat(repeats)
            again = _summary(_sample(repeat, repeats, settings), repeats, settings)
            timing = min(timing, again, key=lambda one: one.spread)
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
    """Run until time and count are reached; returns how many runs make one sample of `sample_us`."""
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


def _sample(repeat: Repeat, repeats: int, settings: MeasureSettings) -> np.ndarray:
    """Samples [s per run], in blocks with pauses, until p50 is known well enough or the time is up."""
    samples: list[float] = []
    until = time.perf_counter() + settings.time_cap_ms * 1e-3
    block = 0
    while True:
        for _ in range(settings.samples_per_block):
            samples.append(_timed(repeat, repeats) / repeats)
            if len(samples) >= settings.min_samples and time.perf_counter() >= until:
                return np.array(samples)
        block += 1
        enough = block >= settings.min_blocks and len(samples) >= settings.min_samples
        if enough and relative_half_width(np.array(samples)) <= settings.confidence:
            return np.array(samples)
        time.sleep(settings.block_pause_ms * 1e-3)


def relative_half_width(samples: np.ndarray) -> float:
    """Half the 95 % confidence interval of the median (by order statistics), relative to the median."""
    ordered = np.sort(samples)
    count = len(ordered)
    reach = NORMAL_QUANTILE_95 * math.sqrt(count) / 2
    low = max(0, math.floor((count - 1) / 2 - reach))
    high = min(count - 1, math.ceil((count - 1) / 2 + reach))
    return float((ordered[high] - ordered[low]) / 2 / np.median(ordered))


def _summary(samples: np.ndarray, repeats: int, settings: MeasureSettings) -> Timing:
    p10, p50, p90 = (float(value) for value in np.quantile(samples, (0.1, 0.5, 0.9)) * 1e3)
    spread = (p90 - p10) / p50
    return Timing(
        p50_ms=p50,
        p90_ms=p90,
        spread=spread,
        n=len(samples),
        repeats=repeats,
        noisy=spread > settings.spread_limit,
    )
