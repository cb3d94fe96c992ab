"""Options of weights that adapt on a device, and settings of their guard; `adaptive_runtime.weights` follows them."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

WeightMethod = Literal["statistics", "tent"]


class GuardSettings(BaseModel):
    """When a SubNet may adapt, and when what it adapted is kept."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    false_alarms: float = Field(default=1.0, gt=0, le=1000)
    """The probability of an alarm within n images that have not drifted is at most so many · n / 100,000."""
    quiet_images: int = Field(default=200, ge=1)
    """Without an alarm for so many images, drift is over at the latest: back to the source."""
    memory_images: int = Field(default=64, ge=2)
    """Images that the SubNet adapts to at once, balanced by predicted class."""
    oldest_images: int = Field(default=128, ge=2)
    """Images that came longer ago are forgotten."""
    step_images: int = Field(default=16, ge=1)
    """A step after so many new images in memory."""
    unsure_share: float = Field(default=0.9, gt=0, le=1)
    """Images whose entropy is above this share of the largest one, ln K, are not adapted to."""
    redundancy: float = Field(default=1e-3, ge=0)
    """Images that differ from one in memory by less, in squares relative to it, are not adapted to."""
    held_back_every: int = Field(default=4, ge=2)
    """Of so many images one is held back: it judges, and is never adapted to."""
    held_back_images: int = Field(default=32, ge=4)
    """The newest ones of these judge."""
    judged_from: int = Field(default=8, ge=4)
    """Held-back images before the first judgement; one follows after each as many."""
    anchor_points: float = Field(default=3.0, ge=0, le=100)
    """Points of accuracy on labelled source images that adapted weights may lose."""
    seed: int = Field(default=0, ge=0)
    """Seed of how the detector orders equal values."""


class WeightOptions(BaseModel):
    """How the BatchNorms of a SubNet adapt on the device."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    method: WeightMethod = "statistics"
    """statistics: of what BatchNorms read. tent: their scales and biases, too, by gradients; needs torch and onnx."""
    state: Path | None = None
    """Folder of what SubNets have adapted, which a restart goes on with; None: it is forgotten."""
    align: bool = True
    """Light, contrast and details of images that drift are brought back while that makes them more usual, before all else."""
    prior_images: float = Field(default=4.0, ge=0)
    """The source's statistics weigh as much as so many images beside a batch."""
    newest_share: float = Field(default=0.3, gt=0, le=1)
    """Of each step in the statistics that are kept."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """tent: of SGD."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """tent: of SGD."""
    sure_share: float | None = Field(default=None, gt=0, le=1)
    """tent: images count whose entropy is below this share of the largest one, ln K, the surer the more; None: all alike."""
    waiting_images: int = Field(default=256, ge=1)
    """Images that may wait to be looked at; those that come meanwhile are left out."""
    guard: GuardSettings = GuardSettings()
    """When weights may adapt, and when what they adapted is kept."""
