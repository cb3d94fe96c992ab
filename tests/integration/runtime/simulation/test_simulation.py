"""The simulator: every request ends once, none is lost, no policy beats the clairvoyant, and a run replays."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import (
    ChoiceLimits,
    ChoicePolicy,
    ChoiceState,
    DecisionLog,
    LeastCost,
    MostAccurate,
    Switching,
    VariantLookUp,
    VariantTable,
    replay,
)
from adaptive_runtime.state.traces import Pattern, PressureResponse, RequestArrivals, trace_of
from benchmarks.simulation import (
    RequestEnds,
    SimulatedOutcome,
    SimulatedRequests,
    Simulation,
    best_static,
    clairvoyant,
    compare,
)
from benchmarks.simulation.published import FixedChoice, LoadBandChoice, RatioChoice
from tests.support import examples
from tests.support.runtime.variants import tables

RESPONSES = tuple(PressureResponse(cpu, 1.0) for cpu in (2.0, 0.5, 1.0))
CURVE = VariantTable(
    names=tuple(f"v{number}" for number in range(8)),
    accuracy=tuple(0.6 + 0.05 * number for number in range(8)),
    latency_ms=tuple(2.0 * 1.4**number for number in range(8)),
    latency_error=(0.03,) * 8,
)


def policies(table: VariantTable) -> dict[str, ChoicePolicy]:
    look_up = VariantLookUp(table)
    best = MostAccurate(look_up)
    cheap = LeastCost(look_up, 1.0, 0.0, least_accuracy=0.5)
    return {
        "ours": Switching(best, dwell_s=0.5, most_per_minute=60),
        "ratio": RatioChoice(best),
        "bands": LoadBandChoice.measured(cheap, [0.0, 0.5, 1.0], [1.0, 2.0, 3.0], bands=3),
        "first": FixedChoice(best, 0),
    }


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    table = draw(tables(most=10))
    pattern = draw(st.sampled_from(get_args(Pattern)))
    trace = trace_of(
        pattern,
        seed=draw(st.integers(0, 99)),
        duration_s=3.0,
        responses=RESPONSES,
        arrivals=RequestArrivals(requests_per_s=draw(st.sampled_from([1.0, 20.0, 800.0])), regular=draw(st.booleans())),
    )
    requests = SimulatedRequests.drawn(table, trace, seed=draw(st.integers(0, 99)), noise=0.1)
    limits = ChoiceLimits(
        budget_ms=draw(st.sampled_from([0.3, 1.0, 3.0])), energy_mj=draw(st.none() | st.sampled_from([0.1, 0.5]))
    )
    every_s = draw(st.sampled_from([0.0, 0.5]))
    return Simulation(requests=requests, limits=limits, queue=draw(st.integers(1, 5)), every_s=every_s, switch_ms=0.1)


@settings(deadline=None, max_examples=examples(25))
@given(simulations())
def test_every_request_ends_once_and_no_policy_beats_the_clairvoyant(simulation: Simulation) -> None:
    bound = clairvoyant(simulation)
    for name, policy in policies(simulation.requests.table).items():
        outcome = simulation.run(policy)
        assert len(outcome.ends_R) == len(simulation.requests)
        assert sum(outcome.count(end) for end in RequestEnds) == len(simulation.requests)
        rejected = outcome.ends_R == RequestEnds.REJECTED
        np.testing.assert_array_equal(np.isnan(outcome.latency_ms_R), rejected)
        np.testing.assert_array_equal(outcome.accuracy_R == 0, rejected)
        late = outcome.ends_R == RequestEnds.LATE
        assert (outcome.latency_ms_R[late] > simulation.limits.budget_ms - 1e-9).all()
        in_time = outcome.ends_R == RequestEnds.IN_TIME
        assert (outcome.latency_ms_R[in_time] <= simulation.limits.budget_ms + 1e-9).all()
        if name != "first":  # it may break the limit of energy
            assert outcome.accuracy <= bound.accuracy
            assert outcome.attainment <= bound.attainment


@settings(deadline=None, max_examples=examples(40))
@given(simulations(), st.data())
def test_one_variant_is_served_as_a_queue_of_one_server_says(simulation: Simulation, data: st.DataObject) -> None:
    requests, budget_ms = simulation.requests, simulation.limits.budget_ms
    variant = data.draw(st.integers(0, len(requests.table) - 1))
    outcome = simulation.run(FixedChoice(MostAccurate(VariantLookUp(requests.table)), variant))
    load_class = requests.table.load_class_V[variant]
    free_s, begun_s, expected = 0.0, list[float](), list[RequestEnds]()
    for arrival_s, factor in zip(requests.trace.arrivals_s, requests.factor_CR[load_class], strict=True):
        begins_s = max(free_s, arrival_s)
        waiting = sum(start_s >= arrival_s for start_s in begun_s[-20:])
        if waiting >= simulation.queue and free_s > arrival_s:
            expected.append(RequestEnds.REJECTED)
            continue
        begun_s.append(begins_s)
        left_ms = budget_ms - (begins_s - arrival_s) * 1e3
        service_ms = float(requests.latency_ms_V[variant] * factor)
        expected.append(RequestEnds.REJECTED if left_ms <= 0 else RequestEnds(int(service_ms > left_ms)))
        free_s = begins_s if left_ms <= 0 else begins_s + service_ms * 1e-3
    assert outcome.ends_R.tolist() == [int(end) for end in expected]


def curve(pattern: Pattern = "steps", seed: int = 3) -> Simulation:
    trace = trace_of(pattern, seed=seed, duration_s=60.0, arrivals=RequestArrivals(requests_per_s=20.0))
    requests = SimulatedRequests.drawn(CURVE, trace, seed=seed)
    return Simulation(requests=requests, limits=ChoiceLimits(budget_ms=30.0), every_s=0.1)


def test_a_simulated_run_replays_from_its_log(tmp_path: Path) -> None:
    file, policy = tmp_path / "decisions.jsonl", policies(CURVE)["ours"]
    with DecisionLog(file, CURVE, ChoiceState()) as log:
        first = curve().run(policy, log.append)
    assert replay(file, CURVE, policy) > 300
    again = curve().run(policy)
    np.testing.assert_array_equal(first.latency_ms_R, again.latency_ms_R)
    assert first.switches == again.switches > 0


def test_the_best_static_variant_is_that_of_trying_all() -> None:
    simulation = curve()
    objective = MostAccurate(VariantLookUp(CURVE))
    outcomes = {each: simulation.run(FixedChoice(objective, each)) for each in range(len(CURVE))}
    for attainment in (0.5, 0.9, 1.0):
        enough = {each: outcome.accuracy for each, outcome in outcomes.items() if outcome.attainment >= attainment}
        assert best_static(simulation, attainment)[0] == max(enough, key=enough.__getitem__)
    tight = Simulation(requests=simulation.requests, limits=ChoiceLimits(budget_ms=4.0))
    found = best_static(tight, 1.0)[1].attainment
    assert found == max(tight.run(FixedChoice(objective, each)).attainment for each in range(len(CURVE)))


def test_policies_are_compared_with_the_best_that_was_possible() -> None:
    rows = {row.name: row for row in compare(curve(), policies(CURVE), like="ours")}
    static = next(row for name, row in rows.items() if name.startswith("always "))
    assert rows["clairvoyant"].regret_points == 0
    assert rows["ours"].regret_points == pytest.approx(
        (rows["clairvoyant"].outcome.accuracy - rows["ours"].outcome.accuracy) * 100
    )
    assert 0 <= rows["ours"].regret_points < static.regret_points
    assert static.outcome.attainment >= rows["ours"].outcome.attainment or static.outcome.attainment > 0.99


def test_measures_of_an_outcome() -> None:
    ends = [RequestEnds.IN_TIME, RequestEnds.LATE, RequestEnds.IN_TIME, RequestEnds.REJECTED]
    outcome = SimulatedOutcome(
        ends_R=np.array(ends),
        accuracy_R=np.array([0.5, 1.0, 1.0, 0.0]),
        latency_ms_R=np.array([1.0, 9.0, 2.0, np.nan]),
        duration_s=120.0,
        switches=4,
    )
    assert (outcome.attainment, outcome.accuracy, outcome.served_accuracy) == (0.5, 0.375, 0.75)
    assert (outcome.mean_ms, outcome.quantile_ms(0.5), outcome.switches_per_minute) == (4.0, 2.0, 2.0)


def test_a_trace_with_too_few_classes_is_refused() -> None:
    table = CURVE.model_copy(update={"load_class": (0, 1) * 4})
    with pytest.raises(AdaptiveError, match="trace 'steps': slow-down of 1 load classes; allowed: 2, as in the table"):
        SimulatedRequests.drawn(table, trace_of("steps", seed=0, duration_s=5.0), seed=0)
