"""What a sum of operators measured alone leaves out of a network: caches, layouts, the runtime's overhead."""

from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.optimize import least_squares

Values = NDArray[np.float64]
SCALE = 0.05  # relative errors well above this count linearly, not squared
LARGEST_OFFSET = 0.4  # share of the smallest sum that overhead may add or take away


class Correction(BaseModel):
    """Latency of a network from the sum over its operators: `offset_ms + factor * sum_ms`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    offset_ms: float = Field(default=0.0, allow_inf_nan=False)
    factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @classmethod
    def fit(cls, sums_ms: Values, measured_ms: Values) -> Self:
        """Robust least squares (soft L1) on the relative error, (n,) each, from the median ratio on.

        The offset is bounded, so that a few disturbed measurements cannot make small networks look free.
        """

        def relative_errors(parameters: Values) -> Values:
            offset_ms, factor = parameters
            return (offset_ms + factor * sums_ms) / measured_ms - 1

        ratio = float(np.median(measured_ms / sums_ms))
        if len(set(sums_ms.tolist())) < 2:
            return cls(factor=ratio)
        widest_ms = LARGEST_OFFSET * float(sums_ms.min()) * ratio
        found = least_squares(
            relative_errors,
            x0=(0.0, ratio),
            bounds=((-widest_ms, ratio / 4), (widest_ms, ratio * 4)),
            x_scale=(max(widest_ms, 1e-9), ratio),
            loss="soft_l1",
            f_scale=SCALE,
        )
        offset_ms, factor = (float(value) for value in found.x)
        return cls(offset_ms=offset_ms, factor=factor)

    def apply(self, sums_ms: Values) -> Values:
        """Corrected latencies [ms]."""
        return self.offset_ms + self.factor * sums_ms


UNCORRECTED = Correction()
