"""Decisions of a roll-out: what they promise, and what they wait for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.operations.fleet.decision import (
    RandomisationTest,
    RolloutDecision,
    StageRecord,
    TelemetrySums,
    decide,
    draw_stage,
    drawn_divisions,
    losses,
    rank_scores,
    spent,
)
from tasks.operations.fleet.settings import LossLimits, RolloutSettings

DEVICES = 300
KINDS = ["phone"] * 200 + ["camera"] * 100
REQUESTS = 400.0
QUICK = RolloutSettings(stages=(0.1,), missed=(0.01,), least_windows=3, most_windows=12, windows_before=6)


def sums_of(
    rng: np.random.Generator, *, slower: float = 0.0, less_sure: float = 0.0, windows: int = 1
) -> TelemetrySums:
    """Windows of a calm fleet (1, N), with a loss of all devices."""
    known = np.full((1, DEVICES), REQUESTS * windows)
    log_latency = known * (2.0 + slower + rng.normal(0, 0.05, known.shape))
    confidence = known * (0.8 - less_sure + rng.normal(0, 0.004, known.shape))
    in_time = rng.binomial(known.astype(int), 0.97).astype(float)
    return TelemetrySums(
        known, log_latency, in_time, confidence, 0 * known, 0 * known, np.full((1, DEVICES), float(windows))
    )


def decided(windows: int, *, slower: float = 0.0, less_sure: float = 0.0, faulty: int = 0) -> RolloutDecision:
    """After so many windows with a bundle that is worse by so much. faulty: devices that tell nonsense."""
    rng = np.random.default_rng(3)
    plan = draw_stage(KINDS, np.zeros(DEVICES, dtype=bool), 0, QUICK, rng)
    before = sums_of(rng, windows=QUICK.windows_before)
    seen = []
    for _ in range(windows):
        worse, equal = sums_of(rng, slower=slower, less_sure=less_sure), sums_of(rng)
        window = TelemetrySums(*(np.where(plan.treated_N, bad, good) for bad, good in zip(worse, equal, strict=True)))
        window.log_latency[0, :faulty] *= 1e6 * rng.random(faulty)
        window.confidence[0, :faulty] = REQUESTS * rng.random(faulty)
        seen.append(window)
    return decide(
        QUICK,
        StageRecord(plan, before, seen, np.where(plan.treated_N, windows * REQUESTS, 0.0)),
        np.random.default_rng(0),
    )


def test_a_bundle_that_changes_nothing_goes_on_after_the_least_windows() -> None:
    assert decided(2).action == "wait"
    assert decided(3) == ("go on", "harmless in all measures after 3 windows", None)


@pytest.mark.parametrize(("loss", "measure"), [({"slower": 0.18}, "latency"), ({"less_sure": 0.02}, "confidence")])
@pytest.mark.parametrize("faulty", [0, 15])
def test_a_harmful_bundle_is_halted_with_its_measure_whatever_some_devices_tell(
    loss: dict[str, float], measure: str, faulty: int
) -> None:
    found = decided(3, faulty=faulty, **loss)
    assert (found.action, found.measure) == ("halt", measure)


def test_a_tolerated_loss_is_no_reason_to_halt() -> None:
    assert decided(12, slower=0.04, less_sure=0.004).action == "go on"


def test_where_it_is_neither_worse_nor_shown_harmless_a_person_is_asked() -> None:
    near = QUICK.model_copy(update={"limits": {"latency": LossLimits(tolerated=0.19, harmful=0.2)}})
    rng = np.random.default_rng(1)
    plan = draw_stage(KINDS, np.zeros(DEVICES, dtype=bool), 0, near, rng)
    worse = [sums_of(rng, slower=float(np.log(1.195))) for _ in range(12)]
    seen = [
        TelemetrySums(*(np.where(plan.treated_N, *both) for both in zip(one, sums_of(rng), strict=True)))
        for one in worse
    ]
    record = StageRecord(plan, sums_of(rng, windows=6), seen, np.where(plan.treated_N, 12 * REQUESTS, 0.0))
    found = decide(near, record, np.random.default_rng(0))
    line = "not yet shown to be harmless: latency, after the most windows (12)"
    assert (found.action, found.reason) == ("ask", line)


def test_a_bundle_that_devices_do_not_run_does_not_go_on() -> None:
    rng = np.random.default_rng(3)
    plan = draw_stage(KINDS, np.zeros(DEVICES, dtype=bool), 0, QUICK, rng)
    seen = [sums_of(rng) for _ in range(4)]
    record = StageRecord(plan, sums_of(rng, windows=6), seen, np.zeros(DEVICES))
    assert decide(QUICK, record, np.random.default_rng(0)) == ("wait", "0 of 30 devices run the bundle", None)


def test_what_is_wrong_on_one_kind_alone_halts_the_bundle() -> None:
    rng = np.random.default_rng(3)
    plan = draw_stage(KINDS, np.zeros(DEVICES, dtype=bool), 0, QUICK, rng)
    bad_N = plan.treated_N & (np.array(KINDS)[plan.compared_N] == "camera")
    seen = [
        TelemetrySums(*(np.where(bad_N, *both) for both in zip(sums_of(rng, slower=0.3), sums_of(rng), strict=True)))
    ]
    record = StageRecord(plan, sums_of(rng, windows=6), seen * 3, np.where(plan.treated_N, REQUESTS, 0.0))
    assert decide(QUICK, record, np.random.default_rng(0)).measure == "latency"


def test_a_bundle_after_which_devices_fall_silent_is_halted() -> None:
    rng = np.random.default_rng(3)
    plan = draw_stage(KINDS, np.zeros(DEVICES, dtype=bool), 0, QUICK, rng)
    window = TelemetrySums(*(np.where(plan.treated_N, 0.0, sums) for sums in sums_of(rng)))
    record = StageRecord(plan, sums_of(rng, windows=6), [window] * 3, np.zeros(DEVICES))
    assert decide(QUICK, record, np.random.default_rng(0)).measure == "heard"


def test_a_stage_takes_its_share_of_each_kind_and_no_device_twice() -> None:
    settings = RolloutSettings()
    rng = np.random.default_rng(0)
    taken = np.zeros(DEVICES, dtype=bool)
    first = draw_stage(KINDS, taken, 0, settings, rng)
    assert len(first.added) == settings.least_devices
    taken[first.added] = True
    second = draw_stage(KINDS, taken, 1, settings, rng)
    assert not taken[second.added].any()
    taken[second.added] = True
    assert (taken[:200].sum(), taken[200:].sum()) == (20, 10)
    assert set(second.compared_N) == set(range(DEVICES)) - set(first.added)
    few = draw_stage(KINDS, np.zeros(DEVICES, dtype=bool), 1, settings.model_copy(update={"most_compared": 40}), rng)
    assert (few.treated_N.sum(), len(few.compared_N)) == (20, 40)


def test_divisions_have_as_many_devices_of_each_kind_as_the_real_one() -> None:
    kind_N, treated_N = np.array([0, 0, 0, 1, 1]), np.array([True, False, False, True, False])
    found_BN = drawn_divisions(kind_N, treated_N, 400, np.random.default_rng(0))
    assert found_BN[0].tolist() == treated_N.tolist()
    assert set(found_BN[:, :3].sum(1)) == set(found_BN[:, 3:].sum(1)) == {1.0}
    assert len(np.unique(found_BN, axis=0)) == 6, "all divisions come"


def test_ranks_are_within_kinds_and_unknown_values_count_nothing() -> None:
    found_RN = rank_scores(np.array([[5.0, 1.0, 5.0, np.nan, 1e9, -1e9]]), np.array([0, 0, 0, 0, 1, 1]))
    np.testing.assert_allclose(found_RN, [[0.125, -0.25, 0.125, 0.0, 1 / 6, -1 / 6]], atol=1e-12)


@given(st.integers(0, 2**31), st.sampled_from([0.02, 0.1]), st.integers(1, 9))
def test_all_looks_together_remove_no_more_than_the_level(seed: int, level: float, looks: int) -> None:
    rng = np.random.default_rng(seed)
    kind_N, treated_N = np.arange(12) // 6, np.arange(12) % 3 < 1
    test = RandomisationTest(
        drawn_divisions(kind_N, treated_N, 199, rng), kind_N, level, looks=looks, rollouts=3, by_kind=True
    )
    for _ in range(looks):
        test.look(rng.integers(0, 4, (3, 12)).astype(float))
    assert (~test._left_RB).sum(1).max() <= level * 200


@pytest.mark.parametrize("by_kind", [False, True])
def test_false_alarms_keep_their_level_over_looks_that_depend_on_each_other(by_kind: bool) -> None:
    rng = np.random.default_rng(0)
    kind_N, treated_N = np.arange(60) // 20, np.arange(60) % 10 < 1
    divisions_BN = drawn_divisions(kind_N, treated_N, 999, rng)
    test = RandomisationTest(divisions_BN, kind_N, 0.1, looks=10, rollouts=1000, by_kind=by_kind)
    walk_RN, alarms = np.zeros((1000, 60)), 0
    for _ in range(10):
        walk_RN += rng.standard_t(1, walk_RN.shape)
        alarms += test.look(rank_scores(walk_RN, kind_N)).sum()
    assert 60 <= alarms <= 130, "1,000 roll-outs at a level of 10 %, whose standard deviation is 9.5"
    assert spent(1.0) == pytest.approx(1.0)


def test_losses_are_against_the_device_itself() -> None:
    one = np.ones((1, 2))
    before = TelemetrySums(100 * one, 300 * one, 90 * one, 80 * one, 0 * one, 0 * one, 4 * one)
    since = TelemetrySums(
        np.array([[50.0, 5]]), 160 * one, 40 * one, 39 * one, 40 * one, 30 * one, np.array([[2.0, 1]])
    )
    found = losses(before, since, (4, 2), 30)
    assert found["latency"][0, 0] == pytest.approx(0.2)
    assert found["in_time"][0, 0] == pytest.approx(0.1)
    assert found["confidence"][0, 0] == pytest.approx(0.02)
    assert np.isnan(found["agreement"]).all(), "nothing was labelled before"
    assert np.isnan(found["latency"][0, 1]), "5 requests say nothing"
    assert found["heard"].tolist() == [[0.0, 0.5]]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"stages": (0.1, 0.01)}, "each larger than the one before"),
        ({"missed": (0.1,)}, "a probability between 0 and 1 for each stage"),
        ({"least_windows": 73}, "above most_windows"),
        ({"draws": 99}, "too few for false_alarms 0.05: from 200 on"),
        ({"limits": {"latency": {"tolerated": 0.2, "harmful": 0.1}}}, "not below harmful"),
        ({"limits": {"energy": {"tolerated": 0.1, "harmful": 0.2}}}, "Input should be"),
    ],
)
def test_settings_that_cannot_decide_are_refused(fields: dict[str, object], line: str) -> None:
    with pytest.raises(ValidationError, match=line):
        RolloutSettings.model_validate(fields)
