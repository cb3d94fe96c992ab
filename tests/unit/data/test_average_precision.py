"""Average precision against values that follow from its definition by hand, and the score of the record of detection."""

import numpy as np
import pytest
import torch

from adaptive_runtime.samples.boxes import SSDLITE, Detections
from tasks.data.problems.detection import (
    DETECTION,
    JudgedImage,
    average_precisions,
    judged,
    mean_average_precisions,
    packed,
)

CLASSES = 3
SQUARE = [0.0, 0.0, 10.0, 10.0]


def _image(found: list[tuple[float, int, list[float]]], boxes: list[tuple[int, list[float]]]) -> JudgedImage:
    """found: score, class and box of each detection. boxes: class and box of each."""
    detections = Detections(
        boxes_N4=np.array([box for _, _, box in found], dtype=np.float32).reshape(-1, 4),
        scores_N=np.array([score for score, _, _ in found], dtype=np.float32),
        classes_N=np.array([label for _, label, _ in found], dtype=np.int64),
    )
    labels = np.array([label for label, _ in boxes], dtype=np.int64)
    return judged(detections, labels, np.array([box for _, box in boxes], dtype=np.float32).reshape(-1, 4))


def _moved(right: float) -> list[float]:
    """The square, moved."""
    return [right, 0.0, 10 + right, 10.0]


def test_a_perfect_detection_has_precision_one_at_all_thresholds() -> None:
    image = _image([(0.9, 1, SQUARE)], [(1, SQUARE)])
    found_TK = average_precisions([image], CLASSES)
    assert found_TK[:, 1].tolist() == [1.0] * 10
    assert np.isnan(found_TK[:, [0, 2]]).all()
    assert mean_average_precisions([image], CLASSES) == (1.0, 1.0)


def test_an_overlap_counts_at_the_thresholds_that_it_reaches() -> None:
    """Moved by 2 of 10, the IoU is 8 / 12: right at 0.5, 0.55, 0.6 and 0.65 alone."""
    image = _image([(0.9, 1, _moved(2))], [(1, SQUARE)])
    assert average_precisions([image], CLASSES)[:, 1].tolist() == [1.0] * 4 + [0.0] * 6
    assert mean_average_precisions([image], CLASSES) == (1.0, pytest.approx(0.4))


def test_a_wrong_detection_between_two_right_ones_costs_precision_at_high_recalls() -> None:
    """Hits 1, 1, 2 of 2 boxes: precision 1 up to recall 0.5, which are 51 of 101 recalls, and 2 / 3 at the other 50."""
    far = [50.0, 50.0, 60.0, 60.0]
    image = _image([(0.9, 1, SQUARE), (0.8, 1, _moved(30)), (0.7, 1, far)], [(1, SQUARE), (1, far)])
    expected = (51 * 1 + 50 * 2 / 3) / 101
    assert mean_average_precisions([image], CLASSES) == (pytest.approx(expected), pytest.approx(expected))


def test_precision_at_a_recall_is_the_largest_at_any_recall_not_below_it() -> None:
    """Wrong, right, right: precisions 0, 1 / 2 and 2 / 3, so 2 / 3 everywhere."""
    far = [50.0, 50.0, 60.0, 60.0]
    image = _image([(0.9, 1, _moved(30)), (0.8, 1, SQUARE), (0.7, 1, far)], [(1, SQUARE), (1, far)])
    assert mean_average_precisions([image], CLASSES)[0] == pytest.approx(2 / 3)


def test_recalls_that_are_not_reached_have_precision_zero() -> None:
    """One of four boxes is found: recalls 0 to 0.25, which are 26 of 101."""
    boxes = [(1, [20.0 * number, 0.0, 20.0 * number + 10, 10.0]) for number in range(4)]
    assert mean_average_precisions([_image([(0.5, 1, SQUARE)], boxes)], CLASSES)[0] == pytest.approx(26 / 101)


def test_a_box_is_found_once_and_by_the_best_detection() -> None:
    """The second detection of a box is wrong, though it overlaps more: precision 1 first, so nothing is lost at recall 1."""
    twice = _image([(0.9, 1, _moved(1)), (0.8, 1, SQUARE)], [(1, SQUARE)])
    assert twice.right_TD[0].tolist() == [True, False]
    assert twice.right_TD[-1].tolist() == [False, True], (
        "at 0.95 the first one is wrong, and the box is still to be found"
    )
    assert average_precisions([twice], CLASSES)[[0, -1], 1].tolist() == pytest.approx([1.0, 0.5])


def test_a_detection_takes_the_box_it_overlaps_most_with() -> None:
    near, nearer = _moved(2), _moved(1)
    image = _image([(0.9, 1, SQUARE), (0.8, 1, _moved(3))], [(1, near), (1, nearer)])
    assert image.right_TD[0].tolist() == [True, True], "the first takes the nearer box and leaves the other one"


def test_detections_of_another_class_or_image_are_wrong_and_scores_are_ranked_over_all_images() -> None:
    images = [
        _image([(0.3, 1, SQUARE), (0.9, 2, SQUARE)], [(1, SQUARE)]),
        _image([(0.6, 1, _moved(30))], [(2, SQUARE)]),
    ]
    found_TK = average_precisions(images, CLASSES)
    assert found_TK[0, 1] == pytest.approx(1 / 2), "a wrong one of 0.6 in the other image comes first"
    assert found_TK[0, 2] == 0
    assert mean_average_precisions(images, CLASSES)[0] == pytest.approx(1 / 4)


def test_without_boxes_no_detection_is_right_and_none_is_perfect() -> None:
    assert mean_average_precisions([_image([], [])], CLASSES) == (1.0, 1.0)
    assert mean_average_precisions([_image([(0.2, 1, SQUARE)], [])], CLASSES) == (0.0, 0.0)


def test_only_the_hundred_best_detections_of_a_class_in_an_image_count() -> None:
    wrong = [(0.9 - number / 1000, 1, _moved(30 + number)) for number in range(100)]
    assert mean_average_precisions([_image([*wrong[:99], (0.1, 1, SQUARE)], [(1, SQUARE)])], CLASSES)[0] > 0
    assert mean_average_precisions([_image([*wrong, (0.1, 1, SQUARE)], [(1, SQUARE)])], CLASSES)[0] == 0


def _perfect(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A raw output of the head ssdlite that finds one default box in each of two images, and a target with these boxes."""
    size = (side, side)
    anchors_P4 = np.clip(SSDLITE.anchors_of(size) / side, 0, 1)
    raw_BPC = torch.zeros(2, len(anchors_P4), CLASSES + 4)
    raw_BPC[..., 0] = 9.0
    rows = []
    for image, place in enumerate((4, 11)):
        raw_BPC[image, place, :CLASSES] = torch.tensor([0.0, 9.0, 0.0])
        rows.append(np.array([[1, *anchors_P4[place]]], dtype=np.float32))
    return raw_BPC, packed(rows)


def test_the_score_of_detection_is_map_over_all_images_and_that_of_each_image() -> None:
    problem = DETECTION["ssdlite"]
    raw_BPC, target_BM5 = _perfect(64)
    assert torch.allclose(problem.decoded(raw_BPC, (64, 64)), target_BM5, atol=1e-5)
    tally = problem.tally()
    for image in range(2):
        tally.add(raw_BPC[image : image + 1], target_BM5[image : image + 1])
    found = tally.found()
    assert found.score == 1.0
    assert found.each_N.tolist() == [1.0, 1.0]
    worse = problem.tally()
    worse.add(raw_BPC, target_BM5.flip(0))
    assert worse.found().score < 0.1
    assert worse.found().loss > found.loss


def test_boxes_are_drawn_in_the_colour_of_their_class() -> None:
    target_BM5 = packed([np.array([[2, 0.25, 0.25, 0.75, 1]], dtype=np.float32)])
    drawn_BCHW = DETECTION["ssdlite"].drawn(torch.zeros(1, 3, 8, 8), target_BM5, CLASSES)
    is_drawn_HW = drawn_BCHW[0].sum(0) > 0
    assert is_drawn_HW.nonzero().amin(0).tolist() == [2, 2]
    assert is_drawn_HW.nonzero().amax(0).tolist() == [7, 6]
    assert not is_drawn_HW[3:7, 3:6].any()
