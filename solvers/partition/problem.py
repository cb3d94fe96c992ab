"""Steps, devices and limits: the input of planning, apart from the current conditions.

The model. Steps run one after the other in their order, each on one device. The coordinator has the network's input; with
`returns` it also receives the output. A device that runs a step holds the values that the step writes and reads: a value is
sent once to each device that reads it, from the device that holds it and from which it arrives first. When the device changes
from one step to the next, the former device sends the latter one a message, together with the values that the latter one needs
before the next change. A plan takes

    Σ steps: compute time · slow-down  +  Σ changes of device: latency  +  Σ values, receivers: bytes / bandwidth

Limits are sums over steps (memory of weights, energy) and bytes sent (energy of a radio) that must stay below a bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.partition.dataflow import INPUT, Dataflow

ROUNDING = 1e-9  # share of a limit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionLimit:
    """An upper limit. per_step: (n, D) use by each step on each device. per_byte: (D, D) use by each byte sent."""

    name: str
    per_step: NDArray[np.float64]
    per_byte: NDArray[np.float64]
    most: float

    @property
    def bound(self) -> float:
        """The limit plus a margin for rounding."""
        return self.most + ROUNDING * abs(self.most)

    @classmethod
    def of_memory(cls, device: int, devices: int, bytes_: Sequence[float], most: float) -> "PartitionLimit":
        """The limit on the memory that one device has for the weights of steps (n,)."""
        per_step = np.zeros((len(bytes_), devices))
        per_step[:, device] = bytes_
        return cls(name=f"memory of device {device}", per_step=per_step, per_byte=np.zeros((devices,) * 2), most=most)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionProblem:
    """Steps and devices. compute_ms: (n, D) time of each step on each device; inf: the step cannot run there.

    home: the coordinator, which has the network's input. returns: the output must return to the coordinator. private: number of
    first steps that stay on the coordinator; if it is not 0, so do all steps that read the network's input.
    """

    dataflow: Dataflow
    compute_ms: NDArray[np.float64]
    home: int = 0
    returns: bool = True
    private: int = 0
    limits: tuple[PartitionLimit, ...] = ()

    def __post_init__(self) -> None:
        assert self.compute_ms.shape == (self.dataflow.steps, self.devices), self.compute_ms.shape
        assert 0 <= self.home < self.devices, self.home
        assert not np.isnan(self.compute_ms).any()

    @property
    def devices(self) -> int:
        """Number of devices."""
        return int(self.compute_ms.shape[1])

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """(n, D) whether a step may run on a device."""
        found = np.isfinite(self.compute_ms)
        kept = list(range(self.private))
        if self.private:
            kept += [reader for value in self.dataflow.values if value.writer == INPUT for reader in value.readers]
        for step in kept:
            if step < self.dataflow.steps:
                found[step, np.arange(self.devices) != self.home] = False
        return found
