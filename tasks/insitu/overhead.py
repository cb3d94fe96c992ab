"""What timing a layer adds to its time: a clock read and an event written, a few microseconds, for each layer that runs.

SubNets as a whole are timed without that, so the sums of their layers tell: by how much the ratio of the two grows with the
number of layers a millisecond. It matters where layers are many and short.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import theilslopes

Times = Sequence[tuple[str, float]]  # digest of an operator, and its time in a SubNet [ms]
Operators = Sequence[tuple[str, float, int]]  # digest of an operator, time in a SubNet [ms], layers that ran for it
LEAST_SUBNETS = 5
KEPT = 0.1  # share of its time that an operator keeps in any case


def layer_overhead_ms(lines: Sequence[Mapping[str, Any]]) -> float:
    """Added to each layer [ms]; 0 where nothing tells. A robust slope: Theil's and Sen's (J. Am. Stat. Assoc. 63, 1968)."""
    found = [
        (
            sum(time_ms for _, time_ms, _ in line["operators"]),
            sum(layers for _, _, layers in line["operators"]),
            line["p50_ms"],
        )
        for line in lines
        if line["state"] == "ok" and line["operators"]
    ]
    if len(found) < LEAST_SUBNETS:
        return 0.0
    sums_ms, layers, p50_ms = np.array(found, np.float64).T
    if np.ptp(layers / p50_ms) == 0:
        return 0.0
    return max(0.0, float(theilslopes(sums_ms / p50_ms, layers / p50_ms).slope))


def without_overhead(operators: Operators, overhead_ms: float) -> Times:
    """The times of a SubNet's operators, had their layers not been timed."""
    return [(digest, max(ms - overhead_ms * layers, KEPT * ms)) for digest, ms, layers in operators]
