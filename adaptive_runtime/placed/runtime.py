"""A SubNet over several devices as the runtime of a chain, for one request.

Legend: N samples, C channels, H height, W width, K classes.
"""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.split import SplitAnswer

Array = NDArray[np.float32]


class NetworkRuntime:
    """Runs samples over several devices. batch: of one run. devices: that have run parts.

    infer: the answer of one run within a time [ms]. within_ms: what is left of the request's budget now, which the runs of its
    samples share; None: there is no budget.
    """

    def __init__(
        self,
        batch: int,
        infer: Callable[[Array, float | None], SplitAnswer],
        within_ms: float | None,
        samples: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.batch, self._infer, self._clock = batch, infer, clock
        self._until_s = None if within_ms is None else clock() + within_ms * 1e-3
        self._runs_left = -(-samples // batch)
        self._devices: dict[str, None] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """In the order in which they came first."""
        return tuple(self._devices)

    def start(self, x_NCHW: Array) -> "_NetworkRun":
        """Samples of one batch (N, C, H, W)."""
        return _NetworkRun(self, x_NCHW)

    def run(self, x_NCHW: Array) -> Array:
        """The answer of one batch, within its share of the time left."""
        found = self._infer(x_NCHW, self._share_ms)
        self._runs_left -= 1
        self._devices |= dict.fromkeys(found.devices)
        return found.answer

    @property
    def _share_ms(self) -> float | None:
        """Of the next run; None: there is no budget."""
        if self._until_s is None:
            return None
        return max(0.0, self._until_s - self._clock()) * 1e3 / max(1, self._runs_left)

    def close(self) -> None:
        """The network stays open for others."""


class _NetworkRun:
    __slots__ = ("_runtime", "_x")

    def __init__(self, runtime: NetworkRuntime, x_NCHW: Array) -> None:
        self._runtime, self._x = runtime, x_NCHW

    def next(self) -> Array:
        """The SubNet's own answer (N, K)."""
        return self._runtime.run(self._x)

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        """All samples go to the end: there is one exit."""
        raise AssertionError("a whole SubNet has one exit")
