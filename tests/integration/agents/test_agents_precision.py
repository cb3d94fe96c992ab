"""Precision is part of a device: what is asked for is what computes, or the agent does not start."""

from collections.abc import Iterator

import ncnn
import numpy as np
import pytest

from profiling_agents.backends.ncnn import precision_options
from profiling_agents.client import AgentClient, AgentError, local_agent
from profiling_agents.messages import MeasureSettings, Precision, RuntimeInfo
from profiling_agents.serving.capabilities import fingerprint
from tests.support.agents import agent_models as models

ROUNDING = 2e-2


@pytest.fixture(scope="module", params=["bf16", "fp16", "fp16_storage"])
def low(request: pytest.FixtureRequest, ncnn_agent: AgentClient) -> Iterator[AgentClient]:
    """An ncnn agent in each lower precision that this processor has."""
    if request.param not in ncnn_agent.capabilities().precisions:
        pytest.skip(f"no {request.param} on this processor")
    with local_agent("ncnn", options=["--precision", request.param]) as client:
        assert client.capabilities().precision == request.param
        yield client


def test_outputs_are_those_of_fp32_but_for_rounding(low: AgentClient, ncnn_agent: AgentClient) -> None:
    job = models.convolution("ncnn", "conv", channels_in=16, channels_out=32, size=16, seed=3)
    x = np.random.default_rng(1).standard_normal((1, 16, 16, 16), dtype=np.float32)
    (got,), (exact,) = low.run(job, [x]), ncnn_agent.run(job, [x])
    difference = np.abs(got - exact).max() / np.abs(exact).max()
    assert 1e-5 < difference < ROUNDING
    (result,) = low.measure([job])
    assert result.state == "ok"


def test_precision_is_part_of_the_fingerprint(low: AgentClient, ncnn_agent: AgentClient) -> None:
    assert low.capabilities().precisions == ncnn_agent.capabilities().precisions
    assert low.capabilities().fingerprint != ncnn_agent.capabilities().fingerprint


@pytest.mark.long
def test_a_precision_that_the_processor_has_not_is_refused_and_never_fp32(ncnn_agent: AgentClient) -> None:
    found = ncnn_agent.capabilities()
    assert found.precision == found.precisions[0] == "fp32"
    missing = {"bf16", "fp16", "fp16_storage"}.difference(found.precisions)
    for precision in missing:
        allowed = ", ".join(found.precisions)
        line = (
            rf"--precision: got {precision}, which ncnn .* does not compute in on this processor.*allowed: {allowed}$"
        )
        with pytest.raises(AgentError, match=line), local_agent("ncnn", options=["--precision", precision]):
            pass
    if found.machine == "x86_64":
        assert {"fp16", "fp16_storage"} <= missing


@pytest.mark.parametrize(("storage", "arithmetic"), [("fp16", True), ("fp16_storage", False)])
def test_storage_and_arithmetic_are_chosen_apart(storage: Precision, *, arithmetic: bool) -> None:
    options = ncnn.Option()
    for name, value in precision_options(storage).items():
        setattr(options, name, value)
    assert options.use_fp16_storage
    assert options.use_fp16_packed
    assert not options.use_bf16_storage
    assert options.use_fp16_arithmetic == arithmetic


def test_onnxruntime_runs_models_as_they_are() -> None:
    line = "--precision: got bf16; backend 'onnxruntime' runs models as they are: fp32, int8"
    with pytest.raises(AgentError, match=line), local_agent("onnxruntime", options=["--precision", "bf16"]):
        pass


@pytest.mark.long
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_quantised_models_run_in_int8_on_a_device_of_its_own(backend: str) -> None:
    with local_agent(backend) as client:
        exact = client.capabilities()
        if "int8" not in exact.precisions:
            pytest.skip("no int8 on this processor")
    with local_agent(backend, options=["--precision", "int8"]) as client:
        found = client.capabilities()
        job = models.quantised_convolution()
        x = np.random.default_rng(1).standard_normal(job.input_shapes[0], dtype=np.float32)
        (output,) = client.run(job, [x])
        (timed,) = client.measure([job], MeasureSettings(time_cap_ms=20.0, layers_ms=10.0))
    assert (found.precision, found.precisions) == ("int8", exact.precisions)
    assert found.fingerprint != exact.fingerprint
    reference = models.convolution_reference(x, *models.convolution_weights(16, 32))
    difference = np.abs(output - reference).max() / np.abs(reference).max()
    assert 1e-3 < difference < 0.1
    assert "Conv" not in {layer.kind for layer in timed.layers}, "onnxruntime's word for fp32"


def test_tables_from_before_int8_was_looked_for_stay_valid() -> None:
    before = RuntimeInfo(backend="onnxruntime", version="1", build="b", formats=("onnx",), precisions=("fp32",))
    now = before.model_copy(update={"precisions": ("fp32", "int8")})
    in_int8 = now.model_copy(update={"precision": "int8"})
    prints = [fingerprint(one, (0,), 1, pinned=True) for one in (before, now, in_int8)]
    assert prints[0] == prints[1] != prints[2]


def test_ncnn_has_no_files_in_int8() -> None:
    line = "--precision: got int8, which ncnn .* does not compute in on this processor .*; allowed: fp32"
    with pytest.raises(AgentError, match=line), local_agent("ncnn", options=["--precision", "int8"]):
        pass
