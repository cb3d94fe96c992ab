"""Types of bounded numbers. Shares: numbers from 0 to 1.

Recursive least squares with forgetting, for several targets at once.

Without data all coefficients are 0; the first data compete with this prior, whose weight is `ridge` squared units of a
feature. A step takes O(T · P²). Legend: T targets, P features.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from adaptive_runtime.base.arrays import Values

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


def clipped_share(value: float) -> float:
    """The value clipped to 0 to 1."""
    return min(1.0, max(0.0, value))


class RecursiveLeastSquares:
    """Coefficients that predict a target from features, learned one step at a time.

    memory: steps after which the weight of old data has fallen by a factor e. The deviation of the last predictions is not
    estimated.
    """

    def __init__(self, targets: int, features: int, *, memory: float, ridge: float) -> None:
        self.coefficients_TP: Values = np.zeros((targets, features))
        self._inverse_TPP: Values = np.tile(np.eye(features) / ridge, (targets, 1, 1))
        self._keep = float(np.exp(-1.0 / memory))
        self._most = features / ridge

    @property
    def inverse_TPP(self) -> Values:
        """Inverse of the weighted sum of squares; times the variance of the noise, it is the coefficients' covariance."""
        return self._inverse_TPP

    def predict(self, features_TP: Values) -> Values:
        """Predictions (T,)."""
        predicted_T: Values = np.einsum("tp,tp->t", self.coefficients_TP, features_TP)
        return predicted_T

    def learn(self, features_TP: Values, targets_T: Values) -> Values:
        """Learn one step from the features and the true targets; return the errors before it (T,)."""
        spread_TP = np.einsum("tpq,tq->tp", self._inverse_TPP, features_TP)
        whole_T = self._keep + np.einsum("tp,tp->t", features_TP, spread_TP)
        errors_T = targets_T - self.predict(features_TP)
        self.coefficients_TP += spread_TP * (errors_T / whole_T)[:, None]
        inverse_TPP = self._inverse_TPP - spread_TP[:, :, None] * spread_TP[:, None, :] / whole_T[:, None, None]
        grown_TPP = inverse_TPP / self._keep
        # without new data in a direction, forgetting would make its inverse grow without bound
        small_T = np.trace(grown_TPP, axis1=1, axis2=2) <= self._most
        self._inverse_TPP = np.where(small_T[:, None, None], grown_TPP, inverse_TPP)
        return errors_T
