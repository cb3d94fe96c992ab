"""The state of the device in each SubNet: a shared machine, or a warm one, makes all of a SubNet's operators slower alike.

SubNets share operators. Those that two have in common tell how much slower the device was in one of them, as block effects
in an experiment with incomplete blocks. Source: Tukey's median polish (Exploratory Data Analysis, 1977), on ratios.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Times = Sequence[tuple[str, float]]  # digest of an operator, and its time in a SubNet [ms]
ITERATIONS = 10


def drifts(subnets: Sequence[Times]) -> NDArray[np.float64]:
    """(n,) factors by which the device was slower in each SubNet, 1 in the median one; 1 where nothing tells."""
    factors = np.ones(len(subnets))
    seen = _occurrences(subnets)
    shared = {digest: places for digest, places in seen.items() if len({number for number, _ in places}) > 1}
    for _ in range(ITERATIONS):
        usual = {d: float(np.median([ms / factors[n] for n, ms in places])) for d, places in shared.items()}
        taken, expected = np.zeros(len(subnets)), np.zeros(len(subnets))
        for digest, places in shared.items():
            for number, time_ms in places:
                taken[number] += time_ms
                expected[number] += usual[digest]
        factors = np.divide(taken, expected, out=np.ones(len(subnets)), where=expected > 0)
        factors /= np.median(factors) if len(factors) else 1.0
    return factors


def _occurrences(subnets: Sequence[Times]) -> Mapping[str, list[tuple[int, float]]]:
    """Operator -> (SubNet, time [ms]) wherever it took any."""
    found: dict[str, list[tuple[int, float]]] = {}
    for number, times in enumerate(subnets):
        for digest, time_ms in times:
            if time_ms > 0:
                found.setdefault(digest, []).append((number, time_ms))
    return found
