"""Answers from raw outputs of SubNets that are more than the class of a sample: boxes, classes of pixels or words, images.

Legend: N samples, P anchors, K classes, H height, W width; h, w those of a raw output.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import BundledNet, BundledSubNet
from adaptive_runtime.pool.scaling import BILINEAR, scaling
from adaptive_runtime.samples.boxes import HEADS, DetectionHead, Detections, detect

SEGMENTATION, SEVERAL_CLASSES, RESTORATION, TAGGING = "segmentation", "several_classes", "restoration", "tagging"
UNREAD = -1
UPSCALES: Mapping[str, int] = MappingProxyType(
    {RESTORATION: 1, **{f"super_resolution_x{upscale}": upscale for upscale in range(2, 9)}}
)
"""Factor of height and width from given to returned images, for each problem that returns images."""
Array = NDArray[np.float32]


class DecodedAnswers(NamedTuple):
    """Answers for images, in their own pixels: the boxes of each image, or the class of each pixel (N, H, W).

    Or labels: the class of each sample (N,) by target, as its number among all classes of the bundle. Or images (N, C, H, W)
    made of the given ones, with values in [0, 1], and larger by super-resolution. Or tags: the class of each word (N, T),
    `UNREAD` for words that a SubNet does not read.
    """

    detections: tuple[Detections, ...] | None = None
    masks: NDArray[np.int64] | None = None
    labels: Mapping[str, NDArray[np.int64]] | None = None
    images: NDArray[np.float32] | None = None
    tags: NDArray[np.int64] | None = None


RawDecoder = Callable[[Array, BundledSubNet, BundledNet, tuple[int, int]], DecodedAnswers]
"""Decodes a flat raw output (N, numbers) of a SubNet in one format, for images of (height, width)."""


def boxes_of(
    head: DetectionHead, raw_NV: Array, subnet: BundledSubNet, net: BundledNet, size: tuple[int, int]
) -> DecodedAnswers:
    """Boxes by a head; a SubNet with another image size gives them in its own pixels, so they are scaled."""
    height, width = own = (subnet.input_shape[-2], subnet.input_shape[-1])
    scale_4 = np.array([size[1] / width, size[0] / height] * 2, dtype=np.float32)
    found = detect(head, raw_NV.reshape(len(raw_NV), head.positions(own), -1), own)
    return DecodedAnswers(tuple(replace(one, boxes_N4=one.boxes_N4 * scale_4) for one in found))


def masks_of(raw_NV: Array, subnet: BundledSubNet, net: BundledNet, size: tuple[int, int]) -> DecodedAnswers:
    """The class of each pixel, by logits enlarged to the image."""
    return DecodedAnswers(masks=_enlarged(raw_NV, net, size).argmax(1))


def images_of(
    upscale: int, raw_NV: Array, subnet: BundledSubNet, net: BundledNet, size: tuple[int, int]
) -> DecodedAnswers:
    """Images, enlarged by the factor `upscale` from the size of the given ones."""
    height, width = size
    return DecodedAnswers(images=np.clip(_enlarged(raw_NV, net, (upscale * height, upscale * width)), 0, 1))


def tags_of(raw_NV: Array, subnet: BundledSubNet, net: BundledNet, size: tuple[int, int]) -> DecodedAnswers:
    """The class of each word that the SubNet reads. size: its last number is T."""
    read, classes = (int(one or 0) for one in net.output.shape[-2:])
    tags_NT = np.full((len(raw_NV), size[1]), UNREAD, np.int64)
    tags_NT[:, :read] = raw_NV.reshape(-1, read, classes).argmax(2)
    return DecodedAnswers(tags=tags_NT)


def _enlarged(raw_NV: Array, net: BundledNet, size: tuple[int, int]) -> Array:
    """Enlarged maps (N, K, H, W)."""
    *_, channels, height, width = (int(one or 0) for one in net.output.shape)
    maps_NKhw = raw_NV.reshape(-1, channels, height, width)
    enlarged = scaling((height, width), size, BILINEAR)
    return maps_NKhw if enlarged is None else enlarged(maps_NKhw)


def targets_of(classes: Sequence[str]) -> dict[str, slice]:
    """The slice of each target's classes, whose names are `TARGET: CLASS`, one target after the other."""
    found: dict[str, slice] = {}
    for number, name in enumerate(classes):
        target = name.partition(": ")[0]
        found[target] = slice(found[target].start if target in found else number, number + 1)
    return found


def labels_of(
    classes: Sequence[str], raw_NK: Array, subnet: BundledSubNet, net: BundledNet, size: tuple[int, int]
) -> DecodedAnswers:
    """The class of each target, by the largest of its logits."""
    places = targets_of(classes).items()
    return DecodedAnswers(labels={name: place.start + raw_NK[:, place].argmax(1) for name, place in places})


DECODERS: Mapping[str, RawDecoder] = MappingProxyType(
    {
        SEGMENTATION: masks_of,
        **{name: partial(images_of, upscale) for name, upscale in UPSCALES.items()},
        TAGGING: tags_of,
        **{f"detection_{name}": partial(boxes_of, head) for name, head in HEADS.items()},
    }
)


def decoder_of(problem: str | None, classes: Sequence[str] = ()) -> RawDecoder | None:
    """The decoder of a learning problem; None if it classifies whole images. AdaptiveError for an unknown problem."""
    if problem is None:
        return None
    if problem == SEVERAL_CLASSES:
        return partial(labels_of, classes)
    if problem not in DECODERS:
        allowed, next_step = ", ".join((SEVERAL_CLASSES, *DECODERS)), "install a newer adaptive_runtime"
        raise AdaptiveError("bundle", f"problem '{problem}'", allowed=allowed, next_step=next_step)
    return DECODERS[problem]
