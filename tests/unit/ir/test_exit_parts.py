"""All exits in one pass: their answers are those of the SubNets that end there, whatever is constant."""

from functools import cache

import numpy as np
import pytest
import torch

import tailor_ir
from tailor_ir import ExitParts
from tailor_ir.spaces.selectors import SpaceSpec
from tests.support.ir.networks import perturb, small_net

SAMPLE = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
SPEC: SpaceSpec = {
    "exits": ["stage.1.block.*"],
    "alternatives": ["merged", "pruned_0.5"],
    "*.depth": "auto",
    "*.width_mult": [0.5, 1],
}


@cache
def compiled() -> tailor_ir.SuperNet:
    return tailor_ir.compile(perturb(small_net(blocks=4)), SAMPLE[:1], SPEC)


def drawn(net: tailor_ir.SuperNet, count: int) -> list[tailor_ir.Config]:
    """Random SubNets up to the last exit."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, net.space.cardinalities, size=(count, len(net.space.variables)))
    names = [(one.name, one.choices) for one in net.space.variables]
    configs = [{name: choices[at] for (name, choices), at in zip(names, row, strict=True)} for row in rows]
    return [net.max_config, *({**config, "exit": "last"} for config in configs)]


def test_answers_of_one_pass_are_those_of_the_subnets_that_end_there() -> None:
    net = compiled()
    net.elastic.eval()
    for config in drawn(net, 8):
        parts = ExitParts(net.elastic, config)
        everything = range(len(parts.parts))
        wanted = []
        for part in parts.parts:
            net.elastic.activate({**config, "exit": part.exit})
            wanted.append(net.elastic(SAMPLE))
        for constant in everything:
            for found, alone in zip(parts.answers(SAMPLE, everything, constant), wanted, strict=True):
                torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)


def test_parts_hold_every_trained_tensor_of_the_subnet_once() -> None:
    net = compiled()
    graph = net.structure.graph
    parts = ExitParts(net.elastic, net.max_config).parts
    names = [name for part in parts for name in part.parameters]
    assert len(set(names)) == len(names)
    heads = {name for name in graph.parameters if name.startswith("exit/")}
    assert set(names) == heads | set(graph.original().parameters)
    assert {name for part in parts for name in part.head_parameters} == heads


@pytest.mark.parametrize("constant", [0, 1, 2])
def test_no_gradient_goes_to_constant_parts(constant: int) -> None:
    net = tailor_ir.compile(perturb(small_net(blocks=4)), SAMPLE[:1], SPEC)
    net.elastic.train()
    parts = ExitParts(net.elastic, net.max_config)
    (answer,) = parts.answers(SAMPLE, [2], constant)
    answer.sum().backward()
    reached = {name for name in net.structure.graph.parameters if net.elastic.tensor(name).grad is not None}
    own = {name for part in parts.parts[constant:3] for name in part.parameters}
    others = {name for part in parts.parts[:2] for name in part.head_parameters}
    assert reached == own - others
    assert net.elastic.training


def test_constant_parts_are_normalised_by_their_statistics() -> None:
    """In training, where the rest is normalised by the batch."""
    net = tailor_ir.compile(perturb(small_net(blocks=4)), SAMPLE[:1], SPEC)
    parts = ExitParts(net.elastic, net.max_config)
    net.elastic.eval()
    features = parts.begin(SAMPLE, [3], 2)
    net.elastic.train()
    for name, value in parts.begin(SAMPLE, [3], 2).items():
        assert torch.equal(value, features[name])
    taken = parts.observe([SAMPLE], [3], 2)
    assert set(taken) == {name for part in parts.parts[2:] for name in part.statistics} - {
        name for name in net.structure.graph.statistics if name.startswith("exit/stage.1.block.3/")
    }
