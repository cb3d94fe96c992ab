"""The nights of an output folder: one file each, written atomically, so a killed night leaves the earlier ones unchanged."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tasks.base.errors import UserError
from tasks.operations.nightly.records import Night

NIGHTS = "*.json"


@dataclass(frozen=True, slots=True)
class History:
    """The folder of the records. Files are added, and never changed; their names are the times at which nights began."""

    folder: Path

    def names(self) -> set[str]:
        """Names of the existing files."""
        return {file.name for file in self.folder.glob(NIGHTS)}

    def file(self, night: Night) -> Path:
        """The file of a night."""
        return self.folder / f"{datetime.fromisoformat(night.began):%Y%m%dT%H%M%S%fZ}.json"

    def nights(self, network: str, warn: Callable[[str], None]) -> list[Night]:
        """Nights of a network, the latest last. `warn` gets a line for each unreadable record, which is left out."""
        return [night for night in self._all(warn) if night.network == network]

    def latest(self, warn: Callable[[str], None]) -> list[Night]:
        """The latest night of each network. warn: as above."""
        return list({night.network: night for night in self._all(warn)}.values())

    def _all(self, warn: Callable[[str], None]) -> Iterator[Night]:
        for file in sorted(self.folder.glob(NIGHTS)):
            try:
                yield Night.read(file)
            except UserError as error:
                warn(f"left out: {error}")

    def add(self, night: Night) -> Path:
        """Write one more record, atomically. UserError if this fails."""
        file = self.file(night)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            night.write(file)
        except OSError as error:
            hint = "make room; the same command goes on"
            raise UserError(f"'{file}'", f"cannot be written ({error.strerror})", next_step=hint) from error
        return file
