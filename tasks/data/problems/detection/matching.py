"""The box that each anchor has to find. Legend: P anchors, M boxes of an image; boxes and anchors are (x0, y0, x1, y1) [px].
A match (P,) is the number of a box, or `BACKGROUND`, or `BETWEEN` for anchors that no loss counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from importing.lazy import Later

if TYPE_CHECKING:
    import torch
else:
    torch = Later("torch")


BACKGROUND, BETWEEN = -1, -2
CENTRE_RADIUS = 1.5
"""Largest distance of an FCOS anchor from a box's centre, in sides of the anchor."""
SCALES = 4, 8
"""Range of the farthest edge's distance, in sides of an FCOS anchor; open below in the first grid, above in the last."""


def matched_best(boxes_M4: torch.Tensor, anchors_P4: torch.Tensor) -> torch.Tensor:
    """Matches by an IoU of at least one half; each box also gets its best anchor. Source: SSD (ECCV 2016) §2.2."""
    iou_MP = _iou(boxes_M4, anchors_P4)
    best_P, match_P = iou_MP.max(0)
    match_P[best_P < 0.5] = BACKGROUND
    match_P[iou_MP.argmax(1)] = torch.arange(len(boxes_M4), device=match_P.device)
    return match_P


def matched_between(boxes_M4: torch.Tensor, anchors_P4: torch.Tensor) -> torch.Tensor:
    """Matches by an IoU of at least one half; below 0.4 is background; each box also gets all anchors that fit it best.

    Source: Focal Loss for Dense Object Detection (ICCV 2017) §4; the last rule is that of Faster R-CNN (NeurIPS 2015) §3.1.2.
    """
    iou_MP = _iou(boxes_M4, anchors_P4)
    best_P, nearest_P = iou_MP.max(0)
    match_P = nearest_P.clone()
    match_P[best_P < 0.5] = BETWEEN
    match_P[best_P < 0.4] = BACKGROUND
    is_best_P = (iou_MP == iou_MP.amax(1, keepdim=True)).any(0)
    return torch.where(is_best_P, nearest_P, match_P)


def matched_centres(boxes_M4: torch.Tensor, anchors_P4: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Matches of anchors with a centre near a box's centre, and a grid that suits the box's size; the smallest box wins.

    counts: number of anchors of each grid. Source: FCOS (ICCV 2019) §3.2, with sampling near centres as in its reference code.
    """
    centre_M2, centre_P2 = _centres(boxes_M4), _centres(anchors_P4)
    side_P1 = (anchors_P4[:, 2] - anchors_P4[:, 0])[:, None]
    near_PM = (centre_P2[:, None] - centre_M2[None]).abs().amax(2) < CENTRE_RADIUS * side_P1
    distances_PM4 = torch.cat(
        [centre_P2[:, None] - boxes_M4[None, :, :2], boxes_M4[None, :, 2:] - centre_P2[:, None]], 2
    )
    least_P1, most_P1 = SCALES[0] * side_P1, SCALES[1] * side_P1
    least_P1[: counts[0]] = 0
    most_P1[len(most_P1) - counts[-1] :] = torch.inf
    farthest_PM = distances_PM4.amax(2)
    fits_PM = near_PM & (distances_PM4.amin(2) > 0) & (farthest_PM > least_P1) & (farthest_PM < most_P1)
    area_M = (boxes_M4[:, 2:] - boxes_M4[:, :2]).prod(1)
    smallest_P, match_P = torch.where(fits_PM, area_M, torch.inf).min(1)
    match_P[smallest_P == torch.inf] = BACKGROUND
    return match_P


def _centres(boxes_N4: torch.Tensor) -> torch.Tensor:
    return (boxes_N4[:, :2] + boxes_N4[:, 2:]) / 2


def _iou(boxes_M4: torch.Tensor, anchors_P4: torch.Tensor) -> torch.Tensor:
    from torchvision.ops import box_iou  # torchvision takes a second

    return box_iou(boxes_M4, anchors_P4)
