"""The torch backend on a real agent: converted models agree with the reference, faults stay with the model."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from profiling_agents.client import AgentClient, AgentError, local_agent
from tests.support.agents import agent_models as models

pytestmark = pytest.mark.long

RUN_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def torch_agent() -> Iterator[AgentClient]:
    with local_agent("torch", options=["--memory-limit-mib", "1024", "--wall-limit-s", "6"]) as client:
        yield client


def test_outputs_equal_the_reference(torch_agent: AgentClient) -> None:
    assert models.convolution_error(torch_agent, "torch", 5, 9, 7) <= RUN_TOLERANCE


def test_inputs_go_by_name_and_outputs_come_in_the_order_of_the_job(torch_agent: AgentClient) -> None:
    inputs = [np.full((1, 4), 2.0, np.float32), np.full((1, 4), 5.0, np.float32)]
    product, difference = torch_agent.run(models.product_and_difference(), inputs)
    assert (product == 10.0).all()
    assert (difference == 3.0).all()


def test_times_grow_with_the_model(torch_agent: AgentClient) -> None:
    small = models.convolution("torch", "small")
    large = models.convolution("torch", "large", channels_in=32, channels_out=64, size=56)
    first, second = torch_agent.measure([small, large])
    assert (first.state, second.state) == ("ok", "ok")
    assert first.p50_ms is not None
    assert second.p50_ms is not None
    assert 0.001 < first.p50_ms < second.p50_ms / 5


def test_faults_stay_with_the_model_that_has_them(torch_agent: AgentClient) -> None:
    good = models.convolution("torch", "good")
    external = onnx.load_model_from_string(good.files[0])
    external.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    bad = {
        "not an ONNX model": replace(good, key="garbage", files=(b"not a model",)),
        "external data": replace(good, key="external", files=(external.SerializeToString(),)),
        "elsewhere": replace(good, key="names", output_names=("elsewhere",)),
        "operation_type='Nonsense'": models.onnx_job(
            "unknown", [helper.make_node("Nonsense", ["in0"], ["out0"])], {}, (1, 4)
        ),
        "operation_type='Loop'": models.endless("torch", "loop"),
        "memory limit: needs more than 1024 MiB": models.memory_bomb("torch", "bomb"),
    }
    results = list(torch_agent.measure(job for model in bad.values() for job in (model, good)))
    assert [result.state for result in results] == ["failed", "ok"] * len(bad)
    for reason, result in zip(bad, results[::2], strict=True):
        assert reason in (result.reason or "")
        assert result.p50_ms is None


def test_a_model_that_takes_too_long_is_stopped(torch_agent: AgentClient) -> None:
    count = 200
    names = ["in0", *(f"b{i}" for i in range(1, count)), "out0"]
    nodes = [helper.make_node("MatMul", [names[i], "in0"], [names[i + 1]]) for i in range(count)]
    slow = models.onnx_job("slow", nodes, {}, (2048, 2048))
    stopped, after = torch_agent.measure([slow, models.convolution("torch", "after")])
    assert stopped.reason == "wall-clock limit: not finished after 6 s"
    assert after.state == "ok"


def test_the_device_says_what_computes(torch_agent: AgentClient) -> None:
    found = torch_agent.capabilities()
    assert (found.backend, found.provider, found.accelerator, found.precision) == ("torch", "cpu", None, "fp32")
    assert found.formats == ("onnx",)
    assert "onnx2torch" in found.build


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("backend", "provider", "line"),
    [
        ("ncnn", "vulkan", "--provider: got vulkan; backend 'ncnn' runs on: cpu"),
        ("torch", "tpu", "--provider: got tpu; allowed: cpu"),
        ("onnxruntime", "NoProvider", "--provider: got NoProvider; allowed: .*CPUExecutionProvider"),
    ],
)
def test_a_provider_that_is_not_there_is_one_line(backend: str, provider: str, line: str) -> None:
    with pytest.raises(AgentError, match=line), local_agent(backend, options=["--provider", provider]):
        pass


@pytest.mark.long
def test_a_provider_that_leaves_all_to_the_cpu_is_refused() -> None:
    import onnxruntime

    idle = "AzureExecutionProvider"  # part of the runtime's CPU wheel; computes nothing here
    if idle not in onnxruntime.get_available_providers():
        pytest.skip(f"{idle} is not part of this runtime")
    line = f"--provider: {idle} does not run on this device: .*fallback to CPU"
    with pytest.raises(AgentError, match=line), local_agent("onnxruntime", options=["--provider", idle]):
        pass
