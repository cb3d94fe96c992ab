"""Options of weights that adapt on a device, settings of their guard, and reports of their state and events.

`adaptive_runtime.weights` follows these options.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

GuardEventKind = Literal["drift", "aligned", "unaligned", "kept", "undone", "over"]
WeightEventKind = GuardEventKind | Literal["failed", "off"]


class WeightEvent(NamedTuple):
    """An event in the adaptation of a SubNet, after so many of its images. at_s: on the monotonic clock.

    drift, over: begin and end of drift; aligned, unaligned: images are now aligned to the usual, or no longer; kept: adapted
    weights serve; undone: the source's weights serve; failed: the SubNet no longer adapts; off: adaptation is not allowed now,
    and the source's weights serve.
    """

    at_s: float
    subnet: str
    kind: WeightEventKind
    image: int
    reason: str


@dataclass(frozen=True, slots=True)
class SubnetWeights:
    """State of a SubNet's weights at one moment.

    adapted: whether adapted weights serve. aligned: whether images are aligned before serving. drifting: whether images are
    unlike the source's. images: number observed so far. steps: of the statistics that are being adapted. look_ms: time to
    observe the latest images, per image. renewed_ms: time of the latest change of the serving weights, from statistics to a
    checked session in place. None: no such event yet.
    """

    adapted: bool
    aligned: bool
    drifting: bool
    images: int
    steps: int
    look_ms: float | None
    renewed_ms: float | None


@dataclass(frozen=True, slots=True)
class WeightsState:
    """subnets: state by digest, of SubNets that have served. left_out: images skipped because too many others waited."""

    subnets: Mapping[str, SubnetWeights]
    left_out: int
    events: tuple[WeightEvent, ...]


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
    """One image in so many is held out: it judges the adaptation, and is never adapted to."""
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
    """Weight of each step in the kept statistics."""
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
