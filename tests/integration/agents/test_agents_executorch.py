"""The executorch backend on a real agent: agreement with torch, threads, layers, faults, jobs that contradict a program."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from profiling_agents.backends.base import ModelError
from profiling_agents.client import AgentClient, AgentError, MeasureSettings, ModelJob, local_agent

pytest.importorskip("executorch", reason="the extra 'executorch' is not installed")

from profiling_agents.backends.executorch import time_layers
from tasks.evaluation.conversion import ConversionError
from tasks.evaluation.executorch.programs import jobs_of_modules

SHAPE = (1, 3, 16, 16)
TOLERANCE = 1e-5
LAYERS = MeasureSettings(warmup_ms=2.0, time_cap_ms=20.0, layers_ms=30.0)


class TwoOutputs(nn.Module):
    """A convolution and a matrix product for XNNPACK, and an operator between them that XNNPACK has not."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, channels, 3)
        self.linear = nn.Linear(channels, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pooled = torch.erf(self.convolution(x).relu().mean((2, 3)))
        return self.linear(pooled), pooled


@pytest.fixture(scope="module")
def modules() -> Mapping[str, nn.Module]:
    torch.manual_seed(0)
    return {"two": TwoOutputs().eval(), "large": TwoOutputs(256).eval()}


@pytest.fixture(scope="module")
def jobs(modules: Mapping[str, nn.Module]) -> Mapping[str, ModelJob]:
    outcomes = jobs_of_modules({key: (module, (SHAPE,)) for key, module in modules.items()})
    assert not [one for one in outcomes.values() if isinstance(one, ConversionError)]
    return {key: one for key, one in outcomes.items() if isinstance(one, ModelJob)}


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentClient]:
    with local_agent("executorch", options=["--wall-limit-s", "60"]) as client:
        yield client


def test_outputs_equal_those_of_torch_and_come_in_order(
    agent: AgentClient, jobs: Mapping[str, ModelJob], modules: Mapping[str, nn.Module]
) -> None:
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal(SHAPE, dtype=np.float32)
        with torch.inference_mode():
            expected = [output.numpy() for output in modules["two"](torch.from_numpy(x))]
        for output, wanted in zip(agent.run(jobs["two"], [x]), expected, strict=True):
            assert output.shape == wanted.shape
            assert np.abs(output - wanted).max() <= TOLERANCE * np.abs(wanted).max()


def test_the_device_says_what_computes(agent: AgentClient) -> None:
    found = agent.capabilities()
    assert (found.backend, found.formats, found.precision) == ("executorch", ("executorch",), "fp32")
    assert len(found.build) == 16


def test_layers_come_in_order_with_those_that_xnnpack_does_not_run(
    agent: AgentClient, jobs: Mapping[str, ModelJob]
) -> None:
    (found,) = agent.measure([jobs["large"]], LAYERS)
    assert found.state == "ok", found.reason
    assert found.p50_ms is not None
    kinds = [layer.kind for layer in found.layers]
    products = [kind for kind in kinds if kind.startswith(("Convolution", "Fully Connected"))]
    assert products == ["Convolution", "Fully Connected"]
    assert kinds.index("Convolution") < kinds.index("native_call_erf.out") < kinds.index("Fully Connected")
    assert found.p50_ms / 3 <= sum(layer.time_ms for layer in found.layers) <= 3 * found.p50_ms


def test_times_grow_with_the_model_and_threads_are_taken(jobs: Mapping[str, ModelJob]) -> None:
    with local_agent("executorch", threads=2) as client:
        small, large = client.measure([jobs["two"], jobs["large"]])
        assert client.capabilities().threads == 2
    assert small.p50_ms is not None
    assert large.p50_ms is not None
    assert small.p50_ms < large.p50_ms


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--provider", "GPU"], "--provider: got GPU; backend 'executorch' runs on: cpu"),
        (["--precision", "bf16"], "--precision: got bf16; backend 'executorch' runs models as they are: fp32"),
    ],
)
def test_an_option_that_executorch_has_not_is_one_line(options: list[str], line: str) -> None:
    with pytest.raises(AgentError, match=line), local_agent("executorch", options=options):
        pass


def test_faults_stay_with_the_model_that_has_them(agent: AgentClient, jobs: Mapping[str, ModelJob]) -> None:
    good = jobs["two"]
    content = good.files[0]
    bad = {
        "cut": replace(good, key="cut", files=(content[: len(content) // 2],)),
        "foreign": replace(good, key="foreign", files=(b"no program" * 50,)),
        "one input": replace(good, key="one input", input_names=("in0", "in1"), input_shapes=(SHAPE, SHAPE)),
        "another size": replace(good, key="another size", input_shapes=((1, 3, 8, 8),)),
    }
    reasons = {
        "cut": "ExecuTorch cannot load the model",
        "foreign": "ExecuTorch cannot load the model",
        "one input": "the program has 1 inputs and 2 outputs; the job states 2 and 2",
        "another size": "ExecuTorch cannot take the inputs of the model",
    }
    results = list(agent.measure(job for model in bad.values() for job in (model, good)))
    for found, reason in zip(results[::2], reasons.values(), strict=True):
        assert found.state == "failed"
        assert reason in (found.reason or "")
    assert [found.state for found in results[1::2]] == ["ok"] * len(bad)


def test_a_trace_that_is_none_is_an_error_of_the_model() -> None:
    with pytest.raises(ModelError, match="ExecuTorch's trace cannot be read"):
        time_layers([b"\xff" * 64])
