"""Losses of detectors from boxes, on raw outputs; a record for each head.

Legend: B batch, P anchors, K classes with the background, C columns of a raw output, M boxes of an image at most, F anchors
that have a box. Boxes and anchors are (x0, y0, x1, y1) [px]. The losses are those of torchvision's networks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from importing.lazy import Later
from tasks.data.problems.detection.matching import BACKGROUND, BETWEEN, matched_best, matched_between, matched_centres

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    torch = Later("torch")
    functional = Later("torch.nn.functional")

LossParts = dict[str, "torch.Tensor"]
"""Losses () by name: of classes, of boxes, and of centre-ness if the head has it."""
NEGATIVES = 3
"""Anchors without a box that SSD counts for each anchor with one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Targets of each anchor of a batch: its class (0 if it has no box), its box, and whether it has one.
    counted_BP: False for anchors that no loss counts.
    """

    class_BP: torch.Tensor
    box_BP4: torch.Tensor
    found_BP: torch.Tensor
    counted_BP: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionLoss:
    """Functions of a head's loss.

    matched: boxes (M, 4), anchors (P, 4) and number of anchors of each grid -> matches (P,). parts: raw output (B, P, C),
    matches, anchors, label smoothing -> losses. logits: raw output -> logits of an anchor's distributions, (B, P, …, N), N of
    each. sure: result of `logits` -> probability of an object (B, P). rescaled: regressions from an image that is `ratio` times
    as large -> regressions to the same boxes.
    """

    matched: Callable[[torch.Tensor, torch.Tensor, Sequence[int]], torch.Tensor]
    parts: Callable[[torch.Tensor, Matched, torch.Tensor, float], LossParts]
    logits: Callable[[torch.Tensor], torch.Tensor]
    sure: Callable[[torch.Tensor], torch.Tensor]
    rescaled: Callable[[torch.Tensor, float], torch.Tensor]


def matches_of(
    loss: DetectionLoss,
    images: Sequence[tuple[torch.Tensor, torch.Tensor]],
    anchors_P4: torch.Tensor,
    counts: Sequence[int],
) -> Matched:
    """Targets of each anchor. images: classes (M,) and boxes (M, 4) of each. counts: number of anchors of each grid."""
    rows = []
    for class_M, box_M4 in images:
        if not len(class_M):
            background_P = torch.full((len(anchors_P4),), BACKGROUND, device=anchors_P4.device)
            rows.append((background_P, torch.zeros_like(background_P), anchors_P4))
            continue
        match_P = loss.matched(box_M4, anchors_P4, counts)
        place_P = match_P.clamp_min(0)
        rows.append((match_P, torch.where(match_P >= 0, class_M[place_P], 0), box_M4[place_P]))
    match_BP, class_BP, box_BP4 = (torch.stack(column) for column in zip(*rows, strict=True))
    return Matched(class_BP=class_BP, box_BP4=box_BP4, found_BP=match_BP >= 0, counted_BP=match_BP != BETWEEN)


def ssd_parts(raw_BPC: torch.Tensor, matched: Matched, anchors_P4: torch.Tensor, smoothing: float) -> LossParts:
    """Cross-entropy of anchors with a box and of the worst others; smooth L1. Source: SSD (ECCV 2016) §2.2."""
    found_BP, count = matched.found_BP, matched.found_BP.sum().clamp_min(1)
    wanted_F4 = _regressions(matched, anchors_P4, (10.0, 5.0))
    boxes = functional.smooth_l1_loss(raw_BPC[..., -4:][found_BP], wanted_F4, reduction="sum")
    logits_BKP = raw_BPC[..., :-4].transpose(1, 2)
    loss_BP = functional.cross_entropy(logits_BKP, matched.class_BP, reduction="none", label_smoothing=smoothing)
    others_BP = loss_BP.detach().masked_fill(found_BP, -torch.inf)
    rank_BP = others_BP.sort(1, descending=True).indices.argsort(1)
    worst_BP = rank_BP < NEGATIVES * found_BP.sum(1, keepdim=True)
    return {"classes": (loss_BP[found_BP].sum() + loss_BP[worst_BP].sum()) / count, "boxes": boxes / count}


def retinanet_parts(raw_BPC: torch.Tensor, matched: Matched, anchors_P4: torch.Tensor, smoothing: float) -> LossParts:
    """Focal loss of each class by itself, and L1; both are means over images. Label smoothing is not applied.
    Source: Focal Loss for Dense Object Detection (ICCV 2017) §3 and §4.
    """
    count_B = matched.found_BP.sum(1).clamp_min(1)
    focal_BP = _focal(raw_BPC[..., :-4], matched) * matched.counted_BP
    found_BP = matched.found_BP
    distance_F = (raw_BPC[..., -4:][found_BP] - _regressions(matched, anchors_P4, (1.0, 1.0))).abs().sum(1)
    image_F = found_BP.nonzero()[:, 0]
    images = len(raw_BPC)
    return {
        "classes": (focal_BP.sum(1) / count_B).sum() / images,
        "boxes": (distance_F / count_B[image_F]).sum() / images,
    }


def fcos_parts(raw_BPC: torch.Tensor, matched: Matched, anchors_P4: torch.Tensor, smoothing: float) -> LossParts:
    """Focal loss of each class by itself, generalised IoU, and cross-entropy of centre-ness. Label smoothing is not applied.
    Source: FCOS (ICCV 2019) §3.1 and §3.3; Generalized Intersection over Union (CVPR 2019).
    """
    from torchvision.ops import generalized_box_iou_loss  # torchvision takes a second

    found_BP, count = matched.found_BP, matched.found_BP.sum().clamp_min(1)
    anchors_F4 = anchors_P4.expand(len(raw_BPC), -1, -1)[found_BP]
    centre_F2, side_F2 = (anchors_F4[:, :2] + anchors_F4[:, 2:]) / 2, anchors_F4[:, 2:] - anchors_F4[:, :2]
    codes_F4, wanted_F4 = raw_BPC[..., -5:-1][found_BP], matched.box_BP4[found_BP]
    boxes_F4 = torch.cat([centre_F2 - codes_F4[:, :2] * side_F2, centre_F2 + codes_F4[:, 2:] * side_F2], 1)
    before_F2, after_F2 = centre_F2 - wanted_F4[:, :2], wanted_F4[:, 2:] - centre_F2
    centred_F = (torch.minimum(before_F2, after_F2) / torch.maximum(before_F2, after_F2)).prod(1).sqrt()
    centreness = functional.binary_cross_entropy_with_logits(raw_BPC[..., -1][found_BP], centred_F, reduction="sum")
    return {
        "classes": _focal(raw_BPC[..., :-5], matched).sum() / count,
        "boxes": generalized_box_iou_loss(boxes_F4, wanted_F4, reduction="sum") / count,
        "centreness": centreness / count,
    }


def _regressions(matched: Matched, anchors_P4: torch.Tensor, weights: tuple[float, float]) -> torch.Tensor:
    """Regressions (F, 4) from which `adaptive_runtime.samples.boxes.heads.regressed` makes the boxes."""
    anchors_F4 = anchors_P4.expand(len(matched.found_BP), -1, -1)[matched.found_BP]
    boxes_F4 = matched.box_BP4[matched.found_BP]
    side_F2, wanted_F2 = anchors_F4[:, 2:] - anchors_F4[:, :2], boxes_F4[:, 2:] - boxes_F4[:, :2]
    shift_F2 = (boxes_F4[:, :2] + wanted_F2 / 2 - anchors_F4[:, :2] - side_F2 / 2) / side_F2
    return torch.cat([weights[0] * shift_F2, weights[1] * (wanted_F2 / side_F2).log()], 1)


def _focal(logits_BPK: torch.Tensor, matched: Matched) -> torch.Tensor:
    """Focal loss (B, P) with alpha 1/4 and gamma 2, summed over classes."""
    from torchvision.ops import sigmoid_focal_loss  # torchvision takes a second

    wanted_BPK = functional.one_hot(matched.class_BP, logits_BPK.shape[2]) * matched.found_BP[..., None]
    loss_BP: torch.Tensor = sigmoid_focal_loss(logits_BPK, wanted_BPK.to(logits_BPK.dtype)).sum(2)
    return loss_BP


def _two_ways(logits: torch.Tensor) -> torch.Tensor:
    """Logits (…, 2) of a class and of its absence; their softmax is the sigmoid."""
    return torch.stack([logits, torch.zeros_like(logits)], -1)


def _surest(logits_BPK2: torch.Tensor) -> torch.Tensor:
    return logits_BPK2[..., 0].amax(2).sigmoid()


def _same(codes: torch.Tensor, ratio: float) -> torch.Tensor:
    """Unchanged regressions: default boxes grow with the image."""
    return codes


def _grown(codes_BP4: torch.Tensor, ratio: float) -> torch.Tensor:
    """Regressions relative to anchors with fixed sides [px]: in a larger image, anchors are smaller relative to objects."""
    growth = torch.log(codes_BP4.new_tensor(ratio))
    return torch.cat([codes_BP4[..., :2] / ratio, codes_BP4[..., 2:] - growth], -1)


def _shrunk(codes_BP4: torch.Tensor, ratio: float) -> torch.Tensor:
    """Distances in units of the anchors' sides, which are fixed [px]."""
    return codes_BP4 / ratio


def _without_counts(
    match: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor, Sequence[int]], torch.Tensor]:
    return lambda boxes_M4, anchors_P4, counts: match(boxes_M4, anchors_P4)


LOSSES: Mapping[str, DetectionLoss] = MappingProxyType(
    {
        "ssdlite": DetectionLoss(
            matched=_without_counts(matched_best),
            parts=ssd_parts,
            logits=lambda raw_BPC: raw_BPC[..., :-4],
            sure=lambda logits_BPK: 1 - logits_BPK.softmax(2)[..., 0],
            rescaled=_same,
        ),
        "retinanet": DetectionLoss(
            matched=_without_counts(matched_between),
            parts=retinanet_parts,
            logits=lambda raw_BPC: _two_ways(raw_BPC[..., :-4]),
            sure=_surest,
            rescaled=_grown,
        ),
        "fcos": DetectionLoss(
            matched=matched_centres,
            parts=fcos_parts,
            logits=lambda raw_BPC: _two_ways(raw_BPC[..., :-5]),
            sure=_surest,
            rescaled=_shrunk,
        ),
    }
)
"""By the name of the head."""
