"""Settings of the policy of exits: what is promised, and for how many SubNets."""

from pydantic import BaseModel, ConfigDict, Field

from tasks.exits.calibrate import PromiseSettings


class Settings(BaseModel):
    """Thresholds for SubNets with all their exits, on each device. Without exits in the space nothing is done."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epsilon: float = Field(0.01, gt=0, lt=1, description="accuracy that leaving early may lose; 0.01: one point")
    confidence: float = Field(0.95, gt=0, lt=1, description="probability with which that is kept")
    images: int | None = Field(None, ge=1, description="held-out images; null: all of the validation split")
    subnets: int = Field(3, ge=0, le=100, description="SubNets that get thresholds, at most; 0: none")
    pictures: int = Field(6, ge=0, le=50, description="images that leave first and last, as pictures of the report")
    by_expected: bool = Field(False, description="also the best SubNet of each budget by expected latency")
    seed: int = Field(0, ge=0, description="which held-out images choose, and which test")

    @property
    def promise(self) -> PromiseSettings:
        """What is promised."""
        return PromiseSettings(epsilon=self.epsilon, confidence=self.confidence)
