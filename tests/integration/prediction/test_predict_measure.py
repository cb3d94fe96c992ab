"""SubNets measured beside a reference, in several rounds while the device is not calm."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

import tailor_ir
from profiling_agents.client import ModelJob, local_agent
from profiling_agents.messages import MeasureSettings
from tasks.base.artifacts import read_lines
from tasks.base.progress import Bar, Silent
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.ncnn.conversion import ConversionLimits
from tasks.measuring import subnets as measure
from tasks.measuring.jobs import Calm, TimedLine, onnx_job
from tasks.measuring.subnets import MOST_ROUNDS, Subject, SubNetMeter, jobs_of, validation_configs

SETTINGS = MeasureSettings(warmup_ms=1, min_blocks=1, time_cap_ms=4, patience=0.0)


def line(p50_ms: float | None, reference_ms: float | None, key: str = "a") -> TimedLine:
    """A failure without a latency."""
    if p50_ms is None:
        return TimedLine(key=key, state="failed", reason="crashed", reference_ms=reference_ms)
    times = {"p50_ms": p50_ms, "p90_ms": 2 * p50_ms, "spread": 0.1, "n": 5, "repeats": 1}
    return TimedLine.model_validate({"key": key, "state": "ok", "reference_ms": reference_ms, **times})


def test_of_several_rounds_the_median_beside_the_reference_counts() -> None:
    lines = [line(12.0, 120.0), line(10.4, 100.0), line(None, 100.0), line(9.9, 110.0)]
    found = measure._median(lines, Calm(100.0))
    assert found.p50_ms == pytest.approx(10.0)  # of 10, 10.4 and 9
    assert found.p90_ms == pytest.approx(20.0)
    assert measure._median(lines[:2], Calm(100.0)).p50_ms == pytest.approx(10.2)
    assert measure._median([line(12.0, None)], Calm(float("nan"))).p50_ms == 12.0
    assert measure._median([line(None, 100.0)], Calm(100.0)).reason == "crashed"


@pytest.mark.parametrize(
    ("lines", "once", "several"),
    [
        ([], False, False),
        ([line(1.0, 102.0)], True, False),
        ([line(1.0, 104.0)], False, False),
        ([line(1.2, 120.0), line(1.01, 101.0)], True, False),
        ([line(1.2, 120.0), line(1.0, 100.0), line(1.01, 100.0)], True, True),
        ([line(1.2, 120.0), line(1.0, 120.0), line(1.01, 100.0)], True, False),
        ([line(1.0, 120.0), line(1.0, 120.0)], False, False),
        ([line(None, 120.0)], True, True),  # again it would fail again
        ([line(1.0, None)], False, False),
    ],
)
def test_what_is_measured_again(lines: list[TimedLine], once: bool, several: bool) -> None:
    for rounds, settled in ((1, once), (3, several)):
        assert measure._settled(lines, Calm(100.0), rounds) == settled
        assert measure._settled([line(5.0, None)] * rounds, Calm(float("nan")), rounds)
        assert not measure._settled([], Calm(float("nan")), rounds)


class Named(Silent):
    """Progress that remembers its bars."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
        self.names.append(name)
        with super().bar(name, total, done) as bar:
            yield bar


@pytest.mark.parametrize(
    ("name", "further"), [("measure", "measure again"), ("measure winners again", "measure winners again once more")]
)
def test_no_bar_says_again_twice(name: str, further: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nothing: Any = None
    monkeypatch.setattr(measure, "_settled", lambda *_: False)
    monkeypatch.setattr(SubNetMeter, "_lines", lambda *_: iter([line(1.0, 100.0)]))
    meter, shown = SubNetMeter(nothing, nothing, SETTINGS, ConversionLimits()), Named()
    meter.measure_all([Subject("a", nothing, {})], tmp_path / "timed.jsonl", shown, name)
    assert shown.names == [name, further, further]


def test_models_share_the_part_of_the_slowdown_that_they_were_seen_to_share() -> None:
    """Of small ones a tenth, of those as large as the reference all."""
    random = np.random.default_rng(0)
    lines = []
    for number in range(60):
        alone_ms = float(np.exp(random.uniform(np.log(1.0), np.log(100.0))))
        share = 0.1 + 0.9 * np.log(alone_ms) / np.log(100.0)
        for slowdown in random.choice([1.0, 1.0, 1.4, 2.0], 3):
            noise = np.exp(random.normal(0, 0.02))
            lines.append(line(alone_ms * slowdown**share * noise, 100.0 * slowdown, str(number)))
    calm = Calm.fit(lines)
    assert calm.best_ms == pytest.approx(100.0)
    assert calm.level == pytest.approx(1.0, abs=0.1)
    for alone_ms, share in ((1.0, 0.1), (10.0, 0.55), (100.0, 1.0)):
        (_, slowed) = calm.slowdowns([line(alone_ms, 100.0), line(alone_ms * 2**share, 200.0)])
        assert slowed == pytest.approx(2**share, rel=0.1)


def test_until_it_is_seen_models_are_slowed_as_the_reference_is() -> None:
    lines = [line(1.0, 10.0), line(1.0, None, "b")]
    calm = Calm.fit(lines)
    assert (calm.best_ms, calm.level, calm.slope) == (10.0, 1.0, 0.0)
    assert calm.slowdowns([lines[0], line(1.0, 15.0), lines[1]]) == pytest.approx([1.0, 1.5, 1.0])
    assert np.isnan(Calm.fit([lines[1]]).best_ms)
    assert Calm.fit([lines[1]]).slowdowns(lines) == pytest.approx([1.0, 1.0])


def small_resnet(size: int = 32) -> tailor_ir.SuperNet:
    torch.manual_seed(0)
    return tailor_ir.compile(timm.create_model("test_resnet", num_classes=10).eval(), torch.zeros(1, 3, size, size))


@pytest.mark.long
@pytest.mark.parametrize("backend", ["onnxruntime", "torch", "ncnn"])
def test_subnets_travel_without_weights_unless_energy_is_measured(backend: str) -> None:
    net = small_resnet(64)  # on smaller maps files for ncnn lose positions of kernels
    counting = SETTINGS.model_copy(update={"energy_ms": 1.0})
    with local_agent(backend) as client:
        device = client.capabilities()
        jobs = []
        for settings in (SETTINGS, counting):
            subjects, weights = [Subject("a", net, net.max_config)], settings.energy_ms > 0
            job = jobs_of(subjects, device, ConversionLimits(), weights=weights)["a"]
            assert isinstance(job, ModelJob)
            jobs.append(job)
        light, heavy = (sum(map(len, job.files)) for job in jobs)
        assert light < 60_000
        assert heavy > 3.9 * sum(parameter.numel() for parameter in net.elastic.parameters()) > 5 * light
        assert all(one.state == "ok" for one in client.measure(jobs, SETTINGS))


@pytest.mark.long
def test_torch_computes_the_same_without_weights_as_onnxruntime() -> None:
    net = small_resnet()
    job = onnx_job("light", onnx_of(net, net.max_config, weights=False))
    image = np.random.default_rng(0).standard_normal((1, 3, 32, 32), dtype=np.float32)
    outputs = []
    for backend in ("torch", "onnxruntime"):
        with local_agent(backend) as client:
            outputs += client.run(job, [image])
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-4)


class Told(Silent):
    """Keeps how many pieces each bar is of."""

    def __init__(self) -> None:
        self.totals: list[int] = []

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
        self.totals.append(total)
        with super().bar(name, total, done) as bar:
            yield bar


@pytest.mark.long
@pytest.mark.parametrize("rounds", [1, 4])
def test_rounds_end_and_a_second_call_measures_nothing_more(rounds: int, tmp_path: Path) -> None:
    net = small_resnet()
    configs = validation_configs(net, 10, seed=0)
    file = tmp_path / "measured.jsonl"
    with local_agent("onnxruntime") as client, client.lease():
        meter = SubNetMeter(net, client, SETTINGS, ConversionLimits(), rounds)
        told = Told()
        found = meter.measure(configs, file, told)
        assert min(told.totals) > 0  # a round without work has no bar
        lines = [TimedLine.model_validate(one) for one in read_lines(file)]
        meter.measure(configs, file, Silent())
        nothing = Told()
        assert meter.measure([], tmp_path / "none.jsonl", nothing) == []
        assert nothing.totals == []
    counts = Counter(one.key for one in lines)
    assert set(counts) == {net.space.digest(config) for config in configs}
    most = {1: MOST_ROUNDS, 4: 8}[rounds]
    assert all(rounds <= count <= most for count in counts.values())
    assert [one.key for one in lines[: len(configs)]] == [one.key for one in found]
    assert [TimedLine.model_validate(one) for one in read_lines(file)] == lines
    reference_ms = {one.reference_ms for one in lines}
    assert len(reference_ms) >= rounds * 2  # twelve SubNets, eight at a time
    calm = Calm.fit(lines)
    assert calm.best_ms == pytest.approx(np.quantile([one.reference_ms for one in lines], 0.2))
    for one in found:
        own = [line for line in lines if line.key == one.key]
        times_ms = np.array([line.p50_ms for line in own]) / calm.slowdowns(own)
        assert one.p50_ms == pytest.approx(float(np.median(times_ms)))
