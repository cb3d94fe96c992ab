"""Plans of the SubNet that tests split, under which the coordinator is slow and other devices are fast."""

from adaptive_runtime.offload.split import COORDINATOR, LinkUse, PlacementPlans, PlannedPlacement, SplitSubNet

SEGMENTS = 4
COORDINATOR_MS = 100.0
"""Of each segment on the coordinator, which is slow."""


def plans_of(split: SplitSubNet, *peers: str, coordinator_ms: float = COORDINATOR_MS) -> PlacementPlans:
    """For each device: the last three segments there, and all of them; another device takes 1 ms for a segment."""
    subnet, last = split.subnet, SEGMENTS - 1
    found = [
        PlannedPlacement(devices=(COORDINATOR,) * SEGMENTS, coordinator_ms=SEGMENTS * coordinator_ms, others_ms=0.0)
    ]
    for name in peers:
        for first in (1, 0):
            up, down = (
                sum(4 * _size(subnet.shapes[one]) for one in names)
                for names in (subnet.entering(first, last), subnet.leaving(first, last))
            )
            found.append(
                PlannedPlacement(
                    devices=(COORDINATOR,) * first + (name,) * (SEGMENTS - first),
                    coordinator_ms=first * coordinator_ms,
                    others_ms=SEGMENTS - first,
                    links={name: LinkUse(messages=1, up_bytes=up, down_bytes=down)},
                )
            )
    return PlacementPlans(
        digest=subnet.digest,
        peers=peers,
        coordinator_ms=(coordinator_ms,) * SEGMENTS,
        bandwidth_mbps=(0.1, 1000.0),
        slow_down=(1.0, 8.0),
        plans=tuple(found),
    )


def _size(shape: tuple[int, ...]) -> int:
    count = 1
    for one in shape:
        count *= one
    return count
