"""Filters of images. Legend: B batch, C channels, H height, W width, K side of a kernel; pixels in [0, 1]."""

import io
import math

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

TRUNCATION = 4
"""Number of standard deviations at which the kernel of a Gaussian blur ends."""


def _gaussian(deviation: float, radius: int) -> torch.Tensor:
    """A kernel (2 · radius + 1,) with sum 1."""
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float32)
    weights = torch.exp(-0.5 * (offsets / deviation) ** 2)
    return weights / weights.sum()


def _filtered(x_BCHW: torch.Tensor, kernel_KK: torch.Tensor, padding: str) -> torch.Tensor:
    channels, margins = x_BCHW.shape[1], [side // 2 for side in kernel_KK.shape]
    padded = functional.pad(x_BCHW, (margins[1], margins[1], margins[0], margins[0]), mode=padding)
    weight = kernel_KK.expand(channels, 1, *kernel_KK.shape).contiguous()
    return functional.conv2d(padded, weight, groups=channels)


def gaussian_blurred(x_BCHW: torch.Tensor, deviation: float) -> torch.Tensor:
    """Images convolved with a Gaussian of this standard deviation [pixels]; the rim is repeated."""
    along = _gaussian(deviation, int(TRUNCATION * deviation + 0.5))
    return _filtered(_filtered(x_BCHW, along[None, :], "replicate"), along[:, None], "replicate")


def defocused(x_BCHW: torch.Tensor, radius: float, smoothing: float) -> torch.Tensor:
    """Images convolved with a disc of this radius [pixels], smoothed by a 3 × 3 Gaussian; the rim is mirrored."""
    reach = math.ceil(radius) + 1
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float32)
    disc_KK = ((offsets[:, None] ** 2 + offsets[None, :] ** 2) <= radius**2).float()
    along = _gaussian(smoothing, 1)
    smoothed = functional.conv2d(disc_KK[None, None], torch.outer(along, along)[None, None], padding=1)[0, 0]
    return _filtered(x_BCHW, smoothed / smoothed.sum(), "reflect")


def box_resized(x_BCHW: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Images scaled to (height, width); a new pixel is the mean of the old ones whose centres it covers, as Pillow's BOX."""
    rows, columns = (_box_weights(old, new) for old, new in zip(x_BCHW.shape[-2:], size, strict=True))
    return rows @ x_BCHW @ columns.T


def _box_weights(old: int, new: int) -> torch.Tensor:
    """Weights (new, old); each row sums to 1."""
    scale = old / new
    centre = (torch.arange(new, dtype=torch.float64) + 0.5) * scale
    distance = (torch.arange(old, dtype=torch.float64) + 0.5 - centre[:, None]) / max(scale, 1.0)
    covered = ((distance > -0.5) & (distance <= 0.5)).float()
    return covered / covered.sum(1, keepdim=True)


def compressed(x_BCHW: torch.Tensor, quality: int) -> torch.Tensor:
    """Images after JPEG compression."""
    pixels = (x_BCHW.movedim(1, -1) * 255).round().to(torch.uint8).numpy()
    found = np.stack([_through_jpeg(each, quality) for each in pixels])
    return torch.from_numpy(found).movedim(-1, 1).float() / 255


def _through_jpeg(pixels_HWC: np.ndarray, quality: int) -> np.ndarray:
    stream = io.BytesIO()
    grey = pixels_HWC.shape[-1] == 1
    Image.fromarray(pixels_HWC[..., 0] if grey else pixels_HWC).save(stream, "JPEG", quality=quality)
    read = np.array(Image.open(stream))
    return read[..., None] if grey else read
