"""Operators in files, and their order in a network, whatever the network computes between its layers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from tasks.measuring.operators import OPERATORS_FILE, read_operators, write_operators

Between = Callable[[torch.Tensor], torch.Tensor]
BETWEEN: dict[str, Between] = {
    "nothing": lambda scores: scores,
    "soft cap": lambda scores: 5 * torch.tanh(scores / 5),
    "bounds": lambda scores: scores.clamp(-4, 4),
    "flat": lambda scores: scores.flatten(0, 2).unflatten(0, scores.shape[:3]),
    "a norm": lambda scores: nn.functional.layer_norm(scores, scores.shape[-1:]),
    "a mask": lambda scores: scores.masked_fill(torch.ones(9, 9).triu(1) > 0, float("-inf")),
}


class Attention(nn.Module):
    """Two layers of attention with an operation between products and softmax."""

    def __init__(self, between: Between) -> None:
        super().__init__()
        self.between = between
        self.layers = nn.ModuleList(nn.Linear(16, size) for size in (48, 16, 48, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sequences (B, 9, 16) -> (B, 4)."""
        for together, after in (self.layers[:2], self.layers[2:]):
            queries, keys, values = together(x).reshape(-1, 9, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
            scores = self.between(queries @ keys.transpose(2, 3) * 8**-0.5)
            x = after((scores.softmax(3) @ values).transpose(1, 2).reshape(-1, 9, 16))
        return x.mean(1)[:, :4]


@pytest.mark.parametrize("name", BETWEEN)
def test_operators_run_in_some_order_and_are_the_same_from_a_file(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = tailor_ir.compile(Attention(BETWEEN[name]).eval(), torch.randn(1, 9, 16))
    rng = np.random.default_rng(0)
    for config in (net.max_config, net.min_config, net.space.sample(rng)):
        written = set(net.structure.graph.inputs)
        for one in net.placed_operators(config).operators:
            assert set(one.inputs) <= written
            written |= set(one.outputs)
    _are_kept(net, tmp_path)


@pytest.mark.parametrize("bound", [float("inf"), float("-inf"), float("nan"), 0.5])
def test_constants_that_json_has_no_number_for_are_kept(bound: float, tmp_path: Path) -> None:
    class Bounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.maximum(self.layer(x), torch.tensor(bound)) + nn.functional.pad(x, (1, 2), value=bound)[:, :6]

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

    net = tailor_ir.compile(Bounded().eval(), torch.randn(1, 6))
    text = repr([feature.to_json() for feature in net.unique_operators()])
    assert np.isfinite(bound) or repr(bound) in text
    _are_kept(net, tmp_path)


def _are_kept(net: tailor_ir.SuperNet, folder: Path) -> None:
    """Every operator has the same digest after its way through the file of stage `enumerate`."""
    operators = net.unique_operators()
    write_operators(folder / OPERATORS_FILE, {feature: {} for feature in operators})
    found = read_operators(folder)
    assert found.keys() == {feature.digest for feature in operators}
    assert all(digest == feature.digest for digest, feature in found.items())
