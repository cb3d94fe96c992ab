"""Current state of the table rows that involve other devices."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from adaptive_runtime.offload.placed.subnets import PlacedSubNet
from adaptive_runtime.policy import LoadFactors, VariantTable

FRESH_S = 2.0
"""Rows expire because the weight of earlier runs falls, and spreads grow, with time."""


class PlacedRowsNow(NamedTuple):
    """factors: including those of rows over devices. unable: rows without an available device. told: descriptions of rows."""

    factors: LoadFactors
    unable: frozenset[int]
    told: Mapping[int, str]


class PlacementRows:
    """subnets: by their rows. home: maps each of these rows to the row of the same SubNet on the coordinator.

    `renew` computes the rows when requests and samples come in, so that decisions find them ready. They are valid while the
    factors on the coordinator are the same object and no measurement of any device is new, and for `FRESH_S` at most. Not
    thread-safe. clock: monotonic, in seconds.
    """

    def __init__(
        self,
        table: VariantTable,
        subnets: Mapping[int, PlacedSubNet],
        home: Mapping[int, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table, self._subnets, self._home, self._clock = table, subnets, home, clock
        self._shared = tuple({id(one.shared): one.shared for one in subnets.values()}.values())
        self._known: _Known | None = None
        self._spread = 1.0

    def now(self, factors: LoadFactors) -> PlacedRowsNow:
        """The rows for the factors of rows on the coordinator and the current measures of links and devices."""
        known = self._known
        if known is None or known.factors is not factors or known.version != self._version:
            return self.renew(factors)
        return known.rows if self._clock() <= known.until_s else self.renew(factors)

    def renew(self, factors: LoadFactors, spread: float | None = None) -> PlacedRowsNow:
        """Recompute the rows. spread: factor on the deviations over devices from now on; None: unchanged."""
        self._spread = self._spread if spread is None else spread
        version, until_s = self._version, self._clock() + FRESH_S
        rows = self._worked_out(factors)
        self._known = _Known(factors, version, until_s, rows)
        return rows

    @property
    def _version(self) -> int:
        return sum(one.version for one in self._shared)

    def _worked_out(self, factors: LoadFactors) -> PlacedRowsNow:
        own, told, unable = dict(factors.own), dict[int, str](), set[int]()
        for row, subnet in self._subnets.items():
            home = self._home[row]
            at_home = 0 if self._table.load_class is None else self._table.load_class[home]
            found = subnet.expected(*factors.own.get(home, (factors.mean[at_home], factors.deviation[at_home])))
            if found is None:
                unable.add(row)
                told[row] = f"cannot run: {subnet.missing}"
            else:
                table_ms = self._table.latency_ms[row]
                own[row] = found.mean_ms / table_ms, self._spread * found.deviation_ms / table_ms
                told[row] = found.told
        return PlacedRowsNow(factors.model_copy(update={"own": own}), frozenset(unable), told)


class _Known(NamedTuple):
    factors: LoadFactors
    version: int
    until_s: float
    rows: PlacedRowsNow
