"""Settings of streams of images that drift."""

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
    """A stream of labelled images, by which methods that adapt are measured."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    stream: StreamKind = "continual"
    """clean: as the data are. continual: one corruption after another. mixed: another one for each image. gradual: each
    corruption gets stronger and weaker again. correlated: continual, with images of one class behind each other. returning: as
    continual, with clean images after each corruption. shares: clean images, whose class shares change."""
    corruptions: tuple[CorruptionName, ...] = Field(default=get_args(CorruptionName), min_length=1)
    """In this order."""
    severity: int = Field(default=5, ge=1, le=5)
    """Of gradual streams: the largest."""
    images: int = Field(default=300, ge=1)
    """Images of each corruption, of each phase of clean images, and of each set of class shares."""
    phases: int = Field(default=10, ge=1)
    """Phases of streams without corruptions (clean, shares)."""
    batch_size: int = Field(default=64, ge=1, le=64)
    concentration: float = Field(default=0.1, gt=0)
    """Of the Dirichlet distribution of class shares; the smaller, the more unequal (correlated, shares)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the order, the class shares and the corruptions."""
