"""What leaving at each exit costs on a device, from what was measured there.

SubNets that end at an exit are timed as whole networks, each with its own head alone. A SubNet with all exits runs in segments,
and has run the heads of earlier exits as well. Those are no parts of the timed SubNets: their latencies are the sums of their
operators in the device's table, corrected as in every prediction, and each further segment is one more run, which costs the
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
from tasks.errors import UserError
from tasks.layers import Layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitTimes:
    """Of one SubNet. alone_ms_E: measured, ending there with no other head. passed_ms_E: of going on behind an exit's head.

    energies_mj_E: measured as alone_ms_E, where the device has a sensor.
    """

    alone_ms_E: Values
    passed_ms_E: Values
    energies_mj_E: Values | None = None

    @property
    def latency_ms_E(self) -> Values:
        """Until the answer of each exit, heads on the way counted [ms]."""
        passed = [0.0, *accumulate(self.passed_ms_E[:-1].tolist())]
        return self.alone_ms_E + np.array(passed)

    def of_chain(self, thresholds: Thresholds) -> "ExitTimes":
        """With the heads alone that thresholds need, as the exported chain has them."""
        there = np.isin(np.arange(len(self.passed_ms_E)), thresholds.needed)
        return replace(self, passed_ms_E=np.where(there, self.passed_ms_E, 0.0))

    @property
    def whole_ms(self) -> float:
        """Of the SubNet without exits [ms]."""
        return float(self.alone_ms_E[-1])

    def segments_mj(self, alone_mj_E: Values) -> Values:
        """Energy of each segment with its head [mJ]; heads on the way take energy as they take time."""
        until_mj_E = alone_mj_E * self.latency_ms_E / self.alone_ms_E
        return np.diff(until_mj_E, prepend=0.0)


def heads_ms(layers: Layers, exits: Sequence[Config]) -> Values:
    """Predicted latency of the head of each exit [ms]; 0 for the last one, which has none. UserError: one has no latency."""
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
    """From the measurements of a SubNet up to each exit. UserError: one of them failed."""
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
