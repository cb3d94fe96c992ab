"""The look-up table of one device: an entry for each measurement of an operator, in a folder of Parquet parts."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tasks.base.errors import UserError
from tasks.measuring.lut import parts
from tasks.measuring.lut.choice import position_of_chosen
from tasks.measuring.lut.entry import METHODS, DeviceKey, Entry, ProfilingMethod, Row, device_of, entry_of, row_of
from tasks.measuring.lut.summaries import LutSummary

if TYPE_CHECKING:  # reading tables must not load torch
    from tailor_ir import OperatorFeature

MEASURE = "measure it again: autotailor profile … profile.remeasure=[failed]"
SNAPSHOT = "part-0.parquet"
NAMED_IN_ERRORS = 3


class Lut:
    """The entries of one device in one folder, one per operator.

    If an operator was measured by several methods, the first of `methods` that succeeded is used; with several settings, the
    latest entry. `tasks.measuring.lut.choice` chooses among several implementations.
    """

    def __init__(self, folder: Path, device: DeviceKey, methods: Sequence[ProfilingMethod] = METHODS) -> None:
        self.folder = folder
        self.device = device
        self.methods = tuple(methods)
        self.invalid: tuple[str, ...] = ()
        """Messages about entries that were left out."""
        self._others: set[DeviceKey] = set()
        self._entries: dict[str, dict[str, dict[str, Entry]]] = {}
        """Operator (digest) -> method -> implementation -> entry."""

    @classmethod
    def open(
        cls,
        folder: Path,
        device: DeviceKey | None = None,
        *,
        methods: Sequence[ProfilingMethod] = METHODS,
        settings: Collection[str] | None = None,
        leave_out_invalid: bool = False,
    ) -> Self:
        """Read all parts in `folder`; entries of other devices, methods and (unless None) settings are left out.

        Without `device` the folder must hold entries of exactly one device. UserError: a part cannot be read, the folder
        holds several devices, or a time is not a positive number. With `leave_out_invalid`, an entry without a positive
        time is left out.
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
        known = self._entries.setdefault(entry.digest, {}).setdefault(entry.method, {})
        name = entry.implementation
        if name not in known or known[name].measured_at <= entry.measured_at:
            known[name] = entry

    def append(self, entries: Iterable[Entry]) -> None:
        """Write one more part; the part is on disk when the call returns. A later entry replaces an earlier entry."""
        new = {entry.key: entry for entry in entries}
        if not new:
            return
        parts.write(self.folder, [row_of(self.device, entry) for entry in new.values()])
        for entry in new.values():
            self._take(entry)

    def snapshot(self, folder: Path, digests: Iterable[str]) -> "Lut":
        """Write a table of only these operators to a separate folder, as one part; equal entries make equal files.

        Every operator keeps its chosen entry (`get`) and the entries of its other implementations. If its energy is in another
        entry, this entry is kept, too.
        """
        found = ((*self.implementations(digest), self._metered(digest)) for digest in sorted(set(digests)))
        chosen = [entry for each in found for entry in dict.fromkeys(each) if entry is not None]
        parts.write(folder, [row_of(self.device, entry) for entry in chosen], SNAPSHOT)
        return Lut.open(folder, self.device, methods=self.methods)

    def entries(self) -> tuple[Entry, ...]:
        """The entry of each operator."""
        return tuple(entry for digest in self._entries if (entry := self.get(digest)))

    def get(self, digest: str) -> Entry | None:
        """The chosen entry of an operator: of the first method that succeeded, else of the first method that failed."""
        inorder = self._in_order(digest)
        return next((entry for entry in inorder if entry.state != "failed"), inorder[0] if inorder else None)

    def of_method(self, digest: str, method: ProfilingMethod) -> Entry | None:
        """The entry of an operator by one method, with the chosen implementation."""
        found = list(self._entries.get(digest, {}).get(method, {}).values())
        return found[position_of_chosen([entry.timed for entry in found])] if found else None

    def implementations(self, digest: str) -> tuple[Entry, ...]:
        """The entries of all implementations of an operator by the chosen entry's method, in the order of their names."""
        counts = self.get(digest)
        found = {} if counts is None else self._entries[digest][counts.method]
        return tuple(found[name] for name in sorted(found))

    def chosen(self, digests: Iterable[str]) -> dict[str, str]:
        """Operator (digest) -> chosen implementation, for operators whose choice is not the runtime's own."""
        counting = ((digest, self.get(digest)) for digest in digests)
        return {digest: entry.implementation for digest, entry in counting if entry and entry.implementation}

    def _in_order(self, digest: str) -> list[Entry]:
        """The entries of an operator, one per method, in order of trust."""
        found = (self.of_method(digest, method) for method in self.methods)
        return [entry for entry in found if entry is not None]

    def energies_mj(self) -> dict[str, float]:
        """Operator (digest) -> energy of one run [mJ], for operators whose energy the device's sensors measured."""
        metered = ((digest, self._metered(digest)) for digest in self._entries)
        return {digest: entry.energy_mj for digest, entry in metered if entry is not None and entry.energy_mj}

    def _metered(self, digest: str) -> Entry | None:
        """The entry with an operator's energy, of the first method that has an energy."""
        return next((entry for entry in self._in_order(digest) if entry.energy_mj), None)

    def missing(self, digests: Iterable[str]) -> Iterator[str]:
        """Operators (digests) without an entry. An operator that failed has an entry."""
        return (digest for digest in digests if self.get(digest) is None)

    def require(self, features: "Iterable[OperatorFeature]") -> None:
        """Raise UserError if an operator has no entry; it names the operators and the way to complete the table."""
        missing = [feature for feature in features if self.get(feature.digest) is None]
        if not missing:
            return
        where = f"LUT '{self.folder}'"
        if not self._entries and self._others:
            other = min(self._others, key=lambda device: device.name)
            pairs = zip(other.identity().items(), self.device.identity().values(), strict=True)
            differs = [f"{name} {value}, here {own}" for (name, value), own in pairs if value != own]
            next_step = "autotailor profile … with this device measures its operators"
            raise UserError(where, f"was measured on another device ({'; '.join(differs)})", next_step=next_step)
        names = [f"{feature.operator} {feature.digest}" for feature in missing[:NAMED_IN_ERRORS]]
        more = f" and {len(missing) - NAMED_IN_ERRORS} more" if len(missing) > NAMED_IN_ERRORS else ""
        got = f"has no entry for {', '.join(names)}{more}"
        raise UserError(
            where, got, next_step="autotailor profile … profile.remeasure=[failed] measures what is missing"
        )

    def summary(self) -> LutSummary:
        """A summary for reports: counts by state, method and operator type, every failure by name, the median spread."""
        entries = self.entries()
        ok = [entry for entry in entries if entry.state == "ok"]
        failed = [entry for entry in entries if entry.state == "failed"]
        spreads = sorted(entry.spread for entry in ok if entry.spread is not None)
        return {
            "device": {**self.device.identity(), "description": self.device.description},
            "entries": len(entries),
            "ok": len(ok),
            "fused": sum(entry.state == "fused" for entry in entries),
            "failed": len(failed),
            "noisy": sum(entry.noisy for entry in ok),
            "with_energy": len(self.energies_mj()),
            "median_spread": spreads[len(spreads) // 2] if spreads else None,
            "methods": dict(Counter(entry.method for entry in entries).most_common()),
            "implementations": dict(Counter(entry.implementation for entry in entries if entry.implementation)),
            "operators": dict(Counter(entry.operator for entry in entries).most_common()),
            "failures": [
                {"operator": entry.operator, "digest": entry.digest, "reason": entry.reason} for entry in failed
            ],
        }
