"""Rows of a table that other devices take part in, as they are now."""

from collections.abc import Mapping
from typing import NamedTuple

from adaptive_runtime.choice import LoadFactors, VariantTable
from adaptive_runtime.placed.subnets import PlacedSubNet


class PlacedRowsNow(NamedTuple):
    """factors: with those of rows over devices. unable: rows that no other device can take part in. told: rows in words."""

    factors: LoadFactors
    unable: frozenset[int]
    told: Mapping[int, str]


class PlacementRows:
    """subnets: by the row of each. home: of each of these rows the one of the same SubNet at home."""

    def __init__(self, table: VariantTable, subnets: Mapping[int, PlacedSubNet], home: Mapping[int, int]) -> None:
        self._table, self._subnets, self._home = table, subnets, home

    def now(self, factors: LoadFactors) -> PlacedRowsNow:
        """By the factors of rows at home, and by what is measured of links and devices."""
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
                own[row] = found.mean_ms / table_ms, found.deviation_ms / table_ms
                told[row] = found.told
        return PlacedRowsNow(factors.model_copy(update={"own": own}), frozenset(unable), told)
