"""Semantic segmentation: the class of each pixel.

Raw outputs (B, K, h, w) may be of any height and width. They are enlarged to the size of the targets, which stay at the
base resolution whatever the size of a SubNet's images. All SubNets are therefore judged by the same pixels.

Legend: B batch, K classes, N images, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hsv_to_rgb
from typing import Any

import numpy as np

from tasks.data.problems.record import Batch, Divergence, LearningProblem, Tallied, enlarged, joined, resized
from tasks.data.torch_later import functional, torch

IGNORED = -1
"""The class of pixels without a label, or outside of the image: no loss and no score counts them."""
TINT = 0.6
"""Share of a class's colour in pictures."""


class Segmentation(LearningProblem):
    """Sources have `masked(indices)`: images (B, C, H, W) and the class of each pixel (B, H, W) int64, or `IGNORED`."""

    name = "segmentation"
    metric = score = "mean IoU"
    judged_by = "mean_iou"
    outside = "the enlargement of logits to the image"

    def output_text(self, classes: int) -> str:
        """Description of the output: one number for each class at each position."""
        return f"one tensor (B, {classes}, h, w): a number for each class of the data at each position, of any h and w"

    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """(B, K, h, w)."""
        return None, classes, None, None

    def blank(self, images: int, resolution: int) -> torch.Tensor:
        """Class 0 for each pixel."""
        return torch.zeros(images, resolution, resolution, dtype=torch.int64)

    def samples(self, source: Any, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        """Images and the classes of their pixels (B, H, W), augmented by the same moves."""
        x_BCHW, y_BHW = source.masked(indices)
        return (x_BCHW, y_BHW) if draws is None else moved(x_BCHW, y_BHW, draws)

    def loss(self, outputs: torch.Tensor, target: torch.Tensor, label_smoothing: float) -> torch.Tensor:
        """Mean cross-entropy of the pixels."""
        return functional.cross_entropy(
            enlarged(outputs, target.shape[-2:]), target, ignore_index=IGNORED, label_smoothing=label_smoothing
        )

    def distillation(self, outputs: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
        """Divergence from the teacher's distribution at each position of the raw outputs.
        Source: pixel-wise distillation in Structured Knowledge Distillation for Semantic Segmentation (CVPR 2019) §3.1.
        """
        return divergence(_rows(outputs), _rows(resized(taught, outputs)))

    def decoded(self, outputs: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """The class of each pixel (B, H, W)."""
        return functional.interpolate(outputs, size, mode="bilinear", align_corners=False).argmax(1)

    def drawn(self, images_BCHW: torch.Tensor, answers: torch.Tensor, classes: int) -> torch.Tensor:
        """Images tinted in the colour of each pixel's class; class 0 is left untinted, and ignored pixels are black."""
        colours_K3 = torch.tensor([hsv_to_rgb(number / max(1, classes - 1), 1.0, 1.0) for number in range(classes)])
        tint_BCHW = colours_K3.to(images_BCHW.device)[answers.clamp_min(0)].movedim(-1, 1)
        share_BCHW = TINT * (answers > 0).float()[:, None]
        return torch.lerp(images_BCHW, tint_BCHW, share_BCHW) * (answers != IGNORED).float()[:, None]

    def counted(self, outputs: torch.Tensor, target: torch.Tensor) -> tuple[Any, ...]:
        """The sum of the images' mean cross-entropies, pixels by class and answer (1, K, K), and the score of each image."""
        logits_BKHW = enlarged(outputs, target.shape[-2:])
        counts_BKK = _confusions(logits_BKHW.argmax(1), target, logits_BKHW.shape[1])
        losses_BHW = functional.cross_entropy(logits_BKHW, target, ignore_index=IGNORED, reduction="none")
        labelled_B = (target != IGNORED).sum((1, 2)).clamp_min(1)
        loss = float((losses_BHW.sum((1, 2)) / labelled_B).sum())
        return loss, counts_BKK.sum(0, keepdim=True).cpu(), mean_iou(counts_BKK).cpu()

    def judged(self, facts: Sequence[Sequence[Any]]) -> Tallied:
        """Mean IoU over the pixels of all images, and that of each image."""
        losses, confusions, scores = facts
        scores_N = joined(scores).astype(np.float16)
        return Tallied(float(mean_iou(sum(confusions))), sum(losses) / len(scores_N), scores_N)


SEGMENTATION = Segmentation()


def mean_iou(confusion_NKK: torch.Tensor) -> torch.Tensor:
    """Mean intersection over union (N,) of the classes that occur, from pixels by class (rows) and answer (columns).
    1 if no pixel is counted. Source: The PASCAL Visual Object Classes Challenge (IJCV 2010) §4.2.2.
    """
    both_NK = confusion_NKK.diagonal(dim1=1, dim2=2).double()
    either_NK = confusion_NKK.sum(1) + confusion_NKK.sum(2) - both_NK
    occurs_NK = either_NK > 0
    iou_NK = both_NK / either_NK.clamp_min(1)
    found_N = (iou_NK * occurs_NK).sum(1) / occurs_NK.sum(1).clamp_min(1)
    return torch.where(occurs_NK.any(1), found_N, torch.ones_like(found_N))


def moved(x_BCHW: torch.Tensor, y_BHW: torch.Tensor, draws_BD: np.ndarray) -> Batch:
    """Images and their pixels' classes, shifted up to 8 %, rotated up to 12 degrees, scaled by 0.9 to 1.1 (4 draws per image).
    Pixels from outside are black and have class `IGNORED`. Images are not flipped, since flips change characters.
    """
    from torchvision.transforms import InterpolationMode, v2

    height, width = y_BHW.shape[-2:]
    images, classes = [], []
    for x_CHW, y_HW, draws_D in zip(x_BCHW, y_BHW, draws_BD, strict=True):
        turn, scale, right, down = (2 * float(draw) - 1 for draw in draws_D[:4])
        way: dict[str, Any] = {
            "angle": 12 * turn,
            "translate": [0.08 * right * width, 0.08 * down * height],
            "scale": 1 + 0.1 * scale,
            "shear": [0.0, 0.0],
        }
        images.append(v2.functional.affine_image(x_CHW, **way, interpolation=InterpolationMode.BILINEAR, fill=0))
        classes.append(v2.functional.affine_mask(y_HW[None], **way, fill=IGNORED)[0])
    return torch.stack(images), torch.stack(classes)


def _rows(outputs_BKhw: torch.Tensor) -> torch.Tensor:
    """(B h w, K)."""
    return outputs_BKhw.movedim(1, -1).flatten(0, -2)


def _confusions(answer_BHW: torch.Tensor, y_BHW: torch.Tensor, classes: int) -> torch.Tensor:
    """Counts (B, K, K) int64 of pixels by class (rows) and answer (columns), without ignored pixels."""
    place_BHW = torch.arange(len(y_BHW), device=y_BHW.device)[:, None, None] * classes**2 + y_BHW * classes + answer_BHW
    return torch.bincount(place_BHW[y_BHW != IGNORED], minlength=len(y_BHW) * classes**2).view(-1, classes, classes)
