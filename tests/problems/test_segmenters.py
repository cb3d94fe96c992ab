"""Networks for segmentation become SuperNets whose SubNets give maps of classes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import tailor_ir
from conf.networks import deeplab, lraspp, pyramids
from tailor_ir import Choice

SIDE, CLASSES = 64, 5
RTOL = 1e-4


@pytest.mark.parametrize(("network", "stride"), [(lraspp.network, 8), (pyramids.network, 4), (deeplab.network, 16)])
def test_subnets_give_maps_and_are_what_is_built_of_them_and_exported(
    network: Callable[..., nn.Module], stride: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = network(num_classes=CLASSES, in_chans=1).eval()
    space: dict[str, list[Choice] | str] = {"resolution": [48, SIDE], "*.expand_ratio": "auto", "*.depth": "auto"}
    net = tailor_ir.compile(module, torch.zeros(1, 1, SIDE, SIDE), space)
    x_BCHW = torch.rand(2, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        net.elastic.eval().activate(net.max_config)
        expected = module(x_BCHW)
        assert expected.shape == (2, CLASSES, SIDE // stride, SIDE // stride)
        torch.testing.assert_close(net.elastic(x_BCHW), expected, rtol=RTOL, atol=RTOL)
        for config in (net.min_config, net.space.sample(np.random.default_rng(0))):
            height, width = net.input_shape(config)[-2:]
            small_BCHW = x_BCHW[..., :height, :width]
            net.elastic.activate(config)
            found = net.elastic(small_BCHW)
            assert found.shape == (2, CLASSES, height // stride, width // stride)
            torch.testing.assert_close(net.build(config).eval()(small_BCHW), found, rtol=RTOL, atol=RTOL)
    net.export(config, tmp_path / "subnet.onnx", fold_batch_norm=True)
    session = onnxruntime.InferenceSession(tmp_path / "subnet.onnx")
    (given,) = session.run(None, {session.get_inputs()[0].name: small_BCHW[:1].numpy()})
    torch.testing.assert_close(torch.from_numpy(given), found[:1], rtol=1e-3, atol=1e-3)
    assert net.macs(net.min_config) < net.macs(net.max_config)
