"""Reshapes whose sizes do not nest leave the axes that they cut across whole; the samples and the axes around stay apart."""

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.unit.ir.forms import check_forms, refusal

EXAMPLES = settings(max_examples=4, deadline=None, derandomize=True)


def _orders(total: int) -> list[tuple[int, int]]:
    return [(a, total // a) for a in range(2, total) if total % a == 0 and a < total]


class Reshaped(nn.Module):
    """Features (B, a · b) as (B, a, b), mixed in the last axis, and as (B, c, d), mixed again."""

    def __init__(self, first: tuple[int, int], second: tuple[int, int], outside: int) -> None:
        super().__init__()
        self.first, self.second, self.outside = first, second, outside
        self.a, self.b = nn.Linear(8, prod(first)), nn.Linear(first[1], first[1])
        self.c = nn.Linear(second[1], 16)
        self.d, self.e = nn.Linear(16, 32), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.b(self.a(x).reshape(-1, self.outside, *self.first))
        y = self.c(torch.relu(y.reshape(-1, self.outside, *self.second)))
        return self.e(torch.relu(self.d(y.mean((1, 2)))))


@EXAMPLES
@given(st.data())
def test_a_reshape_of_any_two_factorisations_compiles(data: st.DataObject) -> None:
    orders = _orders(data.draw(st.sampled_from((12, 24, 30, 36))))
    first, second = data.draw(st.sampled_from(orders)), data.draw(st.sampled_from(orders))
    outside = data.draw(st.sampled_from((1, 2)))
    net = check_forms(Reshaped(first, second, outside), torch.randn(1, outside, 8))
    assert net is not None
    assert net.space.distinct > 1  # what is behind the reshape stays elastic


class RelativeShift(nn.Module):
    """Attention with scores of relative positions, shifted by a reshape, as in Transformer-XL."""

    def __init__(self, heads: int, steps: int) -> None:
        super().__init__()
        self.heads, width = heads, 8 * heads
        self.i, self.q, self.o = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 5)
        self.p = nn.Parameter(torch.randn(heads, 2 * steps - 1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(self.i(x)).unflatten(-1, (self.heads, 8)).transpose(1, 2)
        b, h, n, _ = q.shape
        scores = F.pad(q @ self.p.transpose(-1, -2), (1, 0)).view(b, h, -1, n)[:, :, 1:].view(b, h, n, -1)[..., :n]
        return self.o((scores.softmax(-1) @ q).transpose(1, 2).flatten(2).mean(1))


@EXAMPLES
@given(heads=st.sampled_from((1, 2, 4)), steps=st.integers(5, 12))
def test_a_relative_shift_compiles(heads: int, steps: int) -> None:
    assert check_forms(RelativeShift(heads, steps), torch.randn(1, steps, 8)) is not None


class Pixels(nn.Module):
    """Rows and columns of images as others, that no factor of theirs gives."""

    def __init__(self, sizes: tuple[int, int]) -> None:
        super().__init__()
        self.sizes, self.stem = sizes, nn.Conv2d(3, 16, 3, padding=1)
        self.mix, self.o = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.o(torch.relu(self.mix(x.reshape(-1, 16, *self.sizes))).mean((2, 3)))


@EXAMPLES
@given(st.sampled_from((((6, 4)), (8, 3), (2, 12))))
def test_positions_that_are_cut_across_keep_the_resolution(sizes: tuple[int, int]) -> None:
    net = check_forms(Pixels(sizes), torch.randn(1, 3, 4, 6))
    assert net is not None


class AcrossSamples(nn.Module):
    """The samples lie behind the steps, and both are cut across."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.transpose(0, 1)  # (T, B, C)
        return y.reshape(4, -1).mean().expand(len(x), 1)


def test_a_reshape_across_samples_is_refused_in_one_line() -> None:
    assert "mixes samples" in refusal(AcrossSamples().eval(), torch.randn(1, 6, 6))


@pytest.mark.parametrize("shape", [(2, -1), (-1, 2)])
def test_rows_of_several_samples_are_products_of_the_samples(shape: tuple[int, int]) -> None:
    """(B, 4) to (B · 2, 2) nests, and is each sample by itself."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 16), nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.relu(self.a(x.reshape(-1, 2)))).reshape(len(x), -1)

    assert check_forms(Rows(), torch.randn(1, 4)) is not None
