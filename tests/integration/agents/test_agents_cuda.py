"""The torch backend on an NVIDIA GPU, in the sandbox; machines without a GPU leave these tests out."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from onnx import helper

from profiling_agents.client import AgentClient, MeasureSettings, local_agent
from tests.support.agents import agent_models as models

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

RUN_TOLERANCE = 1e-5
LEAST_ENERGY_MS = 200.0
MOST_WATTS = 1500.0


@pytest.fixture(scope="module")
def cuda_agent() -> Iterator[AgentClient]:
    with local_agent("torch", options=["--provider", "cuda", "--memory-limit-mib", "2048"]) as client:
        yield client


def test_the_whole_sandbox_stands_and_the_device_says_what_computes(cuda_agent: AgentClient) -> None:
    found = cuda_agent.capabilities()
    assert (found.backend, found.provider, found.precision) == ("torch", "cuda", "fp32")
    assert found.accelerator == torch.cuda.get_device_name(0)
    assert {"network", "files", "system calls"} <= set(found.walls.standing)
    assert found.walls.missing == ()


def test_outputs_equal_the_reference(cuda_agent: AgentClient) -> None:
    assert models.convolution_error(cuda_agent, "torch", 5, 9, 7) <= RUN_TOLERANCE


def test_times_grow_with_the_model(cuda_agent: AgentClient) -> None:
    small = models.convolution("torch", "small")
    large = models.convolution("torch", "large", channels_in=256, channels_out=512, size=112)
    first, second = cuda_agent.measure([small, large])
    assert first.p50_ms is not None, first.reason
    assert second.p50_ms is not None, second.reason
    assert 0.001 < first.p50_ms < second.p50_ms / 5


def test_a_model_that_needs_too_much_memory_fails_alone(cuda_agent: AgentClient) -> None:
    bomb, good = cuda_agent.measure([models.memory_bomb("torch", "bomb"), models.convolution("torch", "good")])
    assert "memory" in (bomb.reason or "")
    assert good.state == "ok", good.reason


def test_energy_is_that_of_the_gpu(cuda_agent: AgentClient) -> None:
    if not any(sensor.kind == "nvml" for sensor in cuda_agent.capabilities().power_sensors):
        pytest.skip("this GPU has no counter of energy, or pynvml is not installed")
    job = models.convolution("torch", "large", channels_in=256, channels_out=512, size=112)
    (found,) = cuda_agent.measure([job], MeasureSettings(energy_ms=LEAST_ENERGY_MS))
    assert found.p50_ms is not None, found.reason
    assert found.energy_mj is not None
    assert 0 < found.energy_mj < MOST_WATTS * found.p50_ms


def test_layers_inside_a_network_add_up_to_it(cuda_agent: AgentClient) -> None:
    """Each of these convolutions takes longer than it takes to start."""
    rng = np.random.default_rng(0)
    names = ["in0", "a", "b", "out0"]
    nodes = [
        helper.make_node("Conv", [names[at], f"weights{at}"], [names[at + 1]], name=f"conv{at}", pads=[1, 1, 1, 1])
        for at in range(3)
    ]
    weights = {f"weights{at}": rng.standard_normal((512, 512, 3, 3), np.float32) / 70 for at in range(3)}
    job = models.onnx_job("chain", nodes, weights, (1, 512, 112, 112))
    (found,) = cuda_agent.measure([job], MeasureSettings(layers_ms=100.0))
    assert found.p50_ms is not None, found.reason
    assert [layer.kind for layer in found.layers] == ["Conv2d"] * 3
    assert sum(layer.time_ms for layer in found.layers) == pytest.approx(found.p50_ms, rel=0.2)
