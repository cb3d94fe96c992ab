"""A front that got worse since the report before, as an event of Prefect, for automations."""

from collections.abc import Mapping, Sequence
from typing import Any

from prefect import get_run_logger
from prefect.events import emit_event

EVENT = "autotailor.front.worse"
RESOURCE = "autotailor.front"
LATENCY_SHARE = 0.05
"""By so much a SubNet may be slower than one of the front before, and still stand in for it: latencies are measured."""
LOST_POINTS = 1.0
"""A front that lost more accuracy than this, in points, is worse."""
SAME = ("model", "data")
"""Reports that are of different ones are not compared."""

Report = Mapping[str, Any]
WinnerPoint = tuple[float, float]
"""Latency [ms] and accuracy of a winner, as measured."""


def publish_worse_fronts(name: str, before: Report | None, now: Report) -> None:
    """An event for each device whose front is worse than in the report before. name: of the run."""
    for device, points in worse_fronts(before, now).items() if before else ():
        line = f"{name} on {device}: the front lost {points:.1f} points of accuracy since the run before"
        get_run_logger().warning(line)
        resource = {
            "prefect.resource.id": f"{RESOURCE}.{name}.{device}",
            "prefect.resource.name": f"front of {name} on {device}",
        }
        emit_event(EVENT, resource, payload={"line": line, "device": device, "lost_points": points})


def worse_fronts(before: Report, now: Report) -> dict[str, float]:
    """Device -> accuracy [points] that its front lost, where it lost more than `LOST_POINTS`."""
    if any(before.get(name) != now.get(name) for name in SAME):
        return {}
    old, new = ({row["name"]: _points(row) for row in report.get("devices", ())} for report in (before, now))
    lost = {device: lost_points(old[device], points) for device, points in new.items() if old.get(device) and points}
    return {device: points for device, points in lost.items() if points > LOST_POINTS}


def lost_points(before: Sequence[WinnerPoint], now: Sequence[WinnerPoint]) -> float:
    """Accuracy [points] that a front lost, as the mean over the points of the front before.

    Each is compared with the most accurate SubNet that is no slower now; without one, all of its accuracy is lost.
    """

    def best(within_ms: float) -> float:
        return max((accuracy for ms, accuracy in now if ms <= within_ms * (1 + LATENCY_SHARE)), default=0.0)

    return 100 * sum(accuracy - best(ms) for ms, accuracy in before) / len(before)


def _points(device: Mapping[str, Any]) -> list[WinnerPoint]:
    return [
        (row["measured_ms"], row["accuracy"])
        for row in device["winners"]
        if row.get("measured_ms") is not None and row.get("accuracy") is not None
    ]
