"""Distillation of detectors on raw outputs. Legend: B batch, P anchors, C columns, N of P anchors, H and W rows and columns.

A student learns from the anchors at which its teacher is most certain of an object; nearly all others are background. Source:
Learning Efficient Object Detection Models with Knowledge Distillation (NeurIPS 2017) §3, where background counts less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptive_runtime.samples.boxes import DetectionHead
from importing.lazy import Later
from tasks.data.problems.detection.losses import DetectionLoss
from tasks.data.problems.record import Divergence

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    torch = Later("torch")
    functional = Later("torch.nn.functional")

SHARE = 1 / 8
"""Share of an image's anchors that count: those with the teacher's highest probabilities of an object."""


def distilled(
    head: DetectionHead, loss: DetectionLoss, raw_BPC: torch.Tensor, taught_BPC: torch.Tensor, divergence: Divergence
) -> torch.Tensor:
    """Loss () of classes, boxes and centre-ness. taught_BPC: of a teacher, which may have seen images of another size.
    Differences of boxes and centre-ness are weighted by the teacher's probability of an object.
    """
    taught_BPC = resampled(head, loss, taught_BPC, raw_BPC.shape[1])
    teacher = loss.logits(taught_BPC)
    weight_BN, place_BN = loss.sure(teacher).topk(max(1, int(SHARE * raw_BPC.shape[1])), 1)
    image_B1 = torch.arange(len(raw_BPC), device=raw_BPC.device)[:, None]
    own, others = loss.logits(raw_BPC)[image_B1, place_BN], teacher[image_B1, place_BN]
    total = divergence(own.flatten(0, -2), others.flatten(0, -2))
    own_BNC, taught_BNC = raw_BPC[image_B1, place_BN], taught_BPC[image_B1, place_BN]
    width = raw_BPC.shape[2] - head.has_centreness
    boxes = slice(width - 4, width)
    differing_BN = functional.smooth_l1_loss(own_BNC[..., boxes], taught_BNC[..., boxes], reduction="none").sum(2)
    if head.has_centreness:
        wanted_BN = taught_BNC[..., -1].sigmoid()
        differing_BN = differing_BN + functional.binary_cross_entropy_with_logits(
            own_BNC[..., -1], wanted_BN, reduction="none"
        )
    return total + (weight_BN * differing_BN).sum() / weight_BN.sum()


def resampled(head: DetectionHead, loss: DetectionLoss, raw_BPC: torch.Tensor, positions: int) -> torch.Tensor:
    """The raw output for square images of another size, with this many anchors: resampled grid by grid, with the same boxes."""
    before, after = head.square(raw_BPC.shape[1]), head.square(positions)
    if before == after:
        return raw_BPC
    grids, columns = head.grids(before), raw_BPC.shape[2]
    parts = raw_BPC.split([head.shapes * rows * wide for rows, wide in grids], 1)
    found = []
    for part_BPC, grid, wanted in zip(parts, grids, head.grids(after), strict=True):
        map_BHWC = part_BPC.reshape(len(raw_BPC), *grid, -1)
        map_BCHW = functional.interpolate(
            map_BHWC.movedim(-1, 1), wanted, mode="bilinear", align_corners=False, antialias=True
        )
        found.append(map_BCHW.movedim(1, -1).reshape(len(raw_BPC), -1, columns))
    joined_BPC = torch.cat(found, 1)
    width = columns - head.has_centreness
    codes_BP4 = loss.rescaled(joined_BPC[..., width - 4 : width], before[0] / after[0])
    return torch.cat([joined_BPC[..., : width - 4], codes_BP4, joined_BPC[..., width:]], 2)
