"""What teaches a SubNet: labels, soft labels, and divergences with the gradients of their definitions."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tasks.training.finetune.numerics import _clipped, alpha_divergence, loss_of, soft_cross_entropy
from tasks.training.finetune.settings import Settings, TrainSettings

CLASSES = 7


def logits(seed: int, scale: float) -> torch.Tensor:
    return scale * torch.randn(5, CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(value: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad(value, at)
    return found


def defined(p_BK: torch.Tensor, q_BK: torch.Tensor, alpha: float) -> torch.Tensor:
    """The alpha-divergence as the paper defines it, (B,)."""
    ratio_BK = p_BK / q_BK
    if alpha == 1.0:
        return (q_BK * ratio_BK * ratio_BK.log()).sum(1)
    return (q_BK * (ratio_BK**alpha - 1)).sum(1) / (alpha * (alpha - 1))


@pytest.mark.parametrize("alpha", [-1.0, 0.5, 1.0, 2.0])
def test_gradients_are_those_of_the_divergence_where_nothing_is_clipped(alpha: float) -> None:
    student, teacher = logits(0, 0.3).requires_grad_(), logits(1, 0.3)
    log_q = student.log_softmax(1)
    value, surrogate = _clipped(log_q.detach().exp(), teacher.log_softmax(1) - log_q.detach(), log_q, alpha)
    expected = defined(teacher.softmax(1), student.softmax(1), alpha)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient(surrogate.sum(), student), gradient(expected.sum(), student))


def test_the_worse_of_the_two_divergences_counts_for_each_image() -> None:
    student, teacher = logits(0, 0.3).requires_grad_(), logits(1, 0.3)
    values = torch.stack([defined(teacher.softmax(1), student.softmax(1), alpha) for alpha in (-1.0, 1.0)])
    assert 0 < int((values[0] > values[1]).sum()) < 5, "both kinds of images are there"
    expected = gradient(values.max(0).values.mean(), student)
    torch.testing.assert_close(gradient(alpha_divergence(student, teacher), student), expected)


def test_ratios_are_clipped_and_stay_finite() -> None:
    student, teacher = logits(0, 60.0).requires_grad_(), logits(1, 60.0)
    found = gradient(alpha_divergence(student, teacher), student)
    assert found.isfinite().all()
    assert found.abs().max() <= 5.0


def test_without_a_teacher_labels_alone_count() -> None:
    student, labels = logits(0, 1.0), torch.arange(5)
    soft = functional.one_hot(labels, CLASSES).double()
    expected = functional.cross_entropy(student, labels, label_smoothing=0.1)
    torch.testing.assert_close(loss_of(student, labels, Settings()), expected)
    torch.testing.assert_close(loss_of(student, soft, TrainSettings()), expected)


@pytest.mark.parametrize(("divergence", "function"), [("kl", soft_cross_entropy), ("alpha", alpha_divergence)])
def test_the_weight_mixes_labels_and_the_teacher(
    divergence: str, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    student, teacher, labels = logits(0, 1.0), logits(1, 1.0), torch.arange(5)
    settings = Settings.model_validate({"divergence": divergence})
    expected = 0.75 * loss_of(student, labels, settings) + 0.25 * function(student, teacher)
    torch.testing.assert_close(loss_of(student, labels, settings, teacher, 0.25), expected)


def test_losses_are_taken_in_at_least_float32() -> None:
    student, teacher = logits(0, 1.0).bfloat16(), logits(1, 1.0).bfloat16()
    assert loss_of(student, torch.arange(5), Settings(), teacher).dtype == torch.float32
    assert math.isfinite(loss_of(student, torch.arange(5), Settings(divergence="alpha"), teacher).item())
