"""Samples of pictures in numpy: scaled, cut or filled up, and put on a network's scale, as the samples of its training were.

Legend: N samples, H height, W width, C channels, O pixels of a side after scaling, I before.
"""

from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from adaptive_runtime.base.arrays import Array
from profiling_agents.messages import Message

Side = Annotated[int, Field(ge=1)]
Interpolation = Literal["bilinear", "bicubic"]
GREY = (19595, 38470, 7471)
"""Shares of red, green and blue in grey, of 65536, as Pillow has them (ITU-R BT.601)."""
CUBIC = -0.5
"""The parameter of bicubic scaling, as Pillow has it. Source: Keys, IEEE ASSP 29 (1981)."""


class PictureSteps(Message):
    """The steps from a picture to a sample of a network. They are taken in the order of the fields.

    fit: "stretch" scales a picture to height and width `scaled`, "shorter side" until its shorter side has `scaled[0]` pixels,
    "letterbox" until it just fits into `scaled`. interpolation: with anti-aliasing. size: height and width that are cut out of
    the centre, or filled up around it with `fill`. largest: of the values, which begin at 0. mean, deviation: by channel, in
    the order of `colours`. layout: of samples, as the network takes them.
    """

    colours: Literal["RGB", "BGR", "grey"] = "RGB"
    fit: Literal["stretch", "shorter side", "letterbox"] = "stretch"
    scaled: tuple[Side, Side]
    interpolation: Interpolation = "bilinear"
    size: tuple[Side, Side]
    fill: Annotated[int, Field(ge=0, le=255)] = 0
    largest: Literal[1, 255] = 1
    mean: tuple[float, ...]
    deviation: tuple[Annotated[float, Field(gt=0)], ...]
    layout: Literal["NCHW", "NHWC"] = "NCHW"

    @model_validator(mode="after")
    def _has_channels(self) -> Self:
        if len(self.mean) != self.channels or len(self.deviation) != self.channels:
            raise ValueError(
                f"mean and deviation: of {len(self.mean)} and {len(self.deviation)} channels, not {self.channels}"
            )
        return self

    @property
    def channels(self) -> int:
        """Channels of a sample."""
        return 1 if self.colours == "grey" else 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a sample."""
        return (self.channels, *self.size) if self.layout == "NCHW" else (*self.size, self.channels)

    @property
    def lines(self) -> tuple[str, ...]:
        """The steps in words."""
        scaled = {
            "stretch": f"to {_sizes(self.scaled)} pixels",
            "shorter side": f"until the shorter side has {self.scaled[0]} pixels",
            "letterbox": f"until it just fits into {_sizes(self.scaled)} pixels",
        }[self.fit]
        placed = f"the central {_sizes(self.size)} pixels"
        if self.fit == "letterbox":
            placed = f"filled up with {self.fill} on all sides to {_sizes(self.size)} pixels"
        numbers = (", ".join(f"{one:g}" for one in values) for values in (self.mean, self.deviation))
        return (
            self.colours,
            f"scaled {scaled}, {self.interpolation}, antialiased",
            *([] if self.fit == "stretch" and self.scaled == self.size else [placed]),
            "values from 0 to {}, less ({}), over ({}), by channel".format(self.largest, *numbers),
            f"layout {self.layout}",
        )

    def scaled_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of a picture after scaling."""
        if self.fit == "stretch":
            return self.scaled
        if self.fit == "shorter side":
            shorter, side = min(height, width), self.scaled[0]
            return side * height // shorter, side * width // shorter
        ratio = min(self.scaled[0] / height, self.scaled[1] / width)
        return max(1, round(height * ratio)), max(1, round(width * ratio))

    def of(self, picture: NDArray[np.uint8]) -> Array:
        """The sample of a picture (H, W, 3) in RGB, or (H, W) in grey."""
        pixels_CHW: NDArray[Any] = (
            picture[None] if picture.ndim == 2 else np.moveaxis(picture if self.channels == 3 else _grey(picture), 2, 0)
        )
        after = self.scaled_size(*pixels_CHW.shape[1:])
        rows_OI, columns_OI = (
            weights(before, side, self.interpolation) for before, side in zip(pixels_CHW.shape[1:], after, strict=True)
        )
        pixels_CHW = _rounded(rows_OI @ _rounded(pixels_CHW @ columns_OI.T))
        return self.placed(np.broadcast_to(pixels_CHW, (self.channels, *after)))

    def placed(self, pixels_CHW: NDArray[Any]) -> Array:
        """The sample of scaled pixels (C, H, W) from 0 to 255 in RGB or grey."""
        found = np.full((self.channels, *self.size), self.fill, np.float32)
        cut: list[slice] = []
        into: list[slice] = []
        for before, after in zip(pixels_CHW.shape[1:], self.size, strict=True):
            spare = round((before - after) / 2)
            cut.append(slice(max(0, spare), max(0, spare) + min(before, after)))
            into.append(slice(max(0, -spare), max(0, -spare) + min(before, after)))
        found[:, into[0], into[1]] = pixels_CHW[:: -1 if self.colours == "BGR" else 1, cut[0], cut[1]]
        mean, deviation = (np.array(values, np.float32).reshape(-1, 1, 1) for values in (self.mean, self.deviation))
        found = (found * np.float32(self.largest / 255) - mean) / deviation
        return found if self.layout == "NCHW" else np.ascontiguousarray(np.moveaxis(found, 0, 2))


def weights(before: int, after: int, interpolation: Interpolation = "bilinear") -> Array:
    """The share of each pixel of a side in each pixel of the scaled side (O, I), with anti-aliasing.

    The filter is as wide as two (bilinear) or four (bicubic) pixels of the coarser grid.
    """
    scale = before / after
    centres_O1 = (np.arange(after)[:, None] + 0.5) * scale
    distance_OI = np.abs(np.arange(before) + 0.5 - centres_O1) / max(scale, 1.0)
    found_OI = np.maximum(0.0, 1.0 - distance_OI) if interpolation == "bilinear" else _cubic(distance_OI)
    return (found_OI / found_OI.sum(1, keepdims=True)).astype(np.float32)


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    near = (CUBIC + 2) * x**3 - (CUBIC + 3) * x**2 + 1
    far = CUBIC * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _rounded(pixels: NDArray[Any]) -> Array:
    """Whole numbers from 0 to 255, since Pillow rounds after each side."""
    return np.floor(np.clip(pixels, 0, 255) + 0.5).astype(np.float32)


def _grey(picture_HWC: NDArray[np.uint8]) -> NDArray[Any]:
    return ((picture_HWC.astype(np.int64) @ np.array(GREY) + 0x8000) >> 16)[:, :, None]


def _sizes(sizes: tuple[int, ...]) -> str:
    return " × ".join(map(str, sizes))
