"""Settings of drifting image streams."""

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

CorruptionName = Literal[
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "gaussian_blur",
    "defocus_blur",
    "fog",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg",
]
StreamKind = Literal["clean", "continual", "mixed", "gradual", "correlated", "returning", "shares"]


class DriftSettings(BaseModel):
    """A stream of labelled images for experiments with adapting methods."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    stream: StreamKind = "continual"
    """clean: the data unchanged. continual: one corruption after another. mixed: a random corruption for each image. gradual:
    each corruption gets stronger and weaker again. correlated: continual, with images of one class in runs. returning:
    continual, with clean images after each corruption. shares: clean images with changing class shares.
    """
    corruptions: tuple[CorruptionName, ...] = Field(default=get_args(CorruptionName), min_length=1)
    """The corruptions, in their order."""
    severity: int = Field(default=5, ge=1, le=5)
    """Severity of corruptions; in gradual streams the largest."""
    images: int = Field(default=300, ge=1)
    """Number of images for each corruption, each phase of clean images, and each set of class shares."""
    phases: int = Field(default=10, ge=1)
    """Number of phases in streams without corruptions (clean, shares)."""
    batch_size: int = Field(default=64, ge=1, le=64)
    concentration: float = Field(default=0.1, gt=0)
    """Concentration of the Dirichlet distribution of class shares; the smaller, the more unequal (correlated, shares)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the order, the class shares and the corruptions."""
