"""Heads of detectors, one record for each: the meaning of their raw outputs.

Legend: P anchors, K classes with the background.

The raw output of an image (P, C) has a row for each anchor: K logits of classes, 4 regressions, and for some heads the logit of
centre-ness. The numbers of each record are those of torchvision's network of the same name.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import MappingProxyType

import numpy as np

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.samples.boxes.anchors import Floats, Size, default_boxes, grids_of, pyramid_anchors

LARGEST_GROWTH = math.log(1000 / 16)
"""Upper limit of the regressions of sides before the exponential. Source: reference code of Faster R-CNN (NeurIPS 2015)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionHead:
    """The conversion from raw outputs to scored boxes.

    strides: of the feature maps [px]. shapes: anchors at a position. has_centreness: whether it has a logit of centre-ness.
    anchors: grids and the image's size -> (P, 4). boxes: regressions and anchors -> (P, 4). scores: raw output -> (P, K).
    first_class: classes before it are never detected. by_class: candidates are the best of each class, not of each grid.
    least_score, candidates, most_iou, most: limits of the detections.
    """

    name: str
    strides: tuple[int, ...]
    shapes: int
    has_centreness: bool
    anchors: Callable[[Sequence[Size], Size], Floats]
    boxes: Callable[[Floats, Floats], Floats]
    scores: Callable[[Floats], Floats]
    first_class: int
    by_class: bool
    least_score: float
    candidates: int
    most_iou: float
    most: int

    def columns(self, classes: int) -> int:
        """C, the width of the raw output for so many classes, including the background."""
        return classes + 4 + self.has_centreness

    def grids(self, size: Size) -> tuple[Size, ...]:
        """Sizes of the feature maps of an image of (height, width)."""
        return grids_of(size, self.strides)

    def anchors_of(self, size: Size) -> Floats:
        """The anchors (P, 4) [px] of an image of (height, width)."""
        return self.anchors(self.grids(size), size)

    def positions(self, size: Size) -> int:
        """P, the number of anchors of an image of (height, width)."""
        return self.shapes * sum(rows * columns for rows, columns in self.grids(size))

    def square(self, positions: int) -> Size:
        """The size of square images with so many anchors, as a multiple of the finest stride. AdaptiveError: no size fits."""
        for side in count(1):
            size = (side * self.strides[0],) * 2
            if (found := self.positions(size)) >= positions:
                break
        if found != positions:
            raise AdaptiveError(
                f"raw output of {self.name}",
                f"{positions} anchors are those of no square image",
                allowed=f"as {found}, of an image of {size[0]} x {size[1]} pixels",
            )
        return size


def regressed(codes_P4: Floats, anchors_P4: Floats, *, weights: tuple[float, float]) -> Floats:
    """Boxes from shifts relative to an anchor's sides and logarithms of growth. weights: of shifts, of growth.

    Source: R-CNN (CVPR 2014), appendix C.
    """
    sides_P2 = anchors_P4[:, 2:] - anchors_P4[:, :2]
    centre_P2 = anchors_P4[:, :2] + np.float32(0.5) * sides_P2
    shift_P2 = codes_P4[:, :2] / np.float32(weights[0])
    growth_P2 = np.minimum(codes_P4[:, 2:] / np.float32(weights[1]), np.float32(LARGEST_GROWTH))
    centre_P2 = shift_P2 * sides_P2 + centre_P2
    half_P2 = np.float32(0.5) * (np.exp(growth_P2) * sides_P2)
    return np.concatenate([centre_P2 - half_P2, centre_P2 + half_P2], 1)


def distant(codes_P4: Floats, anchors_P4: Floats) -> Floats:
    """Boxes from the distances of their edges to an anchor's centre, in units of its sides. Source: FCOS (ICCV 2019) §3.1."""
    sides_P2 = anchors_P4[:, 2:] - anchors_P4[:, :2]
    centre_P2 = np.float32(0.5) * (anchors_P4[:, :2] + anchors_P4[:, 2:])
    return np.concatenate([centre_P2 - codes_P4[:, :2] * sides_P2, centre_P2 + codes_P4[:, 2:] * sides_P2], 1)


def sigmoid(values: Floats) -> Floats:
    """Elementwise sigmoid without overflow."""
    small = np.exp(-np.abs(values))
    found: Floats = np.where(values >= 0, 1, small).astype(np.float32) / (1 + small)
    return found


def _softmax(raw_PC: Floats) -> Floats:
    logits_PK = raw_PC[:, :-4]
    powers_PK = np.exp(logits_PK - logits_PK.max(-1, keepdims=True))
    found: Floats = powers_PK / powers_PK.sum(-1, keepdims=True)
    return found


def _each(raw_PC: Floats) -> Floats:
    return sigmoid(raw_PC[:, :-4])


def _centred(raw_PC: Floats) -> Floats:
    """The geometric mean of class probability and centre-ness."""
    found: Floats = np.sqrt(sigmoid(raw_PC[:, :-5]) * sigmoid(raw_PC[:, -1:]))
    return found


PYRAMID_STRIDES = (8, 16, 32, 64, 128)
SSDLITE = DetectionHead(
    name="ssdlite",
    strides=(16, 32, 64, 128, 256, 512),
    shapes=6,
    has_centreness=False,
    anchors=partial(default_boxes, ratios=(2.0, 3.0), least_scale=0.2, largest_scale=0.95),
    boxes=partial(regressed, weights=(10.0, 5.0)),
    scores=_softmax,
    first_class=1,
    by_class=True,
    least_score=0.001,
    candidates=300,
    most_iou=0.55,
    most=300,
)
RETINANET = DetectionHead(
    name="retinanet",
    strides=PYRAMID_STRIDES,
    shapes=9,
    has_centreness=False,
    anchors=partial(
        pyramid_anchors,
        sides_px=tuple(tuple(int(4 * stride * 2 ** (third / 3)) for third in range(3)) for stride in PYRAMID_STRIDES),
        ratios=(0.5, 1.0, 2.0),
    ),
    boxes=partial(regressed, weights=(1.0, 1.0)),
    scores=_each,
    first_class=0,
    by_class=False,
    least_score=0.05,
    candidates=1000,
    most_iou=0.5,
    most=300,
)
FCOS = DetectionHead(
    name="fcos",
    strides=PYRAMID_STRIDES,
    shapes=1,
    has_centreness=True,
    anchors=partial(pyramid_anchors, sides_px=tuple((stride,) for stride in PYRAMID_STRIDES), ratios=(1.0,)),
    boxes=distant,
    scores=_centred,
    first_class=0,
    by_class=False,
    least_score=0.2,
    candidates=1000,
    most_iou=0.6,
    most=100,
)
HEADS: Mapping[str, DetectionHead] = MappingProxyType({head.name: head for head in (SSDLITE, RETINANET, FCOS)})


def head_of(name: str) -> DetectionHead:
    """The head of a name. AdaptiveError: unknown name."""
    if name not in HEADS:
        raise AdaptiveError("detection head", f"'{name}'", allowed=", ".join(HEADS))
    return HEADS[name]
