"""Settings of policies: the promise of exits, the number of SubNets, and the rules by which a device chooses among SubNets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.exits import MEASURES, MeasureName
from adaptive_runtime.policy import parse_rules
from tasks.base.artifacts import OutsideKey
from tasks.base.errors import UserError
from tasks.exits.bounds import images_needed

FEWEST_CHOOSING = 20
"""Smallest number of images on which a path is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseSettings:
    """The promise. epsilon: largest loss of accuracy (0.01: one point). confidence: probability that it holds.

    choosing_share: share of the holdout images that choose thresholds; the others test them.
    """

    epsilon: float = 0.01
    confidence: float = 0.95
    choosing_share: float = 0.4
    measures: Sequence[MeasureName] = tuple(MEASURES)

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("confidence", self.confidence)):
            if not 0 < value < 1:
                raise UserError(f"exits.{name}", f"{value:g}", allowed="between 0 and 1, as 0.01")

    @property
    def level(self) -> float:
        """Largest probability of a broken promise."""
        return 1 - self.confidence

    def choosing(self, images: int) -> int:
        """Number of holdout images that choose thresholds."""
        return int(images * self.choosing_share)

    def images_needed(self) -> int:
        """Smallest number of holdout images with which the promise can be given."""
        tested = images_needed(self.epsilon, self.level)
        images = tested
        while images - self.choosing(images) < tested or self.choosing(images) < FEWEST_CHOOSING:
            images += 1
        return images


class Settings(BaseModel):
    """Settings of thresholds for SubNets with all their exits, on each device; unused if the space has no exits.

    rules: only affect the bundle.
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
        """The promise."""
        return PromiseSettings(epsilon=self.epsilon, confidence=self.confidence)
