"""How devices of one kind are measured together, and when one of them is an outlier."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.stats import binom


class FleetProfileSettings(BaseModel):
    """The operators that each device measures, and the guarantee for devices that are called odd (outliers).

    A device is sound if each of its operators is off with a probability of at most `off_share`. Off means beyond the tolerance,
    or failed, by chance or because something else ran there. Each check calls at most the share `false_alarms` of sound devices
    odd; a device is an outlier when two checks agree, with other operators and at another time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    spot_operators: int = Field(default=8, ge=1, le=1000, description="that each device measures at least")
    each_by: int = Field(default=5, ge=1, le=99, description="devices that measure an operator which no table has yet")
    tolerance: float = Field(
        default=0.25, gt=0, description="share by which a time may be above, or below, that of the device's kind"
    )
    off_share: float = Field(default=0.1, gt=0, lt=1, description="of a sound device's operators, beyond the tolerance")
    false_alarms: float = Field(
        default=0.001, gt=0, lt=1, description="probability that a check calls a sound device odd"
    )
    at_once: int = Field(default=16, ge=1, le=256, description="devices that are asked at the same time")
    limit_s: float = Field(default=60.0, gt=0, description="for a device to answer at all")
    operator_s: float = Field(default=2.0, gt=0, description="more of it for each operator that the device measures")

    @model_validator(mode="after")
    def _can_find_one(self) -> Self:
        if self.most_off(self.spot_operators) is None:
            raise ValueError(f"spot_operators {self.spot_operators} cannot tell an odd device from chance; take more")
        return self

    def most_off(self, operators: int) -> int | None:
        """Largest number of these operators that may be off; None: chance can make all of them off."""
        allowed = int(binom.isf(self.false_alarms, operators, self.off_share))
        return allowed if allowed < operators else None

    def found_share(self, operators: int, off_share: float) -> float:
        """Probability that one check finds a device whose operators are off with this probability."""
        allowed = self.most_off(operators)
        return 0.0 if allowed is None else float(binom.sf(allowed, operators, off_share))
