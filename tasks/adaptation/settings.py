"""Settings of methods that adapt, and of what guards them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MethodName = Literal["batchnorm", "tent", "eata", "sar", "cotta", "roid"]


class MethodSettings(BaseModel):
    """How a SubNet adapts. Defaults are those of the papers for CIFAR-10-C where these name some."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    method: MethodName = "roid"
    optimiser: Literal["adam", "sgd"] = "adam"
    """sgd: momentum 0.9. SAR takes sgd in any case."""
    learning_rate: float = Field(default=1e-3, gt=0)
    prior_images: float = Field(default=0.0, ge=0)
    """BatchNorm: the source's statistics weigh as much as so many images; 0: each batch by its own statistics."""
    newest_share: float = Field(default=0.1, gt=0, le=1)
    """BatchNorm: share of each batch in the statistics that are kept."""
    entropy_share: float = Field(default=0.4, gt=0, le=1)
    """EATA, SAR: samples count whose entropy is below this share of the largest one, ln K."""
    redundancy: float = Field(default=0.4, gt=0, le=1)
    """EATA: samples count whose cosine with the mean answer is below."""
    fisher: float = Field(default=1.0, ge=0)
    """EATA: weight of the term that keeps important parameters near the source."""
    radius: float = Field(default=0.05, gt=0)
    """SAR: of the neighbourhood whose largest entropy is lowered."""
    recover_below: float = Field(default=0.2, ge=0)
    """SAR: back to the source where the mean entropy [nats] falls below."""
    adapted_layers: float = Field(default=0.75, gt=0, le=1)
    """SAR: share of the normalisation layers that adapt, the first ones."""
    teacher_share: float = Field(default=0.999, ge=0, lt=1)
    """CoTTA: of the old teacher in the new one."""
    restored_share: float = Field(default=0.01, ge=0, le=1)
    """CoTTA: weights that return to the source after each step."""
    sure: float = Field(default=0.92, ge=0, le=1)
    """CoTTA: the teacher answers by `views` where the source's mean confidence is below."""
    views: int = Field(default=8, ge=1, le=64)
    """CoTTA: images made of each image for the teacher."""
    temperature: float = Field(default=1 / 3, gt=0)
    """ROID: of the weights of samples."""
    kept_share: float = Field(default=0.99, ge=0, le=1)
    """ROID: of the adapted weights after each step; the rest are the source's."""
    seed: int = Field(default=0, ge=0)
    """CoTTA: of views and restored weights."""
    memory_mib: float | None = Field(default=None, gt=0)
    """Budget for all tensors of a step [MiB]; activations that do not fit wait on disk. None: plain steps."""


class GuardSettings(BaseModel):
    """When a SubNet may adapt, and when what it adapted is kept."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    false_alarms: float = Field(default=1.0, gt=0, le=1000)
    """The probability of an alarm within n images that have not drifted is at most so many · n / 100,000."""
    quiet_images: int = Field(default=200, ge=1)
    """Without an alarm for so many images, drift is over at the latest: back to the source."""
    memory_images: int = Field(default=64, ge=2)
    """Images that the SubNet adapts to at once, balanced by predicted class."""
    oldest_images: int = Field(default=256, ge=2)
    """Images that came longer ago are forgotten."""
    step_images: int = Field(default=32, ge=1)
    """A step after so many new images in memory."""
    unsure_share: float = Field(default=0.9, gt=0, le=1)
    """Images whose entropy is above this share of the largest one, ln K, are not adapted to."""
    redundancy: float = Field(default=1e-3, ge=0)
    """Images that differ from one in memory by less, in squares relative to it, are not adapted to."""
    held_back_every: int = Field(default=4, ge=2)
    """Of so many images one is held back: it judges, and is never adapted to."""
    held_back_images: int = Field(default=64, ge=4)
    """The newest ones of these judge."""
    judged_from: int = Field(default=16, ge=4)
    """Held-back images before the first judgement; one follows after each as many."""
    anchor_points: float = Field(default=3.0, ge=0, le=100)
    """Points of accuracy on labelled source images that adapted weights may lose."""
    seed: int = Field(default=0, ge=0)
    """Seed of how the detector orders equal values."""
