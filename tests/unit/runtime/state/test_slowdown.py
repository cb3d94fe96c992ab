"""The slow-down factor follows steps, bears outliers, and is each variant's own only where data show it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.state.factors import PLACES
from adaptive_runtime.state.slowdown import SlowDown, SlowestRequests
from tests.support import examples

SEEDS = st.integers(0, 2**32 - 1)
NOISE = 0.04
EVERY_S = 0.03
STEP_REQUESTS = 3
"""After so many requests a step is followed to within `FOLLOWED`, the logarithm of the factor."""
FOLLOWED = 0.2


class Served:
    """A run of requests of variants, on a machine whose slow-down a test sets."""

    def __init__(self, predicted_ms: list[float], seed: int, own: list[float] | None = None) -> None:
        self.slow = SlowDown(predicted_ms)
        self._predicted_ms, self._rng = predicted_ms, np.random.default_rng(seed)
        self._own = own or [0.0] * len(predicted_ms)
        self.at_s = 1000.0

    def serve(self, variant: int, factor: float, requests: int = 1, load: float | None = None) -> None:
        for _ in range(requests):
            self.at_s += EVERY_S
            value = np.log(factor) + self._own[variant] + NOISE * self._rng.normal()
            self.slow.observe(variant, self._predicted_ms[variant] * float(np.exp(value)), self.at_s, load)

    def log_mean(self, variant: int, load: float | None = None) -> float:
        """Of measured over predicted latency."""
        found = self.slow.expect(load)
        whole = found.predicted_ms_V[variant] / self._predicted_ms[variant]
        return float(found.log_mean_V[variant] + np.log(whole))


@given(factor=st.floats(1.25, 8), seed=SEEDS, faster=st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_a_step_is_followed_within_three_requests(factor: float, seed: int, faster: bool) -> None:
    run = Served([10.0, 20.0], seed)
    run.serve(1, factor if faster else 1.0, 50)
    new = 1.0 if faster else factor
    run.serve(1, new, STEP_REQUESTS)
    assert abs(run.log_mean(1) - np.log(new)) <= FOLLOWED
    assert abs(run.log_mean(0) - np.log(new)) <= FOLLOWED, "variants that were not served, too"


@given(factor=st.floats(2, 100), seed=SEEDS, after=st.integers(10, 60))
@settings(max_examples=examples(40), deadline=None)
def test_a_single_outlier_moves_the_factor_little_and_not_for_long(factor: float, seed: int, after: int) -> None:
    run = Served([10.0], seed)
    run.serve(0, 1.0, after)
    before = run.log_mean(0)
    run.serve(0, factor)
    assert abs(run.log_mean(0) - before) <= 0.2
    run.serve(0, 1.0, 10)
    assert abs(run.log_mean(0)) <= 0.12


@given(seed=SEEDS, outliers=st.integers(2, 12))
@settings(max_examples=examples(15), deadline=None)
def test_outliers_now_and_then_leave_the_factor_in_place(seed: int, outliers: int) -> None:
    run = Served([10.0], seed)
    run.serve(0, 1.0, 30)
    for _ in range(outliers):
        run.serve(0, 3.0)
        run.serve(0, 1.0, 8)
    assert abs(run.log_mean(0)) <= 0.1


@given(factor=st.floats(1.5, 6), seed=SEEDS, each=st.integers(1, 10), q=st.sampled_from([0.9, 0.95]))
@settings(max_examples=examples(20), deadline=None)
def test_under_a_load_that_comes_and_goes_none_is_expected_slower_than_the_slowest(
    factor: float, seed: int, each: int, q: float
) -> None:
    run, most_ms = Served([10.0, 5.0], seed), factor * 10.0 * np.exp(5 * NOISE)
    for request in range(100):
        run.serve(0, factor if request // each % 2 else 1.0)
        if request > 60:
            long_ms, short_ms = run.slow.expect().quantile_ms_V(q)
            assert 10.0 * np.exp(-5 * NOISE) < long_ms < 1.05 * most_ms
            assert short_ms < 1.05 * (5.0 + most_ms - 10.0), "what was added to the long one may be added to it"


def test_the_slowest_of_too_few_requests_says_nothing() -> None:
    slowest, quiet_ms_V = SlowestRequests(), np.array([10.0, 20.0, 40.0])
    for _ in range(59):
        slowest.observe(30.0, 20.0)
    assert np.isinf(slowest.factors_V(quiet_ms_V, 0.95)).all()
    slowest.observe(30.0, 20.0)
    np.testing.assert_allclose(slowest.factors_V(quiet_ms_V, 0.95), 1.05 * np.array([2.0, 1.5, 1.5]))
    assert np.isinf(slowest.factors_V(quiet_ms_V, 0.99)).all()
    for _ in range(60):
        slowest.observe(20.0, 20.0)
    np.testing.assert_allclose(slowest.factors_V(quiet_ms_V, 0.95), 1.05)


def wandered(own: list[float], seed: int, visits: int) -> Served:
    """Variants at random, 20 requests each, while the load steps between and during visits."""
    rng = np.random.default_rng(seed)
    run = Served([10.0] * len(own), seed, own)
    factor = 1.0
    for visit in range(visits):
        variant = int(rng.integers(len(own)))
        run.serve(variant, factor, 10)
        if visit % 2:
            factor = float(rng.choice([1.0, 1.4, 2.0, 3.0]))
        run.serve(variant, factor, 10)
    return run


def test_alike_variants_seldom_get_own_factors() -> None:
    used = [wandered([0.0] * 3, seed, 30).slow.expect().own_V.mean() for seed in range(12)]
    assert np.mean(used) <= 0.1


@pytest.mark.parametrize("size", [0.25, 0.4])
def test_a_variant_that_reacts_differently_gets_its_own_factor(size: float) -> None:
    right = 0
    for seed in range(8):
        found = wandered([0.0, 0.0, size], seed, 40).slow.expect()
        others = float(found.log_mean_V[:2].mean())
        right += bool(found.own_V[2]) and abs(float(found.log_mean_V[2]) - others - size) <= 0.4 * size
    assert right >= 7


def test_two_variants_that_differ_are_told_apart_whichever_is_served() -> None:
    run = wandered([0.0, 0.3], 5, 40)
    run.serve(0, 1.0, 10)
    assert run.log_mean(0) == pytest.approx(0.0, abs=0.06)
    assert run.log_mean(1) == pytest.approx(0.3, abs=0.12)
    run.serve(1, 1.0, 1)
    assert run.log_mean(1) == pytest.approx(0.3, abs=0.12)


def test_what_was_never_served_is_less_certain() -> None:
    run = Served([10.0, 20.0], 0)
    run.serve(0, 1.5, 50)
    found = run.slow.expect()
    assert not found.own_V.any()
    assert found.log_deviation_V[1] > 1.5 * found.log_deviation_V[0]


def test_many_variants_share_the_places_of_the_filter() -> None:
    run = Served([10.0] * (2 * PLACES), 0)
    for variant in range(2 * PLACES):
        run.serve(variant, 1.2, 2)
    found = run.slow.expect()
    assert np.isfinite(found.log_deviation_V).all()
    np.testing.assert_allclose(found.log_mean_V, np.log(1.2), atol=0.15)


def test_a_foreseen_rise_of_the_load_raises_factors_before_requests_show_it() -> None:
    rng = np.random.default_rng(0)
    run = Served([10.0, 30.0], 0)
    for _ in range(60):
        load = float(rng.random())
        run.serve(0, float(np.exp(1.2 * load)), 8, load)
    run.serve(0, float(np.exp(1.2 * 0.1)), 8, 0.1)
    assert run.log_mean(0) == pytest.approx(0.12, abs=0.06)
    assert run.log_mean(1, load=0.9) == pytest.approx(1.2 * 0.9, abs=0.25)
    assert run.log_mean(0, load=0.1) == run.log_mean(0)


@given(seed=SEEDS, factor=st.sampled_from([1.5, 3.0, 6.0]))
@settings(max_examples=examples(20), deadline=None)
def test_a_load_that_comes_and_goes_is_foreseen_when_it_comes_for_the_third_time(seed: int, factor: float) -> None:
    run = Served([10.0, 30.0], seed)
    run.serve(0, 1.0, 6, load=0.1)
    for _ in range(2):
        assert run.log_mean(1, load=0.9) == run.log_mean(1)
        run.serve(0, factor, 6, load=0.9)
        run.serve(0, 1.0, 6, load=0.1)
    assert run.log_mean(1, load=0.9) == pytest.approx(np.log(factor), abs=0.35)


@given(seed=SEEDS)
@settings(max_examples=examples(10), deadline=None)
def test_a_load_that_has_no_effect_changes_factors_little(seed: int) -> None:
    rng = np.random.default_rng(seed)
    run = Served([10.0], seed)
    for _ in range(60):
        run.serve(0, 1.3, 4, float(rng.random()))
    assert abs(run.log_mean(0, load=1.0) - run.log_mean(0, load=0.0)) <= 0.15


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95])
def test_quantiles_hold_for_requests_to_come(q: float) -> None:
    run = Served([10.0], 1)
    within = []
    rng = np.random.default_rng(1)
    for visit in range(1500):
        bound_ms = run.slow.expect().quantile_ms_V(q)[0]
        spike = 1.5 if rng.random() < 0.03 else 1.0
        factor = spike * (1.0 + 0.5 * (visit // 500))
        latency_ms = 10.0 * factor * float(np.exp(NOISE * rng.normal()))
        run.at_s += EVERY_S
        run.slow.observe(0, latency_ms, run.at_s)
        within.append(latency_ms <= bound_ms)
    assert np.mean(within[300:]) == pytest.approx(q, abs=0.04)


@given(seed=SEEDS)
@settings(max_examples=examples(10), deadline=None)
def test_quantiles_rise_with_the_share_and_latency_with_the_prediction(seed: int) -> None:
    run = Served([10.0, 20.0, 40.0], seed)
    run.serve(1, 1.5, 20)
    found = run.slow.expect()
    quantiles_QV = np.stack([found.quantile_ms_V(q) for q in (0.1, 0.5, 0.9, 0.99)])
    assert (np.diff(quantiles_QV, axis=0) > 0).all()
    assert (np.diff(quantiles_QV, axis=1) > 0).all()
    mean_V, variance_V = found.factors_V()
    np.testing.assert_allclose(found.mean_ms_V(), mean_V * found.predicted_ms_V)
    assert (found.predicted_ms_V >= [10, 20, 40]).all()
    assert (variance_V > 0).all()


def test_a_level_by_which_nothing_runs_goes_back_to_the_average() -> None:
    """Five slow requests end a time of quiet ones; then none is served, as where another device takes over."""
    slow = SlowDown([10.0])
    for request in range(45):
        slow.observe(0, 30.0 if request >= 40 else 10.0, 0.5 * request)
    at_once, later, much_later = (slow.expect(at_s=22.0 + idle_s).mean_ms_V()[0] for idle_s in (0.1, 10.0, 100.0))
    assert at_once > 25
    assert much_later < 14 < later < at_once


def test_time_without_requests_makes_factors_less_certain_and_a_clock_that_jumps_back_does_nothing() -> None:
    run = Served([10.0], 0)
    run.serve(0, 1.5, 50)
    now, later, earlier = (
        float(run.slow.expect(at_s=run.at_s + passed).log_deviation_V[0]) for passed in (0.0, 30.0, -1e6)
    )
    assert later > 2 * now
    assert earlier == now
    run.at_s -= 1e6
    run.serve(0, 1.5, 5)
    assert abs(run.log_mean(0) - np.log(1.5)) <= 0.1


@pytest.mark.parametrize(
    ("variant", "measured_ms", "line"),
    [(2, 1.0, "variant 2; allowed: 0 to 1"), (-1, 1.0, "variant -1"), (0, 0.0, "0.0 ms"), (0, float("nan"), "nan ms")],
)
def test_a_request_that_cannot_be_is_refused(variant: int, measured_ms: float, line: str) -> None:
    with pytest.raises(AdaptiveError, match=line):
        SlowDown([1.0, 2.0]).observe(variant, measured_ms, 0.0)


def test_predictions_must_be_latencies() -> None:
    with pytest.raises(AdaptiveError, match="not above 0; measure it again"):
        SlowDown([1.0, 0.0])
    with pytest.raises(AdaptiveError, match="allowed: one latency for each variant"):
        SlowDown([])


def test_what_a_request_takes_beside_its_run_is_learned_and_weighs_most_for_the_fastest() -> None:
    predicted_ms, beside_ms, rng = [1.0, 4.0, 16.0], 0.8, np.random.default_rng(0)
    slow, at_s, factor = SlowDown(predicted_ms), 1000.0, 1.5
    for visit in range(40):
        variant = visit % 3
        for _ in range(8):
            at_s += EVERY_S
            measured_ms = factor * (predicted_ms[variant] + beside_ms) * float(np.exp(NOISE * rng.normal()))
            slow.observe(variant, measured_ms, at_s)
    found = slow.expect()
    beside_ms_V = found.predicted_ms_V - predicted_ms
    assert beside_ms_V == pytest.approx([beside_ms_V[0]] * 3)
    assert 0.4 * beside_ms <= beside_ms_V[0] <= 1.6 * beside_ms
    np.testing.assert_allclose(found.mean_ms_V() / (factor * (np.array(predicted_ms) + beside_ms)), 1.0, atol=0.15)


def test_a_request_of_several_runs_counts_as_one_of_its_first_variant() -> None:
    together, alone = SlowDown([2.0, 8.0]), SlowDown([2.0, 8.0])
    for request in range(20):
        together.observe_runs([1, 1, 0], 3.0 * 18.0, 0.1 * request)
        alone.observe(1, 3.0 * 8.0, 0.1 * request)
    np.testing.assert_allclose(together.expect().mean_ms_V(), alone.expect().mean_ms_V())
