"""Telemetry of requests as sums, and how much worse each device has become compared with itself.

Legend: R roll-outs, N devices.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tasks.operations.fleet.rollout.settings import MeasureName

_Sums = NDArray[np.float64]


class TelemetrySums(NamedTuple):
    """Sums over windows, (R, N) each: no data of a single request, and no input.

    requests; log_latency: sum of ln(latency in ms); in_time: requests within their budget; confidence: sum of confidences;
    labelled: requests whose right answer, or the answer of the largest SubNet, is known; agreed: labelled requests with the
    same answer; heard: windows in which the device reported.
    """

    requests: _Sums
    log_latency: _Sums
    in_time: _Sums
    confidence: _Sums
    labelled: _Sums
    agreed: _Sums
    heard: _Sums

    @classmethod
    def nothing(cls, rollouts: int, devices: int) -> Self:
        """Sums before the first window."""
        return cls(*(np.zeros((rollouts, devices)) for _ in cls._fields))

    def plus(self, other: "TelemetrySums") -> "TelemetrySums":
        """Sums over the windows of both."""
        return TelemetrySums(*(one + another for one, another in zip(self, other, strict=True)))


def losses(
    before: TelemetrySums, since: TelemetrySums, windows: tuple[int, int], device_requests: int
) -> Mapping[MeasureName, _Sums]:
    """How much worse each device is since a moment than before (R, N); NaN: too little telemetry.

    Latency: ln of the ratio of geometric means. Others: differences of shares, of requests or, for `heard`, of windows.
    windows: how many there were before and since. device_requests: least number of requests for a value.
    """

    def worse(name: str, count: str, sign: float) -> _Sums:
        rates = []
        for sums in (before, since):
            counted = getattr(sums, count)
            known = counted >= device_requests
            rates.append(np.divide(getattr(sums, name), counted, out=np.full(counted.shape, np.nan), where=known))
        return sign * (rates[1] - rates[0])

    return {
        "latency": worse("log_latency", "requests", 1.0),
        "in_time": worse("in_time", "requests", -1.0),
        "confidence": worse("confidence", "requests", -1.0),
        "agreement": worse("agreed", "labelled", -1.0),
        "heard": before.heard / windows[0] - since.heard / windows[1],
    }


def shift_of(measure: MeasureName, share: float) -> float:
    """A limit in the unit of `losses`."""
    return float(np.log1p(share)) if measure == "latency" else share
