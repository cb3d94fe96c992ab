"""The torch backend on an NVIDIA GPU, behind the walls; machines without a GPU leave these tests out."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from profiling_agents.client import AgentClient, MeasureSettings, local_agent
from tests.agents import agent_models as models

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

RUN_TOLERANCE = 1e-5
LEAST_ENERGY_MS = 200.0
MOST_WATTS = 1500.0


@pytest.fixture(scope="module")
def cuda_agent() -> Iterator[AgentClient]:
    with local_agent("torch", options=["--provider", "cuda", "--memory-limit-mib", "2048"]) as client:
        yield client


def test_all_walls_stand_and_the_device_says_what_computes(cuda_agent: AgentClient) -> None:
    found = cuda_agent.capabilities()
    assert (found.backend, found.provider, found.precision) == ("torch", "cuda", "fp32")
    assert found.accelerator == torch.cuda.get_device_name(0)
    assert {"network", "files", "system calls"} <= set(found.walls.standing)
    assert found.walls.missing == ()


def test_outputs_equal_the_reference(cuda_agent: AgentClient) -> None:
    job = models.convolution("torch", "conv", channels_in=5, channels_out=9, size=7, seed=3)
    x = np.random.default_rng(1).standard_normal((1, 5, 7, 7), dtype=np.float32)
    (output,) = cuda_agent.run(job, [x])
    reference = models.convolution_reference(x, *models.convolution_weights(5, 9, seed=3))
    assert np.abs(output - reference).max() <= RUN_TOLERANCE * np.abs(reference).max()


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
