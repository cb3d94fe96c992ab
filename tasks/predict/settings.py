"""Settings of the predict stage: of the accuracy predictor, of the latency predictor, and of both."""

from pydantic import BaseModel, ConfigDict, Field

from tasks.evaluation.settings import EvaluationSettings
from tasks.measuring.settings import RepeatedTimingSettings


class CheckedSettings(BaseModel):
    """Both predictors are checked on the largest, the smallest and `random_subnets` random SubNets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    random_subnets: int = Field(24, ge=4)
    seed: int = Field(0, ge=0)


class AccuracySettings(CheckedSettings, EvaluationSettings):
    """How the accuracy predictor is made and checked."""

    interactions: int = Field(0, ge=0, description="evaluations of pairs of modifications, at most")


class LatencySettings(CheckedSettings, RepeatedTimingSettings):
    """How the latency predictor is corrected and checked.

    The correction is fitted on the largest, the smallest and the first `fit_subnets` random SubNets; the others are held out.
    """

    fit_subnets: int = Field(12, ge=0)


class Settings(AccuracySettings, LatencySettings):
    """Both predictors, and how SubNets are evaluated and timed wherever that is not set otherwise."""
