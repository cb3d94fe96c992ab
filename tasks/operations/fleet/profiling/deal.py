"""The assignment of operators to devices: drawn at random, so that no device knows by which operators it is judged."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tasks.operations.fleet.profiling.settings import FleetProfileSettings


def deal(
    devices: int, missing: Sequence[str], known: Sequence[str], settings: FleetProfileSettings, rng: np.random.Generator
) -> list[list[str]]:
    """Operators (digests) for each device. Operators that the table lacks are measured by `each_by` devices, or by all devices
    if there are fewer. A device with fewer than `spot_operators` of them gets operators from the table in addition.
    """
    spot, count = settings.spot_operators, len(missing)
    share = max(spot, -(-count * min(settings.each_by, devices) // devices)) if devices else 0
    uses_M = np.zeros(count, dtype=int)
    hands = []
    for _ in range(devices):
        rarest = np.lexsort((rng.random(count), uses_M))[:share]
        uses_M[rarest] += 1
        others = rng.permutation(len(known))[: max(0, spot - len(rarest))]
        hand = [missing[at] for at in rarest] + [known[at] for at in others]
        hands.append([hand[at] for at in rng.permutation(len(hand))])
    return hands


def deal_again(
    thin: Mapping[str, int], voted: Mapping[str, Collection[str]], devices: Sequence[str], rng: np.random.Generator
) -> dict[str, list[str]]:
    """Operators with too few votes, by device. thin: missing votes by operator; voted: devices that voted, by operator."""
    hands: dict[str, list[str]] = {}
    for operator, wanting in thin.items():
        free = [one for one in devices if one not in voted.get(operator, ())]
        for at in rng.permutation(len(free))[:wanting]:
            hands.setdefault(free[at], []).append(operator)
    return hands
