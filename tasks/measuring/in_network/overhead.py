"""The overhead of timing layers: a few microseconds for each layer that runs.

A runtime that times a layer reads a clock and writes an event, which adds to the layer's time. SubNets that are timed as a
whole have no such overhead. The ratio of the sum of a SubNet's layers to its whole time grows with the number of layers per
millisecond, and the slope is the overhead of one layer. The overhead matters if layers are many and short.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

import numpy as np

from tailor_ir import Config

LayerTimes = Sequence[tuple[str, float]]  # digest of an operator, and its time in a SubNet [ms]
OperatorTimes = Sequence[tuple[str, float, int]]  # digest of an operator, time in a SubNet [ms], layers that ran for it


class MeasuredLine(TypedDict):
    """A SubNet in `subnets.jsonl`: its config, its latency [ms] or the reason of a failure, and the times of its operators.

    `implementations`: digest -> implementation of operators that did not run by the runtime's own choice. `checks`: the rules
    leave these implementations out.
    """

    key: str
    state: Literal["ok", "failed"]
    reason: str | None
    p50_ms: float | None
    spread: float | None
    noisy: bool
    config: Config
    implementations: Mapping[str, str]
    checks: bool
    operators: OperatorTimes


LEAST_SUBNETS = 5
KEPT = 0.1  # share of its time that an operator keeps in any case


def layer_overhead_ms(lines: Sequence[MeasuredLine]) -> float:
    """Overhead of one layer [ms]; 0 without enough SubNets. Robust slope: Theil and Sen (J. Am. Stat. Assoc. 63, 1968)."""
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
    from scipy.stats import theilslopes  # takes a second

    return max(0.0, float(theilslopes(sums_ms / p50_ms, layers / p50_ms).slope))


def without_overhead(operators: OperatorTimes, overhead_ms: float) -> LayerTimes:
    """The times of a SubNet's operators [ms], minus the overhead of their layers."""
    return [(digest, max(ms - overhead_ms * layers, KEPT * ms)) for digest, ms, layers in operators]
