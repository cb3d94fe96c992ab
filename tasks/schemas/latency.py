"""`latency_validation.json`: the errors of the latency predictor of one device."""

from typing import Any, ClassVar, Literal

from tasks.schemas.agreement import RelativeErrors
from tasks.schemas.stored import Stored
from tasks.schemas.subnets import Named

LATENCY_FILE = "latency.json"
"""Of the predictor."""
VALIDATION_FILE = "latency_validation.json"


class CheckedLatency(Named):
    """A SubNet that was timed: the sum of its operators, its prediction and its measurement [ms].

    `energy_mj`: of one run; None where the device did not tell it.
    """

    kind: Literal["largest", "smallest", "random"]
    used_for: Literal["fit", "held out"]
    sum_ms: float
    predicted_ms: float
    measured_ms: float
    noisy: bool
    energy_mj: float | None


class LatencyValidation(Stored):
    """`correction`: `tasks.predict.correction.Correction`."""

    STAGE: ClassVar[str] = "predict"

    correction: dict[str, Any]
    fit: RelativeErrors
    held_out: RelativeErrors
    subnets: tuple[CheckedLatency, ...]
