"""Settings of policies: what exits promise, for how many SubNets, and by which rules a device chooses among SubNets."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from adaptive_runtime.choice import parse_rules
from adaptive_runtime.errors import AdaptiveError
from tasks.artifacts import OutsideKey
from tasks.exits.calibrate import PromiseSettings


class Settings(BaseModel):
    """Thresholds for SubNets with all their exits, on each device; without exits in the space there are none.

    rules: count in the bundle alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epsilon: float = Field(0.01, gt=0, lt=1, description="accuracy that leaving early may lose; 0.01: one point")
    confidence: float = Field(0.95, gt=0, lt=1, description="probability with which that is kept")
    images: int | None = Field(None, ge=1, description="held-out images; null: all of the validation split")
    subnets: int = Field(3, ge=0, le=100, description="SubNets that get thresholds, at most; 0: none")
    pictures: int = Field(6, ge=0, le=50, description="images that leave first and last, as pictures of the report")
    by_expected: bool = Field(False, description="also the best SubNet of each budget by expected latency")
    seed: int = Field(0, ge=0, description="which held-out images choose, and which test")
    rules: Annotated[str | None, OutsideKey("what a bundle says, not thresholds")] = Field(
        None,
        min_length=1,
        description="of bundles: what is best on the device; null: the most accurate SubNet within the limits",
    )

    @field_validator("rules")
    @classmethod
    def _are_rules(cls, text: str | None) -> str | None:
        try:
            return text if text is None else parse_rules(text).text
        except AdaptiveError as error:
            raise ValueError(str(error)) from error

    @property
    def promise(self) -> PromiseSettings:
        """What is promised."""
        return PromiseSettings(epsilon=self.epsilon, confidence=self.confidence)
