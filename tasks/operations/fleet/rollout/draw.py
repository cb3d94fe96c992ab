"""The devices that get the bundle next: drawn at random within each kind, so that they differ from the others by chance alone.

Legend: F devices of the fleet, N devices that a stage compares, K kinds.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.operations.fleet.rollout.settings import RolloutSettings


class StagePlan(NamedTuple):
    """stage: its number, from 0 on. added: places in the fleet of the devices that get the bundle now. compared_N: places of
    the devices that the stage's test looks at. treated_N: whether each of these is among `added`. kind_N: their kinds, as
    numbers.
    """

    stage: int
    added: NDArray[np.int64]
    compared_N: NDArray[np.int64]
    treated_N: NDArray[np.bool_]
    kind_N: NDArray[np.int64]


def draw_stage(
    kinds: Sequence[str], taken_F: NDArray[np.bool_], stage: int, settings: RolloutSettings, rng: np.random.Generator
) -> StagePlan:
    """The next stage of a fleet. kinds: of all devices of the roll-out. taken_F: devices that already have the bundle.

    Kinds get shares in proportion to their sizes, rounded by largest remainders. Devices of earlier stages are not compared
    again: given the past, the devices of this stage are a random part of the remaining ones, no matter why the stage began.
    """
    names, kind_F = np.unique(np.asarray(kinds), return_inverse=True)
    sizes_K = np.bincount(kind_F, minlength=len(names))
    least, taken = settings.least_devices, int(taken_F.sum())
    total = max(math.ceil(settings.stages[stage] * len(kind_F)), taken + least)
    left = least * (len(settings.stages) - stage)  # for later stages, and as the comparison group
    total = max(min(total, len(kind_F) - left), taken)
    wanted_K = rounded_shares(sizes_K, total)
    added: list[int] = []
    for kind, wanted in enumerate(wanted_K):
        free = np.flatnonzero((kind_F == kind) & ~taken_F)
        missing = wanted - (sizes_K[kind] - len(free))
        if missing > 0:
            added += rng.choice(free, size=missing, replace=False).tolist()
    places = np.array(sorted(added), dtype=np.int64)
    compared_N = _compared(kind_F, taken_F, places, settings.most_compared, rng)
    return StagePlan(stage, places, compared_N, np.isin(compared_N, places), kind_F[compared_N])


def rounded_shares(sizes_K: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Integers with sum `total`, nearest to its shares by sizes (method of largest remainders)."""
    exact_K = total * sizes_K / sizes_K.sum()
    found_K = np.floor(exact_K).astype(np.int64)
    order = np.argsort(-(exact_K - found_K), kind="stable")
    found_K[order[: total - int(found_K.sum())]] += 1
    return found_K


def _compared(
    kind_F: NDArray[np.int64],
    taken_F: NDArray[np.bool_],
    added: NDArray[np.int64],
    most: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """All devices without the bundle, in the order of their kinds; at most `most`, drawn at random from both halves."""
    others = np.setdiff1d(np.flatnonzero(~taken_F), added)
    treated = rng.permutation(added)[: most // 2]
    others = rng.permutation(others)[: most - len(treated)]
    places = np.sort(np.concatenate([treated, others]))
    return places[np.argsort(kind_F[places], kind="stable")]
