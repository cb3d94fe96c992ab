"""Table rows that involve other devices: the bundle's SubNets that may be offloaded, and the rows' current state."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import NamedTuple

from adaptive_runtime.base.devices import DeviceAddress
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.bundle.chains import ChainFormat
from adaptive_runtime.offload.placed import PlacedSubNet, PlannedSplit, SharedDevices, check_names
from adaptive_runtime.offload.split import EnvelopePlacements, SplitOptions
from adaptive_runtime.policy import LoadFactors, VariantTable

FRESH_S = 2.0
"""Rows expire because the weight of earlier runs falls, and spreads grow, with time."""


class PlacedRowsNow(NamedTuple):
    """factors: including those of rows over devices. unable: rows without an available device. described: the rows in words."""

    factors: LoadFactors
    unable: frozenset[int]
    described: Mapping[int, str]


class PlacementRows:
    """subnets: by their rows. coordinator: maps each of these rows to the row of the same SubNet on the coordinator.

    `renew` computes the rows when requests and samples come in, so that decisions find them ready. They are valid while the
    factors on the coordinator are the same object and no measurement of any device is new, and for `FRESH_S` at most. Not
    thread-safe.
    """

    def __init__(
        self, table: VariantTable, subnets: Mapping[int, PlacedSubNet], coordinator: Mapping[int, int]
    ) -> None:
        self._table, self._subnets, self._coordinator = table, subnets, coordinator
        self._shared = tuple({id(one.shared): one.shared for one in subnets.values()}.values())
        self._known: _Known | None = None
        self._spread = 1.0

    def now(self, factors: LoadFactors) -> PlacedRowsNow:
        """The rows for the factors of rows on the coordinator and the current measures of links and devices."""
        known = self._known
        if known is None or known.factors is not factors or known.version != self._version:
            return self.renew(factors)
        return known.rows if time.monotonic() <= known.until_s else self.renew(factors)

    @property
    def _version(self) -> int:
        return sum(one.version for one in self._shared)

    def renew(self, factors: LoadFactors, spread: float | None = None) -> PlacedRowsNow:
        """Recompute the rows. spread: factor on the deviations over devices from now on; None: unchanged."""
        self._spread = self._spread if spread is None else spread
        version, until_s = self._version, time.monotonic() + FRESH_S
        own, described, unable = dict(factors.own), dict[int, str](), set[int]()
        for row, subnet in self._subnets.items():
            coordinator = self._coordinator[row]
            on_coordinator = 0 if self._table.load_class is None else self._table.load_class[coordinator]
            found = subnet.expected(
                *factors.own.get(coordinator, (factors.mean[on_coordinator], factors.deviation[on_coordinator]))
            )
            if found is None:
                unable.add(row)
                described[row] = f"cannot run: {subnet.missing}"
            else:
                table_ms = self._table.latency_ms[row]
                own[row] = found.mean_ms / table_ms, self._spread * found.deviation_ms / table_ms
                described[row] = found.described
        rows = PlacedRowsNow(factors.model_copy(update={"own": own}), frozenset(unable), described)
        self._known = _Known(factors, version, until_s, rows)
        return rows


class _Known(NamedTuple):
    factors: LoadFactors
    version: int
    until_s: float
    rows: PlacedRowsNow


class PlacedSubNets:
    """SubNets of a bundle that may run on some devices, by digest. Close them after use."""

    def __init__(self, subnets: Mapping[str, PlacedSubNet]) -> None:
        self.subnets = MappingProxyType(dict(subnets))

    @classmethod
    def open(cls, bundle: OpenBundle, devices: Mapping[str, DeviceAddress]) -> "PlacedSubNets":
        """Open all SubNets with plans that name one of the devices. Values cross in fp32, or in the bundle's `coding`.

        AdaptiveError in one line: the bundle has no such SubNets, no plan names a device, or a file is damaged.
        """
        given = {one.digest: one.placement for one in bundle.manifest.subnets if one.placement is not None}
        if not given:
            got, next_step = "has no SubNets for several devices", "export it with export.offload=true"
            raise AdaptiveError(str(bundle.folder), got, next_step=next_step)
        check_names(devices, sorted({name for one in given.values() for name in one.devices}), "bundle")
        form: ChainFormat = "ncnn" if bundle.manifest.own_format == "ncnn" else "onnx"
        shared, found = SharedDevices(), dict[str, PlacedSubNet]()
        with ExitStack() as stack:
            for digest, placement in given.items():
                own = {name: one for name, one in devices.items() if name in placement.devices}
                if own:
                    bundle.verified(placement.segments, placement.plans, *placement.files)
                    planned = PlannedSplit.open(bundle.folder, placement.segments, placement.plans, form)
                    choice = EnvelopePlacements(planned.plans, coding=placement.coding, sends=True)
                    options = SplitOptions(coding=placement.coding)
                    found[digest] = stack.enter_context(
                        PlacedSubNet(planned.split, choice, own, options, shared=shared)
                    )
            stack.pop_all()
        return cls(found)

    def rows(self, table: VariantTable, digests: Mapping[int, str], coordinator: Mapping[int, int]) -> PlacementRows:
        """Rows of a table over devices. digests: of their SubNets; coordinator: the rows of these on the coordinator."""
        return PlacementRows(table, {row: self.subnets[digest] for row, digest in digests.items()}, coordinator)

    def close(self) -> None:
        """End all connections, even if one of them fails to end."""
        with ExitStack() as stack:
            for one in self.subnets.values():
                stack.callback(one.close)
