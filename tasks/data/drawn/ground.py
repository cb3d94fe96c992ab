"""The ground behind drawn characters. Legend: B batch, H height, W width, M side of a texture, T textures."""

import math

import numpy as np
import torch
from torch.nn import functional

from tasks.data.drawn.numbers import Numbers
from tasks.data.drawn.placing import Placing, centres, outer_sum, per_image, placed, rows

TEXTURES, TEXTURE_SIDE = 32, 64


class Ground:
    """Gradients with a texture, in squares with sides of `size` pixels."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self._textures_T1MM = _textures(rng)
        self._size = size

    def drawn(self, numbers: Numbers) -> torch.Tensor:
        """Grounds (B, 1, H, W) in [0, 1]; takes 10 numbers of each image."""
        half = numbers.between(0.8, 3)
        placing = Placing(
            half_width=half,
            half_height=half * numbers.between(-0.7, 0.7).exp(),
            shear=numbers.between(-0.5, 0.5),
            angle=numbers.between(0, 2 * math.pi),
            x=numbers.between(-1, 1),
            y=numbers.between(-1, 1),
        )
        squares = self._textures_T1MM[numbers.below(TEXTURES)]
        texture = placed(squares, placing, self._size, padding="reflection")
        direction, steepness = numbers.between(0, 2 * math.pi), numbers.between(0, 0.5)
        axis = centres(self._size)
        gradient = outer_sum(rows(direction.cos() * steepness) * axis, rows(direction.sin() * steepness) * axis)
        return texture.mul_(per_image(numbers.between(0, 0.6))).add_(gradient[:, None] + 0.5).clamp_(0, 1)


def _textures(rng: np.random.Generator) -> torch.Tensor:
    """Textures (T, 1, M, M), about -1 to 1: noise of four octaves, the coarser ones stronger."""
    size = (TEXTURE_SIDE, TEXTURE_SIDE)
    octaves = [
        functional.interpolate(
            torch.from_numpy(rng.standard_normal((TEXTURES, 1, side, side), dtype=np.float32)), size, mode="bicubic"
        )
        * (4 / side)
        for side in (4, 8, 16, 32)
    ]
    texture_T1MM = torch.stack(octaves).sum(0)
    return texture_T1MM / texture_T1MM.abs().amax((1, 2, 3), keepdim=True)
