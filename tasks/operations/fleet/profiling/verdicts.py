"""Whether a device is like its kind: randomly drawn operators are compared with the times of the other devices."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

from profiling_agents.messages import Measurement
from tasks.operations.fleet.profiling.settings import FleetProfileSettings

VerdictState = Literal["sound", "odd", "failed", "unknown"]
"""failed: it did not answer as an agent does. unknown: its kind has too few devices to identify outliers."""
LEAST_VOTES = 3
"""Number of devices from which a median is trusted: one of them may be an outlier."""

Votes = Mapping[str, Mapping[str, Measurement]]
"""By operator (digest), then by device."""


class DeviceVerdict(NamedTuple):
    """Verdict on a device. reason: in words. off, compared: numbers of operators.
    ratio: median ratio of its times to those of its kind; None: unknown.
    """

    device: str
    state: VerdictState
    reason: str
    off: int = 0
    compared: int = 0
    ratio: float | None = None


def middle(votes: Iterable[Measurement]) -> Measurement | None:
    """The median measurement (the faster of two); a failure if more than half have failed; None without votes."""
    found = list(votes)
    ok = sorted((one for one in found if one.p50_ms is not None), key=lambda one: one.p50_ms or 0.0)
    failed = [one for one in found if one.p50_ms is None]
    if len(failed) > len(ok):
        return failed[0]
    return ok[(len(ok) - 1) // 2] if ok else None


def references(votes: Votes, table: Mapping[str, float]) -> dict[str, float]:
    """Reference p50 [ms] by operator: from the kind's table, else the median over enough devices."""
    found = dict(table)
    for operator, by_device in votes.items():
        if operator not in table and len(by_device) >= LEAST_VOTES:
            voted = middle(by_device.values())
            if voted is not None and voted.p50_ms is not None:
                found[operator] = voted.p50_ms
    return found


def judge(
    device: str, told: Sequence[Measurement], known: Mapping[str, float], settings: FleetProfileSettings
) -> DeviceVerdict:
    """The verdict on a device that answered. known: p50 [ms] by operator."""
    compared = [(one.p50_ms, known[one.key]) for one in told if one.key in known]
    most = settings.most_off(len(compared)) if compared else None
    if most is None:
        return DeviceVerdict(device, "unknown", f"{len(compared)} of its operators are known of other devices")
    limit = math.log1p(settings.tolerance)
    logs = [math.log(own / other) for own, other in compared if own is not None]
    off = len(compared) - sum(abs(one) <= limit for one in logs)
    ratio = math.exp(median(logs)) if logs else None
    share = f"{off} of {len(compared)} operators are more than {settings.tolerance:.0%} away from its kind"
    if off <= most:
        return DeviceVerdict(device, "sound", share, off, len(compared), ratio)
    way = ", all have failed" if ratio is None else f", in the median {ratio:.2g} times as long"
    return DeviceVerdict(device, "odd", share + way, off, len(compared), ratio)
