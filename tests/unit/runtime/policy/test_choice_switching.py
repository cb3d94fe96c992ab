"""Switching: down at once, up after a wait with a margin, never more often than allowed, and the same again from a log."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import (
    ChoiceLimits,
    ChoicePolicy,
    ChoiceState,
    Decision,
    DecisionInputs,
    DecisionLog,
    LeastCost,
    LoadFactors,
    MostAccurate,
    Switching,
    VariantLookUp,
    VariantTable,
    read_log,
    replay,
)
from adaptive_runtime.policy.choosing import MINUTE_S
from benchmarks.simulation.published import FixedChoice, LoadBandChoice, RatioChoice
from tests.support import examples
from tests.support.runtime.variants import THREE, decided, limits, load_factors, tables

LIMITS = ChoiceLimits(budget_ms=12.0, quantile=0.5)


def at(now_s: float, slow_down: float, limit: ChoiceLimits = LIMITS) -> DecisionInputs:
    factors = LoadFactors(mean=(slow_down,), deviation=(0.0,))
    return DecisionInputs(now_s=now_s, limits=limit, factors=factors, ratio=slow_down, load=slow_down)


def with_inputs(policy: ChoicePolicy, inputs: list[DecisionInputs]) -> list[tuple[DecisionInputs, Decision]]:
    return list(zip(inputs, decided(policy, inputs), strict=True))


@st.composite
def sequences(draw: st.DrawFn) -> tuple[VariantTable, list[DecisionInputs]]:
    table = draw(tables(most=12))
    now_s, inputs = 0.0, []
    for _ in range(draw(st.integers(1, 30))):
        now_s += draw(st.sampled_from([0.0, 0.5, 1.0, 5.0, 30.0]))
        factors, limit = draw(load_factors(len(table), most_own=1)), draw(limits)
        ratio = draw(st.none() | st.sampled_from([0.5, 1.0, 3.0]))
        inputs.append(DecisionInputs(now_s=now_s, limits=limit, factors=factors, ratio=ratio, load=ratio))
    return table, inputs


def policies(table: VariantTable) -> list[ChoicePolicy]:
    look_up = VariantLookUp(table)
    best, cheap = MostAccurate(look_up), LeastCost(look_up, 1.0, 0.5, least_accuracy=0.5)
    bands = LoadBandChoice.measured(cheap, [0.0, 1.0, 2.0, 4.0], [1.0, 1.5, 2.0, 4.0], bands=3)
    return [Switching(best), Switching(cheap), RatioChoice(best), bands, FixedChoice(best, 0)]


@pytest.mark.parametrize("limit", [{"memory_mib": 50.0}, {"energy_mj": 3.0}])
def test_a_variant_that_breaks_a_limit_of_energy_or_memory_alone_is_left_though_no_other_is_faster(
    limit: dict[str, float],
) -> None:
    table = VariantTable(
        names=("lean", "large"),
        accuracy=(0.7, 0.9),
        latency_ms=(10.0, 10.1),
        energy_mj=(2.0, 5.0),
        memory_mib=(20.0, 100.0),
    )
    policy = Switching(MostAccurate(VariantLookUp(table)))
    short = at(100.0, 1.0, ChoiceLimits(budget_ms=5.0, quantile=0.5))
    limited = at(100.0, 1.0, ChoiceLimits(budget_ms=5.0, quantile=0.5, **limit))
    assert [one.variant for one in decided(policy, [at(0.0, 1.0), short])] == [1, 1]
    assert [one.variant for one in decided(policy, [at(0.0, 1.0), limited])] == [1, 0]


@settings(deadline=None, max_examples=examples(60))
@given(sequences(), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([0.0, 1.0, 6.0]), st.integers(1, 6))
def test_switching_keeps_its_promises(
    drawn: tuple[VariantTable, list[DecisionInputs]], margin: float, dwell_s: float, most: int
) -> None:
    table, inputs = drawn
    look_up = VariantLookUp(table)
    policy = Switching(MostAccurate(look_up), margin=margin, dwell_s=dwell_s, most_per_minute=most)
    made = with_inputs(policy, inputs)
    switches_s = [decision.now_s for _, decision in made if decision.step in ("up", "down")]
    for time_s in switches_s:
        assert sum(time_s - MINUTE_S < other <= time_s for other in switches_s) <= most
    for (_, before), (now, decision) in itertools.pairwise(made):
        running, free = before.variant, look_up.under(now.limits, now.factors)
        recent = sum(now.now_s - MINUTE_S < other < now.now_s for other in switches_s)
        fits = look_up.keeps(running, now.limits, now.factors)
        assert (decision.step == "stay") == (decision.variant == running)
        if not fits and free.within and recent + switches_s.count(now.now_s) < most:
            spacious = look_up.under(now.limits.tighter(margin), now.factors)  # down at once
            assert decision.variant == (spacious if spacious.within else free).variant
        if fits and decision.variant != running:
            assert decision.step == "up"
            assert look_up.prefers(decision.variant, running)
            assert look_up.keeps(decision.variant, now.limits.tighter(margin), now.factors)
            waited = [other for _, other in made if now.now_s - dwell_s < other.now_s < now.now_s]
            assert {other.variant for other in waited} <= {running}
            assert all(other.within for other in waited)


def test_a_step_of_load_is_followed_down_at_once_and_up_after_the_wait() -> None:
    policy = Switching(MostAccurate(VariantLookUp(THREE)), margin=0.1, dwell_s=2.0)
    load = [(0, 1.0), (1, 2.0), (2, 1.0), (3, 1.15), (4, 1.0), (5, 1.0), (6, 1.0)]
    made = decided(policy, [at(*each) for each in load])
    assert [decision.name for decision in made] == ["large", "middle", "middle", "middle", "middle", "middle", "large"]
    assert [decision.step for decision in made] == ["start", "down", "stay", "stay", "stay", "stay", "up"]
    assert made[1].reason == (
        "large (90.00%) breaks a limit with 20 ms at 0.5, budget 12 ms; "
        "middle (80.00%) keeps the limits with 10 ms at 0.5, budget 12 ms"
    )
    assert made[3].reason.endswith("less than 10% below it")
    assert made[6].reason.endswith("a better variant has fitted for 2 s")


@pytest.mark.parametrize(
    ("quantile", "told"), [(0.95, "0.95"), (0.9987, "0.999"), (0.9996, "0.9996"), (1 - 1e-9, "0.999999999")]
)
def test_reasons_tell_a_quantile_from_1(quantile: float, told: str) -> None:
    limit = ChoiceLimits(budget_ms=12.0, quantile=quantile)
    (made,) = decided(Switching(MostAccurate(VariantLookUp(THREE))), [at(0, 1.0, limit)])
    assert f" ms at {told}, budget 12 ms" in made.reason


def test_an_up_that_made_a_request_late_makes_the_next_one_wait_twice_as_long() -> None:
    policy = Switching(MostAccurate(VariantLookUp(THREE)), dwell_s=1.0, most_dwell_s=4.0)
    late_s, in_time_s, until_s = (3.5, 6.5, 12.0), (1.0, 18.0), 22.0
    steps = np.arange(0.0, until_s, 0.5).tolist()
    inputs = [
        at(now_s, 2.0 if now_s in (*late_s, *in_time_s) else 1.0)._replace(late=now_s in late_s) for now_s in steps
    ]
    made = decided(policy, inputs)
    assert [decision.now_s for decision in made if decision.step == "down"] == sorted((*late_s, *in_time_s))
    ups_s = [decision.now_s for decision in made if decision.step == "up"]
    calm_s = [max(at_s for at_s in (*late_s, *in_time_s) if at_s < up_s) + 0.5 for up_s in ups_s]
    assert [up_s - since_s for up_s, since_s in zip(ups_s, calm_s, strict=True)] == [1.0, 2.0, 4.0, 4.0, 2.0]


def test_where_nothing_fits_the_fastest_runs_and_is_told() -> None:
    policy = Switching(MostAccurate(VariantLookUp(THREE)))
    first, second = decided(policy, [at(0, 1.0), at(1, 10.0)])
    assert first.within
    assert (second.name, second.within, second.step) == ("small", False, "down")
    assert "small (70.00%) breaks a limit with 20 ms" in second.reason


def test_where_nothing_is_as_sure_as_it_should_be_the_surest_runs() -> None:
    """Not the one that would be fastest at a quantile that cannot be had: it is late half of the time."""
    policy = Switching(MostAccurate(VariantLookUp(THREE)))
    limit = ChoiceLimits(budget_ms=20.0, quantile=1 - 1e-9)
    scatters, is_late = {0: (4.0, 3.0), 1: (4.0, 0.1), 2: (9.0, 0.1)}, {0: (4.0, 3.0), 1: (3.99, 0.1), 2: (9.0, 0.1)}
    calm = at(0.0, 1.0, limit)
    made = decided(
        policy, [calm, *(at(now_s, 1.0, limit)._replace(factors=LoadFactors(own=is_late)) for now_s in (1, 2))]
    )
    assert [one.name for one in made] == ["large", "small", "small"]
    assert (made[1].within, made[1].effective_ms > 20.6) == (False, True), "middle is faster at the quantile"
    on_the_edge = [at(now_s, 1.0, limit)._replace(factors=LoadFactors(own=scatters)) for now_s in (3, 4)]
    assert [one.name for one in decided(policy, [calm, *on_the_edge])] == ["large", "small", "small"]


def test_half_of_the_switches_are_kept_for_switches_down() -> None:
    policy = Switching(MostAccurate(VariantLookUp(THREE)), dwell_s=0.0, most_per_minute=4)
    load = [1.0, 2.0, 1.0, 2.0, 1.0, 5.0, 1.0]
    made = decided(policy, [at(now_s, each) for now_s, each in enumerate(load)])
    assert [decision.name for decision in made] == ["large", "middle", "large", "middle", "middle", "small", "small"]
    assert made[-1].reason.endswith("but 4 switches were in the last minute")


def test_least_cost_keeps_the_accuracy_while_it_can() -> None:
    look_up = VariantLookUp(THREE)
    objective = LeastCost(look_up, alpha_per_ms=1.0, beta_per_mj=0.1, least_accuracy=0.75)
    factors = LoadFactors(mean=(2.0,))
    assert objective.find(LIMITS, factors).variant == 1
    assert objective.cost(1, factors) == 10.2
    assert objective.find(LIMITS.tighter(0.5), factors).variant == 0
    assert not objective.find(LIMITS.tighter(0.9), factors).within
    with pytest.raises(AdaptiveError, match="objective: weights -1 and 0; allowed: 0 and more"):
        LeastCost(look_up, -1.0, 0.0)


@settings(deadline=None, max_examples=examples(60))
@given(st.data())
def test_least_cost_is_that_of_trying_all(data: st.DataObject) -> None:
    table = data.draw(tables())
    look_up = VariantLookUp(table)
    least_accuracy = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    objective = LeastCost(look_up, 0.5, data.draw(st.sampled_from([0.0, 2.0])), least_accuracy)
    limit, factors = data.draw(limits), data.draw(load_factors(len(table)))
    within = [each for each in range(len(table)) if look_up.keeps(each, limit, factors)]
    accurate = [each for each in within if table.accuracy[each] >= least_accuracy]
    found = objective.find(limit, factors)
    if within:
        costs = {each: (objective.cost(each, factors), look_up.place_V[each]) for each in accurate or within}
        assert found.variant == min(costs, key=costs.__getitem__)
    assert found.within == bool(within)


def test_published_policies_take_the_best_by_one_number_at_once() -> None:
    look_up = VariantLookUp(THREE)
    load = [at(now_s, each) for now_s, each in enumerate([1.0, 2.0, 1.0])]
    by_ratio = decided(RatioChoice(MostAccurate(look_up)), load)
    assert [decision.name for decision in by_ratio] == ["large", "middle", "large"]
    assert [decision.step for decision in by_ratio] == ["start", "down", "up"]
    cheap = LeastCost(look_up, 1.0, 0.0, least_accuracy=0.75)
    bands = LoadBandChoice.measured(cheap, [1.0, 1.2, 5.0, 5.2], [1.0, 1.0, 5.0, 5.0], bands=2)
    assert [factors.mean for factors in bands.by_band] == [(1.0,), (5.0,)]
    assert [decision.name for decision in decided(bands, [at(0, 1.0), at(1, 5.0)])] == ["middle", "small"]


@settings(deadline=None, max_examples=examples(30))
@given(sequences())
def test_a_log_replays_to_the_same_decisions(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[VariantTable, list[DecisionInputs]]
) -> None:
    table, inputs = drawn
    for policy in policies(table):
        file = tmp_path_factory.mktemp("log") / "decisions.jsonl"
        made = with_inputs(policy, inputs)
        with DecisionLog(file, table, ChoiceState()) as log:
            for each, decision in made:
                log.append(each, decision)
        (section,) = read_log(file)
        assert [(line.inputs, line.decision) for line in section.decisions] == made
        assert replay(file, table, policy) == len(inputs)


def test_a_log_that_cannot_be_replayed_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    objective = MostAccurate(VariantLookUp(THREE))
    with DecisionLog(file, THREE, ChoiceState()) as log:
        for each, decision in with_inputs(Switching(objective), [at(0, 1.0), at(1, 2.0)]):
            log.append(each, decision)
    whole = file.read_text()
    with pytest.raises(AdaptiveError, match=r"line 2 decided '.*', the replay '.*'; replay it with the policy"):
        replay(file, THREE, FixedChoice(objective, 0))
    with pytest.raises(AdaptiveError, match="line 1 and after were decided with another table"):
        replay(file, THREE.model_copy(update={"accuracy": (0.1, 0.2, 0.3)}), Switching(objective))
    file.write_text(whole[:-20])  # the last line was cut off
    assert replay(file, THREE, Switching(objective)) == 1
    with DecisionLog(file, THREE, ChoiceState()) as log:  # another process goes on
        for each, decision in with_inputs(Switching(objective), [at(0, 2.0), at(1, 2.0), at(2, 2.0)]):
            log.append(each, decision)
    assert [section.line for section in read_log(file)] == [1, 3]
    assert replay(file, THREE, Switching(objective)) == 4
    file.write_text(whole.replace('"step":"start"', '"step":"begin"'))
    with pytest.raises(AdaptiveError, match=r"decisions\.jsonl, line 2: .*step: Input should be"):
        read_log(file)
    file.write_text(whole.split("\n", 1)[1])
    with pytest.raises(AdaptiveError, match="line 1: a decision without a head before it"):
        read_log(file)
    file.write_text("")
    with pytest.raises(AdaptiveError, match="is no log of decisions"):
        read_log(file)
