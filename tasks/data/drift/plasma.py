"""Plasma noise for fog. Legend: B batch, S side of the square, a power of two."""

from collections.abc import Callable

import torch


def plasma(uniform: Callable[[int], torch.Tensor], side: int, decay: float) -> torch.Tensor:
    """Noise (B, S, S) in [0, 1] by the diamond-square algorithm on a torus; S is the least power of two not below `side`.

    uniform: from a side to (B, side, side) uniform in [0, 1). decay: the amplitude of the noise is divided by its square at
    each step, as the levels of CIFAR-10-C require; the smaller, the rougher. Source: Fournier, Fussell and Carpenter,
    Communications of the ACM 25(6), 1982.
    """
    size = 1 << max(1, (side - 1).bit_length())
    first = uniform(1)
    height_BSS = torch.zeros(len(first), size, size)
    step, amplitude = size, 1.0
    while step > 1:
        half = step // 2
        count = size // step
        corners = height_BSS[:, ::step, ::step]
        squares = (corners + corners.roll(-1, 1) + corners.roll(-1, 2) + corners.roll((-1, -1), (1, 2))) / 4
        squares = squares + amplitude * (2 * uniform(count) - 1)
        across = squares + squares.roll(1, 1) + corners + corners.roll(-1, 2)
        down = squares + squares.roll(1, 2) + corners + corners.roll(-1, 1)
        height_BSS[:, half::step, half::step] = squares
        height_BSS[:, ::step, half::step] = across / 4 + amplitude * (2 * uniform(count) - 1)
        height_BSS[:, half::step, ::step] = down / 4 + amplitude * (2 * uniform(count) - 1)
        step, amplitude = half, amplitude / decay**2
    lowest, highest = height_BSS.amin((1, 2), keepdim=True), height_BSS.amax((1, 2), keepdim=True)
    return (height_BSS - lowest) / (highest - lowest)
