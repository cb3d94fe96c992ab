"""Generated traces: load in steps, at random, like a user's, in bursts; requests at regular or random times.

Legend: T times, C load classes, R requests.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.state.traces.trace import LoadTrace

Values = NDArray[np.float64]
Pattern = Literal["steps", "random", "user", "bursts"]
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
STEP_S = 10.0
RECALL_S = 5.0
"""Time in which a random load forgets its state."""


class PressureResponse(NamedTuple):
    """Slow-down of a load class: 1 + cpu · pressure on the CPU + bandwidth · pressure on memory bandwidth."""

    cpu: float
    bandwidth: float


def steps(times_s: Values, rng: np.random.Generator) -> Values:
    """Levels that hold for ten seconds each and then jump."""
    holds = (times_s / STEP_S).astype(int)
    return rng.choice(LEVELS, holds.max() + 1)[holds]


def random(times_s: Values, rng: np.random.Generator) -> Values:
    """A load that drifts: an autoregressive walk around one half, folded into 0 to 1."""
    kept = np.exp(-np.diff(times_s, prepend=times_s[0]) / RECALL_S)
    noise = rng.normal(size=len(times_s))
    level, walk = 0.0, np.empty(len(times_s))
    for place, share in enumerate(kept):
        level = share * level + np.sqrt(1 - share * share) * noise[place]
        walk[place] = level
    folded: Values = np.abs((0.5 + 0.35 * walk) % 2)
    return np.minimum(folded, 2 - folded)


def user(times_s: Values, rng: np.random.Generator) -> Values:
    """Pauses (15 s on average) alternate with a light or heavy program (20 s on average) whose load flickers."""
    load, now_s, busy = np.zeros(len(times_s)), 0.0, False
    while now_s <= times_s[-1]:
        lasts_s = rng.exponential(20.0 if busy else 15.0)
        inside = (times_s >= now_s) & (times_s < now_s + lasts_s)
        load[inside] = rng.beta(2, 2) if busy else 0.05
        now_s, busy = now_s + lasts_s, not busy
    return np.clip(load + 0.08 * rng.normal(size=len(times_s)) * (load > 0.05), 0.0, 1.0)


def bursts(times_s: Values, rng: np.random.Generator) -> Values:
    """Almost no load, with short bursts of full load."""
    load, now_s = np.full(len(times_s), 0.05), rng.exponential(8.0)
    while now_s <= times_s[-1]:
        lasts_s = 0.3 + rng.exponential(1.2)
        load[(times_s >= now_s) & (times_s < now_s + lasts_s)] = rng.uniform(0.7, 1.0)
        now_s += lasts_s + rng.exponential(8.0)
    return load


PATTERNS: Mapping[Pattern, Callable[[Values, np.random.Generator], Values]] = {
    "steps": steps,
    "random": random,
    "user": user,
    "bursts": bursts,
}


def slow_downs(
    cpu_T: Values, bandwidth_T: Values, responses: Sequence[PressureResponse]
) -> tuple[tuple[float, ...], ...]:
    """Slow-down of each load class over time (C, T), from the pressure on CPU and memory bandwidth (T,) each."""
    return tuple(tuple((1 + cpu * cpu_T + width * bandwidth_T).tolist()) for cpu, width in responses)


def trace_of(
    pattern: Pattern,
    *,
    seed: int,
    duration_s: float,
    every_s: float = 0.1,
    responses: Sequence[PressureResponse] = (PressureResponse(2.0, 1.0),),
    requests_per_s: float = 10.0,
    regular: bool = True,
    also: Collection[Literal["cache", "memory"]] = (),
) -> LoadTrace:
    """A trace of one pattern; CPU, memory bandwidth, and the kinds in `also` are drawn independently.

    responses: slow-down by the first two. regular: requests arrive at constant intervals, like images from a camera.
    """
    rng = np.random.default_rng(seed)
    times_s = np.multiply(np.arange(int(np.ceil(duration_s / every_s))), every_s, dtype=np.float64)
    cpu_T, bandwidth_T = (PATTERNS[pattern](times_s, rng) for _ in range(2))
    count = int(duration_s * requests_per_s)
    arrivals_s = np.arange(count) / requests_per_s if regular else np.sort(rng.uniform(0, duration_s, count))
    further = np.random.default_rng((seed, 1))
    cache_T, memory_T = (PATTERNS[pattern](times_s, further) for _ in range(2))
    return LoadTrace(
        origin=pattern,
        seed=seed,
        duration_s=duration_s,
        times_s=tuple(times_s.tolist()),
        cpu=tuple(cpu_T.tolist()),
        bandwidth=tuple(bandwidth_T.tolist()),
        cache=tuple(cache_T.tolist()) if "cache" in also else (),
        memory=tuple(memory_T.tolist()) if "memory" in also else (),
        slow_down=slow_downs(cpu_T, bandwidth_T, responses),
        arrivals_s=tuple(arrivals_s[arrivals_s < duration_s].tolist()),
    )


def square_wave(
    *,
    period_s: float,
    busy: float,
    slow_down: float,
    duration_s: float,
    requests_per_s: float,
    phase: float = 0.0,
    classes: int = 1,
) -> LoadTrace:
    """Periodic load, present for the share `busy` of each period, in which everything is `slow_down` times slower.

    phase: delay as a share of a period. Requests come at constant intervals, the first after half an interval.
    """
    starts_s = np.arange(-1, duration_s / period_s + 1) * period_s + phase * period_s
    edges = [(float(start_s), 1.0) for start_s in starts_s]
    edges += [(float(start_s) + busy * period_s, 0.0) for start_s in starts_s]
    edges = [(0.0, 0.0), *sorted((at_s, load) for at_s, load in edges if 0 < at_s < duration_s)]
    load = tuple(load for _, load in edges)
    return LoadTrace(
        origin="square wave",
        duration_s=duration_s,
        times_s=tuple(at_s for at_s, _ in edges),
        cpu=load,
        bandwidth=load,
        slow_down=(tuple(1 + (slow_down - 1) * each for each in load),) * classes,
        arrivals_s=tuple((np.arange(0.5, duration_s * requests_per_s) / requests_per_s).tolist()),
    )
