"""Rows that other devices take part in: what they take over the links of the moment, and which of them cannot run.

Legend: K placed rows, F factors of a plane.
"""

from collections.abc import Mapping, Sequence, Set
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.choice import LoadFactors
from adaptive_runtime.links import MeasuredLink
from adaptive_runtime.simulation.levels import LevelRows
from adaptive_runtime.split.replanning import ms_per_byte, plane_of

Values = NDArray[np.float64]


class PlacedRows:
    """rows, home: the placed rows, and the row at home of each. peers: the other devices, in the order of the planes.

    others_K, at_home_K: what other devices and home compute [ms]; sent_KF: messages, bytes up and bytes down of each device.
    """

    def __init__(self, rows: LevelRows, peers: Sequence[str]) -> None:
        self.rows = sorted(rows.placed)
        self.home = [rows.home_of(row) for row in self.rows]
        self.peers = tuple(peers)
        planes = [plane_of(rows.placed[row], peers, (), 1.0) for row in self.rows]
        planes_KF = np.array(planes).reshape(len(planes), 2 + 3 * len(peers))
        self.others_K, self.at_home_K, self.sent_KF = planes_KF[:, 0], planes_KF[:, 1], planes_KF[:, 2:]
        self._needs = [rows.placed[row].peers for row in self.rows]
        self._classes = rows.table.load_class_V[self.home].tolist()
        self._table_ms = [rows.table.latency_ms[row] for row in self.rows]

    def unable(self, there: Set[str]) -> frozenset[int]:
        """Rows with a device that is not there."""
        return frozenset(row for row, needs in zip(self.rows, self._needs, strict=True) if not needs <= there)

    def factors(self, factors: LoadFactors, links: Mapping[str, MeasuredLink]) -> LoadFactors:
        """With those of placed rows: what they take by the links and home's slow-down, over what the table says."""
        if not self.rows or not links:
            return factors
        slow = [
            factors.own.get(home, (factors.mean[one], factors.deviation[one]))
            for home, one in zip(self.home, self._classes, strict=True)
        ]
        slow_K, slow_deviation_K = np.array(slow).T
        mean, deviation = list[float](), list[float]()
        for name in self.peers:
            link = links.get(name, MeasuredLink())
            up_ms, down_ms = ms_per_byte(link.up_mbps), ms_per_byte(link.down_mbps)
            mean += (link.round_trip_ms or 0.0, up_ms, down_ms)
            deviation += (link.round_trip_spread_ms, up_ms * link.up_spread, down_ms * link.down_spread)
        mean_K = self.others_K + self.at_home_K * slow_K + self.sent_KF @ np.array(mean)
        variance_K = (self.at_home_K * slow_deviation_K) ** 2 + self.sent_KF**2 @ np.array(deviation) ** 2
        own = dict(factors.own)
        for row, table_ms, mean_ms, variance in zip(
            self.rows, self._table_ms, mean_K.tolist(), variance_K.tolist(), strict=True
        ):
            own[row] = mean_ms / table_ms, sqrt(variance) / table_ms
        return factors.model_copy(update={"own": own})
