"""Are latencies under real load known before requests run?

    python -m benchmarks.slowdown [--seconds 120] [--pattern "CPU at random"] [--cpus 0.8] [--markdown] [--json FILE]

Four variants are served on one thread while processes of `benchmarks.stress` run: three products of matrices, which compute,
and a sum over 32 MiB, which reads memory. About every 2 s another variant is served at random, 20 ms between requests. Each
request's latency is predicted in four ways, from requests before it:

- *quiet*: the 10th percentile of 200 requests before the stress started;
- *last ratio*: the quiet latency times measured / quiet of the last request, as AdaptiveNet's r;
- *mean of 10*: the same with the mean of the last ten ratios;
- *slow-down*: `SlowDown`, fed with CPU use of the last sample of `Sensing`.

The table has the mean absolute error of the logarithm, which is about the relative error: of all requests, and of the first
three of each visit to a variant, when requests of others are most of what is known. Below it: the share of requests within the
quantiles that `SlowDown` told before, the variants with factors of their own at the end, and what one observation and one
expectation took.

Bars: a smaller error than the last ratio; quantiles within 4 points of what they promise.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_runtime.state.sensing import Sensing
from adaptive_runtime.state.slowdown import SlowDown
from benchmarks.control_group import in_group
from benchmarks.stress import PATTERNS, stress
from benchmarks.tables import show

SIZES = (96, 160, 256)
MEMORY_BYTES = 32 << 20
QUIET_REQUESTS, QUIET_QUANTILE = 200, 0.1
VISIT_S, PAUSE_S = 2.0, 0.02
FIRST = 3
LAST = 10
QUANTILES = (0.5, 0.9, 0.95)
WAYS = ("quiet", "last ratio", "mean of 10", "slow-down")
COVERED = 0.04
SEED = 11
Run = Callable[[], object]


def variants() -> list[Run]:
    """Products of matrices of three sizes, and a sum over memory."""
    rng = np.random.default_rng(SEED)
    squares = [rng.normal(size=(size, size)).astype(np.float32) for size in SIZES]
    memory = np.ones(MEMORY_BYTES // 8)
    return [*[lambda square=square: [square @ square for _ in range(8)] for square in squares], memory.sum]


def timed_ms(run: Run) -> float:
    """Duration of one call [ms]."""
    start_ns = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start_ns) / 1e6


def undisturbed_ms(run: Run) -> float:
    """Latency where little disturbs it [ms]."""
    return float(np.quantile([timed_ms(run) for _ in range(QUIET_REQUESTS)], QUIET_QUANTILE))


class Comparison:
    """Predicts each request in all ways, then learns from it. rows: error by way, first of a visit, within each quantile."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs = runs
        self._quiet_ms = np.array([undisturbed_ms(run) for run in runs])
        self.slow = SlowDown(self._quiet_ms)
        self._ratios = [1.0]
        self.rows: list[dict[str, Any]] = []
        self.observe_us: list[float] = []
        self.expect_us: list[float] = []

    def serve(self, variant: int, since_switch: int, load: float | None) -> None:
        """One request."""
        start_ns = time.perf_counter_ns()
        expected = self.slow.expect(load, time.monotonic())
        bounds_ms = [float(expected.quantile_ms_V(q)[variant]) for q in QUANTILES]
        self.expect_us.append((time.perf_counter_ns() - start_ns) / 1e3)
        quiet_ms = float(self._quiet_ms[variant])
        logs = [
            0.0,
            np.log(self._ratios[-1]),
            np.log(np.mean(self._ratios[-LAST:])),
            float(expected.log_mean_V[variant]),
        ]
        measured_ms = timed_ms(self._runs[variant])
        ratio = measured_ms / quiet_ms
        errors = {way: abs(np.log(ratio) - log) for way, log in zip(WAYS, logs, strict=True)}
        within = [measured_ms <= bound for bound in bounds_ms]
        self.rows.append({"errors": errors, "first": since_switch < FIRST, "within": within, "ratio": ratio})
        self._ratios.append(ratio)
        start_ns = time.perf_counter_ns()
        self.slow.observe(variant, measured_ms, time.monotonic(), load)
        self.observe_us.append((time.perf_counter_ns() - start_ns) / 1e3)


def served(seconds: float, pattern: str, cpus: float | None) -> Comparison:
    """Requests for so long, under the pattern."""
    rng = np.random.default_rng(SEED)
    with in_group(cpus):
        comparison = Comparison(variants())
        with stress(*PATTERNS[pattern], SEED), Sensing() as sensing:
            start_s = time.monotonic()
            while time.monotonic() - start_s < seconds:
                variant, until_s, count = (
                    int(rng.integers(len(SIZES) + 1)),
                    time.monotonic() + rng.exponential(VISIT_S),
                    0,
                )
                while time.monotonic() < until_s:
                    state = sensing.latest
                    load = None if state is None else state.group_cpu_use if cpus else state.cpu_use
                    comparison.serve(variant, count, load)
                    count += 1
                    time.sleep(PAUSE_S)
    return comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--pattern", choices=list(PATTERNS), default="CPU at random")
    parser.add_argument("--cpus", type=float)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    comparison = served(options.seconds, options.pattern, options.cpus)
    rows = comparison.rows
    table = [
        [way, f"{np.mean([row['errors'][way] for row in rows]):.3f}", f"{mean_of_first(rows, way):.3f}"] for way in WAYS
    ]
    show((f"{options.pattern}, {len(rows)} requests", "error", "after a switch"), table, markdown=options.markdown)
    for line in told(comparison):
        print(line)
    if options.json:
        options.json.write_text(json.dumps({"rows": table, "told": told(comparison)}, indent=1) + "\n")


def told(comparison: Comparison) -> list[str]:
    """Quantiles, the slow-down that there was, own factors, and times."""
    rows, found = comparison.rows, comparison.slow.expect()
    within = np.mean([row["within"] for row in rows], axis=0)
    ratios = np.quantile([row["ratio"] for row in rows], [0.05, 0.5, 0.95])
    own = zip(np.exp(found.log_mean_V - found.log_mean_V.mean()), found.own_V, strict=True)
    observe_us, expect_us = np.median(comparison.observe_us), np.median(comparison.expect_us)
    return [
        "within quantiles: " + ", ".join(f"{q:.0%}: {share:.1%}" for q, share in zip(QUANTILES, within, strict=True)),
        "measured / quiet, p5, p50, p95: " + ", ".join(f"{ratio:.2f}" for ratio in ratios),
        "factors against their mean, where own: " + ", ".join(f"{each:.2f}" if used else "–" for each, used in own),
        f"medians: observe {observe_us:.0f} µs, expect {expect_us:.0f} µs",
    ]


def mean_of_first(rows: list[dict[str, Any]], way: str) -> float:
    """Error of the first requests of visits."""
    return float(np.mean([row["errors"][way] for row in rows if row["first"]]))


if __name__ == "__main__":
    main()
