"""SubNets that are exported together compute what each computes alone, from weights that are stored once."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file

import tailor_ir
from tests.support.ir.networks import from_timm

NETWORKS = ["resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224"]
SUBNETS = 4


def session_of(file: Path, optimized: Path | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    if optimized:
        options.optimized_model_filepath = str(optimized)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_subnets_exported_together_are_those_exported_alone(name: str, tmp_path: Path) -> None:
    network, sample = from_timm(name)
    net = tailor_ir.compile(network, sample)
    net.sort_channels()
    rng = np.random.default_rng(0)
    configs = {"largest": net.max_config, "smallest": net.min_config}
    configs |= {f"random{number}": net.space.sample(rng) for number in range(SUBNETS - 2)}
    inputs = {key: torch.randn(net.input_shape(config, 4)) for key, config in configs.items()}
    subnets = {key: (config, net.recalibrate(config, [inputs[key]])) for key, config in configs.items()}
    together, alone = tmp_path / "together", tmp_path / "alone"
    for folder in (together, alone):
        folder.mkdir()
    net.export_together(subnets, together)
    for key, (config, statistics) in subnets.items():
        net.export(config, alone / f"{key}.onnx", statistics=statistics, fold_batch_norm=True)
        sessions = [session_of(folder / f"{key}.onnx", folder / f"{key}.optimized") for folder in (alone, together)]
        feed = {sessions[0].get_inputs()[0].name: inputs[key][:1].numpy()}
        expected, got = (session.run(None, feed)[0] for session in sessions)
        assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
        operators = [Counter(n.op_type for n in onnx.load(f / f"{key}.optimized", load_external_data=False).graph.node)
                     for f in (alone, together)]  # fmt: skip
        assert operators[0] == operators[1]  # once loaded, nothing is left to be cut or folded
    stored = load_file(together / "weights.safetensors")
    largest = (alone / "largest.onnx").stat().st_size
    assert sum(array.nbytes for array in stored.values()) < 1.1 * largest
    assert sum(file.stat().st_size for file in alone.glob("*.onnx")) > 1.3 * largest


def test_of_weights_only_what_a_subnet_needs_is_stored(tmp_path: Path) -> None:
    network, sample = from_timm("resnet18")
    net = tailor_ir.compile(network, sample)
    net.export_together({"smallest": (net.min_config, None)}, tmp_path)
    net.export(net.min_config, tmp_path / "alone.onnx")
    sizes = [(tmp_path / name).stat().st_size for name in ("weights.safetensors", "alone.onnx")]
    assert sizes[0] < 1.02 * sizes[1]
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(Exception, match=r"weights\.safetensors"):
        session_of(tmp_path / "smallest.onnx")
