"""The look-up table of one device: what is known of each operator, in one folder of parts."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tasks.errors import UserError
from tasks.lut import parts
from tasks.lut.entry import METHODS, DeviceKey, Entry, Method, Row, device_of, entry_of, row_of

if TYPE_CHECKING:  # tables are also looked at where no network is: without loading torch
    from tailor_ir import OperatorFeature

MEASURE = "measure it again: autotailor profile … profile.remeasure=[failed]"
SNAPSHOT = "part-0.parquet"
NAMED_IN_ERRORS = 3


class Lut:
    """The entries of one device in one folder, one for each operator.

    Where an operator was measured by several `methods`, the first of them that succeeded counts; where with several
    settings, the latest.
    """

    def __init__(self, folder: Path, device: DeviceKey, methods: Sequence[Method] = METHODS) -> None:
        self.folder = folder
        self.device = device
        self.methods = tuple(methods)
        self.invalid: tuple[str, ...] = ()
        """Complaints about entries that were left out."""
        self._others: set[DeviceKey] = set()
        self._entries: dict[str, dict[str, Entry]] = {}

    @classmethod
    def open(
        cls,
        folder: Path,
        device: DeviceKey | None = None,
        *,
        methods: Sequence[Method] = METHODS,
        settings: Collection[str] | None = None,
        leave_out_invalid: bool = False,
    ) -> Self:
        """Read all parts in `folder`; entries of other devices, methods and (unless None) settings are left out.

        Without `device` the folder must hold exactly one. UserError: a part cannot be read, which device, or a time
        that is no positive number; with `leave_out_invalid` such an entry counts as not there.
        """
        rows = parts.latest(parts.read(folder).rows)
        devices = {device_of(row) for row in rows}
        if device is None:
            if len(devices) != 1:
                raise UserError(f"LUT '{folder}'", f"holds {len(devices)} devices", next_step="name one")
            (device,) = devices
        lut = cls(folder, device, methods)
        lut._others = devices - {device}
        wanted = [row for row in rows if device_of(row) == device and row["method"] in methods]
        lut._load([row for row in wanted if settings is None or row["settings"] in settings], leave_out_invalid)
        return lut

    def _load(self, rows: Sequence[Row], leave_out_invalid: bool) -> None:
        complaints = []
        for row in rows:
            try:
                self._take(entry_of(row))
            except ValueError as error:
                complaints.append(str(error))
        if complaints and not leave_out_invalid:
            more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
            raise UserError(f"LUT '{self.folder}'", f"{complaints[0]}{more}", next_step=MEASURE)
        self.invalid = tuple(complaints)

    def _take(self, entry: Entry) -> None:
        known = self._entries.setdefault(entry.digest, {})
        if entry.method not in known or known[entry.method].measured_at <= entry.measured_at:
            known[entry.method] = entry

    def append(self, entries: Iterable[Entry]) -> None:
        """Write one more part; it is on disk when this returns. A later entry replaces an earlier one."""
        new = {entry.key: entry for entry in entries}
        if not new:
            return
        parts.write(self.folder, [row_of(self.device, entry) for entry in new.values()])
        for entry in new.values():
            self._take(entry)

    def snapshot(self, folder: Path, digests: Iterable[str]) -> "Lut":
        """A table of these operators alone in a folder of its own, in one part; equal entries make equal files.

        The entry of each that counts, and the one that has its energy, where that is another.
        """
        found = ((self.get(digest), self._metered(digest)) for digest in sorted(set(digests)))
        chosen = [entry for both in found for entry in dict.fromkeys(both) if entry is not None]
        parts.write(folder, [row_of(self.device, entry) for entry in chosen], SNAPSHOT)
        return Lut.open(folder, self.device, methods=self.methods)

    def entries(self) -> tuple[Entry, ...]:
        """The entry of each operator."""
        return tuple(entry for digest in self._entries if (entry := self.get(digest)))

    def get(self, digest: str) -> Entry | None:
        """The entry of an operator: of the first method that succeeded, else of the first that failed."""
        found = self._entries.get(digest, {})
        inorder = [found[method] for method in self.methods if method in found]
        return next((entry for entry in inorder if entry.state != "failed"), inorder[0] if inorder else None)

    def of_method(self, digest: str, method: Method) -> Entry | None:
        """The entry of an operator that one method gave."""
        return self._entries.get(digest, {}).get(method)

    def energies_mj(self) -> dict[str, float]:
        """Energy of one run [mJ] of each operator (by digest) of which the device's sensors told it, by any method."""
        metered = ((digest, self._metered(digest)) for digest in self._entries)
        return {digest: entry.energy_mj for digest, entry in metered if entry is not None and entry.energy_mj}

    def _metered(self, digest: str) -> Entry | None:
        """The entry of an operator that has an energy: of the first method with one."""
        found = self._entries.get(digest, {})
        inorder = (found[method] for method in self.methods if method in found)
        return next((entry for entry in inorder if entry.energy_mj), None)

    def missing(self, digests: Iterable[str]) -> Iterator[str]:
        """Those without an entry; an operator that failed has one."""
        return (digest for digest in digests if self.get(digest) is None)

    def require(self, features: "Iterable[OperatorFeature]") -> None:
        """UserError when an operator has no entry: it names the operators, and what makes the table complete."""
        missing = [feature for feature in features if self.get(feature.digest) is None]
        if not missing:
            return
        where = f"LUT '{self.folder}'"
        if not self._entries and self._others:
            other = min(self._others, key=lambda device: device.name)
            differs = [
                f"{name} {value}, here {self.device.identity()[name]}"
                for name, value in other.identity().items()
                if value != self.device.identity()[name]
            ]
            next_step = "autotailor profile … with this device measures its operators"
            raise UserError(where, f"was measured on another device ({'; '.join(differs)})", next_step=next_step)
        names = [f"{feature.operator} {feature.digest}" for feature in missing[:NAMED_IN_ERRORS]]
        more = f" and {len(missing) - NAMED_IN_ERRORS} more" if len(missing) > NAMED_IN_ERRORS else ""
        got = f"has no entry for {', '.join(names)}{more}"
        raise UserError(
            where, got, next_step="autotailor profile … profile.remeasure=[failed] measures what is missing"
        )

    def summary(self) -> dict[str, Any]:
        """For reports: counts by state, method and operator type, every failure by name, the median spread."""
        entries = self.entries()
        ok = [entry for entry in entries if entry.state == "ok"]
        failed = [entry for entry in entries if entry.state == "failed"]
        spreads = sorted(entry.spread for entry in ok if entry.spread is not None)
        return {
            "device": self.device.identity() | {"description": self.device.description},
            "entries": len(entries),
            "ok": len(ok),
            "fused": sum(entry.state == "fused" for entry in entries),
            "failed": len(failed),
            "noisy": sum(entry.noisy for entry in ok),
            "with_energy": len(self.energies_mj()),
            "median_spread": spreads[len(spreads) // 2] if spreads else None,
            "methods": dict(Counter(entry.method for entry in entries).most_common()),
            "operators": dict(Counter(entry.operator for entry in entries).most_common()),
            "failures": [
                {"operator": entry.operator, "digest": entry.digest, "reason": entry.reason} for entry in failed
            ],
        }
