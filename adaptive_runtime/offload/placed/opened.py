"""All SubNets of a bundle that may be offloaded, opened together."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType

from adaptive_runtime.base.devices import DeviceAddress
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import BundledPlacement, OpenBundle
from adaptive_runtime.bundle.chains import ChainFormat
from adaptive_runtime.offload.placed.rows import PlacementRows
from adaptive_runtime.offload.placed.subnets import PlacedSubNet, SharedDevices
from adaptive_runtime.offload.split import PlacementPlans, SplitOptions, SplitSubNet
from adaptive_runtime.policy import VariantTable


class PlacedSubNets:
    """SubNets of a bundle that may run on some devices, by digest. Close them after use."""

    def __init__(self, subnets: Mapping[str, PlacedSubNet]) -> None:
        self.subnets = MappingProxyType(dict(subnets))

    @classmethod
    def open(
        cls, bundle: OpenBundle, devices: Mapping[str, DeviceAddress], options: SplitOptions | None = None
    ) -> "PlacedSubNets":
        """Open all SubNets with plans that name one of the devices. Values cross in fp32, or in the bundle's `coding`.

        AdaptiveError in one line: the bundle has no such SubNets, no plan names a device, or a file is damaged.
        """
        given = {one.digest: one.placement for one in bundle.manifest.subnets if one.placement is not None}
        _check(bundle, given, devices)
        shared = SharedDevices()
        with ExitStack() as stack:
            found = {}
            for digest, placement in given.items():
                own = {name: one for name, one in devices.items() if name in placement.devices}
                if own:
                    found[digest] = _opened(bundle, placement, own, options or SplitOptions(), shared)
                    stack.callback(found[digest].close)
            stack.pop_all()
        return cls(found)

    def rows(self, table: VariantTable, digests: Mapping[int, str], home: Mapping[int, int]) -> PlacementRows:
        """Rows of a table over devices. digests: of their SubNets; home: the rows of these on the coordinator."""
        return PlacementRows(table, {row: self.subnets[digest] for row, digest in digests.items()}, home)

    def close(self) -> None:
        """End all connections, even if one of them fails to end."""
        with ExitStack() as stack:
            for one in self.subnets.values():
                stack.callback(one.close)


def _check(bundle: OpenBundle, given: Mapping[str, BundledPlacement], devices: Mapping[str, DeviceAddress]) -> None:
    """AdaptiveError: no plan of the bundle names a device."""
    if not given:
        got, next_step = "has no SubNets for several devices", "export it with export.placed=true"
        raise AdaptiveError(str(bundle.folder), got, next_step=next_step)
    known = sorted({name for one in given.values() for name in one.devices})
    for name in devices:
        if name not in known:
            raise AdaptiveError(f"device '{name}'", "no plan of the bundle names it", allowed=", ".join(known))


def _opened(
    bundle: OpenBundle,
    placement: BundledPlacement,
    devices: Mapping[str, DeviceAddress],
    options: SplitOptions,
    shared: SharedDevices,
) -> PlacedSubNet:
    files: Sequence[str] = (placement.segments, placement.plans, *placement.files)
    bundle.verified(*files)
    home: ChainFormat = "ncnn" if bundle.manifest.own_format == "ncnn" else "onnx"
    split = SplitSubNet.open(bundle.folder, placement.segments, home)
    plans = PlacementPlans.read(bundle.folder / placement.plans, split)
    return PlacedSubNet(split, plans, devices, options.model_copy(update={"coding": placement.coding}), shared=shared)
