"""The interface between learning problems and stages, and raw outputs that are maps (B, C, h, w) of any size.

Legend: B batch, N samples, K classes, C channels or classes, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from importing import Later
from tasks.base.errors import UserError
from tasks.base.schemas.exports import Decoding

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    torch = Later("torch")
    functional = Later("torch.nn.functional")


def enlarged(maps_BChw: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    """Maps resized to (H, W), unchanged if they have this size: (B, C, H, W)."""
    if tuple(maps_BChw.shape[-2:]) == tuple(size):
        return maps_BChw
    return functional.interpolate(maps_BChw, list(size), mode="bilinear", align_corners=False)


def resized(taught_BChw: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A teacher's maps at the size of others; anti-aliased if they shrink."""
    size = like.shape[-2:]
    if taught_BChw.shape[-2:] == size:
        return taught_BChw
    return functional.interpolate(taught_BChw, size, mode="bilinear", align_corners=False, antialias=True)


Batch = tuple[Any, "torch.Tensor"]
"""The inputs: x_BCHW float32, or another kind (`tasks.data.source.Inputs`); and the targets, whose first axis is B.
Code for samples of a single input treats x as a tensor.
"""

Divergence = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""The mean divergence () of distributions from a teacher's; both are rows of logits (N, K)."""

LACKS_OF_PARTS: Mapping[str, str] = MappingProxyType(
    {
        "timm": "timm makes networks that classify whole images",
        "mixing": "mixed images have soft labels of whole images",
        "exits": "heads of exits classify whole images",
        "streams": "methods of adaptation go by the classes of whole images",
        "adaptable": "weights that adapt on a device are judged by the classes of whole images",
        "blocks": "a search on a device goes by the classes of whole images",
    }
)
"""Features that problems cannot support if their answers are about parts of an image, with the reasons."""


ONE_HEAD: Mapping[str, int] = MappingProxyType({})
"""The heads of problems whose samples have one target."""


class AtMost(int):
    """A size of a raw output that may be smaller."""


class Tallied(NamedTuple):
    """Quality of the answers for samples.

    score: in [0, 1], higher is better; stages call it accuracy. loss: mean loss from targets, of a sample. each_N: whether each
    sample is answered correctly (bool), or the score of each sample alone (float16). confusion_KK: samples by class (rows) and
    answer (columns); None: samples have no classes.
    """

    score: float
    loss: float
    each_N: NDArray[np.bool_] | NDArray[np.float16]
    confusion_KK: NDArray[np.int64] | None = None


class Tally(Protocol):
    """Counts of one network, added batch by batch."""

    def add(self, outputs: torch.Tensor, target: torch.Tensor) -> None:
        """Add the raw outputs for a batch, and its targets, on one device."""
        ...

    def found(self) -> Tallied:
        """Quality of all answers so far."""
        ...


class LearningProblem(Protocol):
    """A kind of targets, with the losses on a network's raw outputs and the score by which its answers are judged.
    Sensitivities are losses of that score in points, for every problem.
    """

    @property
    def name(self) -> str:
        """The name in settings and messages."""
        ...

    @property
    def metric(self) -> str:
        """The name of the score that stages call "accuracy"."""
        ...

    @property
    def judged_by(self) -> str:
        """The metric by its name in settings (`data.metric`)."""
        ...

    @property
    def score(self) -> str:
        """The score in tables and figures: "accuracy", or the metric if it is no share of correct answers."""
        ...

    @property
    def outside(self) -> str | None:
        """Post-processing on the device that no latency includes; None: nothing significant."""
        ...

    @property
    def lacks(self) -> Mapping[str, str]:
        """Abilities that the problem lacks so far (`require`), each with the reason."""
        ...

    @property
    def heads(self) -> Mapping[str, int]:
        """Number of classes of each target by name, for samples with several targets; {}: one target."""
        ...

    def fitted(self, source: Any) -> LearningProblem:
        """The record for a source of data, if it depends on the source."""
        ...

    def output_told(self, classes: int) -> str:
        """Description, for messages, of the raw output that a network must have."""
        ...

    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """The sizes of the raw output for images with `resolution` pixels a side; None: of any size. resolution: None: unknown.
        `AtMost`: a size that may be smaller.
        """
        ...

    def blank(self, images: int, resolution: int) -> torch.Tensor:
        """Targets of `images` images with `resolution` pixels a side, to run a step with; they carry no information."""
        ...

    def samples(self, source: Any, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        """A batch of a source of data: images in [0, 1] at the base resolution, and targets.
        source: of the kind that the record names. draws: (B, D) in [0, 1), for augmenting samples; None: no augmentation.
        """
        ...

    def loss(self, outputs: torch.Tensor, target: torch.Tensor, label_smoothing: float) -> torch.Tensor:
        """The mean loss () from targets."""
        ...

    def distillation(self, outputs: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
        """The mean loss () from the raw outputs of a teacher, which may have seen larger images."""
        ...

    def decoded(self, outputs: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """The answers, in the form of targets for images of `size`, (height, width); larger images by super-resolution."""
        ...

    def decoding(self, outputs: NDArray[np.float32], size: tuple[int, int]) -> Decoding | None:
        """How a device decodes raw outputs of images of `size`, and its time; None: the raw output is the answer."""
        ...

    def drawn(self, images_BCHW: torch.Tensor, answers: torch.Tensor, classes: int) -> torch.Tensor | None:
        """Answers or targets drawn over their images, (B, 3, H, W) in [0, 1], like the images; None: they cannot be drawn."""
        ...

    def tally(self) -> Tally:
        """An empty tally for one network."""
        ...


def require(problem: LearningProblem, ability: str, where: str, next_step: str) -> None:
    """Raise UserError if a problem lacks an ability that a stage needs. where: the option or stage that needs it."""
    if reason := problem.lacks.get(ability):
        raise UserError(where, f"{problem.name} cannot do it yet: {reason}", next_step=next_step)
