"""Settings of the predict stage: for the accuracy predictor, for the latency predictor, and for both."""

from itertools import pairwise
from typing import Self

from pydantic import Field, model_validator

from adaptive_runtime.base.arrays import FLOAT_BYTES
from tailor_ir.memory.layouts import Rules
from tasks.base.schemas.stored import Strict
from tasks.evaluation.settings import EvaluationSettings
from tasks.measuring.settings import RepeatedTimingSettings


class CheckedSettings(Strict):
    """Settings of the check of both predictors, on the largest, the smallest and `random_subnets` random SubNets."""

    random_subnets: int = Field(24, ge=4)
    seed: int = Field(0, ge=0)


class AccuracySettings(CheckedSettings, EvaluationSettings):
    """Settings for making and checking the accuracy predictor."""

    interactions: int = Field(0, ge=0, description="evaluations of pairs of modifications, at most")


class LatencySettings(CheckedSettings, RepeatedTimingSettings):
    """Settings for correcting and checking the latency predictor.

    The correction is fitted on the largest, the smallest and the first `fit_subnets` random SubNets; the others are the
    holdout.
    """

    fit_subnets: int = Field(12, ge=0)


class Settings(AccuracySettings, LatencySettings):
    """Settings of both predictors, and of evaluating and timing SubNets unless set elsewhere."""


class EnergySettings(Strict):
    """A device's arithmetic and memory. Caches from the nearest to the farthest; energies in pJ."""

    pj_per_mac: float = Field(default=4.6, ge=0, description="one fp32 multiplication and addition")
    register_bytes: int = Field(default=512, ge=FLOAT_BYTES, description="what the vector registers hold")
    cache_bytes: tuple[int, ...] = Field(default=(32 * 2**10, 2**20), min_length=1)
    cache_pj_per_byte: tuple[float, ...] = Field(default=(2.5, 12.5), description="to read a byte from each cache")
    dram_pj_per_byte: float = Field(default=243.75, ge=0)

    @model_validator(mode="after")
    def _caches_are_a_hierarchy(self) -> Self:
        sizes = (self.register_bytes, *self.cache_bytes)
        if any(far <= near for near, far in pairwise(sizes)):
            raise ValueError(f"cache_bytes={list(self.cache_bytes)}; allowed: ascending, above register_bytes")
        if len(self.cache_pj_per_byte) != len(self.cache_bytes) or min(self.cache_pj_per_byte) < 0:
            got = list(self.cache_pj_per_byte)
            raise ValueError(
                f"cache_pj_per_byte={got}; allowed: a number from 0 on for each of {len(self.cache_bytes)}"
            )
        return self


class ResourceSettings(EnergySettings):
    """A device's arithmetic and memory, and how its runtime allocates memory (`tailor_ir.memory.Rules`)."""

    channel_block: int = Field(
        default=16, ge=1, description="channels that lie side by side; 8 with AVX2; 1: no blocks"
    )
    same_shape: bool = Field(default=True, description="tensors take the place of dead ones of the same shape")

    @property
    def rules(self) -> Rules:
        """The allocation rules of the runtime."""
        return Rules(channel_block=self.channel_block, same_shape=self.same_shape)

    @property
    def energy(self) -> EnergySettings:
        """The arithmetic and memory of the device."""
        return EnergySettings.model_validate(self.model_dump(include=set(EnergySettings.model_fields)))
