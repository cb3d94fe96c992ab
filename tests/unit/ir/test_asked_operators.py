"""Operators that people ask for: in modules, and in files."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tailor_ir
from tests.unit.ir.around import WIDTH, array, check, check_file, file_around, is_elastic, network, node

Body = Callable[[torch.Tensor], torch.Tensor]


class Shuffled(nn.Module):
    """Two grouped convolutions with their channels shuffled between. Source: ShuffleNet (CVPR 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(WIDTH, WIDTH, 1, groups=4)
        self.shuffle = nn.ChannelShuffle(4)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.shuffle(torch.relu(self.first(x))))


class GroupedQueries(nn.Module):
    """Attention with 8 heads of queries and 2 of keys and values. Source: GQA (EMNLP 2023)."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(2).transpose(1, 2)
        q = self.q(rows).unflatten(-1, (8, 4)).transpose(1, 2)
        k, v = self.kv(rows).unflatten(-1, (2, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2)).transpose(1, 2).unflatten(2, x.shape[2:])


BODIES: dict[str, tuple[Body | nn.Module, set[str]]] = {
    "sinc": (torch.sinc, {"resolution", "width_mult"}),
    "channel shuffle": (Shuffled(), {"resolution"}),
    "channel shuffle as a function": (lambda x: F.channel_shuffle(x, 2), {"resolution"}),
    "grouped queries": (GroupedQueries(), {"resolution"}),
    "grouped queries, causal": (GroupedQueries(causal=True), set()),
    "transposed convolution to a size": (nn.ConvTranspose2d(WIDTH, WIDTH, 3, 3, 1, output_padding=2), {"resolution"}),
}


@pytest.mark.parametrize("name", BODIES)
def test_modules(name: str, tmp_path: Path) -> None:
    body, elastic = BODIES[name]
    net = check(network(body), tmp_path)
    assert all(is_elastic(net, kind) for kind in elastic), (net.space.variables, net.space.dropped)


def test_the_gradient_of_sinc_is_finite_at_zero() -> None:
    net = tailor_ir.compile(network(torch.sinc), torch.zeros(1, 3, 8, 8))
    net.elastic(torch.zeros(2, 3, 8, 8)).sum().backward()
    assert all(bool(w.grad.isfinite().all()) for w in net.elastic.weights.values() if w.grad is not None)


# -- transposed convolutions of files --------------------------------------------------------------------------------

WEIGHTS = {"w": array(WIDTH, WIDTH, 3, 3, scale=0.1), "c": array(WIDTH)}
TRANSPOSED: dict[str, dict[str, object]] = {
    "as large as it comes": {"strides": [2, 2], "output_shape": [17, 17]},
    "padded unevenly": {"strides": [2, 2], "output_shape": [16, 14]},
    "padded unevenly, more at the end": {"strides": [2, 2], "output_shape": [16, 14], "auto_pad": "SAME_UPPER"},
    "larger than it comes": {"strides": [2, 2], "output_shape": [18, 18]},
    "more at one side": {"strides": [2, 2], "pads": [0, 1, 1, 0], "output_padding": [1, 1]},
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_of_files(name: str, tmp_path: Path) -> None:
    net = check_file(file_around([node("ConvTranspose", "w", "c", **TRANSPOSED[name])], WEIGHTS), tmp_path)
    assert is_elastic(net, "width_mult")
