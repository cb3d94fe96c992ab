"""When home has to begin requests that other devices have, so that it can finish all of them in time by itself.

Home runs one request after the other. By the order of deadlines (Jackson's rule, earliest due date first) all are in time
if any order brings all in time.
"""

from collections.abc import Sequence


def latest_starts(deadlines: Sequence[float], durations: Sequence[float]) -> list[float]:
    """The latest start of each of some requests by which it and all after it are in time; deadlines do not fall."""
    found: list[float] = []
    end = float("inf")
    for deadline, duration in zip(reversed(deadlines), reversed(durations), strict=True):
        end = min(deadline, end) - duration
        found.append(end)
    return found[::-1]
