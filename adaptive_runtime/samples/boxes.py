"""Boxes of objects from a detector's raw outputs, in numpy: heads, anchors, decoding, non-maximum suppression.

Anchors are the boxes from which a detector's regressions start. Grids are the sizes (rows, columns) of the feature
maps, finest first; a size is (height, width) [px]; boxes are (x0, y0, x1, y1) [px]. Anchors go by grid, row and column,
and then by their shapes at a position. The raw output of an image (P, C) has a row for each anchor: K logits of
classes, 4 regressions, and for some heads the logit of centre-ness. A record for each head states the meaning; its
numbers are from torchvision's network of the same name.

Legend: B images, P anchors, A anchors at a position, K classes with the background, N detections of an image; N and M
boxes in overlaps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array, Integers
from adaptive_runtime.base.errors import AdaptiveError

Size = tuple[int, int]


def grids_of(size: Size, strides: Sequence[int]) -> tuple[Size, ...]:
    """Sizes of the feature maps of an image; each stride divides rows and columns and rounds up."""
    height, width = size
    return tuple((-(-height // stride), -(-width // stride)) for stride in strides)


def pyramid_anchors(
    grids: Sequence[Size], size: Size, sides_px: Sequence[Sequence[int]], ratios: Sequence[float]
) -> Array:
    """(P, 4) around the corners of cells, with fixed sides for each grid.

    ratios: height over width. Shapes at a position are ordered by ratio, then by side; their half sides are rounded. Source:
    Feature Pyramid Networks (CVPR 2017) §4.1, Focal Loss for Dense Object Detection (ICCV 2017) §4.
    """
    found = []
    tall_R = np.sqrt(np.asarray(ratios, dtype=np.float32))
    for (rows, columns), sides in zip(grids, sides_px, strict=True):
        side_S = np.asarray(sides, dtype=np.float32)
        width_A = ((1 / tall_R)[:, None] * side_S[None]).ravel()
        height_A = (tall_R[:, None] * side_S[None]).ravel()
        shape_A4 = np.round(np.stack([-width_A, -height_A, width_A, height_A], 1) / 2)
        corner_HW2 = _lattice(
            np.arange(rows, dtype=np.float32) * (size[0] // rows),
            np.arange(columns, dtype=np.float32) * (size[1] // columns),
        )
        corner_P14 = np.tile(corner_HW2.reshape(-1, 1, 2), 2)
        found.append((corner_P14 + shape_A4).reshape(-1, 4))
    return np.concatenate(found)


def default_boxes(
    grids: Sequence[Size], size: Size, ratios: Sequence[float], least_scale: float, largest_scale: float
) -> Array:
    """(P, 4) around the centres of cells, with one scale per grid, as a share of the image.

    ratios: width over height, each also inverted, besides two squares. Source: SSD (ECCV 2016) §2.2.
    """
    last = max(1, len(grids) - 1)
    scales = [*(least_scale + (largest_scale - least_scale) * number / last for number in range(len(grids))), 1.0]
    image_2 = np.array([size[1], size[0]], dtype=np.float32)
    found = []
    for (rows, columns), scale, coarser in zip(grids, scales[:-1], scales[1:], strict=True):
        between = np.sqrt(scale * coarser)
        pairs = [(scale, scale), (between, between)]
        for ratio in ratios:
            long, short = scale * np.sqrt(ratio), scale / np.sqrt(ratio)
            pairs += [(long, short), (short, long)]
        shape_A2 = np.clip(np.array(pairs, dtype=np.float32), 0, 1)
        y_H = ((np.arange(rows, dtype=np.float32) + np.float32(0.5)) / np.float32(rows)).astype(np.float32)
        x_W = ((np.arange(columns, dtype=np.float32) + np.float32(0.5)) / np.float32(columns)).astype(np.float32)
        centre_P12 = _lattice(y_H, x_W).reshape(-1, 1, 2)
        half_A2 = np.float32(0.5) * shape_A2
        low_PA2, high_PA2 = (centre_P12 - half_A2) * image_2, (centre_P12 + half_A2) * image_2
        found.append(np.concatenate([low_PA2, high_PA2], -1).reshape(-1, 4))
    return np.concatenate(found)


def _lattice(y_H: Array, x_W: Array) -> Array:
    """Grid (H, W, 2) of coordinates (x, y)."""
    x_HW, y_HW = np.meshgrid(x_W, y_H)
    return np.stack([x_HW, y_HW], -1)


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
    anchors: Callable[[Sequence[Size], Size], Array]
    boxes: Callable[[Array, Array], Array]
    scores: Callable[[Array], Array]
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

    def anchors_of(self, size: Size) -> Array:
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


def regressed(codes_P4: Array, anchors_P4: Array, *, weights: tuple[float, float]) -> Array:
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


def distant(codes_P4: Array, anchors_P4: Array) -> Array:
    """Boxes from the distances of their edges to an anchor's centre, in units of its sides. Source: FCOS (ICCV 2019) §3.1."""
    sides_P2 = anchors_P4[:, 2:] - anchors_P4[:, :2]
    centre_P2 = np.float32(0.5) * (anchors_P4[:, :2] + anchors_P4[:, 2:])
    return np.concatenate([centre_P2 - codes_P4[:, :2] * sides_P2, centre_P2 + codes_P4[:, 2:] * sides_P2], 1)


def sigmoid(values: Array) -> Array:
    """Elementwise sigmoid without overflow."""
    small = np.exp(-np.abs(values))
    found: Array = np.where(values >= 0, 1, small).astype(np.float32) / (1 + small)
    return found


def _softmax(raw_PC: Array) -> Array:
    logits_PK = raw_PC[:, :-4]
    powers_PK = np.exp(logits_PK - logits_PK.max(-1, keepdims=True))
    found: Array = powers_PK / powers_PK.sum(-1, keepdims=True)
    return found


def _each(raw_PC: Array) -> Array:
    return sigmoid(raw_PC[:, :-4])


def _centred(raw_PC: Array) -> Array:
    """The geometric mean of class probability and centre-ness."""
    found: Array = np.sqrt(sigmoid(raw_PC[:, :-5]) * sigmoid(raw_PC[:, -1:]))
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


BLOCK = 64
"""Number of boxes that are compared with each other at once."""


def areas(boxes_N4: Array) -> Array:
    """Areas (N,) of boxes."""
    return (boxes_N4[:, 2] - boxes_N4[:, 0]) * (boxes_N4[:, 3] - boxes_N4[:, 1])


def intersections(boxes_N4: Array, others_M4: Array) -> Array:
    """Areas (N, M) of the intersections."""
    left_N1, top_N1, right_N1, bottom_N1 = boxes_N4.T[:, :, None]
    left_1M, top_1M, right_1M, bottom_1M = others_M4.T[:, None]
    width_NM = np.minimum(right_N1, right_1M) - np.maximum(left_N1, left_1M)
    height_NM = np.minimum(bottom_N1, bottom_1M) - np.maximum(top_N1, top_1M)
    found_NM: Array = np.maximum(width_NM, 0) * np.maximum(height_NM, 0)
    return found_NM


def iou(boxes_N4: Array, others_M4: Array) -> Array:
    """Intersection over union (N, M), in [0, 1]; 0 for two boxes without area."""
    both_NM = intersections(boxes_N4, others_M4)
    either_NM = areas(boxes_N4)[:, None] + areas(others_M4)[None] - both_NM
    return np.divide(both_NM, either_NM, out=np.zeros_like(both_NM), where=either_NM > 0)


def suppressed(boxes_N4: Array, scores_N: Array, classes_N: Integers, most_iou: float, most: int) -> Integers:
    """Indices of the boxes that stay, best score first: `most` at most, no two of one class with an IoU above `most_iou`.

    A box is dropped if a better box of its class stays; of two with the same score the first is better.
    """
    order_N = np.argsort(-scores_N, kind="stable")
    kept = np.empty(0, dtype=np.int64)
    for start in range(0, len(order_N), BLOCK):
        if len(kept) >= most:
            break
        block = order_N[start : start + BLOCK]
        block = block[~_same_object(boxes_N4, classes_N, block, kept, most_iou).any(1)]
        again = _same_object(boxes_N4, classes_N, block, block, most_iou)
        stays = np.ones(len(block), dtype=bool)
        for place in range(len(block)):
            if stays[place]:
                stays[place + 1 :] &= ~again[place, place + 1 :]
        kept = np.concatenate([kept, block[stays]])
    return kept[:most]


def _same_object(
    boxes_N4: Array, classes_N: Integers, some: Integers, others: Integers, most_iou: float
) -> NDArray[np.bool_]:
    """Pairs of boxes, by their indices, that belong to one object: (some, others)."""
    same = classes_N[some][:, None] == classes_N[others][None]
    return same & (iou(boxes_N4[some], boxes_N4[others]) > most_iou)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detections:
    """Detections of one image, the highest score first. boxes: (x0, y0, x1, y1) [px], inside the image. scores: in [0, 1]."""

    boxes_N4: Array
    scores_N: Array
    classes_N: Integers


def detect(head: DetectionHead, raw_BPC: Array, size: Size) -> list[Detections]:
    """The detections of each image.

    raw_BPC: raw output of the network, in the layout of `heads`. size: (height, width) [px] of the network's input. The
    detections equal those of torchvision's network with the head's name. AdaptiveError: the raw output is of another head or
    size.
    """
    check_raw(head, raw_BPC.shape, size)
    anchors_P4 = head.anchors_of(size)
    return [_detected(head, raw_PC, anchors_P4, size) for raw_PC in raw_BPC]


def check_raw(head: DetectionHead, shape: tuple[int, ...], size: Size) -> None:
    """AdaptiveError if the shape is not that of a head's raw output for images of (height, width)."""
    positions, least = head.positions(size), head.columns(2)
    if len(shape) != 3 or shape[1] != positions or shape[2] < least:
        raise AdaptiveError(
            f"raw output of {head.name} for {size[0]} x {size[1]} pixels",
            f"a tensor {shape}",
            allowed=f"(B, {positions}, C), C at least {least}",
            next_step="give the size of the network's input",
        )


def _detected(head: DetectionHead, raw_PC: Array, anchors_P4: Array, size: Size) -> Detections:
    """The detections of one image."""
    scores_PK = head.scores(raw_PC)
    places_N, classes_N = (
        _best_of_each_class(head, scores_PK) if head.by_class else _best_of_grids(head, scores_PK, size)
    )
    first = scores_PK.shape[1]
    boxes_N4 = head.boxes(raw_PC[places_N, first : first + 4], anchors_P4[places_N])
    boxes_N4 = np.clip(boxes_N4, 0, np.array([size[1], size[0], size[1], size[0]], dtype=np.float32))
    scores_N = scores_PK[places_N, classes_N]
    kept = suppressed(boxes_N4, scores_N, classes_N, head.most_iou, head.most)
    return Detections(boxes_N4=boxes_N4[kept], scores_N=scores_N[kept], classes_N=classes_N[kept])


def _best_of_each_class(head: DetectionHead, scores_PK: Array) -> tuple[Integers, Integers]:
    """Anchors and classes of the candidates: the best scores of each class."""
    found = [_best(scores_PK[:, label], head) for label in range(head.first_class, scores_PK.shape[1])]
    labels = [np.full(len(places), head.first_class + number) for number, places in enumerate(found)]
    return _joined(found), _joined(labels)


def _best_of_grids(head: DetectionHead, scores_PK: Array, size: Size) -> tuple[Integers, Integers]:
    """Anchors and classes of the candidates: the best scores of each grid."""
    classes, start, found = scores_PK.shape[1], 0, []
    for rows, columns in head.grids(size):
        end = start + head.shapes * rows * columns
        found.append(_best(scores_PK[start:end].ravel(), head) + start * classes)
        start = end
    places, labels = np.divmod(_joined(found), classes)
    return places, labels


def _best(scores: Array, head: DetectionHead) -> Integers:
    """Indices of the candidates among scores, best first."""
    over = np.flatnonzero(scores > head.least_score)
    return over[np.argsort(-scores[over], kind="stable")[: head.candidates]]


def _joined(parts: Sequence[Integers]) -> Integers:
    return np.concatenate([*parts, np.empty(0, dtype=np.int64)]).astype(np.int64)
