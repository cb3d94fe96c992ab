"""A log of decisions of bounded size."""

import logging
from pathlib import Path

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import ChoiceState, Decision, DecisionInputs, DecisionLog, VariantTable

LOG = logging.getLogger("adaptive_runtime")
BYTES_PER_MIB = 1 << 20


class DecisionRecord:
    """A `DecisionLog` that starts a new file when it exceeds a size; each file can be replayed by itself.

    AdaptiveError: the file cannot be written. If a later write fails, one line is logged and decisions continue without the
    record.
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
        """The previous file."""
        return self.file.with_name(f"{self.file.stem}.1{self.file.suffix}")

    def append(self, before: ChoiceState, inputs: DecisionInputs, decision: Decision) -> None:
        """Append a decision that was made in the state `before`."""
        if self._log is None:
            return
        try:
            if self._log.bytes > self._most_bytes:
                self._log = self._begun_anew(self._log, before)
            self._log.append(inputs, decision)
        except OSError as error:
            self._give_up(error)

    def go_on(self, table: VariantTable, state: ChoiceState, policy: str | None = None) -> None:
        """Record decisions with another table from now on, in a new file."""
        self._table, self._policy = table, policy
        if self._log is not None:
            try:
                self._log = self._begun_anew(self._log, state)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Close the file; later decisions are not recorded."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _begun_anew(self, log: DecisionLog, state: ChoiceState) -> DecisionLog:
        """The log in a new file. OSError if that fails."""
        log.close()
        self.file.replace(self.earlier)
        return DecisionLog(self.file, self._table, state, self._policy)

    def _give_up(self, error: OSError) -> None:
        LOG.warning("%s cannot be written (%s); decisions are not recorded any more", self.file, error.strerror)
        self.close()
