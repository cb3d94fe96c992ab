"""torchvision's detectors beside our heads: the same anchors, drawn raw outputs, and what torchvision makes of them."""

from functools import cache
from typing import Any

import torch
from torch import nn
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.fcos import FCOS as PeerFCOS
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.retinanet import RetinaNet
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.ssdlite import SSDLiteHead

from adaptive_runtime.samples.boxes import SSDLITE, DetectionHead, Size

CLASSES = 5
"""The background among them."""
WIDTH = 32
NAMES = ("cls_logits", "bbox_regression", "bbox_ctrness")


class _Features(nn.Module):
    """A stand for a backbone, of which torchvision asks no more here."""

    out_channels = WIDTH


@cache
def peer_of(head: DetectionHead) -> Any:
    """torchvision's network of a head, without a backbone that works."""
    if head is SSDLITE:
        levels = len(head.strides)
        return SSD(
            _Features(),
            DefaultBoxGenerator([[2, 3] for _ in range(levels)], min_ratio=0.2, max_ratio=0.95),
            (320, 320),
            CLASSES,
            head=SSDLiteHead([WIDTH] * levels, [head.shapes] * levels, CLASSES, nn.BatchNorm2d),
            score_thresh=0.001,
            nms_thresh=0.55,
            detections_per_img=300,
            topk_candidates=300,
        ).eval()
    return {"retinanet": RetinaNet, "fcos": PeerFCOS}[head.name](_Features(), CLASSES).eval()


def peer_anchors(head: DetectionHead, size: Size) -> torch.Tensor:
    """The anchors (P, 4) that torchvision makes for an image."""
    maps = [torch.zeros(1, WIDTH, *grid) for grid in head.grids(size)]
    images = ImageList(torch.zeros(1, 3, *size), [size])
    (anchors_P4,) = peer_of(head).anchor_generator(images, maps)
    return anchors_P4


def drawn_raw(head: DetectionHead, size: Size, images: int, seed: int) -> torch.Tensor:
    """The raw output (B, P, C) of a batch, with scores on both sides of the least one, so far apart that rounding ties none."""
    generator = torch.Generator().manual_seed(seed)
    raw_BPC = torch.randn(images, head.positions(size), head.columns(CLASSES), generator=generator)
    count = raw_BPC[..., :CLASSES].numel()
    logits = torch.linspace(-8, 4, count)[torch.randperm(count, generator=generator)]
    raw_BPC[..., :CLASSES] = logits.reshape(images, -1, CLASSES)
    if head.has_centreness:
        raw_BPC[..., CLASSES:] = raw_BPC[..., CLASSES:].abs()
    return raw_BPC


def peer_outputs(raw_BPC: torch.Tensor) -> dict[str, torch.Tensor]:
    """A raw output as torchvision's heads give it."""
    parts = raw_BPC.split([CLASSES, 4, 1][: 2 + (raw_BPC.shape[2] > CLASSES + 4)], 2)
    return {name: part.contiguous() for name, part in zip(NAMES, parts, strict=False)}


def peer_detections(head: DetectionHead, raw_BPC: torch.Tensor, size: Size) -> list[dict[str, Any]]:
    """What torchvision's network makes of a raw output: boxes, scores and labels of each image."""
    images, peer, anchors_P4, told = len(raw_BPC), peer_of(head), peer_anchors(head, size), peer_outputs(raw_BPC)
    if head is SSDLITE:
        return list(peer.postprocess_detections(told, [anchors_P4] * images, [size] * images))
    counts = [head.shapes * rows * columns for rows, columns in head.grids(size)]
    split = {name: list(values.split(counts, 1)) for name, values in told.items()}
    anchors = [list(anchors_P4.split(counts)) for _ in range(images)]
    return list(peer.postprocess_detections(split, anchors, [size] * images))
