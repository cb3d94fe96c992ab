"""Engines: a client's choices of a runtime's options reach the runtime, are refused in one line, and part measurements."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from pydantic import ValidationError

from profiling_agents.backends.base import RuntimeOptions
from profiling_agents.backends.onnxruntime import CPU, OnnxRuntimeBackend, engine_options
from profiling_agents.client import AgentClient, AgentError, MeasureSettings, ModelJob, local_agent
from profiling_agents.messages import DEFAULT_ENGINE, Engine, EngineOption
from tests.support.agents import agent_models as models

SHAPE = (1, 16, 12, 12)
LAYERS = MeasureSettings(warmup_ms=1.0, time_cap_ms=5.0, layers_ms=5.0, patience=0.0)
QUICK = LAYERS.model_copy(update={"layers_ms": 0.0})
TOLERANCE = 1e-5
OPTIONS = (
    EngineOption(name="graph", choices=("all", "basic"), default="all", does="Optimises."),
    EngineOption(name="order", choices=("default", "priority"), default="default", does="Orders."),
)
ENGINES = st.builds(
    lambda graph, order: Engine(choices={"graph": graph, "order": order}),
    st.sampled_from(OPTIONS[0].choices),
    st.sampled_from(OPTIONS[1].choices),
)


def activated_convolution() -> ModelJob:
    """A convolution of 16 channels with a ReLU behind it."""
    weights, biases = models.convolution_weights(16, 16)
    nodes = [
        helper.make_node("Conv", ["in0", "w", "b"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["out0"], "relu"),
    ]
    return models.onnx_job("conv", nodes, {"w": weights, "b": biases}, SHAPE)


def kinds(client: AgentClient) -> list[str]:
    """Kinds of the layers that run for `activated_convolution`."""
    (found,) = client.measure([activated_convolution()], LAYERS)
    assert found.state == "ok", found.reason
    return [layer.kind for layer in found.layers]


def test_the_graph_level_reaches_onnxruntime(onnxruntime_agent: AgentClient) -> None:
    blocked = kinds(onnxruntime_agent)
    fused = kinds(onnxruntime_agent.with_engine(Engine(choices={"graph": "extended"})))
    plain = kinds(onnxruntime_agent.with_engine(Engine(choices={"graph": "basic"})))
    assert "ReorderInput" in blocked
    assert fused == ["FusedConv"]
    assert plain == ["Conv", "Relu"]


@pytest.mark.parametrize("choices", [{"winograd": "off"}, {"winograd": "23"}, {"winograd": "off", "sgemm": "off"}])
def test_options_of_ncnn_change_how_it_adds_up_and_not_what(ncnn_agent: AgentClient, choices: dict[str, str]) -> None:
    job = models.convolution("ncnn", "conv", channels_in=16, channels_out=16, size=12)
    x = np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32)
    (default,) = ncnn_agent.run(job, [x])
    (chosen,) = ncnn_agent.with_engine(Engine(choices=choices)).run(job, [x])
    assert not np.array_equal(default, chosen), "other kernels round otherwise"
    assert np.abs(default - chosen).max() <= TOLERANCE * np.abs(default).max()


@pytest.mark.few("ncnn")
@pytest.mark.parametrize("backend", ["ncnn", "onnxruntime", "openvino", "torch"])
def test_every_choice_of_every_option_gives_equal_outputs(backend: str) -> None:
    job = models.convolution(backend, "conv", channels_in=16, channels_out=16, size=12)
    x = np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32)
    with local_agent(backend, threads=2) as client, client.lease():
        (default,) = client.run(job, [x])
        tried = [(one.name, choice) for one in client.capabilities().engine_options for choice in one.choices]
        for option, choice in tried:
            engine = Engine(choices={option: choice})
            (output,) = client.run(replace(job, engine=engine), [x])
            assert np.abs(output - default).max() <= TOLERANCE * np.abs(default).max(), (option, choice)
    assert len(tried) >= 4


def test_an_unknown_choice_is_one_line(onnxruntime_agent: AgentClient) -> None:
    with pytest.raises(AgentError, match=r"^runtime option 'graph': got 'fast'; allowed: all, extended, basic$"):
        onnxruntime_agent.with_engine(Engine(choices={"graph": "fast"})).capabilities()
    with pytest.raises(AgentError, match=r"^no runtime option 'winograd' .*; allowed: graph, order, "):
        list(
            onnxruntime_agent.with_engine(Engine(choices={"winograd": "off"})).measure([activated_convolution()], QUICK)
        )


def test_the_agent_refuses_an_unknown_choice_of_a_job_and_goes_on(agent: AgentClient, backend: str) -> None:
    job = models.convolution(backend, "conv")
    wrong = replace(job, engine=Engine(choices={"speed": "warp"}))
    refused, fine = agent.measure([wrong, job], QUICK)
    assert refused.state == "failed"
    assert "no runtime option 'speed'" in (refused.reason or "")
    assert fine.state == "ok", fine.reason


def test_other_engines_have_other_fingerprints(agent: AgentClient) -> None:
    own = agent.capabilities()
    option = own.engine_options[0]
    named = agent.with_engine(Engine(choices={option.name: option.default})).capabilities()
    other = agent.with_engine(Engine(choices={option.name: option.choices[-1]})).capabilities()
    assert named == own, "a default that is named is the default"
    assert other.fingerprint != own.fingerprint
    assert other.engine.text == f"{option.name}={option.choices[-1]}"
    assert agent.capabilities() == own


def test_one_thread_has_no_options_of_threads() -> None:
    one = {option.name for option in engine_options(1, CPU)}
    four = {option.name: option for option in engine_options(4, CPU)}
    assert set(four) - one == {"spinning", "threads", "operators_at_once"}
    assert four["operators_at_once"].choices == ("1", "2", "4")
    assert four["threads"].choices == ("4", "2", "1")


THREADS_OF = {
    "ncnn": lambda found: found["num_threads"],
    "onnxruntime": lambda found: found["intra_op_num_threads"] * found["inter_op_num_threads"],
    "openvino": lambda found: found["INFERENCE_NUM_THREADS"],
    "torch": lambda found: found["num_threads"] * found["num_interop_threads"],
}
"""From the settings of a runtime, the threads that compute."""


@pytest.mark.few("1-ncnn", "1-onnxruntime")
@pytest.mark.parametrize("backend", THREADS_OF)
@pytest.mark.parametrize("threads", [1, 2])
def test_no_choice_takes_more_threads_than_the_device_has(backend: str, threads: int) -> None:
    if backend == "openvino":
        pytest.importorskip("openvino")
    with local_agent(backend, threads=threads) as client:
        found = client.capabilities()
    counts = {
        THREADS_OF[backend](Engine(choices=dict(zip(names, choices, strict=True))).applied(found.settings, options))
        for options in [found.engine_options]
        for names in [[one.name for one in options]]
        for choices in product(*(one.choices for one in options))
    }
    assert max(counts) == threads
    assert min(counts) == 1
    assert THREADS_OF[backend](found.settings) == threads, "the default is all of them"


@pytest.mark.parametrize("count", [4, 2, 1])
def test_a_choice_of_threads_reaches_the_runtime(count: int, tmp_path: Path) -> None:
    job = models.convolution("onnxruntime", "conv")
    file = tmp_path / "model.onnx"
    file.write_bytes(job.files[0])
    backend = OnnxRuntimeBackend(RuntimeOptions(backend="onnxruntime", threads=4))
    before = psutil.Process().num_threads()
    model = backend.load([file], job.message(Engine(choices={"threads": str(count)})))
    assert psutil.Process().num_threads() - before == count - 1, "one of them is the caller"
    model.close()


@pytest.mark.parametrize(("default", "sets"), [("fast", {}), ("on", {"fast": {"speed": 2}})])
def test_an_option_names_its_own_choices(default: str, sets: dict[str, dict[str, int]]) -> None:
    with pytest.raises(ValidationError, match="choice 'fast'; allowed: on, off"):
        EngineOption.model_validate(
            {"name": "a", "choices": ["on", "off"], "default": default, "does": "", "sets": sets}
        )


def test_operators_run_side_by_side_with_the_same_outputs() -> None:
    weights, biases = models.convolution_weights(16, 16)
    names = [f"b{number}" for number in range(4)]
    nodes = [helper.make_node("Conv", ["in0", "w", "b"], [name], pads=[1, 1, 1, 1]) for name in names]
    nodes.append(helper.make_node("Sum", names, ["out0"]))
    job = models.onnx_job("branches", nodes, {"w": weights, "b": biases}, SHAPE)
    x = np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32)
    with local_agent("onnxruntime", threads=2) as client:
        (one_by_one,) = client.run(job, [x])
        at_once = client.with_engine(Engine(choices={"operators_at_once": "2", "spinning": "off"}))
        (side_by_side,) = at_once.run(job, [x])
        (found,) = at_once.measure([job], LAYERS)
    assert np.array_equal(one_by_one, side_by_side)
    assert found.state == "ok", found.reason


@given(ENGINES)
def test_equal_engines_have_one_text(engine: Engine) -> None:
    short = engine.without_defaults(OPTIONS)
    assert short.without_defaults(OPTIONS) == short
    assert short.settled(OPTIONS) == engine.settled(OPTIONS)
    assert Engine.model_validate_json(short.model_dump_json()) == short
    assert (short == DEFAULT_ENGINE) == (short.text == "") == (short.fingerprint("a") == "a")
