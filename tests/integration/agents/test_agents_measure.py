"""Measuring and running real models on real agents of both backends."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import psutil
import pytest
from onnx import helper

from profiling_agents.client import AgentClient, AgentError, ModelJob, local_agent
from tests.support.agents import agent_models as models

RUN_TOLERANCE = 1e-5


def test_measures_a_batch_in_order_with_plausible_times(agent: AgentClient, backend: str) -> None:
    small = [models.convolution(backend, f"small{index}", channels_out=4 + index) for index in range(20)]
    large = models.convolution(backend, "large", channels_in=32, channels_out=64, size=56)
    results = list(agent.measure([*small, large]))
    assert [result.key for result in results] == [job.key for job in (*small, large)]
    assert {result.state for result in results} == {"ok"}
    p50s_ms = []
    for result in results:
        assert result.p50_ms is not None
        assert result.p90_ms is not None
        assert 0.0005 < result.p50_ms <= result.p90_ms < 50
        p50s_ms.append(result.p50_ms)
    assert all(result.n >= 5 and result.repeats >= 1 for result in results)
    assert p50s_ms[-1] > 5 * p50s_ms[0]
    assert results[0].repeats > 5


def test_results_stream_while_later_jobs_are_not_made_yet(agent: AgentClient, backend: str) -> None:
    made: list[str] = []

    def jobs() -> Iterator[ModelJob]:
        for index in range(40):
            made.append(f"{index}")
            yield models.convolution(backend, f"{index}")

    stream = agent.measure(jobs())
    first = next(stream)
    assert first.key == "0"
    assert len(made) < 40
    stream.close()


def test_outputs_equal_the_reference(agent: AgentClient, backend: str) -> None:
    job = models.convolution(backend, "conv", channels_in=5, channels_out=9, size=7, seed=3)
    x = np.random.default_rng(1).standard_normal((1, 5, 7, 7), dtype=np.float32)
    (output,) = agent.run(job, [x])
    reference = models.convolution_reference(x, *models.convolution_weights(5, 9, seed=3))
    assert output.shape == (1, 9, 7, 7)
    assert np.abs(output - reference).max() <= RUN_TOLERANCE * np.abs(reference).max()


def test_models_of_two_inputs_run_and_are_measured(agent: AgentClient, backend: str) -> None:
    job = models.addition(backend, "add")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((1, 4, 5, 6), dtype=np.float32) for _ in range(2))
    (output,) = agent.run(job, [a, b])
    np.testing.assert_allclose(output, a + b, rtol=RUN_TOLERANCE)
    (result,) = agent.measure([job])
    assert result.state == "ok"


def test_output_shapes_of_the_job_are_restored(ncnn_agent: AgentClient) -> None:
    job = replace(models.addition("ncnn", "add"), output_shapes=((1, 4, 30),))
    x = np.ones((1, 4, 5, 6), np.float32)
    assert ncnn_agent.run(job, [x, x])[0].shape == (1, 4, 30)
    wrong = replace(job, output_shapes=((1, 4, 31),))
    with pytest.raises(AgentError, match=r"output 'out0': the runtime gives shape .*the job states"):
        ncnn_agent.run(wrong, [x, x])


def test_inputs_of_another_shape_than_stated_are_refused(agent: AgentClient, backend: str) -> None:
    with pytest.raises(AgentError, match="job 'add': inputs in0, in1: got shapes"):
        agent.run(models.addition(backend, "add"), [np.ones((1, 4, 5, 6), np.float32)] * 1)


def test_ncnn_refuses_batches_and_other_formats_with_a_reason(ncnn_agent: AgentClient) -> None:
    batch = replace(models.convolution("ncnn", "batch"), input_shapes=((2, 3, 8, 8),))
    foreign = models.convolution("onnxruntime", "foreign")
    results = list(ncnn_agent.measure([batch, foreign, models.convolution("ncnn", "good")]))
    assert [result.state for result in results] == ["failed", "failed", "ok"]
    assert results[0].reason is not None
    assert results[1].reason is not None
    assert "batch 1" in results[0].reason
    assert "takes ncnn" in results[1].reason


def corrupt_models(backend: str) -> list[ModelJob]:
    good = models.convolution(backend, "good")
    if backend == "onnxruntime":
        return [
            replace(good, key="garbage", files=(b"not a model",)),
            replace(good, key="truncated", files=(good.files[0][:-40],)),
            models.onnx_job("unknown", [helper.make_node("Nonsense", ["in0"], ["out0"])], {}, (1, 4)),
            replace(good, key="names", output_names=("elsewhere",)),
        ]
    param, weights = good.files
    return [
        replace(good, key="garbage", files=(b"not a model", weights)),
        replace(good, key="truncated", files=(param, weights[:-40])),
        models.ncnn_job("unknown", ["Input in0 0 1 in0", "Nonsense x 1 1 in0 out0"], 2, b"", (1, 4)),
        replace(good, key="names", output_names=("elsewhere",)),
    ]


def test_a_corrupt_model_fails_with_its_reason_and_the_next_one_succeeds(agent: AgentClient, backend: str) -> None:
    bad = corrupt_models(backend)
    good = models.convolution(backend, "good")
    jobs = [job for model in bad for job in (model, good)]
    results = list(agent.measure(jobs))
    assert [result.state for result in results] == ["failed", "ok"] * len(bad)
    failures = results[::2]
    assert all(result.reason and result.p50_ms is None and result.n == 0 for result in failures)
    assert failures[2].reason is not None
    assert failures[3].reason is not None
    assert "Nonsense" in failures[2].reason
    assert "elsewhere" in failures[3].reason


def test_a_memory_bomb_hits_the_limit_alone(small_agents: dict[str, AgentClient], backend: str) -> None:
    jobs = [
        models.convolution(backend, "before"),
        models.memory_bomb(backend, "bomb"),
        models.convolution(backend, "after"),
    ]
    results = list(small_agents[backend].measure(jobs))
    assert [result.state for result in results] == ["ok", "failed", "ok"]
    assert results[1].reason is not None
    assert results[1].reason.startswith("memory limit: needs more than 1024 MiB")


def test_a_hang_hits_the_wall_limit_alone(small_agents: dict[str, AgentClient], backend: str) -> None:
    jobs = [models.endless(backend, "endless"), models.convolution(backend, "after")]
    results = list(small_agents[backend].measure(jobs))
    assert [result.state for result in results] == ["failed", "ok"]
    assert results[0].reason == "wall-clock limit: not finished after 6 s"


@pytest.mark.long
def test_cpu_time_has_a_limit_of_its_own() -> None:
    with local_agent("onnxruntime", options=["--cpu-limit-s", "1", "--wall-limit-s", "120"]) as client:
        jobs = [models.endless("onnxruntime", "endless"), models.convolution("onnxruntime", "after")]
        results = list(client.measure(jobs))
    assert [result.state for result in results] == ["failed", "ok"]
    assert results[0].reason == "CPU limit: not finished after 1 s of CPU time"


def test_the_service_survives_the_death_of_its_child() -> None:
    with local_agent("ncnn") as client, client.lease():
        (before,) = client.measure([models.convolution("ncnn", "before")])
        (service,) = [
            one
            for one in psutil.Process().children()
            if "profiling_agents" in one.cmdline()
            and client.url.rpartition(":")[2] in {str(c.laddr.port) for c in one.net_connections()}
        ]
        (child,) = service.children()
        child.kill()
        (after,) = client.measure([models.convolution("ncnn", "after")])
        assert (before.state, after.state) == ("ok", "ok")
        assert [one.pid for one in service.children()] != [child.pid]


@pytest.mark.long
def test_files_that_the_store_had_to_drop_are_sent_again() -> None:
    with local_agent("ncnn", options=["--max-model-mib", "1"]) as client, client.lease():
        jobs = [
            models.convolution("ncnn", f"{seed}", channels_in=100, channels_out=250, size=2, seed=seed)
            for seed in range(6)
        ]
        for _ in range(2):
            results = list(client.measure(jobs))
            assert [result.state for result in results] == ["ok"] * len(jobs)
        too_large = models.convolution("ncnn", "large", channels_in=300, channels_out=300, size=2)
        (refused,) = client.measure([too_large])
        assert refused.reason == "model larger than 1 MiB, the agent's --max-model-mib"


def test_capabilities_name_what_a_measurement_depends_on(agent: AgentClient, backend: str) -> None:
    found = agent.capabilities()
    assert found.backend == backend
    assert found.formats == (("ncnn",) if backend == "ncnn" else ("onnx",))
    assert found.version
    assert len(found.build) >= 16
    assert found.threads == len(found.cores) == 1
    assert found.memory_mib > 256
    assert len(found.fingerprint) == 64


def test_fingerprints_tell_devices_apart(ncnn_agent: AgentClient, onnxruntime_agent: AgentClient) -> None:
    assert ncnn_agent.capabilities().fingerprint != onnxruntime_agent.capabilities().fingerprint
    with local_agent("ncnn") as again:
        assert again.capabilities().fingerprint == ncnn_agent.capabilities().fingerprint


def test_an_operator_without_inputs_is_measured(agent: AgentClient, backend: str) -> None:
    if backend == "ncnn":
        job = models.ncnn_job("constant", ["MemoryData constant 0 1 out0 0=4 1=3"], 1, bytes(4 * 12))
    else:
        node = helper.make_node("Expand", ["value", "shape"], ["out0"])
        values: dict[str, np.ndarray] = {"value": np.ones((1, 1, 4), np.float32), "shape": np.array([1, 3, 4])}
        job = models.onnx_job("constant", [node], values)
    (found,) = agent.measure([job])
    assert found.state == "ok", found.reason
    assert found.p50_ms is not None
