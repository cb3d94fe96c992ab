"""The base of all learning problems, and raw outputs that are maps (B, C, h, w) of any size.

Legend: B batch, N samples, K classes, C channels or classes, H height, W width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tasks.base.errors import UserError
from tasks.base.schemas.exports import Decoding
from tasks.data.torch_later import functional, torch


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


Batch = tuple[Any, Any]
"""The inputs: x_BCHW float32, or another kind (`tasks.data.batches.Inputs`); and the targets, whose first axis is B: a tensor,
or several if the problem is the user's own (`tasks.data.batches.Nested`). Code for a single input treats x as a tensor.
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


class LearningProblem(ABC):
    """A kind of targets, with the losses on a network's raw outputs and the score by which its answers are judged.

    A problem defines the fields without a value and the abstract methods, and whatever differs from the defaults.

    name: in settings and messages. metric: name of the score that stages call "accuracy". judged_by: the metric by its name in
    settings (`data.metric`). score: in tables and figures, "accuracy", or the metric if it is no share of correct answers.
    outside: post-processing on the device that no latency includes; None: nothing significant. lacks: abilities that the
    problem lacks so far (`require`), each with the reason. heads: number of classes of each target by name, for samples with
    several targets; {}: one target. reads: the method of a source that gives a batch from indices and draws.
    """

    name: str
    metric: str
    judged_by: str
    score: str
    outside: str | None = None
    lacks: Mapping[str, str] = LACKS_OF_PARTS
    heads: Mapping[str, int] = ONE_HEAD
    reads: str = "labelled"
    is_mean: bool = False
    """Whether the score is the mean of the scores of single samples, so that its standard error is known."""
    takes_any: bool = False
    """Whether a network may have outputs of any number and shape."""
    distils: bool = True
    """Whether SubNets learn from the largest SubNet's answers unless `finetune.distillation` says otherwise."""

    def fitted(self, source: Any) -> Self:
        """The record for a source of data; the record itself, unless it depends on the source."""
        return self

    @abstractmethod
    def output_text(self, classes: int) -> str:
        """Description, for messages, of the raw output that a network must have."""

    @abstractmethod
    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """The sizes of the raw output for images with `resolution` pixels a side; None: of any size. resolution: None: unknown.
        `AtMost`: a size that may be smaller.
        """

    @abstractmethod
    def blank(self, images: int, resolution: int) -> torch.Tensor:
        """Targets of `images` images with `resolution` pixels a side, to run a step with; they carry no information."""

    def samples(self, source: Any, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        """A batch of a source of data: images in [0, 1] at the base resolution, and targets.
        source: has the method `reads`. draws: (B, D) in [0, 1), for augmenting samples; None: no augmentation.
        """
        found: Batch = getattr(source, self.reads)(indices, draws)
        return found

    @abstractmethod
    def loss(self, outputs: Any, target: Any, label_smoothing: float) -> torch.Tensor:
        """The mean loss () from targets."""

    @abstractmethod
    def distillation(self, outputs: Any, taught: Any, divergence: Divergence) -> torch.Tensor:
        """The mean loss () from the raw outputs of a teacher, which may have seen larger images."""

    @abstractmethod
    def decoded(self, outputs: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """The answers, in the form of targets for images of `size`, (height, width); larger images by super-resolution."""

    def decoding(self, outputs: NDArray[np.float32], size: tuple[int, int]) -> Decoding | None:
        """How a device decodes raw outputs of images of `size`, and its time; None: the raw output is the answer."""
        return None

    def drawn(self, images_BCHW: torch.Tensor, answers: torch.Tensor, classes: int) -> torch.Tensor | None:
        """Answers or targets drawn over their images, (B, 3, H, W) in [0, 1], like the images; None: they cannot be drawn."""
        return None

    @abstractmethod
    def counted(self, outputs: torch.Tensor, target: torch.Tensor) -> tuple[Any, ...]:
        """The facts of a batch for `judged`, from raw outputs and targets on one device."""

    @abstractmethod
    def judged(self, facts: Sequence[Sequence[Any]]) -> Tallied:
        """Quality of all answers. facts: for each element of `counted`, its values of all batches."""

    def tally(self) -> Tally:
        """An empty tally for one network."""
        return Tally(self)


class Tally:
    """Counts of one network on a learning problem, added batch by batch."""

    def __init__(self, problem: LearningProblem) -> None:
        self._problem = problem
        self._counted: list[tuple[Any, ...]] = []

    def add(self, outputs: Any, target: Any) -> None:
        """Add the raw outputs for a batch, and its targets, on one device."""
        self._counted.append(self._problem.counted(outputs, target))

    def found(self) -> Tallied:
        """Quality of all answers so far."""
        return self._problem.judged(list(zip(*self._counted, strict=True)))


def joined(parts: Sequence[torch.Tensor]) -> np.ndarray:
    """The rows of all batches."""
    found: np.ndarray = torch.cat(list(parts)).cpu().numpy()
    return found


def require(problem: LearningProblem, ability: str, where: str, next_step: str) -> None:
    """Raise UserError if a problem lacks an ability that a stage needs. where: the option or stage that needs it."""
    if reason := problem.lacks.get(ability):
        raise UserError(where, f"{problem.name} cannot do it yet: {reason}", next_step=next_step)
