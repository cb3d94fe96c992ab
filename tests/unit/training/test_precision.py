"""Gradients of convolutions in mixed precision are those of float32, taps that see padding alone included."""

import pytest
import torch
from torch import nn

from tasks.training.finetune.numerics import has_unseen_taps, mixed_precision

CPU = torch.device("cpu")


def poison() -> None:
    """Memory that was freed holds no numbers."""
    for kind in (torch.float32, torch.bfloat16):
        _ = [torch.full((1000 * number,), float("nan"), dtype=kind) for number in range(1, 60)]


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (7, 2)])
def test_gradients_of_mixed_convolutions_are_about_those_of_full_precision(size: int, kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(128, 32, kernel, stride, kernel // 2)
    x_BCHW = torch.randn(32, 128, size, size)
    gradient = torch.randn_like(layer(x_BCHW))
    layer(x_BCHW).backward(gradient)
    exact = layer.weight.grad
    assert exact is not None
    for _ in range(5):
        layer.weight.grad = None
        poison()
        with mixed_precision(CPU, enabled=True):
            y_BCHW = layer(x_BCHW)
        y_BCHW.backward(gradient.to(y_BCHW.dtype))
        torch.testing.assert_close(layer.weight.grad, exact, rtol=0, atol=0.03 * float(exact.abs().max()))
        assert layer.weight.grad is not None
        assert not layer.weight.grad[exact == 0].any()


@pytest.mark.parametrize("axes", [1, 3])
def test_other_numbers_of_axes_and_named_paddings_are_told_apart(axes: int) -> None:
    kind = {1: nn.Conv1d, 3: nn.Conv3d}[axes]
    for padding in ("same", "valid", 1):
        for size, unseen in ((1, padding != "valid"), (5, False)):
            if padding == "valid" and size < 3:
                continue
            with mixed_precision(CPU, enabled=True):
                found = kind(4, 4, 3, padding=padding)(torch.rand(2, 4, *[size] * axes))
            assert found.dtype == (torch.float32 if unseen else torch.bfloat16)


def test_taps_that_see_no_pixel_are_those_with_no_gradient() -> None:
    for size in range(1, 7):
        for kernel, stride, padding, dilation in [(3, 1, 1, 1), (3, 2, 1, 1), (5, 3, 2, 1), (3, 1, 4, 4), (2, 2, 0, 1)]:
            if size + 2 * padding < dilation * (kernel - 1) + 1:
                continue
            layer = nn.Conv1d(1, 1, kernel, stride, padding, dilation)
            layer(torch.ones(1, 1, size)).sum().backward()
            assert layer.weight.grad is not None
            assert has_unseen_taps(size, kernel, stride, padding, dilation) == bool((layer.weight.grad == 0).any())


def test_without_mixed_precision_nothing_changes() -> None:
    with mixed_precision(CPU, enabled=False):
        assert nn.Conv2d(4, 4, 3, padding=1)(torch.rand(2, 4, 5, 5)).dtype == torch.float32
