"""Plans for several devices are exact: those of brute force, and of the minimum cut for two devices."""

from collections.abc import Sequence
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.partition import (
    INPUT,
    Dataflow,
    PartitionConditions,
    PartitionPlanner,
    PartitionProblem,
    PlanPoint,
    SentValue,
    all_on_coordinator,
    all_remote,
    dads,
    envelope_of,
    fastest_pipeline,
    minimum_cut,
    neighbour_search,
    neurosurgeon,
    plan_of,
    segments_of,
)
from solvers.tables import Infeasible
from tests.support import examples
from tests.support.solvers.random_partitions import (
    all_plans,
    random_conditions,
    random_dataflow,
    random_graph,
    random_problem,
)

ANY_WIDTH = 99
SEEDS = st.integers(0, 2**31)


def chain(sizes: list[float]) -> Dataflow:
    steps = len(sizes) - 1
    values = (SentValue(writer=at - 1, readers=(at,), bytes=size) for at, size in enumerate(sizes))
    return Dataflow(steps=steps, values=tuple(values))


@settings(max_examples=examples(60), deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 6), devices=st.integers(2, 3), private=st.integers(0, 2))
def test_no_plan_is_faster(seed: int, steps: int, devices: int, private: int) -> None:
    rng = np.random.default_rng(seed)
    dataflow = random_dataflow(rng, steps) if seed % 2 else random_graph(rng, steps)
    problem, conditions = random_problem(rng, dataflow, devices, private=private), random_conditions(rng, devices)
    found = PartitionPlanner(problem, ANY_WIDTH).fastest(conditions)
    assert problem.allowed[np.arange(steps), list(found.placement)].all()
    least_ms = min(plan.latency_ms(conditions) for plan in all_plans(problem, conditions))
    assert found.latency_ms(conditions) == pytest.approx(least_ms, rel=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 6), devices=st.integers(2, 3))
def test_no_plan_within_the_limits_is_faster(seed: int, steps: int, devices: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, random_dataflow(rng, steps), devices, limited=True)
    conditions = random_conditions(rng, devices)
    allowed = [plan for plan in all_plans(problem, conditions) if plan.keeps(problem.limits)]
    planner = PartitionPlanner(problem, ANY_WIDTH)
    if not allowed:
        with pytest.raises(Infeasible, match="no plan keeps the limits"):
            planner.fastest(conditions)
        return
    found = planner.fastest(conditions)
    assert found.keeps(problem.limits)
    least_ms = min(plan.latency_ms(conditions) for plan in allowed)
    assert found.latency_ms(conditions) == pytest.approx(least_ms, rel=1e-9)


@settings(max_examples=examples(80), deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 12))
def test_two_devices_are_planned_as_by_the_minimum_cut(seed: int, steps: int) -> None:
    """Without latency of messages the order of steps does not matter, so both are exact for the same model."""
    rng = np.random.default_rng(seed)
    dataflow = random_dataflow(rng, steps) if seed % 2 else random_graph(rng, steps)
    problem, conditions = random_problem(rng, dataflow, 2), random_conditions(rng, 2, latency_ms=0.0)
    cut_ms = minimum_cut(problem, conditions, 1 - problem.coordinator).latency_ms(conditions)
    found_ms = PartitionPlanner(problem, ANY_WIDTH).fastest(conditions).latency_ms(conditions)
    assert found_ms == pytest.approx(cut_ms, rel=1e-6)


@settings(max_examples=examples(60), deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 7))
def test_the_one_way_cut_is_the_best_one_way_plan(seed: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    dataflow = random_graph(rng, steps)
    problem, conditions = random_problem(rng, dataflow, 2), random_conditions(rng, 2)
    remote = 1 - problem.coordinator
    found = minimum_cut(problem, conditions, remote, one_way=True)
    inner = [
        (value.writer, reader)
        for value in dataflow.values
        for reader in value.readers
        if value.writer != INPUT and reader < steps
    ]
    moved = [step for step in range(steps) if found.placement[step] == remote]
    assert not any(writer in moved and reader not in moved for writer, reader in inner)
    times = []
    for count in range(steps + 1):
        for chosen in map(set, combinations(range(steps), count)):
            if not any(writer in chosen and reader not in chosen for writer, reader in inner):
                plan = plan_of(
                    problem,
                    conditions,
                    segments_of([remote if s in chosen else problem.coordinator for s in range(steps)]),
                )
                row = plan.row.copy()
                row[-4:] = 0  # what DADS leaves out: latencies of messages
                times.append(row[:2] @ conditions.slow_down + row[2:6] @ conditions.ms_per_byte.ravel())
    own = found.compute_ms @ conditions.slow_down + (found.bytes * conditions.ms_per_byte).sum()
    assert own == pytest.approx(min(times), rel=1e-6)
    assert found.messages.sum() <= 2


@settings(max_examples=examples(60), deadline=None)
@given(seed=SEEDS, steps=st.integers(2, 10), devices=st.integers(2, 3))
def test_no_other_method_is_faster_on_a_chain(seed: int, steps: int, devices: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, chain(rng.uniform(0, 50_000, steps + 1).tolist()), devices, private=seed % 3)
    conditions = random_conditions(rng, devices)
    found_ms = PartitionPlanner(problem).fastest(conditions).latency_ms(conditions)
    for method in (all_on_coordinator, all_remote, neurosurgeon, dads, neighbour_search):
        plan = method(problem, conditions)
        assert found_ms <= plan.latency_ms(conditions) * (1 + 1e-9), method.__name__
        assert problem.allowed[np.arange(steps), list(plan.placement)].all(), method.__name__


@settings(max_examples=examples(40), deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 6), devices=st.integers(2, 3), private=st.integers(0, 2))
def test_no_pipeline_has_more_throughput(seed: int, steps: int, devices: int, private: int) -> None:
    rng = np.random.default_rng(seed)
    dataflow = random_dataflow(rng, steps)
    problem, conditions = random_problem(rng, dataflow, devices, private=private), random_conditions(rng, devices)
    found = fastest_pipeline(problem, conditions)
    assert [step for stage in found.stages for step in stage.steps] == list(range(steps))
    periods = []
    for count in range(1, min(devices, steps) + 1):
        for order in permutations(range(devices), count):
            for ends in combinations(range(1, steps), count - 1):
                periods.append(period_ms(problem, conditions, order, (*ends, steps)))
    assert found.period_ms == pytest.approx(min(periods), rel=1e-9)
    own = period_ms(problem, conditions, [s.device for s in found.stages], [s.steps[-1] + 1 for s in found.stages])
    assert own == pytest.approx(found.period_ms, rel=1e-9)


def period_ms(
    problem: PartitionProblem, conditions: PartitionConditions, order: Sequence[int], ends: Sequence[int]
) -> float:
    """The slowest stage or transfer of a pipeline."""
    unit_ms, crossing = conditions.ms_per_byte, problem.dataflow.crossing_bytes
    times, before, start = [0.0], problem.coordinator, 0
    for device, end in zip(order, ends, strict=True):
        if not problem.allowed[start:end, device].all():
            return float("inf")
        times.append(unit_ms[before, device] * crossing[start])
        times.append(float(problem.compute_ms[start:end, device].sum()) * conditions.slow_down[device])
        before, start = device, end
    if problem.returns:
        times.append(unit_ms[before, problem.coordinator] * crossing[-1])
    return max(times)


@settings(max_examples=examples(20), deadline=None)
@given(seed=SEEDS, steps=st.integers(2, 10), devices=st.integers(2, 3))
def test_the_envelope_has_the_fastest_plan_everywhere(seed: int, steps: int, devices: int) -> None:
    rng = np.random.default_rng(seed)
    problem, conditions = random_problem(rng, random_dataflow(rng, steps), devices), random_conditions(rng, devices)
    planner = PartitionPlanner(problem)
    low, high = PlanPoint(bandwidth_mbps=1.0, slow_down=1.0), PlanPoint(bandwidth_mbps=100.0, slow_down=5.0)
    envelope = envelope_of(planner, conditions, low, high)
    for _ in range(30):
        bandwidth_mbps, slow_down = float(np.exp(rng.uniform(0, np.log(100)))), float(rng.uniform(1, 5))
        now = PartitionConditions(
            slow_down=np.where(np.arange(devices) == problem.coordinator, slow_down, conditions.slow_down),
            latency_ms=conditions.latency_ms,
            bandwidth_mbps=np.full((devices, devices), bandwidth_mbps),
        )
        expected_ms = planner.fastest(now).latency_ms(now)
        plan = envelope.plans[envelope.at(bandwidth_mbps, slow_down)]
        assert plan.latency_ms(now) == pytest.approx(expected_ms, rel=1e-6)
        assert envelope.latency_ms(bandwidth_mbps, slow_down) == pytest.approx(expected_ms, rel=1e-6)


def test_nothing_is_sent_where_that_does_not_pay() -> None:
    problem = PartitionProblem(dataflow=chain([1e6, 1e6, 1e6]), compute_ms=np.asarray([[2.0, 1.0], [2.0, 1.0]]))
    slow, fast = PartitionConditions.of(2, 10.0, 5.0), PartitionConditions.of(2, 1e5, 0.1)
    planner = PartitionPlanner(problem)
    assert not planner.fastest(slow).sends
    assert planner.fastest(fast).placement == (1, 1)
    assert fastest_pipeline(problem, slow).stages == segments_of((0, 0))


def test_a_tie_stays_on_coordinator() -> None:
    problem = PartitionProblem(dataflow=chain([0.0, 0.0, 0.0]), compute_ms=np.ones((2, 3)))
    assert not PartitionPlanner(problem).fastest(PartitionConditions.of(3, 100.0, 0.0)).sends


def test_a_value_with_several_readers_is_sent_once() -> None:
    values = (
        SentValue(writer=INPUT, readers=(0,), bytes=10.0),
        SentValue(writer=0, readers=(1, 2, 3), bytes=1000.0),
        SentValue(writer=1, readers=(3,), bytes=10.0),
        SentValue(writer=2, readers=(3,), bytes=10.0),
        SentValue(writer=3, readers=(4,), bytes=1.0),
    )
    problem = PartitionProblem(dataflow=Dataflow(steps=4, values=values), compute_ms=np.ones((4, 2)))
    conditions = PartitionConditions.of(2, 8.0, 0.0)
    plan = plan_of(problem, conditions, segments_of((0, 1, 1, 1)))
    assert plan.bytes[0, 1] == 1000.0
    assert plan.bytes[1, 0] == 1.0
    assert plan.latency_ms(conditions) == pytest.approx(4.0 + 1.001)


def test_private_steps_and_all_readers_of_the_input_stay_on_coordinator() -> None:
    values = (
        SentValue(writer=INPUT, readers=(0, 2), bytes=1.0),
        SentValue(writer=0, readers=(1,), bytes=1.0),
        SentValue(writer=1, readers=(2,), bytes=1.0),
        SentValue(writer=2, readers=(3,), bytes=1.0),
    )
    times_ms = np.asarray([[100.0, 1.0]] * 3)
    problem = PartitionProblem(dataflow=Dataflow(steps=3, values=values), compute_ms=times_ms, private=1)
    assert PartitionPlanner(problem).fastest(PartitionConditions.of(2, 1e3, 0.1)).placement == (0, 1, 0)


def test_a_device_without_a_link_is_not_used() -> None:
    conditions = PartitionConditions.of(2, 0.0, 0.1)
    problem = PartitionProblem(dataflow=chain([1.0, 1.0]), compute_ms=np.asarray([[5.0, 1.0]]))
    assert PartitionPlanner(problem).fastest(conditions).placement == (0,)
    nowhere = PartitionProblem(dataflow=chain([1.0, 1.0]), compute_ms=np.asarray([[np.inf, 1.0]]))
    with pytest.raises(Infeasible, match="no link leads to a device"):
        PartitionPlanner(nowhere).fastest(conditions)


def test_wide_networks_have_few_states() -> None:
    steps = 40
    values = [SentValue(writer=at, readers=tuple(range(at + 1, steps)) or (steps,), bytes=100.0) for at in range(steps)]
    values.append(SentValue(writer=INPUT, readers=(0,), bytes=100.0))
    problem = PartitionProblem(
        dataflow=Dataflow(steps=steps, values=tuple(values)), compute_ms=np.tile([2.0, 1.0, 1.5], (steps, 1))
    )
    planner = PartitionPlanner(problem)
    assert planner.transitions < 10_000
    assert planner.fastest(PartitionConditions.of(3, 1e4, 0.01)).placement == (1,) * steps
