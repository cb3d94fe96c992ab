"""Losses of detectors from boxes and from a teacher, on raw outputs; a record for each head, as in torchvision's networks.

Matches (P,) are the numbers of the boxes that anchors have to find, or `BACKGROUND`, or `BETWEEN` for anchors that no loss
counts. A student learns from the anchors at which its teacher is most certain of an object; nearly all others are background.
Source: Learning Efficient Object Detection Models with Knowledge Distillation (NeurIPS 2017) §3, where background counts less.

Legend: B batch, P anchors, N of these, F anchors that have a box, M boxes of an image at most, K classes with the background,
C columns of a raw output, H and W rows and columns. Boxes and anchors are (x0, y0, x1, y1) [px].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from adaptive_runtime.samples.boxes import DetectionHead
from tasks.data.problems.record import Divergence
from tasks.data.torch_later import functional, torch

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
    """Regressions (F, 4) from which `adaptive_runtime.samples.boxes.regressed` makes the boxes."""
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


def _grown(codes_BP4: torch.Tensor, ratio: float) -> torch.Tensor:
    """Regressions relative to anchors with fixed sides [px]: in a larger image, anchors are smaller relative to objects."""
    growth = torch.log(codes_BP4.new_tensor(ratio))
    return torch.cat([codes_BP4[..., :2] / ratio, codes_BP4[..., 2:] - growth], -1)


LOSSES: Mapping[str, DetectionLoss] = MappingProxyType(
    {
        "ssdlite": DetectionLoss(
            matched=lambda boxes_M4, anchors_P4, counts: matched_best(boxes_M4, anchors_P4),
            parts=ssd_parts,
            logits=lambda raw_BPC: raw_BPC[..., :-4],
            sure=lambda logits_BPK: 1 - logits_BPK.softmax(2)[..., 0],
            rescaled=lambda codes_BP4, ratio: codes_BP4,  # default boxes grow with the image
        ),
        "retinanet": DetectionLoss(
            matched=lambda boxes_M4, anchors_P4, counts: matched_between(boxes_M4, anchors_P4),
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
            rescaled=lambda codes_BP4, ratio: codes_BP4 / ratio,  # in units of the anchors' sides, which are fixed [px]
        ),
    }
)
"""By the name of the head."""


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
