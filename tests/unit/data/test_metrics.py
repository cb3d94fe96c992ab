"""Metrics of learning problems against reference implementations, and which of them a run can ask for."""

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, f1_score

from tasks.data import DataSettings
from tasks.data.problems import CLASSIFICATION, CLASSIFICATION_BY_F1, PROBLEMS, other_metric, problem_named
from tasks.data.problems.classification import confusion
from tasks.data.problems.detection import DETECTION, DETECTION_BY_COCO, packed
from tasks.data.settings import METRICS
from tasks.evaluation.subnets import Accuracy

CLASSES, IMAGES = 7, 200


def answered() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, K) and classes (N,): mostly right, class 5 is never there, class 6 neither there nor answered."""
    generator = torch.Generator().manual_seed(3)
    target_N = torch.randint(0, 5, (IMAGES,), generator=generator) * torch.randint(0, 2, (IMAGES,), generator=generator)
    logits_NK = torch.randn(IMAGES, CLASSES, generator=generator)
    logits_NK[:, 6] = -9
    logits_NK[range(IMAGES), target_N] += 1.5
    return logits_NK, target_N


def test_macro_f1_is_that_of_scikit_learn_however_images_are_batched() -> None:
    logits_NK, target_N = answered()
    answer_N = logits_NK.argmax(1)
    assert 5 in answer_N
    tally = CLASSIFICATION_BY_F1.tally()
    for start in range(0, IMAGES, 64):
        tally.add(logits_NK[start : start + 64], target_N[start : start + 64])
    found = Accuracy.tallied(tally.found())
    expected = f1_score(target_N, answer_N, average="macro", zero_division=0)
    assert found.share == pytest.approx(expected, abs=1e-12)
    whole = CLASSIFICATION.tally()
    whole.add(logits_NK, target_N)
    accuracy = Accuracy.tallied(whole.found())
    assert abs(accuracy.share - expected) > 0.05, "the classes are of different sizes"
    assert found.loss == pytest.approx(accuracy.loss)
    assert found.each.tolist() == accuracy.each.tolist()


def test_confusions_are_those_of_scikit_learn() -> None:
    logits_NK, target_N = answered()
    answer_N = logits_NK.argmax(1).numpy()
    expected_KK = confusion_matrix(target_N, answer_N, labels=range(CLASSES))
    assert confusion(target_N.numpy(), answer_N, CLASSES).tolist() == expected_KK.tolist()


def test_cocos_map_is_the_mean_over_ten_overlaps() -> None:
    """A default box that is moved by a fifth of its width overlaps by 2 / 3: right at 0.5, 0.55, 0.6 and 0.65 of 10."""
    side, head = 64, DETECTION["ssdlite"].head
    anchors_P4 = np.clip(head.anchors_of((side, side)) / side, 0, 1)
    place = int(np.flatnonzero((anchors_P4 > 0.1).all(1) & (anchors_P4 < 0.9).all(1))[0])
    raw_1PC = torch.zeros(1, len(anchors_P4), 3 + 4)
    raw_1PC[..., 0] = 9.0
    raw_1PC[0, place, :3] = torch.tensor([0.0, 9.0, 0.0])
    left, top, right, bottom = anchors_P4[place]
    moved = (right - left) / 5
    target_1M5 = packed([np.array([[1, left + moved, top, right + moved, bottom]], dtype=np.float32)])
    scores = []
    for problem in (DETECTION["ssdlite"], DETECTION_BY_COCO["ssdlite"]):
        tally = problem.tally()
        tally.add(raw_1PC, target_1M5)
        found = tally.found()
        scores.append((found.score, float(found.each_N[0])))
    assert scores == [(1.0, 1.0), (pytest.approx(0.4), pytest.approx(0.4, abs=1e-3))]


def test_each_metric_of_the_settings_has_a_record_and_the_first_is_the_one_without_a_wish() -> None:
    for kind in ("glyphs", "glyph_scenes", "glyph_boxes"):
        data = DataSettings.model_validate({"kind": kind})
        first = problem_named(data.problem)
        assert first is problem_named(data.problem, data.metric)
        assert other_metric(first) is None
    of_settings = {metric for metrics in METRICS.values() for metric in metrics}
    assert {record.judged_by for record in PROBLEMS} == of_settings
    assert DataSettings(kind="glyphs", metric="macro_f1").metric == "macro_f1"
    assert other_metric(problem_named("detection_fcos", "coco_map")) == "coco_map"
    with pytest.raises(ValueError, match=r"data\.metric=mean_iou with data.kind=glyphs; allowed: accuracy, macro_f1"):
        DataSettings(kind="glyphs", metric="mean_iou")
