"""torchvision's LRASPP becomes a SuperNet whose SubNets give maps of classes."""

import numpy as np
import torch

import tailor_ir
from conf.networks.lraspp import network
from tailor_ir import Choice

SIDE, CLASSES = 64, 5
RTOL = 1e-4


def test_subnets_of_lraspp_give_maps_and_are_what_is_built_of_them() -> None:
    torch.manual_seed(0)
    module = network(num_classes=CLASSES, in_chans=1).eval()
    space: dict[str, list[Choice] | str] = {"resolution": [48, SIDE], "*.expand_ratio": "auto", "*.depth": "auto"}
    net = tailor_ir.compile(module, torch.zeros(1, 1, SIDE, SIDE), space)
    x_BCHW = torch.rand(2, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        net.elastic.eval().activate(net.max_config)
        expected = module(x_BCHW)
        assert expected.shape == (2, CLASSES, SIDE // 8, SIDE // 8)
        torch.testing.assert_close(net.elastic(x_BCHW), expected, rtol=RTOL, atol=RTOL)
        for config in (net.min_config, net.space.sample(np.random.default_rng(0))):
            height, width = net.input_shape(config)[-2:]
            small_BCHW = x_BCHW[..., :height, :width]
            net.elastic.activate(config)
            found = net.elastic(small_BCHW)
            assert found.shape == (2, CLASSES, height // 8, width // 8)
            torch.testing.assert_close(net.build(config).eval()(small_BCHW), found, rtol=RTOL, atol=RTOL)
    assert net.macs(net.min_config) < net.macs(net.max_config)
