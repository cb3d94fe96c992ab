"""Squares that are moved, turned, scaled and sheared into images. Legend: B batch, H height, W width, M side of a square.

Positions in an image go from -1 to 1.
"""

from typing import NamedTuple

import torch
from torch.nn import functional


class Placing(NamedTuple):
    """The transform of a square: scaled, sheared, turned, then moved. All (B,)."""

    half_width: torch.Tensor
    half_height: torch.Tensor
    shear: torch.Tensor
    angle: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor


def placed(squares_B1MM: torch.Tensor, placing: Placing, size: int, padding: str = "zeros") -> torch.Tensor:
    """Images (B, 1, H, W) with sides of `size` pixels and the squares at the places of `placing`."""
    cosine, sine, shear = placing.angle.cos(), placing.angle.sin(), placing.shear
    axis = centres(size)
    x_BW, y_BH = axis - rows(placing.x), axis - rows(placing.y)
    grid_BHW2 = torch.empty(len(x_BW), size, size, 2)
    for place, (along_x, along_y, half) in enumerate(
        ((cosine + shear * sine, sine - shear * cosine, placing.half_width), (-sine, cosine, placing.half_height))
    ):
        outer_sum(rows(along_x / half) * x_BW, rows(along_y / half) * y_BH, out=grid_BHW2[..., place])
    return functional.grid_sample(squares_B1MM, grid_BHW2, padding_mode=padding, align_corners=False)


def centres(size: int) -> torch.Tensor:
    """Positions of the centres of pixels, (size,)."""
    return (torch.arange(size) * 2 + 1) / size - 1


def outer_sum(along_x_BW: torch.Tensor, along_y_BH: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Sums (B, H, W) of a value along x and a value along y."""
    return torch.add(along_x_BW[:, None, :], along_y_BH[:, :, None], out=out)


def rows(value_B: torch.Tensor) -> torch.Tensor:
    """A column (B, 1)."""
    return value_B[:, None]


def per_image(value_B: torch.Tensor) -> torch.Tensor:
    """A value for each image, (B, 1, 1, 1)."""
    return value_B[:, None, None, None]
