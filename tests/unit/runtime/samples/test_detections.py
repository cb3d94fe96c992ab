"""Detections in numpy are those of torchvision's networks, from the same raw output."""

import numpy as np
import pytest
import torch
from torchvision.ops import batched_nms, box_iou

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.samples.boxes import (
    FCOS,
    HEADS,
    RETINANET,
    SSDLITE,
    DetectionHead,
    Size,
    detect,
    head_of,
    iou,
    suppressed,
)
from tests.support.boxes.peers import drawn_raw, peer_anchors, peer_detections

SIZES = ((96, 96), (128, 64), (100, 180))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("head", HEADS.values(), ids=list(HEADS))
def test_anchors_are_those_of_torchvision(head: DetectionHead, size: Size) -> None:
    np.testing.assert_allclose(head.anchors_of(size), peer_anchors(head, size).numpy(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("size", SIZES[:2])
@pytest.mark.parametrize("head", HEADS.values(), ids=list(HEADS))
def test_detections_are_those_of_torchvision(head: DetectionHead, size: Size) -> None:
    raw_BPC = drawn_raw(head, size, images=2, seed=3)
    expected = peer_detections(head, raw_BPC, size)
    found = detect(head, raw_BPC.numpy(), size)
    for one, other in zip(found, expected, strict=True):
        assert len(one.scores_N) > 20
        np.testing.assert_array_equal(one.classes_N, other["labels"].numpy())
        np.testing.assert_allclose(one.scores_N, other["scores"].numpy(), rtol=0, atol=1e-6)
        np.testing.assert_allclose(one.boxes_N4, other["boxes"].numpy(), rtol=0, atol=1e-4)


def test_an_image_without_scores_above_the_least_one_has_no_detections() -> None:
    raw_BPC = np.full((1, RETINANET.positions((64, 64)), 7), -9, np.float32)
    (found,) = detect(RETINANET, raw_BPC, (64, 64))
    assert found.boxes_N4.shape == (0, 4)
    assert len(found.scores_N) == len(found.classes_N) == 0


def test_overlap_and_suppression_are_those_of_torchvision() -> None:
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 60, (200, 2))
    boxes = np.concatenate([low, low + rng.uniform(0, 40, (200, 2))], 1).astype(np.float32)
    scores, classes = (rng.permutation(200) / 200).astype(np.float32), rng.integers(0, 3, 200)
    given = torch.from_numpy(boxes)
    np.testing.assert_allclose(iou(boxes, boxes[:50]), box_iou(given, given[:50]).numpy(), rtol=0, atol=1e-6)
    expected = batched_nms(given, torch.from_numpy(scores), torch.from_numpy(classes), 0.4)
    kept = suppressed(boxes, scores, classes, 0.4, most=200)
    assert 20 < len(kept) < 180
    np.testing.assert_array_equal(kept, expected.numpy())
    np.testing.assert_array_equal(suppressed(boxes, scores, classes, 0.4, most=9), kept[:9])


def test_boxes_without_area_overlap_with_nothing() -> None:
    point, square = np.array([[3, 3, 3, 3]], np.float32), np.array([[0, 0, 6, 6]], np.float32)
    assert iou(point, np.concatenate([point, square])).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("head", HEADS.values(), ids=list(HEADS))
def test_the_size_of_square_images_follows_from_the_number_of_anchors(head: DetectionHead) -> None:
    side = 7 * head.strides[0]
    assert head.square(head.positions((side, side))) == (side, side)
    assert head.square(head.positions((side - 3, side - 3))) == (side, side)
    with pytest.raises(
        AdaptiveError, match=f"raw output of {head.name}: {head.positions((side, side)) + 1} anchors are "
    ):
        head.square(head.positions((side, side)) + 1)


def test_a_raw_output_of_another_head_or_size_is_one_clear_line() -> None:
    raw_BPC = drawn_raw(FCOS, (64, 64), images=1, seed=0).numpy()
    with pytest.raises(
        AdaptiveError, match=r"of fcos for 96 x 96 pixels: a tensor \(1, 86, 10\); allowed: \(B, 194, C\), C at"
    ):
        detect(FCOS, raw_BPC, (96, 96))
    with pytest.raises(
        AdaptiveError, match=r"of ssdlite for 64 x 64 pixels: a tensor \(1, 86, 10\); allowed: \(B, 144, C\), .*; give"
    ):
        detect(SSDLITE, raw_BPC, (64, 64))
    with pytest.raises(AdaptiveError, match="detection head: 'yolo'; allowed: ssdlite, retinanet, fcos"):
        head_of("yolo")
