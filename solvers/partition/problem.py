"""Steps, devices and limits: what a plan is made from, besides the conditions of the moment.

The model. Steps run one after the other in their order, each on one device. The network's input is at home; with `returns`
its output goes home. A device that runs a step holds what the step writes, and what the step reads: a value goes once to
each device that reads it, from the device that holds it and from which it arrives first. Where the device changes from one
step to the next, a message goes from the former device to the latter one, and the values that the latter one needs before
the next change go with it. A plan takes

    Σ steps: compute time · slow-down  +  Σ changes of device: latency  +  Σ values, receivers: bytes / bandwidth

Limits are sums over steps (memory of weights, energy) and bytes sent (energy of a radio) that a plan keeps below a bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.partition.dataflow import INPUT, Dataflow

ROUNDING = 1e-9  # of a limit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionLimit:
    """The most that a plan may use. per_step: (n, D) of each step on each device. per_byte: (D, D) of each byte sent."""

    name: str
    per_step: NDArray[np.float64]
    per_byte: NDArray[np.float64]
    most: float

    @property
    def bound(self) -> float:
        """The most, with what rounding may add."""
        return self.most + ROUNDING * abs(self.most)

    @classmethod
    def of_memory(cls, device: int, devices: int, bytes_: Sequence[float], most: float) -> "PartitionLimit":
        """What one device may keep of the weights of steps (n,)."""
        per_step = np.zeros((len(bytes_), devices))
        per_step[:, device] = bytes_
        return cls(name=f"memory of device {device}", per_step=per_step, per_byte=np.zeros((devices,) * 2), most=most)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionProblem:
    """What is placed where. compute_ms: (n, D) of each step on each device; inf: the step cannot run there.

    home: the device that has the network's input. returns: the output is wanted at home. private: the first so many steps, and
    all that read the network's input where that is not 0, stay at home.
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
