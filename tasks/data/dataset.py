"""One split of the data, in batches that depend on the seed and the epoch but not on the number of ranks."""

import hashlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch

from adaptive_runtime.samples.several import NumbersPreparation
from adaptive_runtime.samples.texts import TextPreparation
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.data.batches import Inputs
from tasks.data.images import DRAWS, resize
from tasks.data.problems import Batch, LearningProblem, problem_named
from tasks.data.samples import AnyForm, form_of
from tasks.data.settings import DataSettings
from tasks.data.source import OtherInput, Source

__all__ = ["Batch", "Dataset", "Split"]

Split = Literal["train", "validation", "test"]


LEAST_LAST = 0.05
"""Least share of an epoch's samples that makes a last, smaller batch worth a step; fewer samples wait for another epoch."""


class PlannedEpoch(NamedTuple):
    """The steps of one shuffled epoch, and the samples of its last batch if that is smaller than the others; else 0."""

    steps: int
    last: int = 0


class Dataset:
    """One split. `len()` counts samples; `problem` is their learning problem, `form` their shape.

    notes: warnings for the user about the data, one line each. split: its name; None: a selection of samples without one.
    """

    def __init__(self, settings: DataSettings, source: Source, indices: np.ndarray, split: Split | None = None) -> None:
        self.settings = settings
        self.split = split
        self.class_names = source.class_names
        self.scaling = source.scaling
        self.notes = source.notes
        self.problem: LearningProblem = problem_named(settings.problem, settings.metric).fitted(source)
        self.form: AnyForm = form_of(settings, source.scaling)
        self._source = source
        self._indices = indices
        self._mean, self._deviation = _scale_of_image(settings, settings.channels)
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
        labels = np.ascontiguousarray(self._source.labels[self._indices], "<i8")
        parts = (np.ascontiguousarray(self._indices, "<i8"), labels)
        return digest_of(*(hashlib.sha256(part.tobytes()).hexdigest() for part in parts))

    def steps(self, batch_size: int) -> int:
        """Whole global batches in one shuffled epoch; the remainder is left out."""
        if batch_size > len(self):
            raise UserError(
                "batch_size", str(batch_size), allowed=f"at most {len(self)}, the {self.form.called} of this split"
            )
        return len(self) // batch_size

    def planned(self, batch_size: int, micro_batches: int) -> PlannedEpoch:
        """An epoch with a last batch of the remaining samples, if they are a large enough share of the data.

        It has as many micro-batches as the others, all of one size and of at least two samples, since BatchNorm needs two.
        """
        whole, left = self.steps(batch_size), len(self) % batch_size
        last = left - left % micro_batches
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
        rank: int = 0,
        world: int = 1,
        start: int = 0,
        last: int = 0,
    ) -> Iterator[Batch]:
        """This rank's part of each global batch of `batch_size` samples, images normalised, from global batch `start` on.

        seed None: in order, whole split, no augmentation. Otherwise shuffled by (seed, epoch), whole batches and then one of
        `last` samples, and augmented unless `augment` is False. Rank r of w gets the r-th of w equal slices of each global
        batch.
        """
        settings = self.settings
        size = (resolution or settings.resolution,) * len(self.form.size)
        order, draws = self._indices, None
        limit = len(order)
        if seed is not None:
            limit = self.steps(batch_size) * batch_size + last
            rng = np.random.default_rng((seed, epoch))
            order = self._source.shuffled(order, rng, batch_size)
            if settings.augment if augment is None else augment:
                draws = rng.random((len(order), DRAWS), dtype=np.float32)
        for first in range(start * batch_size, limit, batch_size):
            rows = np.array_split(np.arange(first, min(first + batch_size, limit)), world)[rank]
            if len(rows):
                own = None if draws is None else draws[rows]
                x, target = self.problem.samples(self._source, order[rows], own)
                yield resize(self._normalised(x), size), target

    def _normalised(self, x: Inputs) -> Inputs:
        """Images on the scale of the settings, numbers on that of the source; texts unchanged."""
        if isinstance(x, torch.Tensor):
            return x if self.form.words is not None else (x - self._mean) / self._deviation
        return tuple(
            one if scale is None else ((one - scale[0]) / scale[1]).float()
            for one, scale in zip(x, self._scales, strict=True)
        )


_Scale = tuple[torch.Tensor, torch.Tensor]
"""Mean and deviation."""


def _scale_of(settings: DataSettings, one: OtherInput | None) -> _Scale | None:
    """The scale of one of several inputs; None for a text. Numbers by their first axis, in float64: large ones may differ
    little.
    """
    if isinstance(one, TextPreparation):
        return None
    if not isinstance(one, NumbersPreparation):
        return _scale_of_image(settings, settings.channels if one is None else one.channels)
    shape = (-1, *(1,) * (len(one.shape) - 1))
    mean, deviation = (torch.tensor(values, dtype=torch.float64) for values in (one.mean, one.deviation))
    return mean.reshape(shape), deviation.reshape(shape)


def _scale_of_image(settings: DataSettings, channels: int) -> _Scale:
    """Mean and deviation of images, (C, 1, 1) each."""
    mean, deviation = (
        torch.tensor(settings.per_channel(values, channels)).reshape(channels, 1, 1)
        for values in (settings.mean, settings.deviation)
    )
    return mean, deviation
