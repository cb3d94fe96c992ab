"""Plans made ahead: a look-up gives the exact plan, and segments with plans run as the whole SubNet does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailor_ir
from adaptive_runtime.bundle.chains import ChainManifest, ExitChain
from adaptive_runtime.offload.links import MeasuredLink
from adaptive_runtime.offload.split import COORDINATOR, EnvelopePlacements, PlacementPlans, SplitSubNet
from flows.cli import main
from solvers.partition import PartitionConditions, PartitionLimit, PartitionPlanner, PartitionProblem, PlanPoint
from tasks.base.errors import UserError
from tasks.placement.partition import Settings, open_tables, placement_plans, plan_ahead, write_plans
from tests.support import examples
from tests.support.solvers.random_partitions import random_dataflow

Run = tuple[Path, tailor_ir.SuperNet]
LOW, HIGH = PlanPoint(bandwidth_mbps=0.5, slow_down=1.0), PlanPoint(bandwidth_mbps=200.0, slow_down=4.0)
DIGEST = "0" * 64
LATENCY_MS = 0.05


def problem_of(rng: np.random.Generator, devices: int) -> PartitionProblem:
    dataflow = random_dataflow(rng, int(rng.integers(2, 9)), shortcuts=0.2)
    compute_ms = rng.uniform(0.1, 5.0, (dataflow.steps, devices)) * rng.uniform(0.1, 2.0, devices)
    return PartitionProblem(dataflow=dataflow, compute_ms=compute_ms)


def latencies_ms(plans: PlacementPlans, mbps: float, round_trip_ms: float, slow_down: float) -> dict[int, float]:
    """Of all plans over equal links, as the run time has them."""
    choice = EnvelopePlacements(plans)
    choice.ran_on_coordinator(0, [slow_down * ms for ms in plans.coordinator_ms])
    one = MeasuredLink(up_mbps=mbps, down_mbps=mbps, round_trip_ms=round_trip_ms)
    return choice.latencies_ms(dict.fromkeys(plans.peers, one))


points = st.tuples(st.integers(0, 10**6), st.floats(0.5, 200.0), st.floats(1.0, 4.0), st.floats(0.0, 4.0))


@given(points)
@settings(deadline=None, max_examples=examples(40))
def test_a_look_up_is_the_exact_plan_at_any_bandwidth_and_load(drawn: tuple[int, float, float, float]) -> None:
    seed, mbps, slow_down, latency_ms = drawn
    problem = problem_of(np.random.default_rng(seed), devices=2)
    ahead = plan_ahead(problem, PartitionConditions.of(2, 10.0, latency_ms), LOW, HIGH)
    plans = placement_plans(ahead, ("phone", "server"), (0.0, 0.0), DIGEST)
    assert set(plans.plans[0].devices) == {COORDINATOR}
    now = PartitionConditions.of(2, mbps, latency_ms, (slow_down, 1.0))
    exact_ms = PartitionPlanner(problem, widest=1).fastest(now).latency_ms(now)
    found = latencies_ms(plans, mbps, 2 * latency_ms, slow_down)
    assert min(found.values()) == pytest.approx(exact_ms, rel=1e-6)
    for at, plan in enumerate(ahead.plans):  # each plane is the latency of its plan
        assert found[at] == pytest.approx(plan.latency_ms(now), rel=1e-6)


@given(points)
@settings(deadline=None, max_examples=examples(40))
def test_tensors_between_two_other_devices_go_through_coordinator(drawn: tuple[int, float, float, float]) -> None:
    seed, mbps, slow_down, latency_ms = drawn
    problem = problem_of(np.random.default_rng(seed), devices=3)
    ahead = plan_ahead(problem, PartitionConditions.of(3, 10.0, latency_ms), LOW, HIGH)
    plans = placement_plans(ahead, ("phone", "tablet", "server"), (0.0, 0.0, 0.0), DIGEST)
    now = PartitionConditions.of(3, mbps, latency_ms, (slow_down, 1.0, 1.0))
    bandwidth_mbps, message_ms = now.bandwidth_mbps.copy(), now.latency_ms.copy()
    for way in ((1, 2), (2, 1)):
        bandwidth_mbps[way], message_ms[way] = mbps / 2, 2 * latency_ms
    now = replace(now, bandwidth_mbps=bandwidth_mbps, latency_ms=message_ms)
    exact_ms = PartitionPlanner(problem, widest=1).fastest(now).latency_ms(now)
    found = latencies_ms(plans, mbps, 2 * latency_ms, slow_down)
    assert min(found.values()) == pytest.approx(exact_ms, rel=1e-6)


@given(points, st.floats(1.0, 1000.0))
@settings(deadline=None, max_examples=examples(40))
def test_values_that_go_straight_are_planned_exactly(drawn: tuple[int, float, float, float], between: float) -> None:
    seed, mbps, slow_down, latency_ms = drawn
    problem = problem_of(np.random.default_rng(seed), devices=3)
    now = PartitionConditions.of(3, mbps, latency_ms, (slow_down, 1.0, 1.0))
    bandwidth_mbps = now.bandwidth_mbps.copy()
    ways = [(1, 2), (2, 1)]
    for way in ways:
        bandwidth_mbps[way] = between
    now = replace(now, bandwidth_mbps=bandwidth_mbps)
    ahead = plan_ahead(problem, now, LOW, HIGH, ways)
    plans = placement_plans(ahead, ("phone", "tablet", "server"), (0.0, 0.0, 0.0), DIGEST)
    exact_ms = PartitionPlanner(problem, widest=1).fastest(now).latency_ms(now)
    choice = EnvelopePlacements(plans)
    choice.ran_on_coordinator(0, [slow_down * ms for ms in plans.coordinator_ms])
    links = dict.fromkeys(plans.peers, MeasuredLink(up_mbps=mbps, down_mbps=mbps, round_trip_ms=2 * latency_ms))
    names = ("tablet→server", "server→tablet")
    known = MeasuredLink(up_mbps=between, round_trip_ms=2 * latency_ms)
    for between_now in (known, MeasuredLink()):  # as measured, or as planned
        found = choice.latencies_ms({**links, **dict.fromkeys(names, between_now)})
        assert min(found.values()) == pytest.approx(exact_ms, rel=1e-6)
    through = min(choice.latencies_ms(links).values())
    assert through >= exact_ms - 1e-9 or between < mbps, "without the way through the coordinator"


def test_without_a_link_all_is_on_coordinator_and_limits_are_kept() -> None:
    problem = problem_of(np.random.default_rng(1), devices=2)
    (plan,) = plan_ahead(problem, PartitionConditions.of(2, 0.0, 1.0), LOW, HIGH).plans
    assert not plan.sends
    limit = PartitionLimit.of_memory(1, 2, [1.0] * problem.dataflow.steps, 1.0)
    ahead = plan_ahead(replace(problem, limits=(limit,)), PartitionConditions.of(2, 10.0, 0.0), LOW, HIGH)
    assert all(plan.placement.count(1) <= 1 for plan in ahead.plans)


def settings_of(**given: Any) -> Settings:
    return Settings.model_validate(
        {"devices": ("phone", "server"), "latency_ms": LATENCY_MS, "plans_bandwidth_mbps": (0.1, 1000), **given}
    )


def test_segments_and_plans_are_written_and_open(run: Run, tmp_path: Path) -> None:
    settings = settings_of(plans=tmp_path)
    net, tables = run[1], open_tables(run[0], settings.devices)
    plans = write_plans(net, net.max_config, tables, settings, tmp_path)
    split = SplitSubNet.open(tmp_path)
    assert PlacementPlans.read(tmp_path / "plans.json", split) == plans
    assert plans.peers == ("server",)
    assert len(split.subnet.segments) == len(plans.coordinator_ms) > 1
    dataflow = net.pre_partition().under(net.space.row(net.max_config))
    assert sum(plans.coordinator_ms) == pytest.approx(tables[0].compute_ms(dataflow).sum())
    sends = [plan for plan in plans.plans if plan.peers]
    assert sends
    for plan in sends:
        remote = [leg for leg in plan.segments if leg.device != COORDINATOR]
        use, shapes = plan.links["server"], split.subnet.shapes
        assert use.messages == len(remote)
        for count, names in (
            (use.up_bytes, [name for leg in remote for name in split.subnet.entering(leg.first, leg.last)]),
            (use.down_bytes, [name for leg in remote for name in split.subnet.leaving(leg.first, leg.last)]),
        ):
            assert count == sum(4 * int(np.prod(shapes[name])) for name in names), "as the coordinator sends them"
    assert sum(one.macs for one in ChainManifest.read(tmp_path / "segments.json").segments) == net.macs(net.max_config)


def test_the_segments_are_a_chain(run: Run, tmp_path: Path) -> None:
    net, settings = run[1], settings_of(plans=tmp_path)
    write_plans(net, net.max_config, open_tables(run[0], settings.devices), settings, tmp_path)
    net.export(net.max_config, tmp_path / "whole.onnx", fold_batch_norm=True)
    import onnxruntime

    whole = onnxruntime.InferenceSession(tmp_path / "whole.onnx", providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal(net.input_shape(net.max_config)).astype(np.float32)
    (expected,) = whole.run(None, {whole.get_inputs()[0].name: x})
    with ExitChain.open(tmp_path) as chain:
        found = chain.infer(x).logits
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_what_cannot_be_planned_ahead_is_one_line(run: Run, tmp_path: Path) -> None:
    settings = settings_of(plans=tmp_path, memory_mib={"phone": 1e-5})
    with pytest.raises(
        UserError, match=r"partition\.plans: all operators on the coordinator: no plan keeps the limits; raise"
    ):
        write_plans(run[1], run[1].max_config, open_tables(run[0], settings.devices), settings, tmp_path)


OPTIONS = ["partition.devices=[phone,server]", "partition.latency_ms=0.05"]


def test_the_command_writes_plans(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"output_dir={run[0]}", *OPTIONS, f"partition.plans={tmp_path}", "partition.plans_bandwidth_mbps=[1,100]"]
    assert main(["partition", *words]) == 0
    plans = PlacementPlans.read(tmp_path / "plans.json", SplitSubNet.open(tmp_path))
    assert plans.bandwidth_mbps == (1.0, 100.0)
    assert f"{len(plans.plans)} plans for {len(plans.coordinator_ms)} segments" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["partition.plans_bandwidth_mbps=[100,1]"], "plans_bandwidth_mbps: got [100,1]; allowed: the lower end first"),
        (["partition.plans_slow_down=[0,1]"], "partition.plans_slow_down"),
        (["partition.plans_slow_down=[1]"], "partition.plans_slow_down"),
        (["partition.objective=throughput"], "plans: they are of requests that the coordinator answers; allowed with"),
        (["partition.memory_mib={phone:1e-5}", "partition.bandwidth_mbps=[1000]"], "raise partition.memory_mib"),
    ],
)
def test_bad_options_of_plans_are_one_line(
    words: list[str], line: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["partition", f"output_dir={run[0]}", *OPTIONS, f"partition.plans={tmp_path / 'plans'}", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert line in lines[0]
