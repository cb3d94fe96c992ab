"""What a sum of operators measured alone leaves out of a network: caches, layouts, the runtime's overhead."""

from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

Values = NDArray[np.float64]


class Correction(BaseModel):
    """Latency of a network from the sum over its operators: `offset_ms + factor * sum_ms`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    offset_ms: float = Field(default=0.0, allow_inf_nan=False)
    factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @classmethod
    def fit(cls, sums_ms: Values, measured_ms: Values) -> Self:
        """Least squares on the relative error, (n,) each. No offset when the slope would not be positive."""
        rows = np.stack([np.ones_like(sums_ms), sums_ms], axis=1) / measured_ms[:, None]
        (offset_ms, factor), *_ = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)
        if len(set(sums_ms.tolist())) > 1 and factor > 0 and offset_ms + factor * sums_ms.min() > 0:
            return cls(offset_ms=float(offset_ms), factor=float(factor))
        share = sums_ms / measured_ms
        return cls(factor=float(share.sum() / (share @ share)))

    def apply(self, sums_ms: Values) -> Values:
        """Corrected latencies [ms]."""
        return self.offset_ms + self.factor * sums_ms


UNCORRECTED = Correction()
