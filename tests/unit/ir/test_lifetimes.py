"""Memory of activations by tensor lifetime: by hand on small networks, and against ONNX Runtime's own allocations."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tailor_ir
from tailor_ir.memory import ONNXRUNTIME, Rules
from tests.support.ir.elastic_networks import NETWORKS, Residual, compiled
from tests.support.ir.runtime_memory import HERE, subnet_peaks

FLOAT = 4
SMALL_BYTES = 256  # results of a few floats that the runtime keeps and the prediction does not know
PLAIN = Rules(channel_block=1, same_shape=False)


def peak(network: nn.Module, side: int = 8, channels: int = 16, rules: Rules = ONNXRUNTIME) -> int:
    """Of the largest SubNet."""
    net = tailor_ir.compile(network.eval(), torch.zeros(1, channels, side, side))
    return net.peak_activation_bytes(net.max_config, rules)


def test_a_convolution_with_norm_and_activation_is_one_tensor() -> None:
    layers = nn.Sequential(nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1))
    assert peak(layers) == FLOAT * 8 * 8 * (32 + 16)


def test_channels_are_padded_to_whole_blocks_of_the_runtime() -> None:
    layers = nn.Sequential(nn.Conv2d(16, 20, 1), nn.ReLU(), nn.Conv2d(20, 16, 1))
    assert peak(layers) == FLOAT * 8 * 8 * (32 + 16)
    assert peak(layers, rules=Rules(channel_block=8)) == FLOAT * 8 * 8 * (24 + 16)
    assert peak(layers, rules=PLAIN) == FLOAT * 8 * 8 * (20 + 16)


def test_a_residual_is_added_where_it_lies() -> None:
    body = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
    layers = nn.Sequential(nn.Conv2d(16, 16, 1), Residual(body), nn.Conv2d(16, 16, 1))
    assert peak(layers) == FLOAT * 8 * 8 * (16 + 16)  # what enters and one tensor inside; the sum replaces what entered


def test_a_residual_that_the_convolution_reads_too_is_not_written_over(tmp_path: Path) -> None:
    own = Residual(nn.Conv2d(64, 64, 3, padding=1))
    layers = nn.Sequential(nn.Conv2d(16, 64, 1), own, nn.AdaptiveAvgPool2d(1))
    net = tailor_ir.compile(layers.eval(), torch.zeros(1, 16, 8, 8))
    (measured,) = subnet_peaks(net, [net.max_config], tmp_path)
    assert net.peak_activation_bytes(net.max_config) == FLOAT * 8 * 8 * (64 + 64)
    assert measured.asked == pytest.approx(FLOAT * 8 * 8 * (64 + 64), abs=SMALL_BYTES)


def test_a_tensor_waits_for_a_later_one_of_the_same_shape() -> None:
    layers = nn.Sequential(
        nn.Conv2d(16, 32, 1), nn.Conv2d(32, 64, 1), nn.Conv2d(64, 128, 1), nn.Conv2d(128, 32, 1), nn.Conv2d(32, 16, 1)
    )
    freed = peak(layers, rules=Rules(same_shape=False))
    kept = peak(layers, rules=Rules(same_shape=True))
    assert freed == FLOAT * 8 * 8 * (64 + 128)
    assert kept == FLOAT * 8 * 8 * (32 + 64 + 128)


def test_skipped_blocks_take_no_memory_and_what_enters_them_is_read_after_them() -> None:
    net = compiled("depthwise convolution, centre of the kernel")
    (depth,) = (v for v in net.space.variables if v.kind == "depth")
    full = net.max_config
    less = net.space.canonical(full | {depth.name: depth.choices[0]})
    assert net.peak_activation_bytes(less) <= net.peak_activation_bytes(full)
    assert len(net.operators(less)) < len(net.operators(full))


class Padded(nn.Module):
    """A padding in front of a depthwise convolution, which does it itself where its number is stated."""

    def __init__(self, number: float | None) -> None:
        super().__init__()
        self.number = number
        self.first, self.second = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 32, 3, groups=32)
        self.last = nn.Conv2d(32, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(F.pad(torch.relu(self.first(x)), (0, 2, 0, 2), value=self.number))).mean((2, 3))


class Unaligned(nn.Module):
    """42 channels, which convolutions do not read in blocks; their results are added outside of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 42, 1)
        self.left, self.right = (nn.Conv2d(42, 42, 3, padding=1, groups=groups) for groups in (42, 1))
        self.last = nn.Conv2d(42, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(torch.relu(self.left(torch.relu(x)) + self.right(x))).mean((2, 3))


class Pooled(nn.Module):
    """A pooling of what is in no blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(16, 64, 1), nn.Conv2d(64, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.avg_pool2d(torch.cos(self.first(x)), 3, 1, 1)).mean((2, 3))


class Repeated(nn.Module):
    """Every position of a tensor in blocks, several times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(16, 24, 1), nn.Conv2d(24, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.interpolate(self.first(x), scale_factor=2.0, mode="nearest")).mean((2, 3))


@pytest.mark.parametrize("network", [Padded(None), Padded(0.0), Unaligned(), Pooled(), Repeated()])
def test_what_convolutions_take_up_and_read_in_blocks_is_what_the_runtime_does(
    network: nn.Module, tmp_path: Path
) -> None:
    net = tailor_ir.compile(network.eval(), torch.zeros(1, 16, 16, 16))
    configs = [net.max_config, net.min_config]
    predicted = [net.peak_activation_bytes(config, HERE) for config in configs]
    measured = [peaks.asked for peaks in subnet_peaks(net, configs, tmp_path)]
    assert predicted == pytest.approx(measured, abs=SMALL_BYTES)


def test_less_of_anything_never_takes_more_memory_when_all_is_freed_at_once() -> None:
    net = compiled("convolution and BatchNorm")
    rules = Rules(same_shape=False)
    largest = net.peak_activation_bytes(net.max_config, rules)
    for variable in net.space.variables:
        config = net.max_config | {variable.name: variable.choices[0]}
        assert net.peak_activation_bytes(config, rules) <= largest


@pytest.mark.parametrize("activation", [nn.SiLU, nn.GELU])
def test_an_activation_after_a_convolution_stays_in_its_blocks(activation: type[nn.Module], tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Conv2d(3, 20, 1), activation(), nn.Conv2d(20, 16, 1), nn.AdaptiveAvgPool2d(1))
    net = tailor_ir.compile(layers.eval(), torch.zeros(1, 3, 8, 8))
    (measured,) = subnet_peaks(net, [net.max_config], tmp_path)
    padded = -(-20 // HERE.channel_block) * HERE.channel_block
    assert net.peak_activation_bytes(net.max_config, HERE) == FLOAT * 8 * 8 * (padded + padded)
    assert measured.asked == pytest.approx(FLOAT * 8 * 8 * (padded + padded), abs=SMALL_BYTES)


class Token(nn.Module):
    """One position of its own before those of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(x), -1, -1), x], 1)


def test_what_only_has_one_entry_for_each_sample_lies_with_the_weights() -> None:
    layers = nn.Sequential(nn.Conv2d(16, 16, 1), Token())
    assert peak(layers) == FLOAT * (16 * 8 * 8 + 16 * (8 * 8 + 1))  # the positions of the picture, and all joined


class Best(nn.Module):
    """Positions of the largest channels: integers of eight bytes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best = x.argmax(1, keepdim=True)
        return best.float() * x.mean(1, keepdim=True)


def test_elements_of_other_types_have_their_own_size() -> None:
    layers = nn.Sequential(nn.Conv2d(16, 16, 1), Best())
    blocked, plain, positions, floats = (FLOAT * 8 * 8 * n for n in (16, 16, 2, 1))
    assert peak(layers) >= plain + positions
    assert peak(layers) <= blocked + plain + positions + 3 * floats


@pytest.mark.long_cases("position embedding, resampled", "attention, linear and LayerNorm")
@pytest.mark.parametrize("name", NETWORKS)
def test_predicted_peak_is_what_the_runtime_asks_for(name: str, tmp_path: Path) -> None:
    net = compiled(name)
    rng = np.random.default_rng(0)
    configs = [net.max_config, net.min_config, *(net.space.sample(rng) for _ in range(4))]
    for config, measured in zip(configs, subnet_peaks(net, configs, tmp_path), strict=True):
        assert net.peak_activation_bytes(config, HERE) == pytest.approx(measured.asked, rel=0.05, abs=SMALL_BYTES), (
            config
        )


class Grouped(nn.Module):
    """Groups that fill no block: their patches are copied, all at once when there are more filters than positions."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, stride=stride, padding=1)
        self.second = nn.Conv2d(24, 24, 3, padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).mean((2, 3))


class Mixed(nn.Module):
    """Splits, transposes and products, gates that are broadcast, and activations that run as two operators."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 4, stride=4)
        self.qkv, self.gate = nn.Linear(32, 96), nn.Conv2d(32, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.hardswish(self.stem(x))
        x = x * torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True)))
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * 8**-0.5).softmax(-1)
        return nn.functional.hardswish((weights @ v).transpose(1, 2).flatten(2)).mean(1)


@pytest.mark.parametrize("make", [lambda: Grouped(1), lambda: Grouped(16), Mixed], ids=["segments", "whole", "mixed"])
def test_temporary_buffers_and_changes_of_layout_are_the_runtimes(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    net = tailor_ir.compile(make().eval(), torch.zeros(1, 3, 32, 32))
    (measured,) = subnet_peaks(net, [net.max_config], tmp_path)
    assert net.peak_activation_bytes(net.max_config, HERE) == pytest.approx(measured.asked, rel=0.05, abs=SMALL_BYTES)
