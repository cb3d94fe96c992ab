"""The interface of weights that follow a model's images; `adaptive_runtime.weights` has the class.

Legend: N samples, C channels, H height, W width.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.weight_state import WeightsState
from adaptive_runtime.pool import Variant


class FollowingWeights(Protocol):
    """Weights of the serving SubNets, which adapt in a thread of their own."""

    @property
    def state(self) -> WeightsState: ...

    def start(self, serving: Variant) -> None:
        """Observe images from now on."""
        ...

    def served(self, variant: Variant, x_NCHW: NDArray[np.float32]) -> None:
        """Take over samples that a variant has answered."""
        ...

    def let(self, *, adapt: bool) -> None:
        """Allow or forbid adaptation from now on; if forbidden, the source's weights serve."""
        ...

    def wait(self) -> None:
        """Until all samples so far have been observed."""
        ...

    def stop(self) -> None: ...
