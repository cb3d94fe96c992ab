"""Restoration: images from images, for example denoised or larger.

Raw outputs (B, C, h, w) are images with values in [0, 1], no larger than the targets. They are enlarged to the targets,
which stay at the base resolution, or at a multiple of it with super-resolution. The score is the peak signal-to-noise
ratio, in hundreds of decibels: 0.25 is 25 dB, and a point is 1 dB.

Legend: B batch, C channels, H height, W width, N images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.data.problems.record import AtMost, Divergence, LearningProblem, Tallied, enlarged, resized
from tasks.data.torch_later import functional, torch

CHANNELS = {1: ("grey",), 3: ("red", "green", "blue")}
"""Names of the channels by their number; they replace names of classes."""
LEAST_ERROR = 1e-10
"""A smaller mean squared error counts as this one, which is 100 dB."""
MOST_UPSCALE = 8


class Restoration(LearningProblem):
    """Sources have `pairs(indices, draws)`: images (B, C, H, W) and their targets, with values in [0, 1].
    upscale: how many times as high and as wide as images their targets are; above 1 it is super-resolution.
    """

    metric = "PSNR in % of 100 dB"
    judged_by = "psnr"
    score = "PSNR"
    outside = "the enlargement to the image"
    reads = "pairs"

    def __init__(self, upscale: int = 1) -> None:
        self.name = "restoration" if upscale == 1 else f"super_resolution_x{upscale}"
        self.upscale = upscale

    def output_text(self, classes: int) -> str:
        """Description of the output: an image."""
        return f"one tensor (B, {classes}, h, w): an image of as many channels as the data's, no larger than its target"

    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """(B, C, h, w)."""
        most = None if resolution is None else AtMost(self.upscale * resolution)
        return None, classes, most, most

    def blank(self, images: int, resolution: int) -> torch.Tensor:
        """Grey images; their single channel counts for all channels."""
        return torch.full((images, 1, *self._target_size((resolution, resolution))), 0.5)

    def loss(self, outputs: torch.Tensor, target: torch.Tensor, label_smoothing: float) -> torch.Tensor:
        """Mean squared error. Label smoothing is not applied."""
        return (enlarged(outputs, target.shape[-2:]) - target).square().mean()

    def distillation(self, outputs: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
        """Mean squared error from the teacher's image; the divergence is ignored, since it is for distributions."""
        return functional.mse_loss(outputs, resized(taught, outputs))

    def decoded(self, outputs: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Images (B, C, H, W) in [0, 1]."""
        return enlarged(outputs, self._target_size(size)).clamp(0, 1)

    def drawn(self, images_BCHW: torch.Tensor, answers: torch.Tensor, classes: int) -> torch.Tensor:
        """The answers themselves."""
        return answers.float().expand(-1, 3, -1, -1)

    def counted(self, outputs: torch.Tensor, target: torch.Tensor) -> tuple[Any, ...]:
        """The mean squared error of each image."""
        restored_BCHW = enlarged(outputs.float(), target.shape[-2:]).clamp(0, 1)
        return ((restored_BCHW - target).square().mean((1, 2, 3)).cpu(),)

    def judged(self, facts: Sequence[Sequence[Any]]) -> Tallied:
        """The mean of the images' scores, each score, and the mean squared error of all images."""
        errors_N = torch.cat(list(facts[0])).double()
        scores_N = (-errors_N.clamp_min(LEAST_ERROR).log10() / 10).clamp_min(0).numpy()
        return Tallied(float(scores_N.mean()), float(errors_N.mean()), scores_N.astype(np.float16))

    def _target_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the target of an image."""
        return self.upscale * size[0], self.upscale * size[1]


RESTORATION = Restoration()
"""For images that keep their size."""
SUPER_RESOLUTION = {upscale: Restoration(upscale) for upscale in range(2, MOST_UPSCALE + 1)}
"""By the factor between the targets' and the images' size."""
