"""Layers timed inside a model, and models without weights."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from profiling_agents.client import AgentClient, AgentError, MeasureSettings, ModelJob, local_agent
from tests.support.agents.agent_models import convolution_weights, ncnn_job, onnx_job

SIZE = 96
SETTINGS = MeasureSettings(warmup_ms=5.0, time_cap_ms=100.0, layers_ms=100.0)
FACTOR = 3.0  # a shared machine moves a single measurement


def chain(backend: str) -> ModelJob:
    """A narrow 3x3 convolution with a ReLU, a wide one, and their sum."""
    weights, biases = convolution_weights(16, 16)
    shape = (1, 16, SIZE, SIZE)
    if backend == "ncnn":
        layers = [
            "Input in0 0 1 in0",
            f"Convolution small 1 1 in0 a 0=16 1=3 4=1 5=1 6={weights.size} 9=1",
            "Split split 1 2 a a0 a1",
            f"Convolution again 1 1 a0 b 0=16 1=3 4=1 5=1 6={weights.size}",
            "BinaryOp add 2 1 b a1 out0 0=0",
        ]
        content = b"\0" * 4 + weights.tobytes() + biases.tobytes()
        return ncnn_job("chain", layers, 6, content * 2, shape)
    nodes = [
        helper.make_node("Conv", ["in0", "w", "b"], ["a0"], "small", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a0"], ["a"], "relu"),
        helper.make_node("Conv", ["a", "w", "b"], ["c"], "again", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "a"], ["out0"], "add"),
    ]
    return onnx_job("chain", nodes, {"w": weights, "b": biases}, shape)


@pytest.mark.few("ncnn")
@pytest.mark.parametrize("backend", ["ncnn", "onnxruntime", "openvino", "torch"])
def test_layers_inside_a_network_add_up_to_it(backend: str) -> None:
    with local_agent(backend) as client:
        (found,) = client.measure([chain(backend)], SETTINGS)
        (plain,) = client.measure([chain(backend)], SETTINGS.model_copy(update={"layers_ms": 0.0}))
    assert found.state == "ok", found.reason
    assert found.p50_ms is not None
    names = [layer.name for layer in found.layers]
    if backend == "ncnn":
        assert names == ["small", "split", "again", "add"]
        assert [layer.outputs for layer in found.layers] == [("a",), ("a0", "a1"), ("b",), ("out0",)]
    elif backend == "torch":
        assert names == ["small", "relu", "again", "add"]
    elif backend == "openvino":
        assert [name for name, layer in zip(names, found.layers, strict=True) if layer.kind == "Convolution"] == [
            "small/WithoutBiases",
            "again/WithoutBiases",
        ]
        assert all(name.startswith(("small", "relu", "again", "out0")) for name in names)
    else:  # the runtime runs the sum and the ReLU inside the convolutions, and changes the layout around them
        assert [layer.kind for layer in found.layers].count("Conv") == 2
        assert "Add" not in [layer.kind for layer in found.layers]
    total_ms = sum(layer.time_ms for layer in found.layers)
    assert 1 / FACTOR <= total_ms / found.p50_ms <= FACTOR
    assert plain.layers == ()


def test_ncnn_times_a_network_without_its_weights_but_gives_no_outputs() -> None:
    job = chain("ncnn")
    bare = replace(job, files=job.files[:1])
    with local_agent("ncnn") as client:
        (found,) = client.measure([bare], SETTINGS)
        assert found.state == "ok", found.reason
        assert len(found.layers) == 4
        with pytest.raises(AgentError, match="no weights"):
            client.run(bare, [np.zeros(job.input_shapes[0], np.float32)])


def test_a_missing_weights_file_is_no_network_of_onnx(onnxruntime_agent: AgentClient) -> None:
    job = replace(chain("onnxruntime"), files=())
    with pytest.raises(AgentError, match=r"onnx takes 1 file\(s\), got 0"):
        list(onnxruntime_agent.measure([job]))
