"""Settings of a fleet: its measurements and when a device is an outlier; the stages and guarantees of a roll-out."""

from typing import Literal, Self

from pydantic import Field, model_validator
from scipy.stats import binom

from tasks.base.schemas.stored import Strict


class FleetProfileSettings(Strict):
    """The operators that each device measures, and the guarantee for devices that are called outliers.

    A device is sound if each of its operators is off with a probability of at most `off_share`. Off means beyond the tolerance,
    or failed, by chance or because something else ran there. Each check calls at most the share `false_alarms` of sound devices
    outliers; `outlier` is the verdict when two checks agree, with other operators and at another time.
    """

    spot_operators: int = Field(default=8, ge=1, le=1000, description="that each device measures at least")
    each_by: int = Field(default=5, ge=1, le=99, description="devices that measure an operator which no table has yet")
    tolerance: float = Field(
        default=0.25, gt=0, description="share by which a time may be above, or below, that of the device's kind"
    )
    off_share: float = Field(default=0.1, gt=0, lt=1, description="of a sound device's operators, beyond the tolerance")
    false_alarms: float = Field(
        default=0.001, gt=0, lt=1, description="probability that a check calls a sound device an outlier"
    )
    at_once: int = Field(default=16, ge=1, le=256, description="devices that are asked at the same time")
    limit_s: float = Field(default=60.0, gt=0, description="for a device to answer at all")
    operator_s: float = Field(default=2.0, gt=0, description="more of it for each operator that the device measures")

    @model_validator(mode="after")
    def _can_find_one(self) -> Self:
        if self.most_off(self.spot_operators) is None:
            raise ValueError(f"spot_operators {self.spot_operators} cannot tell an outlier from chance; take more")
        return self

    def most_off(self, operators: int) -> int | None:
        """Largest number of these operators that may be off; None: chance can make all of them off."""
        allowed = int(binom.isf(self.false_alarms, operators, self.off_share))
        return allowed if allowed < operators else None

    def found_share(self, operators: int, off_share: float) -> float:
        """Probability that one check finds a device whose operators are off with this probability."""
        allowed = self.most_off(operators)
        return 0.0 if allowed is None else float(binom.sf(allowed, operators, off_share))


MeasureName = Literal["latency", "in_time", "confidence", "agreement", "heard"]
MEASURES: tuple[MeasureName, ...] = ("latency", "in_time", "confidence", "agreement", "heard")
"""Measures that a bundle can worsen; `tasks.operations.fleet.decision` says how each is computed."""


class LossLimits(Strict):
    """Limits of one measure. tolerated: a bundle that loses no more is not halted, except for false alarms. harmful: a bundle
    that loses this much passes a stage with at most the stage's probability in `missed`. Latency in shares of itself; all
    others in shares of requests, or of windows: 0.02 is 2 points.
    """

    tolerated: float = Field(ge=0)
    harmful: float = Field(gt=0)

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.tolerated >= self.harmful:
            raise ValueError(f"tolerated {self.tolerated:g} is not below harmful {self.harmful:g}")
        return self


def _limits() -> dict[MeasureName, LossLimits]:
    return {
        "latency": LossLimits(tolerated=0.05, harmful=0.2),
        "in_time": LossLimits(tolerated=0.01, harmful=0.05),
        "confidence": LossLimits(tolerated=0.005, harmful=0.02),
        "agreement": LossLimits(tolerated=0.005, harmful=0.02),
        "heard": LossLimits(tolerated=0.05, harmful=0.2),
    }


class RolloutSettings(Strict):
    """Stages, limits, and probabilities of errors."""

    stages: tuple[float, ...] = Field(
        default=(0.01, 0.1), min_length=1, description="shares of the devices that have the bundle before all of them"
    )
    limits: dict[MeasureName, LossLimits] = Field(default_factory=_limits, min_length=1)
    false_alarms: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="probability, over all stages and measures, that a bundle is halted wrongly",
    )
    missed: tuple[float, ...] = Field(
        default=(0.1, 0.01),
        description="of each stage: probability that a bundle passes it that is harmful in a measure",
    )
    windows_before: int = Field(default=24, ge=1, le=1000, description="that a device is compared with itself in")
    least_windows: int = Field(default=6, ge=1, le=1000, description="of a stage before it is passed")
    most_windows: int = Field(default=72, ge=1, le=1000, description="of a stage; then a person decides")
    least_devices: int = Field(default=10, ge=1, description="that each stage adds, whatever its share")
    least_requests: int = Field(default=1000, ge=1, description="that a stage's devices answer by the bundle")
    least_running: float = Field(default=0.8, gt=0, le=1, description="share of a stage's devices that run the bundle")
    device_requests: int = Field(default=30, ge=1, description="without which a device's sums are not compared")
    draws: int = Field(
        default=4999, ge=99, le=100_000, description="random divisions that the real one is compared with"
    )
    most_compared: int = Field(
        default=2000, ge=20, le=20_000, description="devices of a comparison, drawn if more are there"
    )

    @model_validator(mode="after")
    def _can_decide(self) -> Self:
        if list(self.stages) != sorted(set(self.stages)) or not all(0 < share < 1 for share in self.stages):
            raise ValueError("stages: shares between 0 and 1, each larger than the one before")
        if len(self.missed) != len(self.stages) or not all(0 < share < 1 for share in self.missed):
            raise ValueError("missed: a probability between 0 and 1 for each stage")
        if self.least_windows > self.most_windows:
            raise ValueError(f"least_windows {self.least_windows} is above most_windows {self.most_windows}")
        if self.measure_level * (self.draws + 1) < 1:
            least = int(1 / self.measure_level)
            raise ValueError(f"draws {self.draws} are too few for false_alarms {self.false_alarms:g}: from {least} on")
        return self

    @property
    def measures(self) -> tuple[MeasureName, ...]:
        """Measures that have limits, in their order."""
        return tuple(name for name in MEASURES if name in self.limits)

    @property
    def measure_level(self) -> float:
        """The part of `false_alarms` that one measure in one stage may spend (Bonferroni)."""
        return self.false_alarms / (len(self.stages) * len(self.limits))
