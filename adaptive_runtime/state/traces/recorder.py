"""Records a trace of a device: samples of its state, and the arrival times of requests."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.shares import clipped_share
from adaptive_runtime.state.sensing import SensedState
from adaptive_runtime.state.traces.trace import LoadTrace

MOST_SAMPLES, MOST_ARRIVALS = 3600, 100_000
FEWEST_SAMPLES = 2
"""A sample describes the time since the previous one."""


class _Heard(NamedTuple):
    device: SensedState
    slow_down: float | None


class LoadRecorder:
    """Keeps the latest samples and requests, and makes a trace of them. All calls come from one thread.

    cpu of the trace: CPU use by other processes. memory: the part of the largest available memory that others hold; cache: the
    hits that others take from the best hit rate; both only if sensed. bandwidth is 0: no sensor measures it.
    """

    def __init__(self, origin: str, *, most_samples: int = MOST_SAMPLES, most_arrivals: int = MOST_ARRIVALS) -> None:
        self._origin, self._most_samples, self._most_arrivals = origin, most_samples, most_arrivals
        self._heard: deque[_Heard] = deque()
        self._arrivals_s: deque[float] = deque()

    def sensed(self, device: SensedState | None, slow_down: float | None = None) -> None:
        """Add a sample; a repeated sample counts once. slow_down: of the serving variant; None: unknown."""
        if device is not None and (not self._heard or device.at_s > self._heard[-1].device.at_s):
            self._heard.append(_Heard(device, slow_down))
            self._forget()

    def arrived(self, at_s: float) -> None:
        """Add a request at a time of the monotonic clock."""
        self._arrivals_s.append(at_s)
        self._forget()

    @property
    def trace(self) -> LoadTrace:
        """The trace from the first sample to the last. AdaptiveError: too few samples, or none with the use of the CPU."""
        if len(self._heard) < FEWEST_SAMPLES:
            got = f"{len(self._heard)} samples of the device"
            raise AdaptiveError("load trace", got, allowed=f"{FEWEST_SAMPLES} and more", next_step="record for longer")
        begin_s, end_s = (self._heard[at].device.at_s for at in (0, -1))
        told = list(self._heard)[1:]
        cpu = _filled([one.device.cpu_use_others for one in told])
        if not cpu:
            raise AdaptiveError("load trace", "no sample tells the use of the CPU")
        slow_down = _filled([one.slow_down for one in told], before=1.0)
        return LoadTrace(
            origin=self._origin,
            duration_s=end_s - begin_s,
            times_s=tuple(one.device.at_s - begin_s for one in list(self._heard)[:-1]),
            cpu=cpu,
            bandwidth=(0.0,) * len(cpu),
            cache=_taken([one.device.hit_rate for one in told]),
            memory=_taken([one.device.memory_available_mib for one in told]),
            slow_down=(slow_down,) if slow_down else (),
            arrivals_s=tuple(sorted(at_s - begin_s for at_s in self._arrivals_s if begin_s <= at_s < end_s)),
        )

    def _forget(self) -> None:
        """Drop the oldest entries beyond the limits."""
        while len(self._heard) > self._most_samples or (
            len(self._arrivals_s) > self._most_arrivals and len(self._heard) > FEWEST_SAMPLES
        ):
            self._heard.popleft()
            while self._arrivals_s and self._arrivals_s[0] < self._heard[0].device.at_s:
                self._arrivals_s.popleft()
        while len(self._arrivals_s) > self._most_arrivals:
            self._arrivals_s.popleft()


def _filled(values: Sequence[float | None], before: float = 0.0) -> tuple[float, ...]:
    """Values with each unknown one replaced by the previous one; () if all are unknown."""
    filled, last = list[float](), before
    for value in values:
        last = last if value is None else value
        filled.append(last)
    return tuple(filled) if any(value is not None for value in values) else ()


def _taken(values: Sequence[float | None]) -> tuple[float, ...]:
    """The missing share of the largest value at each time; () if all are unknown."""
    most = max((value for value in values if value is not None), default=0.0)
    return _filled([None if value is None else clipped_share(1 - value / most) for value in values]) if most else ()
