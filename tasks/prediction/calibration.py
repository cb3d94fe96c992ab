"""Energy of SubNets, fitted to measurements by a device's power sensors.

The analytic model gives the energy of arithmetic and of moving bytes. The predicted latency stands for power that the device
draws all the time. Both are scaled and a constant is added, so that the sum fits the measured energies of whole SubNets. Errors
are relative to the measurements, so a reading that is too high because something else ran meanwhile has little weight.
"""

from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from solvers.tables import Values

FEWEST_SUBNETS = 3
"""One SubNet for each coefficient."""


class Calibration(BaseModel):
    """Energy of one sample [mJ]: `offset_mj` + `factor` × the analytic model's [mJ] + `mj_per_ms` × predicted latency [ms].

    subnets: number of measured SubNets. spread: root mean square of the remaining relative errors, with one degree of freedom
    less for each coefficient above 0; None if no degree of freedom is left.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    offset_mj: float = Field(ge=0, allow_inf_nan=False)
    factor: float = Field(ge=0, allow_inf_nan=False)
    mj_per_ms: float = Field(ge=0, allow_inf_nan=False)
    subnets: int = Field(ge=FEWEST_SUBNETS)
    spread: float | None = Field(ge=0, allow_inf_nan=False)

    @classmethod
    def fit(cls, model_mj: Values, latency_ms: Values, measured_mj: Values) -> Self:
        """Non-negative least squares of relative errors over SubNets (n,), at least `FEWEST_SUBNETS`; measured energies > 0.

        Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
        """
        from scipy.optimize import nnls  # takes a second

        inputs = np.column_stack([np.ones(len(measured_mj)), model_mj, latency_ms])
        scales = np.where(inputs.max(axis=0) > 0, inputs.max(axis=0), 1.0)  # units must not decide what counts as 0
        found, _ = nnls(inputs / scales / measured_mj[:, None], np.ones(len(measured_mj)))
        left = len(measured_mj) - int((found > 0).sum())
        errors = inputs @ (found / scales) / measured_mj - 1
        offset_mj, factor, mj_per_ms = (float(one) for one in found / scales)
        return cls(
            offset_mj=offset_mj,
            factor=factor,
            mj_per_ms=mj_per_ms,
            subnets=len(measured_mj),
            spread=float((errors @ errors / left) ** 0.5) if left else None,
        )

    def energy_mj(self, model_mj: Values, latency_ms: Values) -> Values:
        """Energies (n,) [mJ] from energies of the analytic model [mJ] and predicted latencies [ms]."""
        return self.offset_mj + self.factor * model_mj + self.mj_per_ms * latency_ms
