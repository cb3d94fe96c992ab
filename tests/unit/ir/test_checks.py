"""Checks notice every step that changes what a network computes, and sorted channels stay only where SubNets gain by them.

Legend: B batch, C channels, H height, W width.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir import storage
from tests.unit.ir import small_networks as small

SHAPE = (1, 1, 8, 8)


def compiled() -> tailor_ir.SuperNet:
    torch.manual_seed(0)
    return tailor_ir.compile(small.Eca().eval(), torch.zeros(SHAPE))


def test_the_original_s_answers_are_known_for_two_batch_sizes_and_different_samples() -> None:
    net = compiled()
    assert net.original is not None
    assert [len(known.given[0]) for known in net.original.answers] == [1, 2]
    for known in net.original.answers:
        assert len({tuple(row.flatten().tolist()) for row in known.expected[0]}) == len(known.given[0])
    net.check_against(where="test")
    net.check_forms(where="test")


@pytest.mark.parametrize("name", ["stem.weight", "near.weight", "norm.running_mean", "head.bias"])
def test_a_changed_tensor_is_noticed_in_one_line(name: str) -> None:
    net = compiled()
    with torch.no_grad():
        net.elastic.tensor(name).add_(0.5)
    with pytest.raises(
        tailor_ir.CheckFailed, match=r"^stage x: the largest SubNet answers otherwise.*batch [12]\)"
    ) as failure:
        net.check_against(where="stage x")
    assert "\n" not in str(failure.value)
    net.check_against(net.answers(), "stage x")
    net.check_forms(where="stage x")


class OneImage(nn.Module):
    """Answers of the first image alone, for all."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.network(x_BCHW[:1]).expand(len(x_BCHW), -1)


@pytest.mark.parametrize("other", [OneImage, lambda net: lambda x: net(x)[:1], lambda net: lambda x: net(x[:, :, :4])])
def test_what_is_right_for_one_sample_alone_is_noticed(
    other: Callable[[nn.Module], Callable[..., torch.Tensor]],
) -> None:
    model = small.Eca().eval()
    reference = tailor_ir.Reference.of(model, [torch.randn(1, 1, 8, 8), torch.randn(3, 1, 8, 8)])
    assert reference.difference(lambda given: model(*given)) == (0.0, 3)
    difference, batch = reference.difference(lambda given: other(model)(*given))
    assert difference > 1e-3
    assert batch == 3


class OtherForOne(nn.Module):
    """A network that decides by the number of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        y = self.conv(x_BCHW).mean((2, 3))
        return y * 2 if len(x_BCHW) > 1 else y


def test_a_network_that_decides_by_the_batch_is_refused() -> None:
    with pytest.raises(tailor_ir.ImportFailed, match="answers otherwise than the original"):
        tailor_ir.compile(OtherForOne().eval(), torch.randn(1, 3, 8, 8))


def test_a_form_of_a_subnet_that_answers_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = compiled()
    own = net.build

    def wrong(*given: object) -> nn.Module:
        module = own(*given)  # type: ignore[arg-type]
        with torch.no_grad():
            next(module.parameters()).mul_(1.1)
        return module

    net.check_forms(net.min_config, where="stage x")
    monkeypatch.setattr(net, "build", wrong)
    with pytest.raises(tailor_ir.CheckFailed, match="stage x: the SubNet that stands alone answers otherwise"):
        net.check_forms(net.min_config, where="stage x")


def test_an_onnx_file_is_compared_with_its_own_answers(tmp_path: Path) -> None:
    net = compiled()
    net.export(net.max_config, tmp_path / "net.onnx", batch=1)
    again = tailor_ir.compile(tmp_path / "net.onnx")
    assert again.original is not None
    assert [len(known.given[0]) for known in again.original.answers] == [1, 3]
    other = onnx.load(tmp_path / "net.onnx")
    reference = tailor_ir.compile(other).original
    assert reference is not None
    again.check_against(reference)


def test_what_is_saved_is_read_back_or_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = compiled()
    net.save(tmp_path / "whole")
    tailor_ir.load(tmp_path / "whole").check_against(net.original)
    write = storage.save_file

    def torn(tensors: dict[str, torch.Tensor], file: Path) -> None:
        write({name: tensor + (name == "head.bias") for name, tensor in tensors.items()}, file)

    monkeypatch.setattr(storage, "save_file", torn)
    with pytest.raises(tailor_ir.CheckFailed, match="differs from the one that was written"):
        net.save(tmp_path / "torn")
    assert not list((tmp_path / "torn").iterdir())


class Halves(nn.Module):
    """Two linear layers between which a share of the features says everything: those with large, or with small weights."""

    def __init__(self, important: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 64), nn.Linear(64, 4)
        with torch.no_grad():
            self.first.bias.zero_()
            told, silent = (slice(0, 32), slice(32, 64)) if important == 0 else (slice(32, 64), slice(0, 32))
            self.second.weight[:, told] = torch.randn(4, 32)
            self.second.weight[:, silent] = 0.0
            self.first.weight[silent] *= 100 if important == 0 else 0.01

    def forward(self, x_BF: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x_BF)))


@pytest.mark.parametrize("important", [0, 1])
def test_sorted_channels_stay_only_where_they_bring_subnets_closer(important: int) -> None:
    torch.manual_seed(0)
    net = tailor_ir.compile(Halves(important).eval(), torch.zeros(1, 8))
    before = {name: tensor.clone() for name, tensor in net.elastic.tensors().items()}
    images, held_out = ([torch.randn(32, 8)] for _ in range(2))
    order = net.sort_channels_if_closer(images, held_out, np.random.default_rng(0))
    kept = all(torch.equal(before[name], tensor) for name, tensor in net.elastic.tensors().items())
    assert order.is_sorted == (important == 1) == (not kept)
    assert -1 <= min(order.own, order.sorted) <= max(order.own, order.sorted) <= 1
    assert ("sorted by importance" if order.is_sorted else "stay in the network's order") in order.line
    net.check_against(where="test")


def test_where_no_channels_can_be_sorted_nothing_is_done() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    net = tailor_ir.compile(model, torch.zeros(1, 12), {"*.width_mult": "frozen"})
    order = net.sort_channels_if_closer([torch.randn(4, 12)], [torch.randn(4, 12)], np.random.default_rng(0))
    assert not order.is_sorted
    assert "sorting changes no smaller SubNet" in order.line


def test_statistics_of_the_largest_subnet_are_those_that_are_stored() -> None:
    net = compiled()
    found = net.own_statistics(net.max_config)
    assert found is not None
    assert net.own_statistics(net.min_config) is None
    assert found.keys() == net.recalibrate(net.max_config, [torch.randn(4, 1, 8, 8)]).keys()
    assert all(torch.equal(tensor, net.elastic.tensor(name)) for name, tensor in found.items())


class BelowOne(nn.Module):
    """A network that refuses numbers outside of 0 and 1; `strict`: all but the example's."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        self.conv, self.strict = nn.Conv2d(1, 4, 3), strict

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        if x_BCHW.min() < 0 or x_BCHW.max() > 1 or (self.strict and x_BCHW.std() > 1e-4):
            raise ValueError("images are from 0 to 1")
        return self.conv(x_BCHW).mean((2, 3))


@pytest.mark.parametrize("strict", [False, True])
def test_a_network_that_refuses_drawn_numbers_is_compared_on_others(strict: bool) -> None:
    net = tailor_ir.compile(BelowOne(strict).eval(), torch.full((1, 1, 8, 8), 0.5))
    assert net.original is not None
    assert [len(known.given[0]) for known in net.original.answers] == [1, 2]


class Masked(nn.Module):
    """Scores of positions that a mask leaves; without any, no numbers come out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 16), nn.Linear(16, 4)

    def forward(self, x_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        shares = torch.where(mask_BT > 0, 0.0, float("-inf")).softmax(1)
        return self.head((self.table(x_BT) * shares[:, :, None]).sum(1))


def test_answers_that_are_no_numbers_are_compared_as_such() -> None:
    ones = torch.ones(1, 6, dtype=torch.int64)
    net = tailor_ir.compile(Masked().eval(), (ones, ones))
    assert net.original is not None
    assert all(answer.isfinite().any() for known in net.original.answers for answer in known.expected)
    net.check_forms(where="test")  # with drawn masks, which leave nothing
    net.check_against(net.answers(), "test")
