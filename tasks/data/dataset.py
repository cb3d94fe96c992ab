"""One split of the data in batches, read ahead, and the description of a SuperNet's data, stored beside it.

Batches depend on the seed and the epoch but not on the number of ranks. The description shows whether other data have
the same classes, size and scale.
"""

import hashlib
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from queue import Full, Queue
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from adaptive_runtime.samples.inputs import (
    GivenPreparation,
    NumbersPreparation,
    Spectrogram,
    TextPreparation,
    Vocabulary,
)
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.base.schemas.stored import Stored
from tasks.data.batches import Inputs, answers, each
from tasks.data.images import DRAWS, resize
from tasks.data.problems import CLASSIFICATION, Batch, LearningProblem, problem_named
from tasks.data.problems.fidelity import Fidelity
from tasks.data.samples import AnyForm, form_of
from tasks.data.settings import DataSettings
from tasks.data.source import OtherInput, Source, first_of
from tasks.data.teacher import OnnxNetwork

__all__ = ["Batch", "Dataset", "EpochPart", "Split"]

Split = Literal["train", "validation", "test"]


LEAST_LAST = 0.05
"""Least share of an epoch's samples that makes a last, smaller batch worth a step; fewer samples wait for another epoch."""


FIRST = 64
"""Samples whose answers show the kinds of a teacher's outputs."""


class PlannedEpoch(NamedTuple):
    """The steps of one shuffled epoch, and the samples of its last batch if that is smaller than the others; else 0."""

    steps: int
    last: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPart:
    """The part of an epoch that a rank reads: the `rank`-th of `world` equal slices of each global batch from `start` on.

    last: number of samples of a last, smaller batch of a shuffled epoch (`PlannedEpoch`); 0: there is none.
    """

    rank: int = 0
    world: int = 1
    start: int = 0
    last: int = 0


WHOLE_EPOCH = EpochPart()


class Dataset:
    """One split. `len()` counts samples; `problem` is their learning problem, `form` their shape.

    source: all samples. notes: warnings for the user about the data, one line each. split: its name; None: a selection of
    samples without one.
    """

    def __init__(self, settings: DataSettings, source: Source, indices: np.ndarray, split: Split | None = None) -> None:
        self.settings = settings
        self.split = split
        self.class_names = source.class_names
        self.scaling = source.scaling
        self.notes = source.notes
        source.outputs = settings.own_problem.outputs if settings.own_problem else None
        self.problem: LearningProblem = problem_named(settings.problem, settings.metric).fitted(source)
        self.form: AnyForm = form_of(settings, source.scaling)
        self.source = source
        self._indices, self._first = indices, np.arange(min(FIRST, len(source.labels)))
        self._mean, self._deviation = scale_of_images(settings, settings.channels)
        self._scales = [_scale_of(settings, one) for one in (source.scaling.inputs or {}).values()]

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """Channels of every image."""
        return self.settings.channels

    @property
    def fingerprint(self) -> str:
        """A digest of the indices, order and labels of the samples; their content does not count."""
        labels = np.ascontiguousarray(self.source.labels[self._indices], "<i8")
        parts = (np.ascontiguousarray(self._indices, "<i8"), labels)
        return digest_of(*(hashlib.sha256(part.tobytes()).hexdigest() for part in parts))

    def blank(self, samples: int) -> Batch:
        """Samples of zeros with targets of their form, to run a step with; they carry no information."""
        x = self.form.blank(samples)
        if self.settings.teacher is not None:
            return x, answers(self._teacher, x)
        return x, self.problem.blank(samples, self.settings.resolution)

    def steps(self, batch_size: int) -> int:
        """Whole global batches in one shuffled epoch; the remainder is left out."""
        if batch_size > len(self):
            raise UserError(
                "batch_size",
                str(batch_size),
                allowed=f"at most {len(self)}, the {self.form.called} of this split",
                next_step="lower base.batch_size or finetune.batch_size, or give more samples",
            )
        return len(self) // batch_size

    def planned(self, batch_size: int, micro_batches: int) -> PlannedEpoch:
        """An epoch with a last batch of the remaining samples, if they are a large enough share of the data.

        It has as many micro-batches as the others, all of one size and of at least two samples, since BatchNorm needs two.
        """
        run = self.source.unroll
        if batch_size // micro_batches % run:
            got = f"{batch_size // micro_batches} samples that follow one another in runs of {run}"
            raise UserError(
                "micro_batch", got, allowed=f"a number that {run} divides", next_step="or change data.unroll"
            )
        whole, left = self.steps(batch_size), len(self) % batch_size
        last = left - left % (micro_batches * run)
        if last < 2 * micro_batches or left < LEAST_LAST * len(self):
            return PlannedEpoch(whole)
        return PlannedEpoch(whole + 1, last)

    def batches(
        self,
        batch_size: int,
        *,
        resolution: int | None = None,
        seed: int | None = None,
        epoch: int = 0,
        augment: bool | None = None,
        part: EpochPart = WHOLE_EPOCH,
    ) -> Iterator[Batch]:
        """A part of each global batch of `batch_size` samples, images normalised.

        seed None: in order, whole split, no augmentation. Otherwise shuffled by (seed, epoch), whole batches and then one of
        `part.last` samples, and augmented unless `augment` is False.
        """
        settings = self.settings
        size = self.form.size if resolution is None else (resolution,) * len(self.form.size)
        order, draws = self._indices, None
        limit = len(order)
        if seed is not None:
            limit = self.steps(batch_size) * batch_size + part.last
            rng = np.random.default_rng((seed, epoch))
            order = self.source.shuffled(order, rng, batch_size)
            if settings.augment if augment is None else augment:
                draws = rng.random((len(order), DRAWS), dtype=np.float32)
        for first in range(part.start * batch_size, limit, batch_size):
            rows = np.array_split(np.arange(first, min(first + batch_size, limit)), part.world)[part.rank]
            if len(rows):
                own = None if draws is None else draws[rows]
                x, target = self.problem.samples(self.source, order[rows], own)
                x = self._normalised(x)
                if settings.teacher is not None:
                    target = answers(self._teacher, resize(x, self.form.size))
                yield resize(x, size), target

    @cached_property
    def _teacher(self) -> Any:
        """The network whose answers are the targets. Kinds of its outputs are found by its answers to the first samples."""
        assert self.settings.teacher is not None
        teacher = OnnxNetwork(self.settings.teacher)
        first, _ = self.problem.samples(self.source, self._first, None)
        assert isinstance(self.problem, Fidelity)
        self.problem.find_kinds(answers(teacher, resize(self._normalised(first), self.form.size)))
        return teacher

    def _normalised(self, x: Inputs) -> Inputs:
        """Images on the scale of the settings, numbers on that of the source; texts unchanged."""
        if isinstance(x, torch.Tensor):
            unchanged = self.form.words is not None or self.scaling.given is not None
            return x if unchanged else (x - self._mean) / self._deviation
        return tuple(
            one if scale is None else ((one - scale[0]) / scale[1]).float()
            for one, scale in zip(x, self._scales, strict=True)
        )


_Scale = tuple[torch.Tensor, torch.Tensor]
"""Mean and deviation."""


def _scale_of(settings: DataSettings, one: OtherInput | None) -> _Scale | None:
    """The scale of one of several inputs; None for a text and for a sample as given.

    Numbers by their first axis, in float64: large ones may differ little.
    """
    if isinstance(one, TextPreparation | GivenPreparation):
        return None
    if not isinstance(one, NumbersPreparation):
        return scale_of_images(settings, settings.channels if one is None else one.channels)
    shape = (-1, *(1,) * (len(one.shape) - 1))
    mean, deviation = (torch.tensor(values, dtype=torch.float64) for values in (one.mean, one.deviation))
    return mean.reshape(shape), deviation.reshape(shape)


def scale_of_images(settings: DataSettings, channels: int) -> _Scale:
    """Mean and deviation of images, (C, 1, 1) each."""
    mean, deviation = (
        torch.tensor(settings.per_channel(values, channels)).reshape(channels, 1, 1)
        for values in (settings.mean, settings.deviation)
    )
    return mean, deviation


AHEAD = 2
WAIT_S = 0.1


def prefetched(batches: Iterable[Batch], device: torch.device) -> Generator[Batch, None, None]:
    """The same batches in the same order, on `device`. A thread reads the next ones; its errors are raised here.

    Close the generator if not all batches are taken.
    """
    queue: Queue[Batch | BaseException | None] = Queue(AHEAD)
    left = threading.Event()

    def put(item: Batch | BaseException | None) -> None:
        while not left.is_set():
            with suppress(Full):
                queue.put(item, timeout=WAIT_S)
                return

    def read() -> None:
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)  # each thread has its own
            for x_BCHW, target in batches:
                put((each(x_BCHW, partial(_moved, device)), each(target, partial(_moved, device))))
                if left.is_set():
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised where the batch is wanted
            put(error)

    thread = threading.Thread(target=read, name="prefetch", daemon=True)
    thread.start()
    try:
        while (item := queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        left.set()
        thread.join()


def _moved(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


DATA_FILE = "data.json"
OPTIONS = "give the data options of the run that made it"
SAME_TRAINING = (
    "words, means and deviations are of the samples of training: keep that run's in train/, and give others in val/ "
    "and test/"
)


class DataDescription(Stored):
    """All properties of images and labels on which a trained network depends. `mean` and `deviation`: by channel.

    crop, interpolation: how images are brought to `resolution` (`tasks.data.source.Scaling`); None in files of version 1.
    """

    STAGE: ClassVar[str] = "compile"

    version: int = 2
    title: str
    class_names: tuple[str, ...]
    channels: int
    resolution: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    crop: str | None = None
    interpolation: str | None = None
    spectrogram: Spectrogram | None = None
    """The conversion of a signal to an image; written if data are signals."""
    vocabulary: Vocabulary | None = None
    """The words of texts; written if data are texts (then `resolution` is their number of words) or include texts."""
    inputs: dict[str, OtherInput | None] | None = None
    """The inputs of a sample by name, in their order, with None for images; written if there are several."""
    given: GivenPreparation | None = None
    """The samples that the network takes as their owner gives them; written if there are such."""
    problem: str = CLASSIFICATION.name
    """The learning problem; written if it is not classification."""

    @classmethod
    def renewed(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Accept version 1, which did not state how images are brought to `resolution`."""
        return {**content, "version": 2} if content.get("version") == 1 else content

    def described(self) -> dict[str, str]:
        """Values in words of the properties in `differing`."""
        inputs = [name if one is None else f"{name} ({one.line})" for name, one in (self.inputs or {}).items()]
        return {
            "problem": self.problem,
            "classes": f"{len(self.class_names)} classes ({first_of(self.class_names)})",
            "channels": f"channels {self.channels}",
            "resolution": f"resolution {self.resolution}",
            "mean": f"mean {list(self.mean)}",
            "deviation": f"deviation {list(self.deviation)}",
            "signals": "no signals" if self.spectrogram is None else self.spectrogram.line,
            "words": "no texts" if self.vocabulary is None else f"{self.vocabulary.size} words",
            "samples": "samples of a kind of data" if self.given is None else f"samples of {self.given.line}",
            "inputs": "one input" if self.inputs is None else f"inputs {' and '.join(inputs)}",
        }

    def differing(self, other: "DataDescription") -> list[str]:
        """Names of the properties that differ."""
        fields = {"classes": "class_names", "signals": "spectrogram", "words": "vocabulary", "samples": "given"}
        compared = ("problem", "classes", "channels", "resolution", "mean", "deviation", "signals", "words", "samples")
        pairs = {name: [getattr(one, fields.get(name, name)) for one in (self, other)] for name in compared}
        pairs["inputs"] = [list((one.inputs or {}).items()) for one in (self, other)]
        return [name for name, (own, others) in pairs.items() if own != others]

    def differs_by_training_alone(self, other: "DataDescription") -> bool:
        """Whether the same data with other training samples could have this description."""
        has_words = self.vocabulary is not None, other.vocabulary is not None
        return has_words[0] == has_words[1] and not self._untaught.differing(other._untaught)

    @property
    def _untaught(self) -> "DataDescription":
        """The description without values learned from training samples."""
        inputs = None if self.inputs is None else {name: _untaught(one) for name, one in self.inputs.items()}
        return self.model_copy(update={"vocabulary": None, "inputs": inputs})


def _untaught(one: OtherInput | None) -> OtherInput | None:
    match one:
        case NumbersPreparation():
            return one.model_copy(update={"mean": (), "deviation": ()})
        case TextPreparation():
            return one.model_copy(update={"words": 0})
    return one


def describe(dataset: Dataset) -> DataDescription:
    """The properties of samples on which a network trained on them depends."""
    settings, problem = dataset.settings, dataset.problem
    found = DataDescription(
        title=settings.title,
        class_names=dataset.class_names,
        channels=dataset.channels,
        resolution=settings.resolution,
        mean=settings.per_channel(settings.mean),
        deviation=settings.per_channel(settings.deviation),
        crop=dataset.scaling.crop,
        interpolation=dataset.scaling.interpolation,
    )
    own: dict[str, Any] = {} if problem.name == CLASSIFICATION.name else {"problem": problem.name}
    if dataset.scaling.spectrogram is not None:
        own["spectrogram"] = dataset.scaling.spectrogram
    if dataset.scaling.vocabulary is not None:
        own["vocabulary"] = dataset.scaling.vocabulary
    if dataset.scaling.given is not None:
        own["given"] = dataset.scaling.given
    if dataset.scaling.inputs is not None:
        own["inputs"] = dict(dataset.scaling.inputs)
    return found.model_copy(update=own)


def remember(dataset: Dataset, supernet: Path) -> None:
    """Write the description into a SuperNet's folder."""
    describe(dataset).write(supernet / DATA_FILE)


def remembered(supernet: Path) -> DataDescription | None:
    """The description of the data that a SuperNet was made for; None if the file does not exist. UserError for a damaged
    file.
    """
    file = supernet / DATA_FILE
    return DataDescription.read(file) if file.exists() else None


def check_same(dataset: Dataset, supernet: Path) -> None:
    """UserError if the data have other classes, size or scale than those the SuperNet was made for, if these are known."""
    known, given = remembered(supernet), describe(dataset)
    differing = [] if known is None else known.differing(given)
    if known is not None and differing:
        own, others = known.described(), given.described()
        raise UserError(
            f"data '{given.title}'",
            ", ".join(others[name] for name in differing),
            allowed=f"{', '.join(own[name] for name in differing)}, as the SuperNet in '{supernet}' was made for",
            next_step=SAME_TRAINING if known.differs_by_training_alone(given) else OPTIONS,
        )
