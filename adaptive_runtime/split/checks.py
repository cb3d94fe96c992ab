"""Spot checks: segments that another device ran are run again at home on the same tensors."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiling_agents.messages import ActivationCoding
from profiling_agents.streams.activations import STEPS

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpotCheck:
    """What devices ran behind each other: the tensors as they reached the first, and what the last gave, both decoded."""

    devices: tuple[str, ...]
    first: int
    last: int
    given: dict[str, Array]
    got: dict[str, Array]
    coding: ActivationCoding


def largest_difference(check: SpotCheck, expected: Mapping[str, Array]) -> float:
    """Over all tensors, relative to the largest value of each, less what the coding of the answer may do; infinite for NaN."""
    worst = 0.0
    for name, got in check.got.items():
        reference = expected[name]
        if not np.isfinite(reference).all():
            continue  # the network's own doing; it tells nothing of the device
        most = float(np.abs(reference).max(initial=0.0))
        apart = float(np.abs(got - reference).max(initial=0.0))
        if not np.isfinite(apart):
            return float("inf")
        worst = max(worst, apart / max(most, float(np.finfo(np.float32).tiny)) - STEPS[check.coding])
    return worst
