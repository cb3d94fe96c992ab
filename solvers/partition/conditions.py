"""The conditions that change from one plan to the next: the current speed of devices and links."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BITS = 8
MEGA = 1e6
MS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionConditions:
    """Devices and the links between them.

    slow_down: (D,) factor by which steps take longer than `PartitionProblem.compute_ms` on each device. latency_ms: (D, D) of a
    message from one device to another. bandwidth_mbps: (D, D) [Mbit/s] from one device to another; 0: no link, inf: no limit.
    """

    slow_down: NDArray[np.float64]
    latency_ms: NDArray[np.float64]
    bandwidth_mbps: NDArray[np.float64]

    @property
    def ms_per_byte(self) -> NDArray[np.float64]:
        """Time (D, D) of one byte from one device to another; inf if there is no link, 0 to the device itself."""
        with np.errstate(divide="ignore"):
            found = BITS / (self.bandwidth_mbps * MEGA * MS)
        np.fill_diagonal(found, 0.0)
        return found

    @property
    def message_ms(self) -> NDArray[np.float64]:
        """Latency (D, D) of a message; inf if there is no link, 0 to the device itself."""
        found = np.where(self.bandwidth_mbps > 0, self.latency_ms, np.inf)
        np.fill_diagonal(found, 0.0)
        return found

    @classmethod
    def of(
        cls, devices: int, bandwidth_mbps: float, latency_ms: float, slow_down: tuple[float, ...] | None = None
    ) -> "PartitionConditions":
        """Conditions in which all links are equal."""
        return cls(
            slow_down=np.ones(devices) if slow_down is None else np.asarray(slow_down, float),
            latency_ms=np.full((devices, devices), float(latency_ms)),
            bandwidth_mbps=np.full((devices, devices), float(bandwidth_mbps)),
        )
