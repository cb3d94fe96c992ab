"""`sensitivities.json`, the data of the accuracy predictor, and `accuracy_validation.json`, its errors.

`latency_validation.json`: the errors of the latency predictor of one device.

`resources.json`: needs of the largest and the smallest SubNet on one device besides time.
"""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tasks.base.schemas.stored import Choice, Named, PointErrors, Record, RelativeErrors, Stored

SENSITIVITIES_FILE = "sensitivities.json"
ACCURACY_VALIDATION_FILE = "accuracy_validation.json"


class MeasuredAccuracy(Record):
    """Accuracy (fraction) and mean cross-entropy loss of one SubNet on the validation split."""

    accuracy: float = Field(ge=0, le=1)
    loss: float


class Sensitivity(Record):
    """One variable: the measurement for each of its choices; the last choice is the largest SubNet's."""

    variable: str
    choices: tuple[Choice, ...]
    measured: tuple[MeasuredAccuracy, ...]


class Interaction(Record):
    """Two variables at other choices than the largest SubNet's: the measurement for both together.

    standard_error: of their joint effect beyond the sum of both single effects.
    """

    variables: tuple[str, str]
    choices: tuple[Choice, Choice]
    measured: MeasuredAccuracy
    standard_error: float = Field(ge=0)


class Sensitivities(Stored):
    """All data of the predictor; `samples` is the size of the validation split. spread: as in `Uncertainty`."""

    STAGE: ClassVar[str] = "predict"
    KIND: ClassVar[str] = "sensitivities"

    samples: int = Field(gt=0)
    spread: float = 1.0
    largest: MeasuredAccuracy
    variables: tuple[Sensitivity, ...]
    interactions: tuple[Interaction, ...] = ()

    @model_validator(mode="after")
    def _interactions_are_of_modifications(self) -> Self:
        known = {(row.variable, choice) for row in self.variables for choice in row.choices[:-1]}
        for each in self.interactions:
            for name, choice in zip(each.variables, each.choices, strict=True):
                if (name, choice) not in known:
                    raise ValueError(f"interaction of {name}={choice}, which is no modification")
        return self


class AccuracyErrors(PointErrors):
    """Errors on SubNets evaluated on `samples` samples, and the part of the errors that comes from this number.

    spread: as in `Uncertainty`.
    """

    samples: int
    spread: float = 1.0
    standard_error_points: float


class Uncertainty(Record):
    """The errors of accuracies on the validation split, if they are known.

    samples: of the split, if the score is a mean over samples. spread: the standard deviation of the scores of single samples
    over that of right and wrong answers with the same mean; written if answers are graded. predictor_points: the mean error
    of predictions on held-out SubNets.
    """

    samples: int | None = None
    spread: float = 1.0
    predictor_points: float | None = None


class PredictedAccuracy(Record):
    """Prediction and measurement, and the standard error of the prediction."""

    predicted_accuracy: float
    accuracy: float
    predicted_loss: float
    loss: float
    standard_error: float


class CheckedAccuracy(PredictedAccuracy, Named):
    """A SubNet on which the predictor was checked."""


class UsedInteraction(Record):
    """The effect of a pair of modifications beyond the sum of both; `kept`: the share of it that counts."""

    variables: tuple[str, str]
    choices: tuple[Choice, Choice]
    residual_points: float
    standard_error_points: float
    kept: float


class Interactions(Record):
    """The errors without and with interactions, and whether these are used."""

    used: bool
    evaluations: int
    plain: PointErrors
    with_interactions: PointErrors
    rows: tuple[UsedInteraction, ...]


class Int8Cost(Record):
    """The loss by int8 on the checked SubNets: accuracy in fp32 minus that in int8 [points].

    largest_points: of the largest SubNet. reduce_range: weights have 7 bits.
    """

    subnets: int
    mean_points: float
    least_points: float
    most_points: float
    largest_points: float
    reduce_range: bool


class AccuracyValidation(AccuracyErrors, Stored):
    """Predicted against measured accuracies of held-out SubNets. int8: set if the accuracies are in int8."""

    STAGE: ClassVar[str] = "predict"

    rows: tuple[CheckedAccuracy, ...]
    interactions: Interactions | None
    int8: Int8Cost | None = None


LATENCY_FILE = "latency.json"
"""The file of the predictor."""
LATENCY_VALIDATION_FILE = "latency_validation.json"


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
    """The errors of a latency predictor. correction: `tasks.prediction.latency.Correction`."""

    STAGE: ClassVar[str] = "predict"

    correction: dict[str, Any]
    fit: RelativeErrors
    held_out: RelativeErrors
    subnets: tuple[CheckedLatency, ...]


RESOURCES_FILE = "resources.json"
ENERGY_FILE = "energy.json"
"""The file of the predictor of energy."""


class Metered(Record):
    """The number of operators with measured energy, out of all operators."""

    measured: int
    all: int


class ResourceNeeds(Named):
    """Needs of a SubNet for one sample."""

    kind: Literal["largest", "smallest"]
    memory_mib: float
    peak_activations_mib: float
    peak_arena_mib: float
    parameters: int
    macs: int
    energy_mj: float


class Resources(Stored):
    """energy_from: source of the predicted energies. energy_calibration: `tasks.prediction.resources.Calibration`."""

    STAGE: ClassVar[str] = "predict"

    energy_from: Literal["model", "operators", "sensor"]
    energy_operators: Metered
    subnets: tuple[ResourceNeeds, ...]
    energy_calibration: dict[str, Any] | None = None
    energy_held_out: RelativeErrors | None = None
