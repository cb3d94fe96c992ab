"""What a network takes: images, or texts as numbers of words. Legend: B batch, C channels, H height, W width, T words."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from tasks.data.settings import DataSettings
from tasks.errors import UserError

Size = tuple[int, ...]
"""(height, width) of images, (words,) of texts."""
LACKS_OF_IMAGES: Mapping[str, str] = MappingProxyType({})
LACKS_OF_TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "timm": "timm makes networks of images",
        "mixing": "numbers of words cannot be mixed",
        "exits": "heads of exits are for feature maps of images",
        "streams": "streams and their drift are of images",
        "adaptable": "weights adapt on a device to images alone",
        "blocks": "a search on a device evaluates images alone",
        "placed": "home sends images alone to other devices",
        "codings": "numbers of words cannot be rounded on their way to another device",
        "ncnn": "ncnn has no layer for looking words up",
        "executorch": "its programs are made of images alone",
    }
)


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

    @property
    def lacks(self) -> Mapping[str, str]:
        """What cannot be done with such samples yet, by ability, and why; beside what the learning problem lacks."""
        return LACKS_OF_IMAGES if self.words is None else LACKS_OF_TEXTS

    def require(self, ability: str, where: str, next_step: str) -> None:
        """UserError where samples lack an ability that a stage needs. where: the option or stage that asks for it."""
        if reason := self.lacks.get(ability):
            raise UserError(where, f"{self.called} cannot do it yet: {reason}", next_step=next_step)

    def blank(self, samples: int) -> torch.Tensor:
        """So many samples of zeros: black images, or texts of nothing but padding."""
        return torch.zeros(samples, *self.shape, dtype=torch.float32 if self.words is None else torch.int64)

    def last_words(self, samples: int) -> torch.Tensor:
        """So many texts of nothing but the word with the largest number, which a network has to know; of images black ones."""
        return self.blank(samples) if self.words is None else torch.full_like(self.blank(samples), self.words - 1)


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
