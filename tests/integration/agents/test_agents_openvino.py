"""The openvino backend on a real agent: agreement with the reference, precisions, threads, layers, faults, no telemetry."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from profiling_agents.backends.openvino import mean_times_us, times_of_runs_us
from profiling_agents.client import AgentClient, AgentError, MeasureSettings, local_agent
from profiling_agents.messages import Precision
from tests.support import examples
from tests.support.agents import agent_models as models
from tests.support.hidden_modules import hide

pytestmark = pytest.mark.long

RUN_TOLERANCE = 1e-5
ROUNDING = 2e-2
LAYERS = MeasureSettings(warmup_ms=2.0, time_cap_ms=20.0, layers_ms=30.0)


@pytest.fixture(scope="module")
def openvino_agent() -> Iterator[AgentClient]:
    with local_agent("openvino", options=["--memory-limit-mib", "1024", "--wall-limit-s", "6"]) as client:
        yield client


def test_outputs_equal_the_reference_in_fp32_whatever_the_processor_has(openvino_agent: AgentClient) -> None:
    assert models.convolution_error(openvino_agent, "openvino", 16, 32, 16) <= RUN_TOLERANCE


def test_inputs_go_by_name_and_outputs_come_in_the_order_of_the_job(openvino_agent: AgentClient) -> None:
    inputs = [np.full((1, 4), 2.0, np.float32), np.full((1, 4), 5.0, np.float32)]
    product, difference = openvino_agent.run(models.product_and_difference(), inputs)
    assert (product == 10.0).all()
    assert (difference == 3.0).all()


def test_a_file_with_an_open_batch_takes_the_batch_of_the_job(openvino_agent: AgentClient) -> None:
    job = models.convolution("openvino", "conv")
    model = onnx.load_model_from_string(job.files[0])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    content = model.SerializeToString()
    x = np.random.default_rng(1).standard_normal((4, 3, 8, 8), dtype=np.float32)
    (output,) = openvino_agent.run(replace(job, files=(content,), input_shapes=((4, 3, 8, 8),)), [x])
    reference = models.convolution_reference(x, *models.convolution_weights(3, 8))
    assert np.abs(output - reference).max() <= RUN_TOLERANCE * np.abs(reference).max()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_outputs_of_a_lower_precision_differ_by_rounding(openvino_agent: AgentClient, precision: Precision) -> None:
    if precision not in openvino_agent.capabilities().precisions:
        pytest.skip(f"no {precision} on this processor")
    job = models.convolution("openvino", "conv", channels_in=16, channels_out=32, size=16, seed=3)
    x = np.random.default_rng(1).standard_normal((1, 16, 16, 16), dtype=np.float32)
    with local_agent("openvino", options=["--precision", precision]) as low:
        assert low.capabilities().precision == precision
        assert low.capabilities().fingerprint != openvino_agent.capabilities().fingerprint
        (rounded,), (exact,) = low.run(job, [x]), openvino_agent.run(job, [x])
        (timed,) = low.measure([job])
    assert 1e-5 < np.abs(rounded - exact).max() / np.abs(exact).max() < ROUNDING
    assert timed.state == "ok"


def test_the_device_says_what_computes(openvino_agent: AgentClient) -> None:
    found = openvino_agent.capabilities()
    assert (found.backend, found.provider, found.accelerator, found.precision) == ("openvino", "cpu", None, "fp32")
    assert found.formats == ("onnx",)
    assert found.precisions[0] == "fp32"
    assert found.version in found.build
    assert found.walls.missing == ()


@pytest.mark.few("options1-line1")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--provider", "GPU"], "--provider: got GPU; backend 'openvino' runs on: cpu"),
        (
            ["--precision", "fp16_storage"],
            r"--precision: got fp16_storage, which OpenVINO 20[\d.]+ does not compute in on this processor; allowed: fp32",
        ),
    ],
)
def test_an_option_that_openvino_has_not_is_one_line(options: list[str], line: str) -> None:
    with pytest.raises(AgentError, match=line), local_agent("openvino", options=options):
        pass


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_two_threads_compute_on_the_two_cores_of_the_agent() -> None:
    job = models.convolution("openvino", "conv", channels_in=32, channels_out=32, size=32)
    with local_agent("openvino", threads=2) as client:
        assert len(client.capabilities().cores) == client.capabilities().threads == 2
        (timed,) = client.measure([job], LAYERS)
    assert timed.state == "ok"


def test_times_grow_with_the_model(openvino_agent: AgentClient) -> None:
    small = models.convolution("openvino", "small")
    large = models.convolution("openvino", "large", channels_in=32, channels_out=64, size=56)
    first, second = openvino_agent.measure([small, large])
    assert (first.state, second.state) == ("ok", "ok")
    assert first.p50_ms is not None
    assert second.p50_ms is not None
    assert 0.001 < first.p50_ms < second.p50_ms / 5


def test_layers_that_a_node_becomes_have_its_name_in_the_file(openvino_agent: AgentClient) -> None:
    weights, biases = models.convolution_weights(16, 16)
    scale = np.linspace(0.5, 1.5, 32, dtype=np.float32)
    nodes = [
        helper.make_node("Conv", ["in0", "w", "b"], ["first out"], "a first one; (1)", pads=[1, 1, 1, 1]),
        helper.make_node("LayerNormalization", ["first out", "s", "s"], ["normed"], "the norm"),
        helper.make_node("Conv", ["normed", "w", "b"], ["second out"], "and another", pads=[1, 1, 1, 1]),
        helper.make_node("Erf", ["second out"], ["out0"], "last"),
    ]
    job = models.onnx_job("named", nodes, {"w": weights, "b": biases, "s": scale}, (1, 16, 32, 32))
    (found,) = openvino_agent.measure([job], LAYERS)
    assert found.state == "ok", found.reason
    assert all(layer.time_ms > 0 for layer in found.layers)
    known = ("a first one; (1)", "the norm", "and another", "last", "out0", "first out", "normed", "second out")
    assert [layer.name for layer in found.layers if not layer.name.startswith(known)] == []
    convolutions = [layer for layer in found.layers if layer.kind == "Convolution"]
    assert [layer.name.split("/")[0] for layer in convolutions] == ["a first one; (1)", "and another"]
    assert any(layer.name.startswith("the norm") for layer in found.layers)


@settings(max_examples=examples(200), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), usual_us=st.floats(0.0, 3_000.0), runs=st.integers(20, 300), often=st.floats(0, 0.2)
)
def test_layer_times_come_out_of_rounded_means_of_runs_some_of_which_were_interrupted(
    seed: int, usual_us: float, runs: int, often: float
) -> None:
    rng = np.random.default_rng(seed)
    undisturbed_us = usual_us * rng.normal(1.0, 0.03, size=runs).clip(0.8, 1.2)
    interruptions_us = np.where(rng.random(runs) < often, rng.uniform(4_000, 9_000, runs), 0.0)
    assume(np.count_nonzero(interruptions_us) < 0.4 * runs)  # most runs tell what is usual
    sums_us = np.floor(undisturbed_us + interruptions_us).cumsum()
    counters_us = (sums_us // np.arange(1, runs + 1)).astype(np.int64)[:, np.newaxis]
    (found_us,) = mean_times_us(*times_of_runs_us(counters_us))
    cuts = 1 + np.count_nonzero(interruptions_us)
    assert abs(found_us - undisturbed_us.mean()) <= 1.0 + 1.5 * np.sqrt(cuts) + 0.02 * usual_us


def test_faults_stay_with_the_model_that_has_them(openvino_agent: AgentClient) -> None:
    good = models.convolution("openvino", "good")
    external = onnx.load_model_from_string(good.files[0])
    external.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    bad = {
        "not an ONNX model": replace(good, key="garbage", files=(b"not a model",)),
        "external data": replace(good, key="external", files=(external.SerializeToString(),)),
        "elsewhere": replace(good, key="names", output_names=("elsewhere",)),
        "Nonsense": models.onnx_job("unknown", [helper.make_node("Nonsense", ["in0"], ["out0"])], {}, (1, 4)),
        "wall-clock limit: not finished after 6 s": models.endless("openvino", "loop"),
        "memory limit: needs more than 1024 MiB": models.memory_bomb("openvino", "bomb"),
    }
    results = list(openvino_agent.measure(job for model in bad.values() for job in (model, good)))
    assert [result.state for result in results] == ["failed", "ok"] * len(bad)
    for reason, result in zip(bad, results[::2], strict=True):
        assert reason in (result.reason or "")
        assert result.p50_ms is None


def test_nothing_is_reported_to_the_maker_of_openvino() -> None:
    assert version("openvino-telemetry"), "it comes with OpenVINO, and is what must not run"
    script = """
import sys
sys.addaudithook(lambda event, _: print(event) if event.startswith(("socket.", "urllib.", "http.")) else None)
from profiling_agents.backends import open_backend
from profiling_agents.backends.base import RuntimeOptions
open_backend(RuntimeOptions(backend="openvino", threads=1)).describe()
print(sys.modules["openvino"].__name__, sys.modules["openvino_telemetry"])
print([name for name in sys.modules if name.startswith("openvino_telemetry.")])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["openvino None", "[]"]


@pytest.mark.long
def test_without_the_extra_the_agent_ends_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("openvino", tmp_path, monkeypatch)
    command = [sys.executable, "-m", "profiling_agents", "--backend", "openvino", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert (
        "backend 'openvino': No module named 'openvino'; install it in the clone with: pip install -e '.[openvino]'"
        in line
    )
    assert "on a bare device: pip install onnx openvino" in line
