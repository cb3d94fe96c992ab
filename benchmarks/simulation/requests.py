"""Requests of a trace on a simulated device: how long each variant would take for each of them.

Legend: V variants, C load classes, R requests.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import VariantTable
from adaptive_runtime.state.traces import LoadTrace

LEAST_SHARE = 0.1
"""Of a predicted latency that a drawn error leaves."""


@dataclass(frozen=True, slots=True)
class SimulatedRequests:
    """A variant takes latency_ms_V · factor_CR of its class for a request, whenever that is served.

    factor_CR: the trace's slow-down when the request arrives, times noise. load_T: the trace's load index, the mean pressure on
    CPU and memory bandwidth.
    """

    table: VariantTable
    trace: LoadTrace
    latency_ms_V: NDArray[np.float64]
    factor_CR: NDArray[np.float64]
    load_T: NDArray[np.float64]

    @classmethod
    def drawn(cls, table: VariantTable, trace: LoadTrace, *, seed: int, noise: float = 0.05) -> Self:
        """The device's own latencies, by the table's errors, and log-normal noise of requests. AdaptiveError: few classes."""
        if len(trace.slow_down) < table.load_classes:
            got = f"slow-down of {len(trace.slow_down)} load classes"
            raise AdaptiveError(f"trace '{trace.origin}'", got, allowed=f"{table.load_classes}, as in the table")
        rng = np.random.default_rng(seed)
        error_V = table.latency_error_V * rng.normal(size=len(table))
        times_R = trace.at(trace.arrivals_s_R)
        noise_R = np.exp(noise * rng.normal(size=len(times_R)))
        return cls(
            table=table,
            trace=trace,
            latency_ms_V=table.latency_ms_V * np.maximum(LEAST_SHARE, 1 + error_V),
            factor_CR=trace.slow_down_CT[:, times_R] * noise_R,
            load_T=(np.array(trace.cpu) + np.array(trace.bandwidth)) / 2,
        )

    def __len__(self) -> int:
        return len(self.trace.arrivals_s)


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
