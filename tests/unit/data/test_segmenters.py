"""Networks for segmentation and restoration become SuperNets whose SubNets give maps of classes, or images."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import tailor_ir
from conf.networks import restoration, segmentation
from tailor_ir import Choice

SIDE, CLASSES = 64, 5
RTOL = 1e-4


@pytest.mark.few("network-0.25")
@pytest.mark.parametrize(
    ("network", "scale"),
    [
        (segmentation.lraspp, 1 / 8),
        (segmentation.pyramid, 1 / 4),
        (segmentation.deeplab, 1 / 16),
        (restoration.unet, 1),
        (restoration.super_resolution, 2),
        (partial(restoration.super_resolution, upscale=3), 3),
    ],
)
def test_subnets_give_maps_and_are_what_is_built_of_them_and_exported(
    network: Callable[..., nn.Module], scale: float, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = network(num_classes=CLASSES, in_chans=1).eval()
    space: dict[str, list[Choice] | str] = {"resolution": [48, SIDE], "*.expand_ratio": "auto", "*.depth": "auto"}
    net = tailor_ir.compile(module, torch.zeros(1, 1, SIDE, SIDE), space)
    x_BCHW = torch.rand(2, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        net.elastic.eval().activate(net.max_config)
        expected = module(x_BCHW)
        assert expected.shape == (2, CLASSES, SIDE * scale, SIDE * scale)
        torch.testing.assert_close(net.elastic(x_BCHW), expected, rtol=RTOL, atol=RTOL)
        for config in (net.min_config, net.space.sample(np.random.default_rng(0))):
            height, width = net.input_shape(config)[-2:]
            small_BCHW = x_BCHW[..., :height, :width]
            net.elastic.activate(config)
            found = net.elastic(small_BCHW)
            assert found.shape == (2, CLASSES, height * scale, width * scale)
            torch.testing.assert_close(net.build(config).eval()(small_BCHW), found, rtol=RTOL, atol=RTOL)
    net.export(config, tmp_path / "subnet.onnx", fold_batch_norm=True)
    session = onnxruntime.InferenceSession(tmp_path / "subnet.onnx")
    (given,) = session.run(None, {session.get_inputs()[0].name: small_BCHW[:1].numpy()})
    torch.testing.assert_close(torch.from_numpy(given), found[:1], rtol=1e-3, atol=1e-3)
    assert set(net.operators(config)) <= net.unique_operators().keys()
    assert net.macs(net.min_config) < net.macs(net.max_config)
