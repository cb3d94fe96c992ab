"""The latency of leaving at each exit on a device, from measurements there.

SubNets that end at an exit are timed as whole networks, each with only its own head. A SubNet with all exits runs in segments
and also runs the heads of earlier exits. These heads are not part of the timed SubNets: their latencies are the sums of their
operators in the device's table, corrected as in every prediction. Each further segment is one more run, which adds the
correction's offset.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from adaptive_runtime.exits import Thresholds
from adaptive_runtime.exits.prediction import Values
from profiling_agents.messages import Measurement
from tailor_ir import Config
from tasks.base.errors import UserError
from tasks.prediction.layers import Layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitTimes:
    """Latencies of one SubNet. alone_ms_E: measured up to each exit, with no other head.

    passed_ms_E: latency of passing each exit's head. energies_mj_E: energies measured like alone_ms_E, if the device has a
    sensor.
    """

    alone_ms_E: Values
    passed_ms_E: Values
    energies_mj_E: Values | None = None

    @property
    def latency_ms_E(self) -> Values:
        """Latency up to the answer of each exit, including the heads on the way [ms]."""
        passed = [0.0, *accumulate(self.passed_ms_E[:-1].tolist())]
        return self.alone_ms_E + np.array(passed)

    def of_chain(self, thresholds: Thresholds) -> "ExitTimes":
        """The times of the exported chain, which has only the heads that thresholds need."""
        there = np.isin(np.arange(len(self.passed_ms_E)), thresholds.needed)
        return replace(self, passed_ms_E=np.where(there, self.passed_ms_E, 0.0))

    @property
    def whole_ms(self) -> float:
        """Latency of the SubNet without exits [ms]."""
        return float(self.alone_ms_E[-1])

    def segments_mj(self, alone_mj_E: Values) -> Values:
        """Energy of each segment with its head [mJ]; heads on the way take energy in proportion to their time."""
        until_mj_E = alone_mj_E * self.latency_ms_E / self.alone_ms_E
        return np.diff(until_mj_E, prepend=0.0)


def heads_ms(layers: Layers, exits: Sequence[Config]) -> Values:
    """Predicted latency of the head of each exit [ms]; 0 for the last exit, which has none. UserError: no latency is known."""
    whole = layers.of(exits[-1])
    found = []
    for config in exits:
        own = [layer for number, layer in layers.of(config).items() if number not in whole]
        unknown = [layer.title for layer in own if layer.predicted_ms is None]
        if unknown:
            raise UserError("policy", f"no latency of {unknown[0]} in the head of an exit", next_step="profile again")
        found.append(sum(layer.predicted_ms or 0.0 for layer in own))
    return np.array(found)


def times_of(layers: Layers, exits: Sequence[Config], measured: Sequence[Measurement]) -> ExitTimes:
    """The times from the measurements of a SubNet up to each exit. UserError: a measurement failed."""
    for one in measured:
        if one.p50_ms is None:
            raise UserError("policy", f"exit {one.key}: {one.reason}")
    energies = [one.energy_mj for one in measured]
    passed_ms_E = heads_ms(layers, exits) + max(0.0, layers.offset_ms)
    passed_ms_E[-1] = 0.0
    return ExitTimes(
        alone_ms_E=np.array([one.p50_ms for one in measured], np.float64),
        passed_ms_E=passed_ms_E,
        energies_mj_E=None if None in energies else np.array(energies, np.float64),
    )
