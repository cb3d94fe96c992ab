"""`sensitivities.json`, which the accuracy predictor is made of, and `accuracy_validation.json`, its errors."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from tasks.schemas.agreement import PointErrors
from tasks.schemas.stored import Choice, Record, Stored
from tasks.schemas.subnets import Named

SENSITIVITIES_FILE = "sensitivities.json"
VALIDATION_FILE = "accuracy_validation.json"


class MeasuredAccuracy(Record):
    """Accuracy (fraction) and mean cross-entropy loss of one SubNet on the validation split."""

    accuracy: float = Field(ge=0, le=1)
    loss: float


class Sensitivity(Record):
    """One variable: what was measured for each of its choices, the last of which is the largest SubNet's."""

    variable: str
    choices: tuple[Choice, ...]
    measured: tuple[MeasuredAccuracy, ...]


class Interaction(Record):
    """Two variables at other choices than the largest SubNet's: what was measured for both together.

    `standard_error`: of what they do beyond the sum of both alone.
    """

    variables: tuple[str, str]
    choices: tuple[Choice, Choice]
    measured: MeasuredAccuracy
    standard_error: float = Field(ge=0)


class Sensitivities(Stored):
    """Everything the predictor is made of; `samples` is the size of the validation split."""

    STAGE: ClassVar[str] = "predict"
    KIND: ClassVar[str] = "sensitivities"

    samples: int = Field(gt=0)
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
    """Errors on SubNets that were evaluated on so many `samples`, and what of them comes from this number."""

    samples: int
    standard_error_points: float


class Uncertainty(Record):
    """The errors of accuracies on the validation split, where they are known.

    samples: of the split, where the score is a share of right answers. predictor_points: the mean error of predictions on
    held-out SubNets.
    """

    samples: int | None = None
    predictor_points: float | None = None


class PredictedAccuracy(Record):
    """Prediction and measurement; the standard error of the prediction."""

    predicted_accuracy: float
    accuracy: float
    predicted_loss: float
    loss: float
    standard_error: float


class CheckedAccuracy(PredictedAccuracy, Named):
    """A SubNet that the predictor was checked on."""


class UsedInteraction(Record):
    """What a pair of modifications does beyond the sum of both; `kept`: the share of it that counts."""

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
    """What int8 costs the SubNets that were checked: accuracy in fp32 less that in int8 [points].

    `largest_points`: of the largest SubNet. `reduce_range`: weights have 7 bits.
    """

    subnets: int
    mean_points: float
    least_points: float
    most_points: float
    largest_points: float
    reduce_range: bool


class AccuracyValidation(AccuracyErrors, Stored):
    """Predicted against measured accuracies of held-out SubNets. `int8`: where they are accuracies in int8."""

    STAGE: ClassVar[str] = "predict"

    rows: tuple[CheckedAccuracy, ...]
    interactions: Interactions | None
    int8: Int8Cost | None = None
