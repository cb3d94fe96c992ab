"""Channels by their position: what is looked up, or taken from the middle, is the same in every SubNet."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tailor_ir
from tests.unit.ir.around import WIDTH, check, network

Body = Callable[[torch.Tensor], torch.Tensor]
ORDER = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(0))


def copies(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((x, 2 * x, 3 * x), 1)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x[:, ORDER],
        lambda x: x.flip(1),
        lambda x: x[:, [31, 0] * 16],
        lambda x: copies(x)[:, ORDER + WIDTH],
        lambda x: copies(x)[:, ORDER],
        lambda x: x + copies(x)[:, WIDTH + 3].unsqueeze(1),
        lambda x: x[:, [-2]] * x,
        lambda x: x[..., [-1], :] * x[:, :, :, [0, -3]].mean(3, keepdim=True),
        lambda x: x * x[:, [0, 1], [2, -1]].mean((1, 2))[:, None, None, None],
        lambda x: torch.cat((x[:, :1].mean((2, 3), keepdim=True).expand_as(x[:, :1]), x), 1)[:, 1:],
    ],
    ids=[
        "permuted",
        "reversed",
        "twice",
        "permuted from the middle",
        "permuted at the begin",
        "one",
        "one from the end",
        "positions from the end",
        "pairs of positions",
        "without the first",
    ],
)
def test_channels_that_are_looked_up_compile(body: Body, tmp_path: Path) -> None:
    check(network(body), tmp_path)


def test_what_stands_before_a_taken_part_keeps_its_size() -> None:
    """The middle one of three pieces begins where it begins in the largest network."""

    def middle(x: torch.Tensor) -> torch.Tensor:
        return copies(x)[:, WIDTH : 2 * WIDTH]

    net = tailor_ir.compile(network(middle), torch.zeros(1, 3, 8, 8))
    assert (WIDTH, 3, 3, 3) in [tuple(one.shape) for one in net.build(net.min_config).parameters()]
