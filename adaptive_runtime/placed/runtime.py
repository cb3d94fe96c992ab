"""A SubNet over several devices as the runtime of a chain, for one request.

Legend: N samples, C channels, H height, W width, K classes.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.split import SplitAnswer

Array = NDArray[np.float32]


class NetworkRuntime:
    """Runs samples over several devices. batch: of one run. infer: the answer of one run. devices: that have run parts."""

    def __init__(self, batch: int, infer: Callable[[Array], SplitAnswer]) -> None:
        self.batch, self._infer = batch, infer
        self._devices: dict[str, None] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """In the order in which they came first."""
        return tuple(self._devices)

    def start(self, x_NCHW: Array) -> "_NetworkRun":
        """Samples of one batch (N, C, H, W)."""
        return _NetworkRun(self, x_NCHW)

    def run(self, x_NCHW: Array) -> Array:
        """The answer of one batch."""
        found = self._infer(x_NCHW)
        self._devices |= dict.fromkeys(found.devices)
        return found.answer

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
