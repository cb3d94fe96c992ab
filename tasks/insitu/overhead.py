"""What timing a layer adds to its time: a clock read and an event written, a few microseconds, for each layer that runs.

A SubNet as a whole is timed without that, so the sum of its layers tells. It matters where layers are many and short.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Times = Sequence[tuple[str, float]]  # digest of an operator, and its time in a SubNet [ms]
Operators = Sequence[tuple[str, float, int]]  # digest of an operator, time in a SubNet [ms], layers that ran for it
KEPT = 0.1  # share of its time that an operator keeps in any case


def layer_overhead_ms(lines: Sequence[Mapping[str, Any]]) -> float:
    """Added to each layer [ms]: the median over SubNets, those in which it weighs most counting most; 0 where nothing tells."""
    found = [
        (
            sum(time_ms for _, time_ms, _ in line["operators"]),
            sum(layers for _, _, layers in line["operators"]),
            line["p50_ms"],
        )
        for line in lines
        if line["state"] == "ok" and line["operators"]
    ]
    if not found:
        return 0.0
    sums_ms, layers, p50_ms = np.array(found, np.float64).T
    each_ms = (sums_ms - p50_ms) / layers
    order = np.argsort(each_ms)
    weights = np.cumsum((layers / p50_ms)[order])
    return max(0.0, float(each_ms[order][np.searchsorted(weights, weights[-1] / 2)]))


def without_overhead(operators: Operators, overhead_ms: float) -> Times:
    """The times of a SubNet's operators, had their layers not been timed."""
    return [(digest, max(ms - overhead_ms * layers, KEPT * ms)) for digest, ms, layers in operators]
