"""Records of learning problems: losses on raw outputs, scores, answers, and what they cannot do yet."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from tailor_ir import Config
from tasks.base.errors import UserError
from tasks.data.problems import CLASSIFICATION, SEGMENTATION, problem_named, require
from tasks.data.problems.segmentation import IGNORED, mean_iou, moved
from tasks.evaluation.models.outputs import check_shapes
from tasks.evaluation.subnets import Accuracy, count_correct
from tasks.training.finetune.numerics import alpha_divergence, loss_of, soft_cross_entropy
from tasks.training.finetune.settings import Settings

CLASSES, SIDE = 4, 12


def pixels(seed: int, count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (B, K, H / 2, W / 2) and classes (B, H, W), some of them ignored."""
    generator = torch.Generator().manual_seed(seed)
    logits_BKhw = torch.randn(count, CLASSES, SIDE // 2, SIDE // 2, generator=generator)
    y_BHW = torch.randint(0, CLASSES, (count, SIDE, SIDE), generator=generator)
    y_BHW[torch.rand(y_BHW.shape, generator=generator) < 0.1] = IGNORED
    return logits_BKhw, y_BHW


def naive_iou(answer: torch.Tensor, y: torch.Tensor) -> float:
    """Of each class that occurs, pixel by pixel."""
    answer, y = answer[y != IGNORED], y[y != IGNORED]
    found = []
    for number in range(CLASSES):
        both, either = ((answer == number) & (y == number)).sum(), ((answer == number) | (y == number)).sum()
        if either:
            found.append(int(both) / int(either))
    return float(np.mean(found))


def test_the_score_of_segmentation_is_the_mean_iou_over_all_pixels_and_that_of_each_image() -> None:
    logits_BKhw, y_BHW = pixels(0)
    y_BHW[:, :, :4][y_BHW[:, :, :4] == 2] = 1
    answer_BHW = SEGMENTATION.decoded(logits_BKhw, (SIDE, SIDE))
    whole = SEGMENTATION.tally()
    whole.add(logits_BKhw, y_BHW)
    found = whole.found()
    assert found.score == pytest.approx(naive_iou(answer_BHW, y_BHW), abs=1e-9)
    each = [naive_iou(*pair) for pair in zip(answer_BHW, y_BHW, strict=True)]
    assert found.each_N == pytest.approx(each, abs=1e-3)
    pieces = SEGMENTATION.tally()
    for start in range(0, 6, 2):
        pieces.add(logits_BKhw[start : start + 2], y_BHW[start : start + 2])
    assert pieces.found().score == found.score
    assert pieces.found().loss == pytest.approx(found.loss)


def test_classes_that_neither_occur_nor_are_answered_do_not_count() -> None:
    confusion_KK = torch.tensor([[6, 2, 0], [0, 4, 0], [0, 0, 0]])
    both = torch.stack([confusion_KK, torch.zeros(3, 3, dtype=torch.int64)])
    assert mean_iou(both).tolist() == pytest.approx([(6 / 8 + 4 / 6) / 2, 1.0])


def test_perfect_answers_have_score_one_and_constant_ones_much_less() -> None:
    _, y_BHW = pixels(1)
    perfect_BKHW = 20 * functional.one_hot(y_BHW.clamp_min(0), CLASSES).movedim(-1, 1).float()
    perfect = count_correct(lambda x: perfect_BKHW, [(torch.zeros(6, 3, SIDE, SIDE), y_BHW)], SEGMENTATION)
    assert perfect.share == pytest.approx(1.0)
    assert (perfect.each == 1).all()
    assert perfect.loss < 1e-3
    always_BKhw = torch.eye(CLASSES)[0].reshape(1, CLASSES, 1, 1).expand(6, -1, 2, 2)
    constant = count_correct(lambda x: always_BKhw, [(torch.zeros(6, 3, SIDE, SIDE), y_BHW)], SEGMENTATION)
    assert constant.share < 0.1


def test_pixels_that_are_ignored_change_neither_loss_nor_score() -> None:
    logits_BKhw, y_BHW = pixels(2)
    there = SEGMENTATION.loss(logits_BKhw, y_BHW, 0.1)
    large_BKHW = functional.interpolate(logits_BKhw, (SIDE, SIDE), mode="bilinear", align_corners=False)
    rows, labels = large_BKHW.movedim(1, -1)[y_BHW != IGNORED], y_BHW[y_BHW != IGNORED]
    torch.testing.assert_close(there, functional.cross_entropy(rows, labels, label_smoothing=0.1))
    other = torch.where((y_BHW == IGNORED)[:, None], -large_BKHW, large_BKHW)
    tallies = [SEGMENTATION.tally(), SEGMENTATION.tally()]
    for tally, logits in zip(tallies, (large_BKHW, other), strict=True):
        tally.add(logits, y_BHW)
    assert tallies[0].found().score == tallies[1].found().score
    assert tallies[0].found().loss == pytest.approx(tallies[1].found().loss)


@pytest.mark.parametrize(("name", "divergence"), [("kl", soft_cross_entropy), ("alpha", alpha_divergence)])
def test_segmentation_is_distilled_position_by_position(name: str, divergence: object) -> None:
    student, y_BHW = pixels(3)
    teacher = pixels(4)[0]
    student.requires_grad_()
    settings = Settings.model_validate({"divergence": name})
    found = loss_of(student, y_BHW, settings, teacher, 1.0, SEGMENTATION)
    (own,) = torch.autograd.grad(found, student)
    assert callable(divergence)
    positions = [(student[:, :, i, j], teacher[:, :, i, j]) for i in range(SIDE // 2) for j in range(SIDE // 2)]
    expected = torch.stack([divergence(*pair) for pair in positions]).mean()
    (wanted,) = torch.autograd.grad(expected, student)
    torch.testing.assert_close(own, wanted)


def test_a_teacher_of_larger_images_teaches_a_smaller_grid() -> None:
    student, _ = pixels(5)
    coarse = student.clone().requires_grad_()
    large = functional.interpolate(student, scale_factor=2, mode="nearest")
    (pull,) = torch.autograd.grad(SEGMENTATION.distillation(coarse, large, soft_cross_entropy), coarse)
    (stray,) = torch.autograd.grad(SEGMENTATION.distillation(coarse, -large, soft_cross_entropy), coarse)
    assert pull.abs().mean() < 0.6 * stray.abs().mean()


def test_images_and_masks_are_moved_by_the_same_way() -> None:
    """A disc whose pixels are bright in the image stays where the mask says, turned, shifted and scaled."""
    axis = torch.arange(32) - 16.0
    y_HW = ((axis[:, None] - 5).square() + (axis + 4).square() < 40).long()
    draws_BD = np.random.default_rng(0).random((8, 5), dtype=np.float32)
    x_BCHW, y_BHW = moved(y_HW.float().expand(8, 3, 32, 32), y_HW.expand(8, 32, 32), draws_BD)
    inside, outside = x_BCHW[:, 0][y_BHW == 1], x_BCHW[:, 0][y_BHW == 0]
    assert inside.mean() > 0.85
    assert outside.mean() < 0.05
    assert (y_BHW != y_HW).any((1, 2)).all()
    assert set(y_BHW.unique().tolist()) <= {IGNORED, 0, 1}


def test_classification_counts_right_answers_as_whole_numbers() -> None:
    logits_BK = torch.tensor([[2.0, 0, 0], [0, 3, 0], [0, 0, 1], [5, 0, 0]])
    found = count_correct(lambda x: logits_BK, [(torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 2, 1]))])
    assert (found.correct, found.total) == (3, 4)
    assert isinstance(found.correct, int)
    assert found.each.tolist() == [1, 1, 1, 0]
    assert "scores" not in found.line("0", {})


def test_accuracies_of_segmentation_are_the_same_after_a_file() -> None:
    logits_BKhw, y_BHW = pixels(6)
    found = count_correct(lambda x: logits_BKhw, [(torch.zeros(6, 3, SIDE, SIDE), y_BHW)], SEGMENTATION)
    config: Config = {"depth": 1}
    again = Accuracy.of(found.line("0", config))
    assert again == found
    assert 0 < again.share < 1
    assert again.each == pytest.approx(found.each)
    assert again.each.mean() == pytest.approx(again.share, abs=0.1)


def test_pictures_tint_pixels_by_class_and_blacken_ignored_ones() -> None:
    grey_BCHW = torch.full((1, 3, 2, 2), 0.5)
    drawn = SEGMENTATION.drawn(grey_BCHW, torch.tensor([[[0, 1], [2, IGNORED]]]), CLASSES)[0]
    assert drawn[:, 0, 0].tolist() == [0.5, 0.5, 0.5]
    assert drawn[:, 1, 1].tolist() == [0, 0, 0]
    assert (drawn[:, 0, 1] - drawn[:, 1, 0]).abs().max() > 0.3
    assert problem_named("classification").drawn(grey_BCHW, torch.tensor([1]), CLASSES) is None


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(None, 4)], r"gives a tensor \(\?, 4\); allowed: one tensor \(B, 4, h, w\)"),
        ([(None, 4, 8, 8), (None, 4, 4, 4)], r"gives 2 outputs; allowed: one tensor \(B, 4, h, w\)"),
        ([(None, 5, 8, 8)], "gives 5 outputs; allowed: 4, the classes of the data"),
    ],
)
def test_outputs_that_are_no_maps_of_the_classes_are_one_clear_line(
    shapes: list[tuple[int | None, ...]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_shapes("model 'own'", shapes, 4, SEGMENTATION)
    check_shapes("model 'own'", [(None, 4, None, 7)], 4, SEGMENTATION)


def test_what_a_problem_cannot_do_yet_is_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"stage 'stream': segmentation cannot do it yet: .*; leave streams out"):
        require(SEGMENTATION, "streams", "stage 'stream'", "leave streams out")
    for ability in SEGMENTATION.lacks:
        require(CLASSIFICATION, ability, "anything", "nothing")
    assert problem_named("segmentation") is SEGMENTATION
