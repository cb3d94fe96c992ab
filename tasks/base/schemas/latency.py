"""`latency_validation.json`: the errors of the latency predictor of one device."""

from typing import Any, ClassVar, Literal

from tasks.base.schemas.agreement import RelativeErrors
from tasks.base.schemas.stored import Stored
from tasks.base.schemas.subnets import Named

LATENCY_FILE = "latency.json"
"""The file of the predictor."""
VALIDATION_FILE = "latency_validation.json"


class CheckedLatency(Named):
    """A timed SubNet: the sum of its operators, its prediction and its measurement [ms].

    energy_mj: of one run; None if the device did not report it.
    """

    kind: Literal["largest", "smallest", "random"]
    used_for: Literal["fit", "held out"]
    sum_ms: float
    predicted_ms: float
    measured_ms: float
    noisy: bool
    energy_mj: float | None


class LatencyValidation(Stored):
    """The errors of a latency predictor. correction: `tasks.prediction.correction.Correction`."""

    STAGE: ClassVar[str] = "predict"

    correction: dict[str, Any]
    fit: RelativeErrors
    held_out: RelativeErrors
    subnets: tuple[CheckedLatency, ...]
