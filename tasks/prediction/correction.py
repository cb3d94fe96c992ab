"""Correction of sums over operators for the rest of a network: caches, layouts, overhead of each layer and each run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from solvers.tables import Values
from tailor_ir import OperatorFeature

NOISE = 0.03  # relative standard deviation of a network's measured latency
FAMILY_SD = 0.15  # relative standard deviation of a family's factor from the common factor
OFFSET_SD = 0.1  # standard deviation of the offset, relative to the fastest network
OVERHEAD_SD = 0.05  # overhead of all operators together, relative to a network
HUBER = 1.5  # residuals beyond this many standard deviations count linearly
SMALLEST = 0.1  # least share of its latency in the table that an operator keeps
ITERATIONS = 20


def family(feature: OperatorFeature) -> str:
    """The group of operators that a runtime treats alike."""
    grouped = any(step.op == "Conv" and dict(step.attributes).get("group", 1) != 1 for step in feature.steps)
    return f"{feature.operator} grouped" if grouped else feature.operator


@dataclass(frozen=True, slots=True)
class OperatorSums:
    """A network's operators in the look-up table: their number, and the sum of their latencies [ms] by family."""

    operators: int
    sums_ms: Mapping[str, float]

    @property
    def sum_ms(self) -> float:
        """The sum over all operators [ms]."""
        return sum(self.sums_ms.values())


class Correction(BaseModel):
    """Latency of a network: `offset_ms` plus, for each operator, the factor of its family × its latency + `overhead_ms`.

    factor: for families that no fitted network has. spread: remaining relative error of the fitted networks, each predicted
    from the others (standard deviation, robust); None without a fit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    offset_ms: float = Field(default=0.0, allow_inf_nan=False)
    overhead_ms: float = Field(default=0.0, allow_inf_nan=False)
    factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    factors: dict[str, float] = Field(default_factory=dict)
    spread: float | None = Field(default=None, ge=0)

    @classmethod
    def fit(cls, networks: Sequence[OperatorSums], measured_ms: Values) -> Self:
        """Bayesian linear regression on relative errors with Huber's weights; (n,) networks.

        The prior has one factor for all families and no overhead: a handful of networks moves only the coefficients on which it
        has evidence.
        """
        families = sorted({name for network in networks for name in network.sums_ms})
        sums_ms = np.array([[network.sums_ms.get(name, 0.0) for name in families] for network in networks])
        counts = np.array([network.operators for network in networks])
        ratio = float(np.median(measured_ms / sums_ms.sum(axis=1)))
        inputs = np.column_stack([np.ones(len(networks)), counts, sums_ms]) / measured_ms[:, None]
        mean = np.array([0.0, 0.0, *[ratio] * len(families)])
        overhead_sd = OVERHEAD_SD * float(np.median(measured_ms / counts))
        sd = np.array([OFFSET_SD * measured_ms.min(), overhead_sd, *[FAMILY_SD * ratio] * len(families)])
        found, spread = _regression(inputs, mean, sd)
        factors = {name: float(max(f, ratio / 4)) for name, f in zip(families, found[2:], strict=True)}
        lowest_ms = -0.5 * ratio * float(sums_ms.sum(axis=1).min())
        return cls(
            offset_ms=max(float(found[0]), lowest_ms),
            overhead_ms=float(found[1]),
            factor=ratio,
            factors=factors,
            spread=spread,
        )

    def operator_ms(self, name: str, latency_ms: float) -> float:
        """The contribution of a family's operator to a SubNet's latency [ms]; 0 if the runtime runs no layer for it."""
        if latency_ms == 0.0:
            return 0.0
        scaled_ms = self.factors.get(name, self.factor) * latency_ms
        return max(scaled_ms + self.overhead_ms, SMALLEST * scaled_ms)


def _regression(inputs: Values, mean: Values, sd: Values) -> tuple[Values, float]:
    """Coefficients with normal priors for which `inputs` (n, k) times them is 1, and the leave-one-out spread."""
    precision = np.diag(sd**-2.0)
    found, noise = mean, NOISE
    weights = np.ones(len(inputs))
    for _ in range(ITERATIONS):
        weighted = inputs * (weights / noise**2)[:, None]
        covariance = np.linalg.inv(weighted.T @ inputs + precision)
        found = covariance @ (weighted.sum(axis=0) + precision @ mean)
        residuals = np.abs(inputs @ found - 1)
        noise = max(NOISE, 1.4826 * float(np.median(residuals)))
        weights = 1 / np.maximum(residuals / (HUBER * noise), 1.0)
    leverage = np.einsum("ij,jk,ik->i", weighted, covariance, inputs)
    left_out = np.abs(inputs @ found - 1) / np.maximum(1 - leverage, 0.05)
    return found, 1.4826 * float(np.median(left_out))


UNCORRECTED = Correction()
