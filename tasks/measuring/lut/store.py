"""A store of look-up tables: one folder per device, shared by networks, runs and processes."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.base.errors import UserError
from tasks.measuring.lut import parts
from tasks.measuring.lut.entry import METHODS, DeviceKey, ProfilingMethod, Row, complaint, device_of
from tasks.measuring.lut.table import Lut


@dataclass(frozen=True, slots=True)
class LutStore:
    """The look-up tables of all devices below one folder."""

    root: Path

    def open(
        self,
        device: DeviceKey,
        *,
        methods: Sequence[ProfilingMethod] = METHODS,
        settings: Collection[str] | None = None,
    ) -> Lut:
        """The table of a device, to be filled; invalid entries are treated as absent."""
        folder = self.root / device.name
        return Lut.open(folder, device, methods=methods, settings=settings, leave_out_invalid=True)

    def mend(self, device: DeviceKey) -> Iterator[str]:
        """Quarantine the damaged parts of a device's table; yields one message for each."""
        return parts.mend(self.root / device.name)

    def folders(self) -> tuple[Path, ...]:
        """Every folder with parts: the root itself (a stage's table is a store of one), then its sub-folders."""
        inner = [path for path in self.root.iterdir() if path.is_dir()] if self.root.is_dir() else []
        return tuple(path for path in (self.root, *sorted(inner)) if any(path.glob(parts.PARTS)))

    def rows(self) -> list[Row]:
        """The latest row of each device, operator, method, settings and implementation. UserError if there is no table."""
        folders = self.folders()
        if not folders:
            next_step = "autotailor profile … fills one; another is named with store=FOLDER"
            raise UserError(f"LUT store '{self.root}'", "holds no look-up table", next_step=next_step)
        return parts.latest(row for folder in folders for row in parts.read(folder).rows)

    def compact(self) -> Iterator[tuple[str, int, int]]:
        """Merge the parts of each folder into one; yields (folder name, parts before, remaining rows)."""
        for folder in self.folders():
            yield folder.name, *parts.compact(folder)

    def merge(self, sources: Sequence["LutStore"]) -> dict[str, int]:
        """Append entries of `sources` that are new or later than this store's; returns the number added per device.

        UserError when a source holds no table or an invalid entry; then nothing is added.
        """
        found = [row for source in sources for row in source.valid_rows()]
        own = self.rows() if self.folders() else []
        known = {id(row) for row in own}
        news: dict[DeviceKey, list[Row]] = {}
        for row in parts.latest([*own, *found]):
            if id(row) not in known:
                news.setdefault(device_of(row), []).append(row)
        for device, rows in news.items():
            parts.write(self.root / device.name, rows)
        return {device.name: len(rows) for device, rows in news.items()}

    def valid_rows(self) -> list[Row]:
        """The checked `rows`. UserError names the first invalid row."""
        rows = self.rows()
        for row in rows:
            if text := complaint(row):
                next_step = "measure it again on its device: autotailor profile … profile.remeasure=[failed]"
                raise UserError(f"LUT store '{self.root}'", text, next_step=next_step)
        return rows
