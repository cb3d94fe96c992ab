"""Settings of methods that adapt, and of the stage `stream`: SubNets, methods, and the window of reported errors."""

from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from adaptive_runtime.weights import DEVIATIONS, GuardSettings
from tasks.base.artifacts import OutsideKey
from tasks.base.errors import UserError
from tasks.search.choose import FILE_END, pick

MethodName = Literal["batchnorm", "tent", "eata", "sar", "cotta", "roid"]
BATCH_IMAGES = 64
"""Images per batch that learning rates refer to."""


class StepSettings(BaseModel):
    """Settings common to all methods. Defaults come from the papers' CIFAR-10-C experiments, if these name a value."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    optimiser: Literal["adam", "sgd"] = "adam"
    """sgd: momentum 0.9. SAR always uses sgd."""
    learning_rate: float = Field(default=1e-3, gt=0)
    prior_images: float = Field(default=0.0, ge=0)
    """BatchNorm: number of images that the source's statistics weigh as much as; 0: each batch by its own statistics."""
    newest_share: float = Field(default=0.1, gt=0, le=1)
    """BatchNorm: share of each batch in the running statistics."""
    input_deviations: float | None = Field(default=None, ge=0)
    """Bring mean, contrast and details of each image to within this many deviations of the usual; null: never."""
    entropy_share: float = Field(default=0.4, gt=0, le=1)
    """EATA, SAR: samples count whose entropy is below this share of the largest one, ln K."""
    redundancy: float = Field(default=0.4, gt=0, le=1)
    """EATA: samples count whose cosine with the mean answer is below this."""
    fisher: float = Field(default=1.0, ge=0)
    """EATA: weight of the term that keeps important parameters near the source."""
    radius: float = Field(default=0.05, gt=0)
    """SAR: radius of the neighbourhood whose largest entropy is lowered."""
    recover_below: float = Field(default=0.2, ge=0)
    """SAR: go back to the source when the mean entropy [nats] falls below this."""
    adapted_layers: float = Field(default=0.75, gt=0, le=1)
    """SAR: share of the normalisation layers that adapt, the first ones."""
    teacher_share: float = Field(default=0.999, ge=0, lt=1)
    """CoTTA: share of the old teacher in the new one."""
    restored_share: float = Field(default=0.01, ge=0, le=1)
    """CoTTA: share of weights that return to the source after each step."""
    sure: float = Field(default=0.92, ge=0, le=1)
    """CoTTA: the teacher answers by `views` when the source's mean confidence is below this."""
    views: int = Field(default=8, ge=1, le=64)
    """CoTTA: images made of each image for the teacher."""
    temperature: float = Field(default=1 / 3, gt=0)
    """ROID: temperature of the samples' weights."""
    kept_share: float = Field(default=0.99, ge=0, le=1)
    """ROID: share of the adapted weights after each step; the rest are the source's."""
    seed: int = Field(default=0, ge=0)
    """CoTTA: seed of views and restored weights."""
    memory_mib: float | None = Field(default=None, gt=0)
    """Budget for all tensors of a step [MiB]; activations that do not fit are stored on disk. None: plain steps."""


class MethodSettings(StepSettings):
    """How a SubNet adapts: a method and its settings."""

    method: MethodName = "roid"

    def for_batches_of(self, images: int) -> "MethodSettings":
        """The same settings for batches of `images`; the learning rate is for `BATCH_IMAGES` and scales with the batch size."""
        return self.model_copy(update={"learning_rate": self.learning_rate * images / BATCH_IMAGES})


GUARDED_METHOD = MethodSettings(method="roid", prior_images=16.0, newest_share=0.6, input_deviations=DEVIATIONS)
"""The method that is guarded, unless another one is requested."""


class AdaptationSettings(BaseModel):
    """How SubNets of a run adapt: methods that are played alone, and the guarded method."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    methods: StepSettings = StepSettings()
    """Settings of methods without guards; the learning rate is for batches of 64 images, and scales with the batch size."""
    guarded: MethodSettings = GUARDED_METHOD
    """The method that is guarded."""
    guard: GuardSettings = GuardSettings()


StreamMethod = Literal["source", MethodName, "guarded"]
STREAM_METHODS: tuple[StreamMethod, ...] = get_args(StreamMethod)

ORIGINAL, LARGEST, SMALLEST_BUDGET = "original", "largest", "smallest_budget"
WITHOUT_SEARCH = (ORIGINAL, LARGEST)
OWN = (ORIGINAL, SMALLEST_BUDGET)
"""Names in addition to those of `tasks.search.choose`."""


class StreamSettings(BaseModel):
    """The SubNets that play the stream of `drift`, and the methods."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    subnets: Annotated[tuple[str, ...], OutsideKey("each SubNet is a stage of its own")] = Field(
        default=(ORIGINAL, LARGEST, SMALLEST_BUDGET), min_length=1
    )
    """original: the network; smallest_budget: the winner of the search's smallest budget; NUMBERms, largest, fastest, knee, a
    digest, or FILE.json: as compare takes them."""
    methods: tuple[StreamMethod, ...] = Field(default=STREAM_METHODS, min_length=1)
    window_images: int = Field(default=100, ge=1)
    """Number of images per error over time."""
    in_report: Annotated[bool, OutsideKey("who asks changes no error")] = False
    """run and report play the stream, too, and report.html shows it."""

    @field_validator("subnets")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        titles = [title_of(name) for name in names]
        for name, title in zip(names, titles, strict=True):
            if titles.count(title) > 1:
                raise ValueError(f"two are called '{title}'; allowed: different names")
            if name not in OWN:
                try:
                    pick(name)
                except UserError as error:
                    raise ValueError(f"{error}, {', '.join(OWN)}") from error
        return names

    @field_validator("methods")
    @classmethod
    def _are_different(cls, methods: tuple[StreamMethod, ...]) -> tuple[StreamMethod, ...]:
        if len(set(methods)) < len(methods):
            raise ValueError("a method is there twice; allowed: each once")
        return methods

    @property
    def searched(self) -> tuple[str, ...]:
        """The names that have a meaning only after a search."""
        return tuple(name for name in self.subnets if name not in WITHOUT_SEARCH and not name.endswith(FILE_END))


def title_of(name: str) -> str:
    """The name of a SubNet in folders and tables: its own, or its file's."""
    return Path(name).stem if name.endswith(FILE_END) else name
