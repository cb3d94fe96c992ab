"""Operators with the values between them, and SubNets exported without their weights."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch

import tailor_ir
from tests.support.ir.networks import perturb

NAMES = ("test_resnet", "test_efficientnet", "test_vit", "test_convnext", "levit_128s")


@pytest.fixture(scope="module", params=NAMES)
def net(request: pytest.FixtureRequest) -> tailor_ir.SuperNet:
    torch.manual_seed(0)
    model = perturb(timm.create_model(request.param))
    known: Any = model.pretrained_cfg
    return tailor_ir.compile(model, torch.randn(1, *known["input_size"]))


def optimised(path: Path) -> Counter[str]:
    """What onnxruntime runs for a file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path.with_suffix(".optimised.onnx"))
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


def test_every_operator_reads_what_earlier_ones_wrote(net: tailor_ir.SuperNet) -> None:
    rng = np.random.default_rng(0)
    for config in [net.max_config, net.min_config, *(net.space.sample(rng) for _ in range(5))]:
        placed = net.placed_operators(config)
        assert Counter(one.feature for one in placed.operators) == Counter(net.operators(config))
        written = set(placed.inputs)
        for one in placed.operators:
            assert set(one.inputs) <= written, one
            assert len(one.inputs) == len(one.feature.input_shapes)
            assert len(one.outputs) == len(one.feature.output_shapes)
            assert set(one.outputs) <= one.names
            written |= set(one.outputs)
        assert set(placed.outputs) <= written


def test_names_of_values_are_those_of_the_exported_file(net: tailor_ir.SuperNet, tmp_path: Path) -> None:
    config = net.space.sample(np.random.default_rng(1))
    net.export(config, tmp_path / "subnet.onnx", fold_batch_norm=True)
    graph = onnx.load(tmp_path / "subnet.onnx").graph
    values = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    placed = net.placed_operators(config)
    assert {name for one in placed.operators for name in (*one.inputs, *one.outputs)} <= values
    assert tuple(value.name for value in graph.output) == placed.outputs


@pytest.mark.long_cases("levit_128s")
def test_without_weights_a_runtime_runs_the_same_operators(net: tailor_ir.SuperNet, tmp_path: Path) -> None:
    config = net.space.sample(np.random.default_rng(2))
    for fold in (False, True):
        net.export(config, tmp_path / "whole.onnx", fold_batch_norm=fold)
        net.export(config, tmp_path / "bare.onnx", fold_batch_norm=fold, weights=False)
        assert optimised(tmp_path / "bare.onnx") == optimised(tmp_path / "whole.onnx")
        assert (tmp_path / "bare.onnx").stat().st_size < (tmp_path / "whole.onnx").stat().st_size / 4
