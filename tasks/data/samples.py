"""What a network takes: images, or texts as numbers of words. Legend: B batch, C channels, H height, W width, T words."""

from typing import NamedTuple

import torch

from tasks.data.settings import DataSettings

Size = tuple[int, ...]
"""(height, width) of images, (words,) of texts."""


class SampleForm(NamedTuple):
    """shape: of one sample in the data's own size, an image (C, H, W) float32, or a text (T,) int64.

    words: numbers of words are below it; None: samples are images.
    """

    shape: tuple[int, ...]
    words: int | None = None

    @property
    def size(self) -> Size:
        """What `resize` changes."""
        return self.shape if self.words is not None else self.shape[1:]

    @property
    def called(self) -> str:
        """Samples in messages."""
        return "images" if self.words is None else "texts"

    @property
    def line(self) -> str:
        """The shape, for messages: `3x32x32`."""
        return "x".join(map(str, self.shape))

    def blank(self, samples: int) -> torch.Tensor:
        """So many samples of zeros: black images, or texts of nothing but padding."""
        return torch.zeros(samples, *self.shape, dtype=torch.float32 if self.words is None else torch.int64)


def image_form(channels: int, resolution: int) -> SampleForm:
    """Of square images."""
    return SampleForm((channels, resolution, resolution))


def form_of(settings: DataSettings, words: int | None) -> SampleForm:
    """Of data. words: numbers of words are below it; None: they are no texts."""
    if words is None:
        return image_form(settings.channels, settings.resolution)
    return SampleForm((settings.resolution,), words)


def placed(x: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """On a device; images in a type, and numbers of words as they are."""
    return x.to(device, dtype) if x.is_floating_point() else x.to(device)
