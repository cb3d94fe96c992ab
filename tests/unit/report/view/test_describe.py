"""What `describe` says about a variable is what happens when that variable alone is made small."""

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir import SuperNet
from tailor_ir.spaces.selectors import Config
from tailor_ir.summary import Describer, describe
from tests.support.ir.networks import small_net
from tests.support.view.fixtures import Viewed


def built_parameters(net: SuperNet, config: Config) -> int:
    """Independent of axes: counted on the stand-alone network."""
    return sum(p.numel() for p in net.build(config).parameters())


@pytest.mark.long_cases("mobilenetv3_small_050")
def test_savings_are_those_of_the_built_subnets(viewed: Viewed) -> None:
    net, largest = viewed.net, viewed.net.max_config
    parameters, macs = built_parameters(net, largest), net.macs(largest)
    found = describe(net.structure)
    assert [v.name for v in found] == [v.name for v in net.space.variables]
    assert {v.kind for v in found} >= {"resolution", "width_mult", "expand_ratio"}
    for v in found:
        smaller = {**largest, v.name: v.choices[0]}
        assert v.parameters_saved == parameters - built_parameters(net, smaller)
        assert v.macs_saved == macs - net.macs(smaller)
        assert v.macs_saved > 0


def test_any_subnet_is_summed_up_as_built(viewed: Viewed) -> None:
    net, describer = viewed.net, Describer(viewed.net.structure)
    for row in net.space.random_codes(4, np.random.default_rng(0)):
        config = net.space.decode(row)
        summary = describer.summary(row)
        assert summary.parameters == built_parameters(net, config)
        assert summary.macs == net.macs(config)


def test_depth_touches_the_nodes_that_it_leaves_out(viewed: Viewed) -> None:
    net = viewed.net
    by_name = {v.name: v for v in describe(net.structure)}
    order = {node.name: position for position, node in enumerate(net.structure.graph.nodes)}
    for variable in (v for v in net.space.variables if v.kind == "depth"):
        stage = next(s for s in net.structure.regions.stages if variable.name.startswith(f"{s.name}."))
        skipped = stage.blocks[int(variable.choices[0]) :]
        info = by_name[variable.name]
        assert {node.name for block in skipped for node in block.nodes} == set(info.nodes)
        assert list(info.nodes) == sorted(info.nodes, key=order.__getitem__)
        assert (info.first_node, info.last_node) == (skipped[0].nodes[0].name, skipped[-1].nodes[-1].name)


def test_node_range_and_axes_of_a_known_network() -> None:
    wish = {"resolution": [16, 32], "stage.1.depth": [-1, 0], "stage.1.block.2.expand_ratio": [1, 2]}
    net = tailor_ir.compile(small_net(), torch.zeros(1, 3, 32, 32), wish)
    resolution, depth, ratio = describe(net.structure)
    assert resolution.axes == ("H", "W")
    assert resolution.first_node == "/stem/stem.0/Conv"
    assert resolution.last_node == "/pool/GlobalAveragePool"
    assert (depth.first_node, depth.last_node) == (
        "/blocks/blocks.2/body/body.0/Conv",
        "/blocks/blocks.2/activation/Relu",
    )
    assert (ratio.first_node, ratio.last_node) == (
        "/blocks/blocks.1/body/body.0/Conv",
        "/blocks/blocks.1/body/body.3/Conv",
    )
    assert len(depth.axes) == len(ratio.axes) == 1
    assert depth.axes != ratio.axes
    assert (resolution.parameters_saved, depth.parameters_saved) == (0, 16 * 32 + 2 * 32 + 32 * 16 * 9 + 2 * 16)
    assert ratio.parameters_saved == 16 * (16 + 2 + 16 * 9)


class TiedTwice(nn.Module):
    """One weight that two layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(12, 12, bias=False)
        self.last = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.mean((2, 3)).repeat(1, 4)
        return self.last(self.shared(torch.relu(self.shared(y))))


def test_a_shared_weight_counts_once() -> None:
    network = TiedTwice().eval()
    net = tailor_ir.compile(network, torch.zeros(1, 3, 16, 16))
    summary = Describer(net.structure).summary(net.space.row(net.max_config))
    assert summary.parameters == sum(p.numel() for p in network.parameters())
