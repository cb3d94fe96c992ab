"""Branches by themselves are what SubNets with these alternatives compute."""

import numpy as np
import pytest
import timm
import torch

import tailor_ir
from tailor_ir.subnets.elastic import Branches
from tests.support import long
from tests.support.ir.networks import from_timm, perturb

KINDS = ["merged", "pruned", "low_rank", "separable", "ghost"]


@pytest.fixture(scope="module", params=[long("resnet26"), "vit_tiny_patch16_224"])
def net(request: pytest.FixtureRequest) -> tailor_ir.SuperNet:
    model, sample = from_timm(request.param)
    kinds = KINDS if request.param == "resnet26" else KINDS[:3]
    return tailor_ir.compile(model, sample, {"*.width_mult": "auto", "alternatives": kinds})


@pytest.mark.long
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


@pytest.mark.long
def test_statistics_of_alternatives_follow_their_weights() -> None:
    """A SubNet with one alternative answers nearly as with statistics of its own; with those from before it does not."""
    torch.manual_seed(0)
    model = perturb(timm.create_model("test_resnet", num_classes=10))
    net = tailor_ir.compile(model, torch.randn(1, 3, 64, 64), {"alternatives": ["pruned", "fire"]})
    batches = list(torch.randn(4, 16, 3, 64, 64))
    net.set_statistics(net.recalibrate(net.max_config, batches))
    net.set_statistics(net.recalibrate_alternatives(batches))
    before = {name: tensor.clone() for name, tensor in net.elastic.tensors().items()}
    with torch.no_grad():
        for name in {name for branch in Branches(net.elastic).branches for name in branch.parameters}:
            net.elastic.tensor(name).mul_(2)
    taken = net.recalibrate_alternatives(batches)
    net.set_statistics(taken)
    kept = net.structure.graph.original()
    assert all(torch.equal(before[name], net.elastic.tensor(name)) for name in kept.initializers)
    stale = {name: before[name] for name in taken}
    errors: dict[str, list[float]] = {"stored": [], "stale": []}
    for variable in net.space.variables:
        for choice in variable.choices[:-1]:
            config = {variable.name: choice}
            recalibrated = net.recalibrate(config, batches)
            own = [name for name in recalibrated if name in taken]
            with torch.no_grad():
                wanted = net.build(config, recalibrated)(batches[0])
                for which, given in (("stored", taken), ("stale", stale)):
                    off = [(given[name] - recalibrated[name]).norm() / recalibrated[name].norm() for name in own]
                    assert bool(max(off) < 0.05) is (which == "stored")
                    found = net.build(config, None if which == "stored" else stale)(batches[0])
                    errors[which].append(float((found - wanted).square().mean() / wanted.var()))
    assert len(errors["stored"]) > 5
    assert np.mean(errors["stored"]) < 0.01 * np.mean(errors["stale"])


def test_a_network_without_alternatives_has_no_branches() -> None:
    model, sample = from_timm("resnet26")
    net = tailor_ir.compile(model, sample)
    assert Branches(net.elastic).branches == ()
    assert net.recalibrate_alternatives([sample]) == {}
