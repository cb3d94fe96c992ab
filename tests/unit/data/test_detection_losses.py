"""Losses of detection are those of torchvision's networks, from the same raw output and boxes."""

from collections.abc import Callable

import pytest
import torch
from torchvision.ops import box_iou

from adaptive_runtime.samples.boxes import HEADS, SSDLITE, DetectionHead
from tasks.data.problems.box_losses import LOSSES, Matched, matches_of, resampled
from tasks.data.problems.detection import ABSENT, DETECTION, packed
from tasks.training.finetune.numerics import alpha_divergence, soft_cross_entropy
from tests.support.boxes.peers import CLASSES, drawn_raw, peer_anchors, peer_of, peer_outputs

SIDE, TOLERANCE = 96, 1e-6
SIZE = (SIDE, SIDE)
BOXES: tuple[list[list[float]], ...] = (
    [[1, 8, 10, 44, 40], [2, 50, 4, 90, 61], [4, 30, 30, 41, 39]],
    [],
    [[3, 2, 2, 95, 93]],
)
"""Class and corners [px] of the boxes of three images."""
NAMES = {"classes": "classification", "boxes": "bbox_regression", "centreness": "bbox_ctrness"}
heads = pytest.mark.parametrize("head", HEADS.values(), ids=list(HEADS))


def _target() -> torch.Tensor:
    images = [torch.tensor(rows, dtype=torch.float32).reshape(-1, 5) for rows in BOXES]
    return packed([(rows / torch.tensor([1.0, SIDE, SIDE, SIDE, SIDE])).numpy() for rows in images])


def _images(dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Classes and boxes [px] of each image."""
    rows = [torch.tensor(own, dtype=dtype).reshape(-1, 5) for own in BOXES]
    return [(own[:, 0].long(), own[:, 1:]) for own in rows]


def _counts(head: DetectionHead) -> list[int]:
    """Anchors of each grid."""
    return [head.shapes * rows * columns for rows, columns in head.grids(SIZE)]


def _peer_losses(head: DetectionHead, raw_BPC: torch.Tensor) -> dict[str, torch.Tensor]:
    """torchvision's, by its own names."""
    peer, anchors_P4, told = peer_of(head), peer_anchors(head, SIZE).to(raw_BPC), peer_outputs(raw_BPC)
    targets = [{"labels": class_M, "boxes": box_M4} for class_M, box_M4 in _images(raw_BPC.dtype)]
    anchors = [anchors_P4] * len(BOXES)
    if head is SSDLITE:
        matches = [
            peer.proposal_matcher(box_iou(one["boxes"], anchors_P4))
            if len(one["boxes"])
            else torch.full((len(anchors_P4),), -1)
            for one in targets
        ]
        found: dict[str, torch.Tensor] = peer.compute_loss(targets, told, anchors, matches)
        return found
    counts = [_counts(head)] if head.has_centreness else []
    found = peer.compute_loss(targets, told, anchors, *counts)
    return dict(found)


def _matched(head: DetectionHead, anchors_P4: torch.Tensor) -> Matched:
    return matches_of(LOSSES[head.name], _images(anchors_P4.dtype), anchors_P4, _counts(head))


@heads
def test_each_part_of_the_loss_and_its_gradient_are_those_of_torchvision(head: DetectionHead) -> None:
    own_BPC = drawn_raw(head, SIZE, images=len(BOXES), seed=0).double().requires_grad_()
    peer_BPC = own_BPC.detach().clone().requires_grad_()
    anchors_P4 = peer_anchors(head, SIZE).double()
    matched = _matched(head, anchors_P4)
    assert 3 < matched.found_BP.sum() < matched.found_BP.numel() / 2
    parts = LOSSES[head.name].parts(own_BPC, matched, anchors_P4, 0.0)
    expected = _peer_losses(head, peer_BPC)
    assert {NAMES[name] for name in parts} == set(expected)
    for name, part in parts.items():
        torch.testing.assert_close(part, expected[NAMES[name]], rtol=TOLERANCE, atol=0)
    torch.stack(list(parts.values())).sum().backward()
    torch.stack(list(expected.values())).sum().backward()
    torch.testing.assert_close(own_BPC.grad, peer_BPC.grad, rtol=TOLERANCE, atol=1e-9)


@heads
def test_the_loss_of_targets_in_shares_is_the_sum_of_the_parts(head: DetectionHead) -> None:
    raw_BPC = drawn_raw(head, SIZE, images=len(BOXES), seed=1)
    expected = torch.stack(list(_peer_losses(head, raw_BPC).values())).sum()
    torch.testing.assert_close(DETECTION[head.name].loss(raw_BPC, _target(), 0.0), expected, rtol=1e-5, atol=0)


@heads
@pytest.mark.parametrize("divergence", [soft_cross_entropy, alpha_divergence])
def test_steps_from_a_teacher_alone_bring_the_raw_output_to_the_teachers(
    head: DetectionHead, divergence: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    problem = DETECTION[head.name]
    taught_BPC = drawn_raw(head, SIZE, images=1, seed=2)
    own_BPC = torch.nn.Parameter(drawn_raw(head, SIZE, images=1, seed=3))
    optimiser = torch.optim.Adam([own_BPC], 0.2)
    sure_BP = LOSSES[head.name].sure(LOSSES[head.name].logits(taught_BPC))
    surest = int(sure_BP[0].argmax())
    before = (own_BPC - taught_BPC)[0, surest].abs().sum()
    for _ in range(60):
        optimiser.zero_grad()
        problem.distillation(own_BPC, taught_BPC, divergence).backward()
        optimiser.step()
    assert float((own_BPC - taught_BPC)[0, surest, CLASSES:].abs().sum()) < 0.25 * float(before)
    least = int(sure_BP[0].argmin())
    assert torch.equal(own_BPC[0, least], drawn_raw(head, SIZE, images=1, seed=3)[0, least]), "background is left alone"


@heads
def test_a_teacher_of_larger_images_teaches_the_same_boxes(head: DetectionHead) -> None:
    """A regression that is the same everywhere is one box beside each anchor, in shares of the image."""
    loss, (small, large) = LOSSES[head.name], ((64, 64), (128, 128))
    raw_BPC = torch.full((1, head.positions(large), head.columns(CLASSES)), 0.3)
    found_BPC = resampled(head, loss, raw_BPC, head.positions(small))
    assert found_BPC.shape == (1, head.positions(small), head.columns(CLASSES))

    def boxes_of(values_BPC: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        codes_P4 = values_BPC[0, :, CLASSES : CLASSES + 4].numpy()
        grids = head.grids(size)
        boxes_P4 = head.boxes(codes_P4, head.anchors_of(size)) / size[0]
        first = head.shapes * grids[0][0] * grids[0][1]
        return torch.from_numpy(boxes_P4[:first].reshape(*grids[0], head.shapes, 4))

    own, others = boxes_of(found_BPC, small), boxes_of(raw_BPC, large)
    sides, wanted = (corner[0, 0, :, 2:] - corner[0, 0, :, :2] for corner in (own, others))
    torch.testing.assert_close(sides, wanted, rtol=1e-4, atol=0)
    torch.testing.assert_close(found_BPC[..., :CLASSES], raw_BPC[:, : head.positions(small), :CLASSES])


def test_images_without_boxes_and_rows_that_are_absent_change_nothing() -> None:
    problem = DETECTION["ssdlite"]
    raw_BPC = drawn_raw(SSDLITE, SIZE, images=len(BOXES), seed=4)
    target_BM5 = _target()
    wider_BM5 = torch.cat([torch.full((len(BOXES), 2, 5), float(ABSENT)), target_BM5], 1)
    assert torch.equal(problem.loss(raw_BPC, wider_BM5, 0.0), problem.loss(raw_BPC, target_BM5, 0.0))
    nothing = problem.loss(raw_BPC, torch.full((len(BOXES), 1, 5), float(ABSENT)), 0.0)
    assert nothing == 0
