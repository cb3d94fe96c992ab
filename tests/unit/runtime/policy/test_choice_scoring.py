"""The highest score is that of trying all variants, whatever the weights are; weights follow battery and preferences."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import (
    BatteryMu,
    BestScore,
    ChoiceLimits,
    ChoiceState,
    CriterionWeights,
    DecisionInputs,
    LeastCost,
    LoadFactors,
    MostAccurate,
    PairwisePreferences,
    ScoredObjectives,
    Switching,
    VariantLookUp,
    VariantTable,
)
from adaptive_runtime.policy.scoring import ACCURACY_FIRST, CRITERIA, KEPT_ORDERS, LATENCY_FIRST, SCALE, STEPS
from benchmarks.lookup import limits_of, table_of
from tests.support import examples
from tests.support.runtime.variants import THREE, limits, load_factors, preference, tables

weight = st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0])
all_weights = st.builds(CriterionWeights, weight, weight, weight, weight).filter(any)


def answers(look_up: VariantLookUp) -> list[int]:
    """Variants of which no other one of their class is at least as good in everything, by trying all pairs."""
    table, errors = look_up.table, look_up.error_V
    costs_V5 = np.stack(
        [-table.accuracy_V, table.latency_ms_V, table.energy_mj_V, table.memory_mib_V, np.zeros(len(table))], 1
    )
    same_VV = (table.load_class_V[:, None] == table.load_class_V) & (errors[:, None] == errors)
    better_VV = (costs_V5[None] <= costs_V5[:, None]).all(2) & same_VV
    return [
        one
        for one in range(len(table))
        if not any(
            preference(table, other) < preference(table, one) for other in np.flatnonzero(better_VV[one]).tolist()
        )
    ]


def normed(column: tuple[float, ...], variant: int, rows: list[int]) -> float:
    among = [column[row] for row in rows]
    least, most = min(among), max(among)
    return 0.0 if least == most else (column[variant] - least) / (most - least)


def score(table: VariantTable, weights: CriterionWeights, variant: int, rows: list[int]) -> float:
    assert table.energy_mj is not None
    assert table.memory_mib is not None
    columns = table.energy_mj, table.latency_ms, table.memory_mib
    value = weights.accuracy * normed(table.accuracy, variant, rows)
    for each, column in zip(weights[1:], columns, strict=True):
        value -= each * normed(column, variant, rows)
    return value


@settings(deadline=None, max_examples=examples(40))
@given(st.data(), all_weights)
def test_the_highest_score_within_the_limits_is_that_of_trying_all(
    data: st.DataObject, weights: CriterionWeights
) -> None:
    table = data.draw(tables())
    look_up = VariantLookUp(table)
    objective, rows = BestScore.of(look_up, weights), answers(look_up)
    assert sorted(look_up.kept_rows) == rows

    def rank(variant: int) -> tuple[float, ...]:
        return (-score(table, weights, variant, rows), *preference(table, variant))

    for _ in range(3):  # variants with own factors, and such that do not work, come and go
        limit, factors = data.draw(limits), data.draw(load_factors(len(table)))
        without = data.draw(st.frozensets(st.integers(0, len(table) - 1), max_size=len(table) - 1))
        within = [each for each in range(len(table)) if each not in without and look_up.keeps(each, limit, factors)]
        found = objective.find(limit, factors, without)
        assert found.within == bool(within)
        if within:
            assert found.variant == min(within, key=rank)
        else:
            fastest = look_up.under(limit, factors, without)
            assert found.effective_ms == fastest.effective_ms
    one, other = data.draw(st.integers(0, len(table) - 1)), data.draw(st.integers(0, len(table) - 1))
    assert objective.prefers(one, other, LoadFactors()) == (rank(one) < rank(other))
    assert look_up.best(100.0) == min(range(len(table)), key=lambda each: preference(table, each)), "it stays as it was"


@settings(deadline=None, max_examples=examples(20))
@given(st.data(), all_weights)
def test_leaving_out_variants_that_no_state_prefers_changes_no_answer(
    data: st.DataObject, weights: CriterionWeights
) -> None:
    whole = VariantLookUp(data.draw(tables()))
    part = VariantLookUp(whole.kept_table)
    assert len(part.table) == whole.kept == part.kept
    for _ in range(4):
        limit, factors = data.draw(limits), data.draw(load_factors(len(whole.table), most_own=0))
        cost = {"alpha_per_ms": weights.latency, "beta_per_mj": weights.energy, "least_accuracy": weights.accuracy}
        for one, other in (
            (MostAccurate(whole), MostAccurate(part)),
            (BestScore.of(whole, weights), BestScore.of(part, weights)),
            (LeastCost(whole, **cost), LeastCost(part, **cost)),
        ):
            found, again = one.find(limit, factors), other.find(limit, factors)
            assert whole.table.names[found.variant] == part.table.names[again.variant]
            assert found[1:] == again[1:]


def test_a_table_without_replaced_variants_is_ordered_anew_exactly() -> None:
    table = table_of("undominated", 200)
    look_up, mu = VariantLookUp(table), CriterionWeights.of_mu(0.4)
    assert sorted(look_up.kept_rows) == list(range(200))
    score_V, objective = mu.scores_V(table, range(len(table))), BestScore.of(look_up, mu)
    for latency_ms, energy_mj, memory_mib in limits_of(table, 40):
        limit = ChoiceLimits(budget_ms=latency_ms, quantile=0.5, energy_mj=energy_mj, memory_mib=memory_mib)
        within_V = (table.latency_ms_V <= latency_ms) & (table.energy_mj_V <= energy_mj)
        within_V &= table.memory_mib_V <= memory_mib
        found = objective.find(limit, LoadFactors())
        assert found.within == within_V.any()
        if found.within:
            assert score_V[found.variant] == score_V[within_V].max()


def test_a_decision_among_500_variants_is_made_in_microseconds() -> None:
    table = table_of("random", 500)
    objectives = ScoredObjectives(VariantLookUp(table))
    policy = Switching(objectives.of(CriterionWeights.of_mu(0.37)), dwell_s=0.0, most_per_minute=10**6)
    state, taken_us = ChoiceState(), []
    for now_s, (latency_ms, energy_mj, memory_mib) in enumerate(limits_of(table, 300)):
        limit = ChoiceLimits(budget_ms=2 * latency_ms, energy_mj=energy_mj, memory_mib=memory_mib)
        inputs = DecisionInputs(now_s=now_s, limits=limit, factors=LoadFactors(mean=(1.5,), deviation=(0.1,)))
        start_ns = time.perf_counter_ns()
        state = policy(state, inputs).after
        taken_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    assert np.median(taken_us) <= 1000.0  # 100 on a machine of today of which nobody else has a share


def test_mu_goes_from_the_most_frugal_to_the_most_accurate_variant() -> None:
    objectives = ScoredObjectives(VariantLookUp(THREE))
    found = [objectives.of(CriterionWeights.of_mu(mu)) for mu in (0.0, 0.4, 0.75, 1.0)]
    limit, calm = ChoiceLimits(budget_ms=20.0), LoadFactors()
    assert [THREE.names[each.find(limit, calm).variant] for each in found] == ["small", "middle", "large", "large"]
    tight = ChoiceLimits(budget_ms=20.0, energy_mj=2.0)
    assert THREE.names[found[-1].find(tight, calm).variant] == "middle"
    assert THREE.names[found[-1].find(limit, LoadFactors(mean=(3.0,))).variant] == "middle"
    assert THREE.names[objectives.of(LATENCY_FIRST).find(limit, calm).variant] == "small"
    assert objectives.of(CriterionWeights.of_mu(0.4)) is found[1]
    for step in range(KEPT_ORDERS):
        objectives.of(CriterionWeights.of_mu(step / 50))
    assert objectives.of(ACCURACY_FIRST) is not found[-1], "only the last orders are kept"


def test_a_constant_column_does_not_count() -> None:
    flat = THREE.model_copy(update={"energy_mj": (3.0, 3.0, 3.0)})
    np.testing.assert_allclose(CriterionWeights.of_mu(0.5).scores_V(flat, range(3)), [0.0, 0.25, 0.5], rtol=1e-12)
    assert (
        BestScore.of(VariantLookUp(flat), CriterionWeights.of_mu(0.01))
        .find(ChoiceLimits(budget_ms=20.0), LoadFactors())
        .variant
        == 2
    )


@pytest.mark.parametrize(
    ("weights", "line"),
    [
        (CriterionWeights(memory=1.0), "a weight of memory for a table without memory; allowed: 0; measure it"),
        (CriterionWeights(accuracy=-1.0), "weights -1, 0, 0, 0; allowed: 0 and more, one of them above 0"),
        (CriterionWeights(), "weights 0, 0, 0, 0; allowed: 0 and more"),
    ],
)
def test_weights_that_cannot_be_are_one_line(weights: CriterionWeights, line: str) -> None:
    with pytest.raises(AdaptiveError, match=f"^objective: {line}"):
        BestScore.of(VariantLookUp(THREE.model_copy(update={"memory_mib": None})), weights)


def test_mu_falls_with_the_battery_in_steps_and_does_not_flap() -> None:
    battery = BatteryMu()
    assert battery.mu(1.0, False) == battery.mu(None, None) == battery.mu(0.05, True) == 1.0
    assert battery.mu(0.0, False) == 0.2
    assert battery.mu(0.5, False) == 0.6
    mus = [battery.mu(charge / 1000, False) for charge in range(1001)]
    assert all(one <= other for one, other in pairwise(mus))
    assert len(set(mus)) == 81
    held = battery.mu(0.5, False)
    for charge in (0.505, 0.495) * 10:
        assert (held := battery.mu(charge, False, held)) == 0.6
    assert battery.mu(0.48, False, held) == 0.58
    knees = BatteryMu(((0.1, 0.0), (0.3, 0.5), (0.4, 0.5), (0.8, 0.9)))
    for charge in np.linspace(0, 1, 101).tolist():
        between = float(np.interp(charge, [0.1, 0.3, 0.4, 0.8], [0.0, 0.5, 0.5, 0.9]))
        assert knees.mu(charge, None) == pytest.approx(between, abs=0.5001 / STEPS)
    for points in ((), ((0.5, 0.2), (0.4, 0.3)), ((0.0, 0.5), (1.0, 0.4)), ((0.0, 0.5), (1.5, 0.6))):
        with pytest.raises(AdaptiveError, match=r"^mu by battery: .*; allowed: charges from 0 to 1 that rise"):
            BatteryMu(points)
    with pytest.raises(AdaptiveError, match=r"^objective: mu 1\.5; allowed: 0 \(energy alone\) to 1"):
        CriterionWeights.of_mu(1.5)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_preferences_that_follow_from_weights_give_these_weights(shares: list[int]) -> None:
    criteria = CRITERIA[: len(shares)]
    upper = tuple(one / other for at, one in enumerate(shares) for other in shares[at + 1 :])
    found = PairwisePreferences(criteria, upper)
    assert found.consistency_ratio == pytest.approx(0.0, abs=1e-9)
    expected = [share / sum(shares) for share in shares] + [0.0] * (4 - len(shares))
    assert found.weights == pytest.approx(expected, abs=1e-9)


def test_weights_of_a_known_matrix_are_those_of_the_power_method() -> None:
    found = PairwisePreferences(("accuracy", "energy", "latency"), (3.0, 5.0, 2.0))
    weights_N = np.ones(3)
    for _ in range(100):
        weights_N = np.array([[1, 3, 5], [1 / 3, 1, 2], [1 / 5, 1 / 2, 1]]) @ weights_N
        weights_N /= weights_N.sum()
    assert found.weights[:3] == pytest.approx(weights_N, abs=1e-9)
    assert found.consistency_ratio == pytest.approx(0.0032, abs=1e-4)


@settings(deadline=None, max_examples=examples(12))
@given(st.lists(st.sampled_from(SCALE), min_size=6, max_size=6))
def test_contradictions_are_refused_with_the_pair_and_the_value_that_would_fit(upper: list[float]) -> None:
    try:
        PairwisePreferences(CRITERIA, tuple(upper))
        assume(False)
    except AdaptiveError as error:
        line = str(error)
    assert line.startswith("preferences: ")
    pair, value = line.split("; ")[2].removesuffix(")").split(" would fit best (")[0].split(" = ")
    pairs = [f"{one}:{other}" for at, one in enumerate(CRITERIA) for other in CRITERIA[at + 1 :]]
    above, _, below = value.partition("/")
    mended = upper.copy()
    mended[pairs.index(pair)] = int(above) / int(below or 1)
    told = float(line.rsplit("(", 1)[1].removesuffix(")"))
    assert line.startswith(f"preferences: {pair} = ")
    assert ratio(mended) == pytest.approx(told, abs=0.006)
    others = [[*upper[:at], each, *upper[at + 1 :]] for at in range(6) for each in SCALE]
    assert ratio(mended) <= min(map(ratio, others)) + 1e-9


def ratio(upper: list[float]) -> float:
    """Saaty's consistency ratio of four criteria, by the power method."""
    matrix = np.ones((4, 4))
    rows, columns = np.triu_indices(4, 1)
    matrix[rows, columns] = upper
    matrix[columns, rows] = 1 / np.array(upper)
    weights_N = np.ones(4)
    for _ in range(60):
        weights_N = matrix @ weights_N
        weights_N /= weights_N.sum()
    return float((matrix @ weights_N).sum() - 4) / 3 / 0.90


def test_preferences_that_are_no_preferences_are_one_line() -> None:
    with pytest.raises(AdaptiveError, match=r"^preferences, accuracy:energy: 12; allowed: 1/9 to 9"):
        PairwisePreferences(("accuracy", "energy"), (12.0,))
    with pytest.raises(AdaptiveError, match="1 values for the 3 pairs of accuracy, energy, memory; give one for each"):
        PairwisePreferences(("accuracy", "energy", "memory"), (1.0,))
    with pytest.raises(AdaptiveError, match="of 'accuracy'; allowed: 2 to 4 of accuracy, energy, latency, memory"):
        PairwisePreferences(("accuracy",), ())
