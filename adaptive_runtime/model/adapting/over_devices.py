"""Interfaces of SubNets over several devices, as a model uses them; `adaptive_runtime.offload.placed` has the classes."""

from collections.abc import Mapping
from typing import Protocol

from adaptive_runtime.policy import LoadFactors, VariantTable


class RowsOverDevices(Protocol):
    """Current state of the table rows over several devices."""

    def now(self, factors: LoadFactors) -> tuple[LoadFactors, frozenset[int], Mapping[int, str]]:
        """Factors with those of these rows, rows without an available device, and descriptions of rows."""
        ...

    def renew(self, factors: LoadFactors, spread: float | None = None) -> object:
        """Compute the rows before they are asked for. spread: factor on their deviations from now on; None: unchanged."""
        ...


class SubNetsOverDevices(Protocol):
    """SubNets of a bundle that may run on several devices. Close them after use."""

    def rows(self, table: VariantTable, digests: Mapping[int, str], home: Mapping[int, int]) -> RowsOverDevices:
        """Rows of a table over devices. digests: of their SubNets; home: the rows of these on the coordinator."""
        ...

    def close(self) -> None: ...
