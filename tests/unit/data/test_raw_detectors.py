"""Detectors become SuperNets whose SubNets give the raw output that heads expect."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import tailor_ir
from adaptive_runtime.samples.boxes import FCOS, RETINANET, SSDLITE, DetectionHead, detect
from conf.networks import detectors
from tailor_ir import Choice
from tests.support.boxes import small_detectors

SIDE, CLASSES = 64, 4
TOLERANCE = 1e-4


@pytest.mark.few("fcos_small")
@pytest.mark.parametrize(
    ("make", "head"),
    [
        (small_detectors.ssdlite, SSDLITE),
        (small_detectors.retinanet, RETINANET),
        (small_detectors.fcos, FCOS),
        (detectors.fcos_small, FCOS),
    ],
    ids=["ssdlite", "retinanet", "fcos", "fcos_small"],
)
def test_subnets_of_a_detector_are_what_is_built_and_exported_of_them(
    make: Callable[[int, int], nn.Module], head: DetectionHead, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = make(CLASSES, 1).eval()
    space: dict[str, list[Choice] | str] = {"*.depth": "auto", "*.width_mult": [0.5, 1], "resolution": [32, SIDE]}
    net = tailor_ir.compile(module, torch.zeros(1, 1, SIDE, SIDE), space)
    kinds = {variable.name.rpartition(".")[2] for variable in net.space.variables}
    assert kinds == {"depth", "width_mult", "resolution"}
    x_BCHW = torch.rand(2, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        net.elastic.eval().activate(net.max_config)
        torch.testing.assert_close(net.elastic(x_BCHW), module(x_BCHW), rtol=0, atol=TOLERANCE)
        for config in (net.min_config, net.space.sample(np.random.default_rng(0))):
            height, width = net.input_shape(config)[-2:]
            small_BCHW = x_BCHW[..., :height, :width].contiguous()
            net.elastic.activate(config)
            found = net.elastic(small_BCHW)
            assert found.shape == (2, head.positions((height, width)), head.columns(CLASSES))
            torch.testing.assert_close(net.build(config).eval()(small_BCHW), found, rtol=0, atol=TOLERANCE)
            net.export(config, tmp_path / "subnet.onnx", batch=2)
            session = onnxruntime.InferenceSession(tmp_path / "subnet.onnx")
            (exported,) = session.run(None, {session.get_inputs()[0].name: small_BCHW.numpy()})
            np.testing.assert_allclose(exported, found.numpy(), rtol=0, atol=TOLERANCE)
            assert len(detect(head, exported, (height, width))) == 2
    assert net.macs(net.min_config) < net.macs(net.max_config)


@pytest.mark.parametrize("make", [detectors.ssdlite, detectors.retinanet, detectors.fcos])
def test_detectors_take_images_of_one_channel(make: Callable[[int, int], nn.Module]) -> None:
    with torch.device("meta"):
        module = make(3, 1)
    assert next(layer for layer in module.modules() if isinstance(layer, nn.Conv2d)).in_channels == 1
