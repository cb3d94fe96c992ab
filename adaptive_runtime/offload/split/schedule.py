"""Latest starts of requests on the coordinator that still let the coordinator finish all of them in time.

The coordinator runs one request after the other. The order of deadlines (Jackson's rule, earliest due date first) meets all
deadlines if any order does.
"""

from collections.abc import Sequence


def latest_starts(deadlines: Sequence[float], durations: Sequence[float]) -> list[float]:
    """The latest start of each request for which it and all later ones are in time; deadlines must not decrease."""
    found: list[float] = []
    end = float("inf")
    for deadline, duration in zip(reversed(deadlines), reversed(durations), strict=True):
        end = min(deadline, end) - duration
        found.append(end)
    return found[::-1]
