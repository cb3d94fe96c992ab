"""A log of decisions that does not grow without bound."""

import logging
from pathlib import Path

from adaptive_runtime.choice import ChoiceState, Decision, DecisionInputs, DecisionLog, VariantTable
from adaptive_runtime.errors import AdaptiveError

LOG = logging.getLogger("adaptive_runtime")
BYTES_PER_MIB = 1 << 20


class DecisionRecord:
    """A `DecisionLog` that is begun anew when it exceeds a size; each file can be replayed by itself.

    AdaptiveError: the file cannot be written. Where that happens later, one line is logged and decisions go on without it.
    """

    def __init__(
        self, file: Path, table: VariantTable, state: ChoiceState, most_mib: float, policy: str | None = None
    ) -> None:
        self.file, self._table, self._most_bytes, self._policy = file, table, most_mib * BYTES_PER_MIB, policy
        self._log: DecisionLog | None
        try:
            self._log = DecisionLog(file, table, state, policy)
        except OSError as error:
            raise AdaptiveError(str(file), f"cannot be written ({error.strerror})") from error

    @property
    def earlier(self) -> Path:
        """The file before this one."""
        return self.file.with_name(f"{self.file.stem}.1{self.file.suffix}")

    def append(self, before: ChoiceState, inputs: DecisionInputs, decision: Decision) -> None:
        """One more decision, made in the state before it."""
        if self._log is None:
            return
        try:
            if self._log.bytes > self._most_bytes:
                self._log.close()
                self.file.replace(self.earlier)
                self._log = DecisionLog(self.file, self._table, before, self._policy)
            self._log.append(inputs, decision)
        except OSError as error:
            LOG.warning("%s cannot be written (%s); decisions are not recorded any more", self.file, error.strerror)
            self._log.close()
            self._log = None

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()
