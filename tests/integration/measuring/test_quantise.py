"""int8 files of a trained network: what they cost in accuracy, what they bring, and which layers stay in fp32."""

import collections
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch
from onnx import numpy_helper
from torch import nn

import tailor_ir
from profiling_agents.client import MeasureSettings, local_agent
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.progress import Silent
from tasks.data import DataSettings, load_splits
from tasks.data.teacher import OnnxNetwork
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.quantise import Int8, Settings, quantise
from tasks.evaluation.subnets import EvaluationData, accuracies, count_correct, statistics_of
from tests.support.fronts import write_front

SIZE = (32, 32)
QUICK = MeasureSettings(time_cap_ms=20.0, warmup_ms=1.0, min_blocks=2, patience=0.0)


@pytest.fixture(scope="module")
def data() -> dict[str, EvaluationData]:
    splits = load_splits(DataSettings(kind="digits"))
    validation = EvaluationData(splits["validation"], splits["train"], recalibration_images=128)
    return {"validation": validation, "test": validation.of(splits["test"])}


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """Digits, learned in a few seconds."""
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10)
    train = load_splits(DataSettings(kind="digits"))["train"]
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3)
    for epoch in range(5):
        for x_BCHW, y_B in train.batches(64, seed=epoch, augment=False):
            loss = nn.functional.cross_entropy(network(x_BCHW), y_B)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return network.eval()


def kinds_that_run(model: bytes, folder: Path) -> collections.Counter[str]:
    """Operators after onnxruntime's optimisations."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return collections.Counter(node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node)


def test_an_int8_file_is_smaller_and_loses_at_most_a_point(
    network: nn.Module, data: dict[str, EvaluationData], tmp_path: Path
) -> None:
    net = tailor_ir.compile(network, torch.zeros(1, 3, *SIZE))
    net.save(tmp_path / "supernet")
    for name in ("search", "out"):
        (tmp_path / name).mkdir()
    write_front(tmp_path / "search", net, [(net.max_config, 1e6)])
    settings = export.Settings(formats=("onnx", "onnx_int8"), measure=QUICK)
    with local_agent("onnxruntime") as client, client.lease():
        (card,) = export.run(
            export.ExportRequest(
                settings=settings, supernet=tmp_path / "supernet", search=tmp_path / "search", data=data
            ),
            client,
            Workspace(out=tmp_path / "out", progress=Silent()),
        )["subnets"]
    file = card["files"]["onnx_int8"]
    assert file["state"] == "ok", file["reason"]
    assert (file["precision"], file["on_device"]) == ("int8", True)
    assert file["relative_difference"] <= 1e-3, "the device runs what runs here"
    int8 = file["int8"]
    assert file["bytes"] < 0.5 * int8["fp32_bytes"]
    assert card["accuracy"]["validation"] > 0.8
    assert int8["lost_points"]["validation"] <= int8["allowed_points"] == 1.0
    assert int8["latency"]["p50_ms"] > 0
    assert int8["fp32_ms"] > 0
    path = tmp_path / "out" / f"{card['digest']}.int8.onnx"
    assert file["sha256"].keys() == {path.name}
    for split, images in data.items():
        assert count_correct(OnnxNetwork(path), images.batches(SIZE)).share == int8["accuracy"][split]
        assert int8["accuracy"][split] + int8["lost_points"][split] / 100 == pytest.approx(card["accuracy"][split])
    told = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert json.loads(told["autotailor.accuracy"]) == int8["accuracy"]
    text = path.with_name(f"{card['digest']}.md").read_text()
    inside = int8["layers"] - len(int8["kept_fp32"])
    assert inside > int8["layers"] / 2
    assert f"{inside} of {int8['layers']} layers are in int8, by the ranges of 128 training images" in text


def test_layers_that_lose_more_than_the_bound_stay_in_fp32(
    network: nn.Module, data: dict[str, EvaluationData], tmp_path: Path
) -> None:
    net = tailor_ir.compile(with_outliers(network), torch.zeros(1, 3, *SIZE))
    config = net.max_config
    statistics = statistics_of(net, config, data["validation"])
    model = onnx_of(net, config, statistics)
    free = quantise(net, config, statistics, model, Settings(max_loss_points=100.0), data, Silent())
    assert free.kept == ()
    assert free.lost_points["validation"] > 20.0
    found = quantise(net, config, statistics, model, Settings(max_loss_points=1.0), data, Silent())
    assert found.lost_points["validation"] <= 1.0
    assert {f"/conv1/conv1.{number}/Conv" for number in (0, 3, 6)} <= set(found.kept)
    assert len(found.kept) < len(found.layers) / 2
    kinds = kinds_that_run(found.content, tmp_path)
    assert kinds["Conv"] + kinds["FusedConv"] == len(found.kept)
    assert kinds["QLinearConv"] + kinds["QGemm"] == len(found.layers) - len(found.kept)


def test_accuracies_in_int8_are_those_of_the_files_and_are_measured_once(
    network: nn.Module, data: dict[str, EvaluationData], tmp_path: Path
) -> None:
    net = tailor_ir.compile(network, torch.zeros(1, 3, *SIZE))
    configs, settings, images = [net.max_config, net.min_config], Settings(max_loss_points=100.0), data["validation"]
    file = tmp_path / "int8.jsonl"
    in_int8 = images.in_precision(Int8(settings))
    found = accuracies(net, configs, in_int8, file, Silent())
    for config, accuracy in zip(configs, found, strict=True):
        statistics = statistics_of(net, config, images)
        made = quantise(net, config, statistics, onnx_of(net, config, statistics), settings, data, Silent())
        assert accuracy.share == made.accuracy["validation"]
    before = file.read_bytes()
    assert accuracies(net, configs[::-1], in_int8, file, Silent()) == found[::-1]
    assert file.read_bytes() == before


def test_weights_of_a_reduced_range_have_seven_bits(network: nn.Module, data: dict[str, EvaluationData]) -> None:
    net = tailor_ir.compile(network, torch.zeros(1, 3, *SIZE))
    statistics = statistics_of(net, net.max_config, data["validation"])
    model = onnx_of(net, net.max_config, statistics)
    for reduced, largest in ((False, 127), (True, 64)):
        settings = Settings(max_loss_points=100.0, reduce_range=reduced)
        found = quantise(net, net.max_config, statistics, model, settings, data, Silent())
        graph = onnx.load_from_string(found.content).graph
        weights = [numpy_helper.to_array(one) for one in graph.initializer if one.name.endswith("_quantized")]
        int8 = [weight for weight in weights if weight.dtype == np.int8 and weight.ndim > 1]
        assert len(int8) == len(found.layers)
        assert largest - 1 <= max(int(np.abs(weight.astype(int)).max()) for weight in int8) <= largest


def with_outliers(network: nn.Module) -> nn.Module:
    """The same function, with one channel inside each block so large that all others are lost in 256 steps."""
    changed: Any = timm.create_model("test_resnet", num_classes=10)
    changed.load_state_dict(network.state_dict())
    stem, stages = changed.conv1, (changed.layer1, changed.layer2, changed.layer3, changed.layer4)
    pairs = [(stem[1], stem[3]), (stem[4], stem[6])]
    pairs += [(block.bn1, block.conv2) for stage in stages for block in stage]
    with torch.no_grad():
        for norm, convolution in pairs:
            channel = int(norm.bias.argmax())
            norm.weight[channel] *= 3e3
            norm.bias[channel] *= 3e3
            convolution.weight[:, channel] /= 3e3
    return changed.eval()
