"""Inputs of networks: images, texts as numbers of words, or several inputs.

Legend: B batch, C channels, H height, W width, T words.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from adaptive_runtime.samples.inputs import GivenPreparation, Spectrogram, TextPreparation
from tasks.base.errors import UserError
from tasks.data.batches import Inputs, NestedT, each
from tasks.data.settings import LEAST_SIDE, MOST_SIDE, DataSettings
from tasks.data.source import OtherInput, Scaling
from tasks.data.torch_later import torch

Size = tuple[int, ...]
"""(height, width) of images, (words,) of texts. For samples with several inputs: the size of all their images and sounds."""
LACKS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "image": {},
        "text": {
            "timm": "timm makes networks of images",
            "backbone": "a part is a classifier of feature maps of images",
            "mixing": "numbers of words cannot be mixed",
            "exits": "heads of exits are for feature maps of images",
            "streams": "streams and their drift are of images",
            "adaptable": "weights adapt on a device to images alone",
            "blocks": "a search on a device evaluates images alone",
            "placed": "the coordinator sends images alone to other devices",
            "ncnn": "files of ncnn are written without its layer for looking words up",
            "executorch": "its programs are made of images alone",
        },
        "given": {
            "backbone": "a part is a classifier of feature maps of images of the data's own kinds",
            "mixing": "samples of your own are not mixed",
            "exits": "heads of exits classify images of the data's own kinds",
            "streams": "streams and their drift are of images of the data's own kinds",
            "adaptable": "weights adapt on a device to images of the data's own kinds alone",
            "blocks": "a search on a device evaluates images of the data's own kinds alone",
            "placed": "the first device sends images of the data's own kinds alone to the others",
            "executorch": "its programs are made of images of the data's own kinds alone",
        },
        "sample": {
            "timm": "timm makes networks of one image",
            "backbone": "a part is a classifier of one image",
            "mixing": "inputs of different kinds are not mixed",
            "exits": "heads of exits are for networks of one image",
            "streams": "streams and their drift are of one image",
            "adaptable": "weights adapt on a device to networks of one image alone",
            "blocks": "a search on a device evaluates networks of one image alone",
            "placed": "the coordinator sends one input to other devices",
            "placement": "networks are cut for several devices behind one input",
            "planned_memory": "orders of memory are planned for networks of one image",
            "executorch": "its programs are made of one input",
        },
    }
)
"""Reasons why an ability is not available yet, by the name of a sample (`DataSettings.sample`) and the ability."""


def lacks_of(settings: DataSettings) -> Mapping[str, str]:
    """Abilities that are not available yet for samples of such data, and the reasons."""
    if settings.kind in ("own", "unlabelled"):
        return LACKS["given"]
    return _lacks(settings.sample, has_text="text" in (settings.inputs or {}).values())


def _lacks(sample: str, *, has_text: bool) -> Mapping[str, str]:
    """The missing abilities of samples with this name. has_text: one of several inputs is a text."""
    return {**LACKS[sample], "ncnn": LACKS["text"]["ncnn"]} if has_text else LACKS[sample]


class _Form(ABC):
    """The base of all forms of samples."""

    @property
    @abstractmethod
    def size(self) -> Size:
        """The part of the shape that `resize` changes."""

    @property
    def side(self) -> int | None:
        """Columns of images, or words of texts; None if samples have no such size."""
        return self.size[-1] if self.size else None

    @property
    @abstractmethod
    def lacks(self) -> Mapping[str, str]:
        """Abilities that are not available yet for such samples, and the reasons; besides those that the learning problem
        lacks.
        """

    def require(self, ability: str, where: str, next_step: str) -> None:
        """UserError if samples lack an ability that a stage needs. where: the option or stage that asks for it."""
        if reason := self.lacks.get(ability):
            described = self.called if isinstance(self, SampleForm) else "several inputs"
            raise UserError(where, f"{described} cannot do it yet: {reason}", next_step=next_step)


@dataclass(frozen=True, slots=True)
class SampleForm(_Form):
    """The form of an input. shape: in the data's own size, an image (C, H, W) float32, or a text (T,) int64.

    words: upper bound of numbers of words; None: images, or numbers beside them. of_signal: images are spectrograms. given:
    of any shape, as the owner gives them.
    """

    shape: tuple[int, ...]
    words: int | None = None
    of_signal: bool = False
    given: bool = False
    names: ClassVar[tuple[str, ...]] = ()
    """Names of several inputs; a single input has none: its name is free."""

    @property
    def size(self) -> Size:
        """The part of the shape that `resize` changes."""
        if self.given and len(self.shape) != (3 if self.words is None else 1):
            return ()
        if self.channels_last:
            return self.shape[:2]
        return self.shape if self.words is not None else self.shape[1:]

    @property
    def channels_last(self) -> bool:
        """Whether samples are images with channels behind height and width, whose size stays."""
        return self.given and len(self.shape) == 3 and self.shape[2] in (1, 3) and self.shape[0] not in (1, 3)

    @property
    def called(self) -> str:
        """The name of samples in messages."""
        return "samples" if self.given else "images" if self.words is None else "texts"

    @property
    def line(self) -> str:
        """The shape, for messages: `3x32x32`."""
        return _sizes(self.shape)

    @property
    def facts(self) -> dict[str, Any]:
        """Arguments for a function that makes a network."""
        if self.given:
            return {"shape": self.shape, **({} if self.words is None else {"num_words": self.words})}
        return {"in_chans": self.shape[0]} if self.words is None else {"num_words": self.words, "length": self.shape[0]}

    @property
    def lacks(self) -> Mapping[str, str]:
        """Those of images, or of texts."""
        name = "given" if self.given else "image" if self.words is None else "text"
        return _lacks(name, has_text=self.given and self.words is not None)

    def fault(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """The sizes that a network with these inputs (N, …) takes, if they differ from such samples; else None."""
        own = [shape[1:] for shape in shapes.values()]
        return None if own == [self.shape] else ", ".join(map(_sizes, own))

    def advice(self, taken: Mapping[str, Sequence[int | None]], made: str, length: str = "data.resolution") -> str:
        """A remedy if a network takes these sizes of a sample (None: open), but not its shape.

        made: the verb that gives it other sizes, such as "export". length: the option with the number of words.
        """
        again = f"{made} it for {self.line}"
        sizes = next(iter(taken.values()))
        if len(taken) > 1 or len(sizes) != len(self.shape):
            return again
        if self.given:
            return f"{again}, or give samples of another shape"
        if self.words is not None:
            return f"set {length}={sizes[0]}, or {again}" if _is_side(sizes[0]) else again
        if not is_image(self.shape):
            return again
        channels, sides = sizes[0], {side for side in sizes[1:] if side is not None}
        if len(sides) > 1:
            return f"{again}: images of the data are square, with channels first (tailor_ir.compile takes others, too)"
        side = next(iter(sides), self.shape[1])
        options = {
            "data.resolution": (side, self.shape[1]),
            "data.channels": (channels or self.shape[0], self.shape[0]),
        }
        other = [f"{name}={size}" for name, (size, own) in options.items() if size != own]
        if not _is_side(side) or (channels not in (None, self.shape[0]) and (self.of_signal or channels not in (1, 3))):
            return again
        return f"set {' and '.join(other)}, or {again}"

    def numbers(self, size: Size) -> int:
        """Count of numbers in a sample of a size."""
        if self.channels_last:
            return math.prod((*size, self.shape[2]))
        return math.prod((*self.shape[: len(self.shape) - len(size)], *size))

    def blank(self, samples: int) -> torch.Tensor:
        """Samples of zeros: black images, or texts of padding only."""
        return torch.zeros(samples, *self.shape, dtype=torch.float32 if self.words is None else torch.int64)

    def last_words(self, samples: int) -> torch.Tensor:
        """Texts that repeat the word with the largest number, which a network must know; zeros for other samples."""
        return self.blank(samples) if self.words is None else torch.full_like(self.blank(samples), self.words - 1)


@dataclass(frozen=True, slots=True)
class SeveralInputs(_Form):
    """Samples with several inputs by name, in the order of the network's inputs.

    Images, and sounds as images, are square and of one size; numbers and texts keep their shapes.
    """

    inputs: Mapping[str, SampleForm]
    called: ClassVar[str] = "samples"
    given: ClassVar[bool] = False
    words: ClassVar[None] = None
    """Samples as a whole are not texts."""

    @property
    def size(self) -> Size:
        """The size of all images; () if no input is an image."""
        return next((one.size for one in self.inputs.values() if is_image(one.shape)), ())

    @property
    def line(self) -> str:
        """The shapes, for messages."""
        return _described({name: one.shape for name, one in self.inputs.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(self.inputs)

    @property
    def facts(self) -> dict[str, Any]:
        """Arguments for a function that makes a network: the shape of each input, and the upper bound of numbers of words."""
        words = [one.words for one in self.inputs.values() if one.words is not None]
        found: dict[str, Any] = {"shapes": {name: one.shape for name, one in self.inputs.items()}}
        return {**found, "num_words": words[0]} if words else found

    @property
    def lacks(self) -> Mapping[str, str]:
        """Those of samples with several inputs."""
        return _lacks("sample", has_text=any(one.words for one in self.inputs.values()))

    def fault(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """As `SampleForm.fault`; names and order count, too."""
        own = {name: shape[1:] for name, shape in shapes.items()}
        same = list(own.items()) == [(name, one.shape) for name, one in self.inputs.items()]
        return None if same else _described(own)

    def advice(self, taken: Mapping[str, Sequence[int | None]], made: str) -> str:
        """As `SampleForm.advice`, for the sizes of each input that a network takes."""
        if list(taken) != list(self.inputs):
            return f"{made} it with inputs {', '.join(self.inputs)}, in this order"
        name = next(name for name, one in self.inputs.items() if tuple(taken[name]) != one.shape)
        return self.inputs[name].advice({name: taken[name]}, made, "data.words")

    def numbers(self, size: Size) -> int:
        """Count of numbers in a sample with images of a size."""
        return sum(one.numbers(size) if is_image(one.shape) else math.prod(one.shape) for one in self.inputs.values())

    def blank(self, samples: int) -> Inputs:
        """Samples of zeros."""
        return tuple(one.blank(samples) for one in self.inputs.values())

    def last_words(self, samples: int) -> Inputs:
        """Samples of zeros, with texts as in `SampleForm`."""
        return tuple(one.last_words(samples) for one in self.inputs.values())


AnyForm = SampleForm | SeveralInputs


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether the shape is that of an image, (C, H, W)."""
    return len(shape) == 3


def _is_side(size: int | None) -> bool:
    """Whether data can have this height and width [pixels], or texts this many words."""
    return size is not None and LEAST_SIDE <= size <= MOST_SIDE


def image_form(channels: int, resolution: int) -> SampleForm:
    """The form of square images."""
    return SampleForm((channels, resolution, resolution))


def form_of(settings: DataSettings, scaling: Scaling) -> AnyForm:
    """The form of data with a scaling."""
    of_signal = scaling.spectrogram is not None
    image = replace(image_form(settings.channels, settings.resolution), of_signal=of_signal)
    if scaling.given is not None:
        return _form_of(scaling.given)
    if scaling.inputs is not None:
        return SeveralInputs({name: image if one is None else _form_of(one) for name, one in scaling.inputs.items()})
    return image if scaling.vocabulary is None else SampleForm((settings.resolution,), scaling.vocabulary.size)


def _form_of(one: OtherInput) -> SampleForm:
    """The form of an input that is no image of the data's own kinds."""
    if isinstance(one, GivenPreparation):
        return SampleForm(one.shape, one.words, given=True)
    if isinstance(one, TextPreparation):
        return SampleForm((one.length,), one.words)
    if isinstance(one, Spectrogram):
        return replace(image_form(one.channels, one.bands), of_signal=True)
    return SampleForm(one.shape)


def placed(x: NestedT, device: torch.device, dtype: torch.dtype) -> NestedT:
    """The batch on a device; images and numbers in a type, numbers of words unchanged."""
    return each(x, lambda one: one.to(device, dtype) if one.is_floating_point() else one.to(device))


def _sizes(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _described(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {_sizes(shape)}" for name, shape in shapes.items())
