"""Spot checks: the coordinator repeats segments of another device on the same tensors."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiling_agents.messages import ActivationCoding
from profiling_agents.streams.activations import STEPS

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpotCheck:
    """Consecutive runs of devices: the tensors that reached the first device, and the last one's output, both decoded."""

    devices: tuple[str, ...]
    first: int
    last: int
    given: dict[str, Array]
    got: dict[str, Array]
    coding: ActivationCoding


def largest_difference(check: SpotCheck, expected: Mapping[str, Array]) -> float:
    """Largest difference over all tensors, relative to each one's largest value, minus the coding's step; infinite for NaN."""
    worst = 0.0
    for name, got in check.got.items():
        reference = expected[name]
        if not np.isfinite(reference).all():
            continue  # the network itself causes this, not the device
        most = float(np.abs(reference).max(initial=0.0))
        apart = float(np.abs(got - reference).max(initial=0.0))
        if not np.isfinite(apart):
            return float("inf")
        worst = max(worst, apart / max(most, float(np.finfo(np.float32).tiny)) - STEPS[check.coding])
    return worst
