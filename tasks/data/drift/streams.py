"""Streams of drifting labelled images. Legend: M images, B batch, C channels, H height, W width."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.data.batches import only
from tasks.data.dataset import Dataset
from tasks.data.drift.corruptions import CLEAN, corrupt
from tasks.data.drift.plans import StreamPlan, plan_stream
from tasks.data.drift.settings import DriftSettings

READ = 256
"""Images that are read from a data set at once."""


class LabelledImages(NamedTuple):
    """x_MCHW: pixels in [0, 1]; label_M; mean and deviation (C, 1, 1), for normalising them."""

    x_MCHW: torch.Tensor
    label_M: NDArray[np.int64]
    mean: torch.Tensor
    deviation: torch.Tensor

    @classmethod
    def of(cls, dataset: Dataset, most: int | None = None) -> "LabelledImages":
        """Images of a split in their order, at its resolution; at most `most`, None: all."""
        settings = dataset.settings
        mean, deviation = (
            torch.tensor(settings.per_channel(values)).reshape(-1, 1, 1)
            for values in (settings.mean, settings.deviation)
        )
        pixels: list[torch.Tensor] = []
        labels: list[NDArray[np.int64]] = []
        left = len(dataset) if most is None else most
        for x, y_B in dataset.batches(READ):
            pixels.append((only(x)[:left] * deviation + mean).clamp(0, 1))
            labels.append(y_B[:left].numpy())
            left -= len(labels[-1])
            if left <= 0:
                break
        return cls(torch.cat(pixels), np.concatenate(labels), mean, deviation)

    def normalised(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Normalised pixels, the input of networks."""
        return (x_BCHW - self.mean) / self.deviation


class StreamBatch(NamedTuple):
    """x_BCHW: normalised; y_B: labels; plan: of these images; place: of the first image in the stream."""

    x_BCHW: torch.Tensor
    y_B: torch.Tensor
    plan: StreamPlan
    place: int


def stream(settings: DriftSettings, images: LabelledImages) -> Iterator[StreamBatch]:
    """All batches of a stream, in order. The pixels at a place do not depend on the batch size."""
    plan = plan_stream(settings, images.label_M)
    for start in range(0, len(plan.image), settings.batch_size):
        part = StreamPlan(*(column[start : start + settings.batch_size] for column in plan))
        x_BCHW = _corrupted(images.x_MCHW[part.image], part, settings, start)
        yield StreamBatch(images.normalised(x_BCHW), torch.from_numpy(images.label_M[part.image]), part, start)


def _corrupted(x_BCHW: torch.Tensor, plan: StreamPlan, settings: DriftSettings, start: int) -> torch.Tensor:
    """The corrupted images; images of the same corruption and severity are processed together."""
    found = x_BCHW.clone()
    for number, severity in sorted(set(zip(plan.corruption.tolist(), plan.severity.tolist(), strict=True))):
        if severity == CLEAN:
            continue
        rows = np.flatnonzero((plan.corruption == number) & (plan.severity == severity))
        name = settings.corruptions[number]
        found[rows] = corrupt(x_BCHW[rows], name, severity, seed=settings.seed, places=(start + rows).tolist())
    return found
