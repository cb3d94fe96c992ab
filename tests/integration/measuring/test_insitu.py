"""Operators timed inside whole SubNets: every operator is in one, each layer belongs to an operator, and nothing twice."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st

import tailor_ir
from profiling_agents.backends.base import LEAST_RUNS
from profiling_agents.client import AgentClient, ModelJob, local_agent
from profiling_agents.messages import LAYER_RUNS, MeasureSettings
from tasks.base.artifacts import read_lines
from tasks.base.progress import Bar, Silent
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.ncnn.conversion import ConversionLimits, convert, convert_operators
from tasks.evaluation.ncnn.files import NcnnFiles
from tasks.evaluation.quantise.qdq import int8_operator, int8_to_time
from tasks.measuring import in_network as insitu
from tasks.measuring import operators as enumerate_stage
from tasks.measuring import profile
from tasks.measuring.in_network import MeasuredLine, OperatorTimes, layer_overhead_ms, without_overhead
from tasks.measuring.jobs import ncnn_job, onnx_job
from tasks.measuring.networks import WholeSubNet, ncnn_subnet, onnx_subnet
from tasks.measuring.operators import ENOUGH_SUBNETS, ENOUGH_TIMES, covering_codes
from tasks.measuring.profile import plan
from tasks.measuring.settings import FEWEST_TIMES, enough_times
from tasks.prediction.latency import UNCORRECTED, subnet_ms
from tests.support.ir.networks import perturb

SUBNET = MeasureSettings(warmup_ms=2.0, min_blocks=2, time_cap_ms=30.0, layers_ms=20.0, patience=0.0)
SETTINGS = profile.Settings(subnet=SUBNET, subnets_per_operator=4, flush_s=0.05)
FACTOR = 3.0  # between timings of tiny networks on a shared machine; how well they agree is benchmarks/latency.py's
MORE_PROFILES = 3  # where others compute, a SubNet waits for its own threads, which is no operator's time
INT8_FACTOR = 5.0  # what is between operators takes most of the time of a tiny network in int8
NAMES = ("test_resnet", "test_efficientnet", "test_vit", "test_convnext")


REPLACED = "test_resnet with alternatives"


@cache
def compiled(name: str) -> tailor_ir.SuperNet:
    torch.manual_seed(0)
    model = perturb(timm.create_model(name.removesuffix(" with alternatives")))
    assert isinstance(model.pretrained_cfg, dict)
    sizes = {"alternatives": "auto", "*.width_mult": "auto"} if name == REPLACED else None
    return tailor_ir.compile(model, torch.randn(1, *model.pretrained_cfg["input_size"]), sizes)


def whole(net: tailor_ir.SuperNet, config: tailor_ir.Config, client: AgentClient) -> WholeSubNet:
    device = client.capabilities()
    if device.backend != "ncnn":
        return onnx_subnet(net, "whole", config, device.precision)
    features = list(dict.fromkeys(net.operators(config)))
    converted = convert_operators([tailor_ir.operator_model(feature) for feature in features], ConversionLimits())
    files = [one for one in converted if isinstance(one, NcnnFiles)]
    assert len(files) == len(converted), converted
    return ncnn_subnet(net, "whole", config, dict(zip(features, files, strict=True)))


@pytest.fixture(scope="module")
def operators(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operators")
    enumerate_stage.run(supernet, folder, Silent())
    return folder


@pytest.mark.few("test_resnet", "test_efficientnet")
@pytest.mark.parametrize("name", [*NAMES, REPLACED])
def test_covering_subnets_have_every_operator_and_each_brings_a_new_one(name: str) -> None:
    net = compiled(name)
    wanted = set(net.unique_operators())
    codes = covering_codes(net, wanted, np.random.default_rng(0))
    assert len(np.unique(codes, axis=0)) == len(codes)
    seen: Counter[tailor_ir.OperatorFeature] = Counter()
    for code in codes:
        own = set(net.operators(net.space.decode(code)))
        assert own & {feature for feature in wanted if seen[feature] < ENOUGH_TIMES}
        seen.update(own)
    assert all(seen[feature] for feature in wanted)
    assert len(codes) < max(ENOUGH_SUBNETS, len(wanted) / 3) + 1
    rng = np.random.default_rng(0)
    frequent = Counter(f for _ in range(200) for f in set(net.operators(net.space.sample(rng))))
    assert all(seen[feature] >= 3 for feature in wanted if frequent[feature] >= 20)
    few = set(list(wanted)[:3])
    assert len(covering_codes(net, few, np.random.default_rng(0))) <= 3 * ENOUGH_TIMES


def test_fewer_subnets_have_all_operators_where_each_is_wanted_in_fewer() -> None:
    net = compiled("test_resnet")
    wanted = set(net.unique_operators())
    few, many = (covering_codes(net, wanted, np.random.default_rng(0), times) for times in (2, ENOUGH_TIMES))
    assert 2 < len(few) < len(many)
    seen = Counter(feature for code in few for feature in set(net.operators(net.space.decode(code))))
    assert seen.keys() == wanted
    assert np.median(list(seen.values())) < ENOUGH_TIMES


@given(run_ms=st.floats(0, 1e4), longer_ms=st.floats(0, 1e4), most=st.integers(1, 1000))
def test_operators_of_longer_subnets_are_timed_in_fewer_but_for_as_long(
    run_ms: float, longer_ms: float, most: int
) -> None:
    times = enough_times(SUBNET, run_ms, most)
    assert min(most, FEWEST_TIMES) <= enough_times(SUBNET, run_ms + longer_ms, most) <= times <= most
    assert times * max(SUBNET.layers_ms, LAYER_RUNS * run_ms) >= most * SUBNET.layers_ms * (1 - 1e-9)
    assert LAYER_RUNS == LEAST_RUNS


@pytest.mark.long
def test_a_network_that_runs_for_long_is_profiled_in_the_first_of_the_subnets_of_a_short_one(tmp_path: Path) -> None:
    net = compiled("test_resnet")
    todo = {feature.digest: feature for feature in net.unique_operators()}
    covers = [
        [net.space.decode(code) for code in covering_codes(net, set(todo.values()), np.random.default_rng(0), times)]
        for times in (1, FEWEST_TIMES, ENOUGH_TIMES)
    ]
    assert covers[0] == covers[1][: len(covers[0])]
    assert covers[1] == covers[2][: len(covers[1])]
    brief = SUBNET.model_copy(update={"layers_ms": 1e-3, "time_cap_ms": 4.0})  # any run is long beside it
    with one_agent("onnxruntime", "fp32") as client, client.lease():
        bench = insitu.Bench(client, brief, "", SETTINGS.limits, tmp_path / "lines", Silent())
        entries, _ = insitu.entries(net, todo, bench)
    assert [line["config"] for line in read_lines(tmp_path / "lines")] == covers[1]
    assert {entry.digest for entry in entries} == todo.keys()
    assert {entry.state for entry in entries} <= {"ok", "fused"}


def timed(state: Literal["ok", "failed"], operators: OperatorTimes, p50_ms: float | None) -> MeasuredLine:
    """A SubNet of which only times are known."""
    return {
        "key": "",
        "state": state,
        "reason": None,
        "p50_ms": p50_ms,
        "spread": None,
        "noisy": False,
        "config": {},
        "implementations": {},
        "checks": False,
        "operators": operators,
    }


def test_what_timing_adds_to_each_layer_is_found_from_the_subnets_as_a_whole() -> None:
    rng = np.random.default_rng(0)
    added_ms = 0.004
    lines: list[MeasuredLine] = []
    for number in range(30):
        layers = rng.integers(1, 9, size=int(rng.integers(5, 40))).tolist()
        own_ms = rng.exponential(0.02, size=len(layers)) * layers
        slower = rng.normal(1, 0.02) + 0.2 * (number % 6 == 0)  # also than the sum of its layers
        operators = [
            (str(i), float(ms + added_ms * n), n) for i, (ms, n) in enumerate(zip(own_ms, layers, strict=True))
        ]
        lines.append(timed("ok", operators, float(own_ms.sum() * slower)))
    lines.append(timed("failed", [], None))
    found_ms = layer_overhead_ms(lines)
    assert found_ms == pytest.approx(added_ms, rel=0.2)
    without = without_overhead(lines[0]["operators"], added_ms)
    assert sum(ms for _, ms in without) == pytest.approx(
        sum(ms - added_ms * layers for _, ms, layers in lines[0]["operators"]), rel=1e-6
    )
    assert without_overhead([("a", 0.005, 3), ("b", 0.0, 0)], added_ms) == [("a", pytest.approx(0.0005)), ("b", 0.0)]
    assert layer_overhead_ms(lines[:4]) == 0.0
    assert layer_overhead_ms([lines[1]] * 9) == 0.0
    assert layer_overhead_ms([]) == 0.0


IN_INT8 = (("onnxruntime", "int8"), ("openvino", "int8"))


@pytest.fixture(
    scope="module",
    params=[*((name, "fp32") for name in ("ncnn", "onnxruntime", "openvino", "torch")), *IN_INT8],
    ids="-".join,
)
def agent(request: pytest.FixtureRequest) -> Iterator[AgentClient]:
    """An agent that drives a backend in a precision."""
    with one_agent(*request.param) as client:
        yield client


@contextmanager
def one_agent(backend: str, precision: str) -> Iterator[AgentClient]:
    if precision != "fp32":
        with local_agent(backend) as client:
            if precision not in client.capabilities().precisions:
                pytest.skip(f"no {precision} on this processor")
    with local_agent(backend, options=["--precision", precision]) as client:
        yield client


@pytest.mark.long_cases(
    "ncnn-fp32-test_resnet",
    "ncnn-fp32-test_efficientnet",
    "ncnn-fp32-test_vit",
    "ncnn-fp32-test_convnext",
    "onnxruntime-int8-test_efficientnet",
    "onnxruntime-int8-test_convnext",
)
@pytest.mark.parametrize("name", [*NAMES, REPLACED])
def test_every_layer_of_a_subnet_belongs_to_an_operator(name: str, agent: AgentClient) -> None:
    net = compiled(name)
    config = net.space.sample(np.random.default_rng(3))
    subnet = whole(net, config, agent)
    (measured,) = agent.measure([subnet.job], SUBNET)
    (real,) = agent.measure([job(net, config, agent)], SUBNET.model_copy(update={"layers_ms": 0.0}))
    assert measured.state == "ok", measured.reason
    assert measured.p50_ms is not None
    assert real.p50_ms is not None
    times_ms, counts = zip(*subnet.attribute(measured.layers), strict=True)
    assert sum(times_ms) >= 0.8 * sum(layer.time_ms for layer in measured.layers)
    convolutions = [
        t for t, one in zip(times_ms, subnet.placed.operators, strict=True) if one.feature.operator == "Conv"
    ]
    assert all(time_ms > 0 for time_ms in convolutions)
    assert [count > 0 for count in counts] == [time_ms > 0 for time_ms in times_ms]
    assert 0.8 * len(measured.layers) <= sum(counts) <= len(measured.layers)
    assert 1 / FACTOR <= measured.p50_ms / real.p50_ms <= FACTOR


def job(net: tailor_ir.SuperNet, config: tailor_ir.Config, client: AgentClient) -> ModelJob:
    model, device = onnx_of(net, config), client.capabilities()
    if "onnx" in device.formats:
        return onnx_job("real", int8_to_time(model) if device.precision == "int8" else model)
    return ncnn_job("real", model, convert(model, ConversionLimits()))


@pytest.fixture(
    scope="module", params=[*((name, "fp32") for name in ("ncnn", "onnxruntime", "openvino")), *IN_INT8], ids="-".join
)
def timing_device(request: pytest.FixtureRequest) -> Iterator[AgentClient]:
    """A leased agent."""
    with one_agent(*request.param) as client, client.lease():
        yield client


@pytest.mark.long_cases("onnxruntime-int8")
def test_profile_in_situ_knows_every_operator_and_adds_up(
    supernet: Path, operators: Path, timing_device: AgentClient, tmp_path: Path
) -> None:
    net = tailor_ir.load(supernet)
    planned = plan(SETTINGS, operators, timing_device.capabilities(), supernet)
    result = profile.run(SETTINGS, operators, timing_device, tmp_path, Silent(), supernet)
    lines = read_lines(tmp_path / profile.SUBNETS_FILE)
    assert planned["to_measure"] == result["measured_now"] == len(net.unique_operators())
    assert planned["subnets"] == len({tuple(sorted(line["config"].items())) for line in lines})
    table = profile.open_table(SETTINGS, tmp_path / profile.STORE_FOLDER, timing_device.capabilities())
    entries = [table.get(feature.digest) for feature in net.unique_operators()]
    known = [entry for entry in entries if entry is not None]
    assert len(known) == len(entries)
    assert {entry.state for entry in known} <= {"ok", "fused"}
    assert {entry.method for entry in known} == {"in situ"}
    assert {entry.cache for entry in known} == {SUBNET.cache}
    again = profile.run(SETTINGS, operators, timing_device, tmp_path, Silent(), supernet)
    assert again["measured_now"] == 0
    assert read_lines(tmp_path / profile.SUBNETS_FILE) == lines
    factor = INT8_FACTOR if timing_device.capabilities().precision == "int8" else FACTOR
    ratio = median_ratio(net, timing_device, tmp_path)
    for number in range(MORE_PROFILES):
        if 1 / factor <= ratio <= factor:
            break
        folder = tmp_path / str(number)
        folder.mkdir()
        profile.run(SETTINGS, operators, timing_device, folder, Silent(), supernet)
        ratio = median_ratio(net, timing_device, folder)
    assert 1 / factor <= ratio <= factor


def median_ratio(net: tailor_ir.SuperNet, device: AgentClient, folder: Path) -> float:
    """The sum of a SubNet's operators over its own time, the median over SubNets of a profile."""
    table = profile.open_table(SETTINGS, folder / profile.STORE_FOLDER, device.capabilities())
    lines = read_lines(folder / profile.SUBNETS_FILE)
    return float(np.median([subnet_ms(net, table, UNCORRECTED, line["config"]) / line["p50_ms"] for line in lines]))


@pytest.mark.long
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_operators_alone_come_and_go_in_int8(backend: str) -> None:
    net = compiled("test_resnet")
    features = {feature.operator: feature for feature in net.operators(net.max_config)}
    with one_agent(backend, "int8") as client:
        for kind in ("Conv", "Add", "MaxPool"):
            model = int8_operator(tailor_ir.operator_model(features[kind]))
            graph = onnx.load_from_string(model).graph
            types = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
            assert types == {onnx.TensorProto.UINT8}, kind
            (measured,) = client.measure([onnx_job(kind, model)], SUBNET)
            assert measured.state == "ok", measured.reason
            assert not [layer.kind for layer in measured.layers if "quantize" in layer.kind.lower()], kind


@pytest.mark.few("onnxruntime")
def test_a_run_that_was_killed_goes_on_with_the_next_subnet(
    supernet: Path, operators: Path, device: AgentClient, tmp_path: Path
) -> None:
    class Stopped(Exception):
        pass

    class Stopping(Silent):
        @contextmanager
        def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
            with super().bar(name, total, done) as inner:

                class Counting:
                    left = 3

                    def advance(self, count: int = 1) -> None:
                        self.left -= 1
                        if not self.left:
                            raise Stopped

                    def note(self, text: str) -> None:
                        inner.note(text)

                yield Counting()

    with pytest.raises(Stopped):
        profile.run(SETTINGS, operators, device, tmp_path, Stopping(), supernet)
    before = read_lines(tmp_path / profile.SUBNETS_FILE)
    assert len(before) == 3
    profile.run(SETTINGS, operators, device, tmp_path, Silent(), supernet)
    assert read_lines(tmp_path / profile.SUBNETS_FILE)[:3] == before
