"""Networks trained for a moment on real digits, or on signals: compiled and sorted, they say the same of every sample.

Legend: B batch, C channels, H height, W width, T steps.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import tailor_ir
from tailor_ir.subnets.plans import importance, reordered
from tests.unit.ir import small_networks as small

Samples = tuple[torch.Tensor, torch.Tensor]
TRAINED, CHANCE = 1200, 0.25
STEPS, BATCH = 90, 64


def digits() -> Samples:
    """x (1797, 1, 8, 8) and their classes."""
    found = load_digits()
    return torch.from_numpy(found.images).float()[:, None] / 16, torch.from_numpy(found.target)


def tokens() -> Samples:
    """The brightnesses of all pixels, and the most frequent one that is not dark."""
    found = torch.from_numpy(load_digits().data).long()
    return found, F.one_hot(found).sum(1)[:, 1:].argmax(1) + 1


def tones() -> Samples:
    """Noisy signals (1797, 1, 128) of ten frequencies."""
    rng = np.random.default_rng(0)
    target = rng.integers(10, size=1797)
    phase, times = rng.uniform(0, 2 * np.pi, (1797, 1)), np.arange(128)
    signals = np.sin(2 * np.pi * (target[:, None] + 2) * times / 64 + phase) + 0.3 * rng.standard_normal((1797, 128))
    return torch.from_numpy(signals).float()[:, None], torch.from_numpy(target)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Samples]]] = {
    "ECA": (small.Eca, digits),
    "linear then conv": (small.LinearThenConv, digits),
    "mel bands": (small.MelBands, tones),
    "EnvNet": (small.EnvNet, tones),
    "weighted sums": (small.WeightedSums, digits),
    "transformer": (small.Transformer, digits),
    "grouped queries": (lambda: small.Transformer(groups=2), digits),
    "tied embeddings": (small.TiedEmbeddings, tokens),
    "pooled channels": (small.PooledChannels, digits),
    "running sums": (small.Cumulated, digits),
    "shuffled groups": (small.Shuffled, digits),
}


def trained(name: str) -> tuple[nn.Module, Samples]:
    """A network after a few steps, and all samples."""
    build, samples = NETWORKS[name]
    torch.manual_seed(0)
    model, (x, y) = build(), samples()
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % TRAINED
        optimiser.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
    return model.eval(), (x, y)


@torch.no_grad()
def said(network: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return network(x).argmax(1)


@pytest.mark.few("linear then conv", "tied embeddings", "pooled channels", "running sums")
@pytest.mark.parametrize("name", NETWORKS)
def test_the_largest_subnet_says_the_same_of_every_sample_after_sorting(name: str) -> None:
    model, (x, y) = trained(name)
    expected = said(model, x)
    assert (expected == y)[TRAINED:].float().mean() > CHANCE
    net = tailor_ir.compile(model, x[:1])
    net.sort_channels()
    net.check_against(where=name)
    net.elastic.eval().activate(net.max_config)
    assert torch.equal(said(net.elastic, x), expected)
    assert torch.equal(said(net.build(net.max_config), x), expected)


def test_an_order_that_matters_would_have_been_noticed() -> None:
    model, (x, _) = trained("ECA")
    net = tailor_ir.compile(model, x[:1])
    axis_map, tensors = net.structure.axis_map, net.elastic.tensors()
    order = {g: np.argsort(-importance(net.structure.graph, tensors, axis_map, g)) for g in axis_map.ordered}
    with torch.no_grad():
        for name, tensor in reordered(tensors, axis_map, order).items():
            net.elastic.tensor(name).copy_(tensor.clone())
    net.elastic.eval().activate(net.max_config)
    assert not torch.equal(said(net.elastic, x), said(model, x))
    with pytest.raises(tailor_ir.CheckFailed, match="test: the largest SubNet answers otherwise than the original"):
        net.check_against(where="test")
