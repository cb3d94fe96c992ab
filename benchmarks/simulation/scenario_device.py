"""A simulated device in a scenario: its battery and memory, and the other devices that come and go.

Legend: K placed rows, P plans of all of them, Q phases, R requests.
"""

from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.offload.links import LinkMeasures, MeasuredLink
from adaptive_runtime.offload.split.replanning import ms_per_byte
from adaptive_runtime.policy import DecisionInputs, DeviceContext
from adaptive_runtime.state.traces import PhaseLink, Scenario
from benchmarks.simulation.levels import LevelRows
from benchmarks.simulation.placed import PlacedRows
from benchmarks.simulation.requests import SimulatedRequests

PROBE_BYTES = 1 << 16
"""Of the probe that measures a link each second."""
LINK_NOISE = 0.1
"""Deviation of the logarithm of a link's bandwidth and round trip from second to second."""
Values = NDArray[np.float64]


class LinkHistory:
    """What the coordinator has measured of the links of a scenario, second after second, by the measures of the run time."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario, self._rng = scenario, np.random.default_rng(seed)
        self._measures = {name: LinkMeasures() for name in scenario.peers}
        self._known: list[dict[str, MeasuredLink]] = [{}]

    def at(self, time_s: float) -> dict[str, MeasuredLink]:
        """Of the devices that were there a second before."""
        while len(self._known) <= time_s:
            self._known.append(self._measured(len(self._known) - 1.0))
        return self._known[int(time_s)]

    def _measured(self, time_s: float) -> dict[str, MeasuredLink]:
        found = {}
        for name, link in self._scenario.at(time_s).phase.peers.items():
            measures, noise = self._measures[name], np.exp(LINK_NOISE * self._rng.normal(size=3))
            measures.round_trip(link.round_trip_ms * float(noise[0]))
            measures.up(PROBE_BYTES, PROBE_BYTES * ms_per_byte(link.up_mbps) * float(noise[1]))
            measures.down(PROBE_BYTES, PROBE_BYTES * ms_per_byte(link.down_mbps) * float(noise[2]))
            found[name] = measures.link
        return found


class ScenarioDevice:
    """The `SimulatedSurroundings` of a simulation. may_run: the rows that a system has; None: all.

    Where a device of a plan is gone, the coordinator stands in for it at the latest time at which it can keep the deadline.
    links: as the coordinator measures them, the same for systems that are compared; None: its own.
    """

    def __init__(
        self,
        scenario: Scenario,
        rows: LevelRows,
        requests: SimulatedRequests,
        *,
        may_run: Set[int] | None = None,
        links: LinkHistory | None = None,
    ) -> None:
        self.scenario, self.rows, self.requests = scenario, rows, requests
        self._links = LinkHistory(scenario, seed=0) if links is None else links
        self.may_run = frozenset(range(len(rows.table))) if may_run is None else frozenset(may_run)
        self._placed = PlacedRows(rows, scenario.peers)
        self._without: dict[frozenset[str], frozenset[int]] = {}
        self.placed_ms_KR = self._placed_ms()

    @property
    def elsewhere(self) -> frozenset[int]:
        """Rows that other devices take part in."""
        return frozenset(self.rows.placed)

    def seen(self, inputs: DecisionInputs, running: int | None) -> DecisionInputs:
        """With battery, memory and links as the device knows them."""
        moment, memory_mib = self.scenario.at(inputs.now_s), self.rows.table.memory_mib
        own_mib = 0.0 if running is None or memory_mib is None else memory_mib[running]
        device = DeviceContext(
            battery=moment.battery,
            charging=moment.phase.charging,
            memory_available_mib=max(0.0, moment.memory_mib - own_mib),
            memory_total_mib=self.scenario.memory_total_mib,
        )
        links = self._links.at(inputs.now_s)
        factors = self._placed.factors(inputs.factors, links)
        return inputs._replace(device=device, factors=factors, without=self._unable(frozenset(links)))

    def service_ms(self, variant: int, request: int, left_ms: float) -> float:
        """Of a placed row. Where the other device is gone, the coordinator's own answer comes at the deadline, or after it."""
        place = self._placed.rows.index(variant)
        placed_ms = float(self.placed_ms_KR[place, request])
        if np.isfinite(placed_ms):
            return placed_ms
        coordinator, requests = self._placed.coordinator[place], self.requests
        load_class = requests.table.load_class_V[coordinator]
        return max(left_ms, float(requests.latency_ms_V[coordinator] * requests.factor_CR[load_class, request]))

    def _unable(self, there: frozenset[str]) -> frozenset[int]:
        """Rows that the system does not have, or that need a device that is not there."""
        found = self._without.get(there)
        if found is None:
            others = frozenset(range(len(self.rows.table))) - self.may_run
            found = self._without[there] = others | self._placed.unable(there)
        return found

    def _placed_ms(self) -> Values:
        """What placed rows take for each request (K, R); infinite where devices of all of their plans are gone.

        The plan is the one that is fastest by the links as the scenario has them; what it takes follows their noise.
        """
        requests, placed, trace = self.requests, self._placed, self.requests.trace
        count, rng = len(requests), np.random.default_rng(trace.seed)
        phase_R = np.searchsorted(self.scenario.starts_s, trace.arrivals_s_R, side="right") - 1
        classes_P = requests.table.load_class_V[placed.coordinator][placed.row_P]
        stated_PR = placed.others_P[:, None] + placed.on_coordinator_P[:, None] * requests.factor_CR[classes_P]
        found_PR = stated_PR.copy()
        for place, name in enumerate(placed.peers):
            there_Q3 = np.array([_link_row(phase.peers.get(name)) for phase in self.scenario.phases])
            link_3R = there_Q3.T[:, phase_R]
            sent_P3 = placed.sent_PF[:, 3 * place : 3 * place + 3]
            is_gone_R = np.array([name not in phase.peers for phase in self.scenario.phases])[phase_R]
            stated_PR += sent_P3 @ link_3R
            found_PR += sent_P3 @ (link_3R * np.exp(LINK_NOISE * rng.normal(size=(3, count))))
            stated_PR[np.ix_(sent_P3.any(1), is_gone_R)] = np.inf
        stated_PR[~placed.able_P(set(placed.peers))] = np.inf
        found_PR[np.isinf(stated_PR)] = np.inf
        fastest_KR = [start + stated_PR[start:end].argmin(0) for start, end in placed.spans]
        return np.take_along_axis(found_PR, np.array(fastest_KR).reshape(len(placed.spans), count), axis=0)


def _link_row(link: PhaseLink | None) -> tuple[float, float, float]:
    """Round trip, and the time of a byte up and down; 0 where there is none."""
    if link is None:
        return (0.0,) * 3
    return link.round_trip_ms, ms_per_byte(link.up_mbps), ms_per_byte(link.down_mbps)
