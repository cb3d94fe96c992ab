"""Branches by themselves are what SubNets with these alternatives compute."""

import pytest
import torch

import tailor_ir
from tailor_ir.subnets.branches import Branches
from tests.ir.networks import from_timm

KINDS = ["merged", "pruned", "low_rank", "separable", "ghost"]


@pytest.fixture(scope="module", params=["resnet26", "vit_tiny_patch16_224"])
def net(request: pytest.FixtureRequest) -> tailor_ir.SuperNet:
    model, sample = from_timm(request.param)
    kinds = KINDS if request.param == "resnet26" else KINDS[:3]
    return tailor_ir.compile(model, sample, {"*.width_mult": "auto", "alternatives": kinds})


def test_each_branch_is_a_part_of_the_subnet_that_has_it(net: tailor_ir.SuperNet) -> None:
    branches = Branches(net.elastic)
    variables = [variable for variable in net.space.variables if variable.kind == "block"]
    assert len(branches.branches) == sum(len(variable.choices) - 1 for variable in variables)
    net.elastic.eval()
    x = torch.randn(net.input_shape(net.max_config, 2), generator=torch.Generator().manual_seed(0))
    features = branches.features(x)
    for branch in branches.branches:
        (variable,) = [
            one.name
            for one in variables
            for selection in net.space.selections
            if selection.value == branch.exit and net.space.variables[selection.variables[-1]].name == one.name
        ]
        program = net.elastic.program({variable: branch.choice})
        values = {net.structure.graph.inputs[0]: x}
        with torch.no_grad():
            branches._run(program.instructions, values)
            assert torch.equal(values[branch.producer], branches.run(branch, features)), branch.producer
        assert features[branch.exit].shape == values[branch.producer].shape


def test_gradients_stay_in_the_branch(net: tailor_ir.SuperNet) -> None:
    branches = Branches(net.elastic)
    net.elastic.zero_grad()
    features = branches.features(torch.randn(net.input_shape(net.max_config, 2)))
    branch = branches.branches[-1]
    (branches.run(branch, features) - features[branch.exit]).square().mean().backward()
    touched = {n for n in net.structure.graph.parameters if net.elastic.tensor(n).grad is not None}
    assert touched == set(branch.parameters) != set()


def test_a_network_without_alternatives_has_no_branches() -> None:
    model, sample = from_timm("resnet26")
    assert Branches(tailor_ir.compile(model, sample).elastic).branches == ()
