"""Pace: the present speed of a core relative to its usual speed.

A processor shared by hardware threads or virtual machines is slower while another one is busy: by a third or more, for
seconds, and no counter of this system shows it. The time of a short loop of arithmetic shows it. Samples from a slow core
depend on other programs, and are left out while enough other samples remain.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
Repeat = Callable[[int], float | None]
"""Runs the model n times; returns the duration [s] if the runtime's own clock is better than ours."""

ADDITIONS = 500
REPEATS = 3  # the fastest counts: the first may find the caches empty
SLOW = 1.15  # of the usual time
USUAL_QUANTILE = 0.05
REMEMBERED = 4096  # loops; an hour-long change of frequency becomes usual
RENEWED_EVERY = 64
WAIT_S = 0.002


class Pace:
    """The pace of the core on which the calling thread runs; `loop`: the work that is timed."""

    def __init__(self, loop: Callable[[], object] = lambda: sum(range(ADDITIONS))) -> None:
        self._loop = loop
        self._times_ns: deque[int] = deque(maxlen=REMEMBERED)
        self._usual_ns = math.inf
        self._asked = 0
        for _ in range(RENEWED_EVERY):
            self.calm()

    def calm(self) -> bool:
        """Whether the core is now about as fast as usual."""
        time_ns = min(self._once_ns() for _ in range(REPEATS))
        self._times_ns.append(time_ns)
        self._asked += 1
        if self._asked % RENEWED_EVERY == 0 or time_ns < self._usual_ns:
            self._usual_ns = sorted(self._times_ns)[int(USUAL_QUANTILE * len(self._times_ns))]
        return time_ns <= SLOW * self._usual_ns

    def wait(self, until_s: float) -> bool:
        """Wait until the core is calm, but not beyond `until_s` (time.perf_counter); return whether it waited."""
        waited = False
        while not self.calm() and time.perf_counter() < until_s:
            time.sleep(WAIT_S)
            waited = True
        return waited

    def _once_ns(self) -> int:
        start = time.perf_counter_ns()
        self._loop()
        return time.perf_counter_ns() - start


class Runs:
    """Runs of a model that last about `duration_ms` together; runs on a slow core are kept apart. `pace` None: no core is slow.

    Waits for a calm core last at most `patience` times `duration_ms` in all.
    """

    def __init__(self, pace: Pace | None, duration_ms: float, patience: float) -> None:
        self._pace = pace
        self._duration_s = duration_ms * 1e-3
        self._patience = patience
        self._calm: list[bool] = []
        self._least = 0

    def each(self, least: int, most: float = math.inf) -> Iterator[None]:
        """Yield once for each run; at least `least` runs are calm, if time allows."""
        self._least = least
        until = time.perf_counter() + self._duration_s
        end = until + self._duration_s * self._patience
        while len(self._calm) < most:
            if self._pace is not None:
                self._pace.wait(end)
            yield
            self._calm.append(self._pace is None or self._pace.calm())
            now = time.perf_counter()
            if now >= until and (self.enough or (now >= end and len(self._calm) >= least)):
                return

    @property
    def enough(self) -> bool:
        """Whether at least `least` runs were calm."""
        return sum(self._calm) >= self._least

    def kept(self, rows: Sequence[T]) -> Sequence[T]:
        """The rows of calm runs, from one row for each run; all rows if too few runs are calm."""
        if not self.enough or len(rows) != len(self._calm):
            return rows
        return [row for row, calm in zip(rows, self._calm, strict=True) if calm]
