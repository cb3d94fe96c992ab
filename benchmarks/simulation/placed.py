"""Rows that other devices take part in: what they take over the links of the moment, and which of them cannot run.

Legend: K placed rows, P plans of all of them, F factors of a plane.
"""

from collections.abc import Mapping, Sequence, Set
from itertools import accumulate, pairwise
from math import inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.offload.links import MeasuredLink
from adaptive_runtime.offload.split.replanning import ms_per_byte, plane_of
from adaptive_runtime.policy import LoadFactors
from benchmarks.simulation.levels import LevelRows

Values = NDArray[np.float64]


class PlacedRows:
    """rows, coordinator: the placed rows, and of each the row on the coordinator. peers: other devices, in the planes' order.

    spans: the plans of each row, from the first to behind the last; row_P: of each plan the position of its row. others_P,
    on_coordinator_P: what other devices and the coordinator compute [ms]; sent_PF: messages, bytes up and bytes down of
    each device.
    """

    def __init__(self, rows: LevelRows, peers: Sequence[str]) -> None:
        self.rows = sorted(rows.placed)
        self.coordinator = [rows.coordinator_of(row) for row in self.rows]
        self.peers = tuple(peers)
        plans = [plan for row in self.rows for plan in rows.placed[row]]
        counts = [len(rows.placed[row]) for row in self.rows]
        self.spans = list(pairwise(accumulate(counts, initial=0)))
        self.row_P = np.repeat(np.arange(len(counts)), counts)
        planes_PF = np.array([plane_of(plan, peers, (), 1.0) for plan in plans])
        planes_PF = planes_PF.reshape(len(plans), 2 + 3 * len(peers))
        self.others_P, self.on_coordinator_P, self.sent_PF = planes_PF[:, 0], planes_PF[:, 1], planes_PF[:, 2:]
        self._needs = [plan.peers for plan in plans]
        self._classes = rows.table.load_class_V[self.coordinator].tolist()
        self._table_ms = [rows.table.latency_ms[row] for row in self.rows]

    def unable(self, there: Set[str]) -> frozenset[int]:
        """Rows each of whose plans has a device that is not there."""
        able_P, places = self.able_P(there), zip(self.rows, self.spans, strict=True)
        return frozenset(row for row, (start, end) in places if not able_P[start:end].any())

    def able_P(self, there: Set[str]) -> NDArray[np.bool_]:
        """Whether all devices of each plan are there."""
        return np.array([needs <= there for needs in self._needs], bool)

    def factors(self, factors: LoadFactors, links: Mapping[str, MeasuredLink]) -> LoadFactors:
        """With those of placed rows: time of the fastest plan by links and the coordinator's slow-down, over the table's."""
        if not self.rows or not links:
            return factors
        slow = [
            factors.own.get(coordinator, (factors.mean[one], factors.deviation[one]))
            for coordinator, one in zip(self.coordinator, self._classes, strict=True)
        ]
        slow_P, slow_deviation_P = np.array(slow)[self.row_P].T
        mean, deviation = list[float](), list[float]()
        for name in self.peers:
            link = links.get(name, MeasuredLink())
            up_ms, down_ms = ms_per_byte(link.up_mbps), ms_per_byte(link.down_mbps)
            mean += (link.round_trip_ms or 0.0, up_ms, down_ms)
            deviation += (link.round_trip_spread_ms, up_ms * link.up_spread, down_ms * link.down_spread)
        mean_P = self.others_P + self.on_coordinator_P * slow_P + self.sent_PF @ np.array(mean)
        mean_P[~self.able_P(links.keys())] = inf
        variance_P = (self.on_coordinator_P * slow_deviation_P) ** 2 + self.sent_PF**2 @ np.array(deviation) ** 2
        own = dict(factors.own)
        for row, table_ms, (start, end) in zip(self.rows, self._table_ms, self.spans, strict=True):
            best = start + int(mean_P[start:end].argmin())
            if isfinite(mean_ms := float(mean_P[best])):
                own[row] = mean_ms / table_ms, sqrt(float(variance_P[best])) / table_ms
        return factors.model_copy(update={"own": own})
