"""`levels.json`: each combination of SubNet, exit and format on one device, with its costs, and whether it is worth keeping.

Legend: R rows, D columns.
"""

from math import nan
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from adaptive_runtime.bundle.bundles import BundleFormat, NetFigures, SubNetMemory
from tasks.base.schemas.stored import Record, Stored
from tasks.base.schemas.subnets import Named

LEVELS_FILE = "levels.json"


class LevelRow(Named):
    """A combination. device: the device of the run whose tables predict it. exit: its last exit; None: whole, or `early`.

    early: samples leave by thresholds. accuracy: on validation images; accuracy_error: its standard deviation. latency_error:
    relative standard deviation of the latency; for early answers at least their spread over samples. energy_mj: energy of one
    sample; None: unknown. over: other devices besides the coordinator. on_front: no other row is at least as accurate, fast,
    frugal and small, and better in one of them. kept: the run time chooses the row in some state of the device.
    """

    device: str
    format: BundleFormat
    exit: str | None = None
    early: bool = False
    accuracy: float = Field(ge=0, le=1)
    accuracy_error: float = Field(ge=0)
    latency_ms: float = Field(gt=0)
    latency_error: float = Field(ge=0)
    energy_mj: float | None = None
    over: tuple[str, ...] = ()
    weights_mib: float = Field(ge=0)
    activations_mib: float = Field(ge=0)
    on_front: bool = False
    kept: bool = False

    @property
    def memory_mib(self) -> float:
        """Memory of weights and peak activations [MiB]."""
        return self.weights_mib + self.activations_mib

    def columns(self, latency_ms: float | None = None) -> tuple[float, float, float, float]:
        """The columns by which rows are compared, less is better: −accuracy, latency, energy, memory. An unknown energy is NaN.

        latency_ms: replaces the row's latency; None: keep it.
        """
        energy_mj = nan if self.energy_mj is None else self.energy_mj
        return -self.accuracy, self.latency_ms if latency_ms is None else latency_ms, energy_mj, self.memory_mib

    @property
    def name(self) -> str:
        """The combination in words, unique among rows."""
        ending = " by thresholds" if self.early else "" if self.exit is None else f" up to {self.exit}"
        return f"{self.digest} in {self.format}{ending}{' over devices' if self.over else ''}"

    def figures(self, split: str) -> NetFigures:
        """A bundle's figures of a whole SubNet in the format; the accuracy is that of `split`."""
        memory = SubNetMemory(weights_mib=self.weights_mib, activations_mib=self.activations_mib)
        return NetFigures(
            accuracy={split: self.accuracy},
            latency_ms=self.latency_ms,
            latency_error=self.latency_error,
            energy_mj=self.energy_mj,
            memory=memory,
        )


class MissingLevel(Record):
    """A SubNet that has no row in a format, or over other devices, and the reason."""

    digest: str
    format: BundleFormat
    reason: str


class Levels(Stored):
    """The levels of the device that has the bundle. energy_from: source of predicted energies; None: devices differ in it."""

    STAGE: ClassVar[str] = "front"
    COMMAND: ClassVar[str] = "export"

    device: str
    energy_from: str | None
    rows: tuple[LevelRow, ...]
    left_out: tuple[MissingLevel, ...] = ()

    @property
    def formats(self) -> tuple[BundleFormat, ...]:
        """The formats of the rows, each once."""
        return tuple(dict.fromkeys(row.format for row in self.rows))

    def whole(self, form: BundleFormat) -> dict[str, LevelRow]:
        """The rows of whole SubNets in a format, by digest."""
        rows = (row for row in self.rows if row.format == form and not row.over)
        return {row.digest: row for row in rows if row.exit is None and not row.early}

    @property
    def placed(self) -> dict[str, LevelRow]:
        """The kept rows over devices, by digest."""
        return {row.digest: row for row in self.rows if row.over and row.kept}


def against(columns_RD: NDArray[np.float64], own_D: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each row is no worse than the row `own_D` in all columns (R,), and whether it is better in one (R,).

    A column that is unknown (NaN) in both rows is ignored. If it is unknown in only one of them, the row does not count as no
    worse.
    """
    unknown_RD = np.isnan(columns_RD) & np.isnan(own_D)
    no_worse_R: NDArray[np.bool_] = np.all((columns_RD <= own_D) | unknown_RD, axis=1)
    better_R: NDArray[np.bool_] = np.any(columns_RD < own_D, axis=1)
    return no_worse_R, better_R
