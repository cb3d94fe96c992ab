"""A SubNet over several devices as the runtime of a chain, for one request.

Legend: N samples, C channels, H height, W width, K classes.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import NotBackError
from adaptive_runtime.offload.split import SplitAnswer

Array = NDArray[np.float32]
WAITED = 0.95
"""Share of a budget that the coordinator waits at most: the rest is for returning the answer of the fallback."""


class StandInTimes(NamedTuple):
    """takes_ms: upper duration of a fallback. usual_ms: duration of the run over devices beyond which it is unusually late."""

    takes_ms: float
    usual_ms: float

    def after_ms(self, budget_ms: float) -> float:
        """Start of the fallback: in time, but not before the run is later than usual, if that is within the budget."""
        latest_ms = max(0.0, budget_ms - self.takes_ms)
        return latest_ms if self.usual_ms >= WAITED * budget_ms else max(latest_ms, self.usual_ms)


class PlacedRun:
    """One pending run. done: called once with its answer, when it is used or, after `leave`, when it arrives.

    leave: called when nobody waits for the answer any more.
    """

    __slots__ = ("_done", "_leave", "future")

    def __init__(
        self,
        future: "Future[SplitAnswer]",
        done: Callable[[SplitAnswer], None],
        leave: Callable[["Future[SplitAnswer]"], None],
    ) -> None:
        self.future, self._done, self._leave = future, done, leave

    def answer(self, wait_s: float | None) -> SplitAnswer:
        """The answer.

        NotBackError: it did not come within `wait_s`; None: wait for it. AdaptiveError: the coordinator has failed.
        """
        try:
            found = self.future.result(wait_s)
        except TimeoutError:
            raise NotBackError from None
        self._done(found)
        return found

    def leave(self) -> None:
        """Stop waiting; a late answer is still used to learn about the devices."""
        self.future.add_done_callback(lambda found: None if found.exception() else self._done(found.result()))
        self._leave(self.future)


class NetworkRuntime:
    """Runs samples over several devices. batch: samples per run. devices: devices that have run segments.

    begin: starts one run within a time [ms]. within_ms: rest of the request's budget, shared by the runs of its samples; None:
    no budget. stand_in: times of a fallback on the coordinator for all samples; None: no fallback. A run waits until the
    fallback has to start, and gives up once (NotBackError). The second call waits as long as it takes.
    """

    def __init__(
        self,
        batch: int,
        begin: Callable[[Array, float | None], PlacedRun],
        within_ms: float | None,
        samples: int,
        stand_in: StandInTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.batch, self._begin, self._clock = batch, begin, clock
        start_s = clock()
        self._until_s = None if within_ms is None else start_s + within_ms * 1e-3
        self._gives_up_s: float | None = None
        if stand_in is not None and within_ms is not None and samples <= batch:
            self._gives_up_s = start_s + stand_in.after_ms(within_ms) * 1e-3
        self.until_s = start_s + WAITED * (within_ms or 0.0) * 1e-3
        """Time until which the answer of a fallback is held back."""
        self._away: PlacedRun | None = None
        self._runs_left = -(-samples // batch)
        self._devices: dict[str, None] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """Device names in the order of their first use."""
        return tuple(self._devices)

    def start(self, x_NCHW: Array) -> "_NetworkRun":
        """Start a run of one batch (N, C, H, W)."""
        return _NetworkRun(self, x_NCHW)

    def run(self, x_NCHW: Array) -> Array:
        """The answer of one batch, within its share of the remaining time. NotBackError: a fallback has to start."""
        run, wait_s = self._away, None
        if run is None:
            run = self._begin(x_NCHW, self._share_ms)
            if self._gives_up_s is not None:
                wait_s = max(0.0, self._gives_up_s - self._clock())
        try:
            found = run.answer(wait_s)
        except NotBackError:
            self._away = run
            raise
        self._runs_left -= 1
        self._devices |= dict.fromkeys(found.devices)
        return found.answer

    @property
    def away(self) -> "Future[SplitAnswer]":
        """The future answer of the run that gave up."""
        assert self._away is not None, "it has given up"
        return self._away.future

    def leave(self) -> None:
        """Stop waiting for the run that gave up."""
        if self._away is not None:
            self._away.leave()

    @property
    def _share_ms(self) -> float | None:
        """Time for the next run [ms]; None: no budget."""
        if self._until_s is None:
            return None
        return max(0.0, self._until_s - self._clock()) * 1e3 / max(1, self._runs_left)

    def close(self) -> None:
        """Do nothing: the network stays open for other requests."""


class _NetworkRun:
    __slots__ = ("_runtime", "_x")

    def __init__(self, runtime: NetworkRuntime, x_NCHW: Array) -> None:
        self._runtime, self._x = runtime, x_NCHW

    def next(self) -> Array:
        """The SubNet's own answer (N, K)."""
        return self._runtime.run(self._x)

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        """Not possible with a single exit."""
        raise AssertionError("a whole SubNet has one exit")
